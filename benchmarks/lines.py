"""What a benchmark finds: one JSON object a line, and all of them in a file that is whole at any time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Lines:
    """Facts, printed and written as they come."""

    def __init__(self) -> None:
        self.file: Path | None = None
        self._all: list[dict[str, Any]] = []

    def say(self, **facts: Any) -> None:
        self._all.append(facts)
        print(json.dumps(facts), flush=True)
        if self.file is not None:
            beside = self.file.with_name(f".{self.file.name}")
            beside.write_text(json.dumps(self._all, indent=1) + "\n")
            beside.replace(self.file)
