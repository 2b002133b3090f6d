"""Files of text that people write, and where in them something is wrong."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from attrs import frozen

from pipecycle.checks import Check
from pipecycle.errors import InputError, shown
from pipecycle.files import reading


@frozen
class Source:
    """The text of a file, and its name for the messages about it."""

    path: Path
    text: str

    @classmethod
    def of(cls, path: Path) -> Source:
        try:
            with reading(path):
                return cls(path, path.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: is not text in UTF-8 (at byte {error.start})") from None

    def at(self, line: int | None) -> str:
        return f"{self.path}{'' if line is None else f', line {line}'}"

    def refuse(self, what: str, line: int | None = None) -> NoReturn:
        raise InputError(f"{self.at(line)}: {what}")

    def cells(self) -> list[tuple[int, list[str]]]:
        """The rows of a CSV file that are not empty, with the numbers of their lines."""
        reader = csv.reader(self.text.splitlines(keepends=True), strict=True)
        try:
            return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
        except csv.Error as error:
            self.refuse(f"is not CSV ({error})", reader.line_num)

    def check(self, key: str, value: Any, rule: Check, line: int | None) -> Any:
        """The value, if the rule allows it."""
        fault = rule.fault(value)
        if fault is not None:
            self.refuse(f"{key} = {shown(value)}: needs {fault}", line)
        return value

    def known(self, key: str, allowed: Sequence[str], line: int | None) -> None:
        if key not in allowed:
            self.refuse(f"{shown(key)}: needs one of {', '.join(allowed)}", line)

    def line(self, key: str, table: str = "", place: int = 0) -> int | None:
        """Where a key of the `place`-th table of a name is, or else that table; TOML's own reader does not tell."""
        inside, seen, begins = "", -1, None
        for count, text in enumerate(self.text.splitlines(), 1):
            header = re.match(r"\s*\[+\s*([\w.-]+)\s*\]+", text)
            named = re.match(r"\s*[\"']?([\w-]+)[\"']?\s*[=.]", text)
            if header:
                inside = header[1]
                seen += inside == table
                if inside == (table or key) and (not table or seen == place):
                    begins = count
            elif named and inside == table and max(seen, 0) == place and named[1] == key:
                return count
            elif named and not inside and named[1] == table:  # an inline table
                begins = count
        return begins
