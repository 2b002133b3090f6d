"""A studio to visit, and a page of it that remembers what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pipecycle.studio.server import Studio
from pipecycle.studio.settings import START, Offer
from tests.commands import PATIENCE, serving

OWN = """
from attrs import define, field
from pipecycle.checks import at_least
from pipecycle.policies import FedAvg

@define(slots=False, eq=False)
class Moody(FedAvg):
    '''A scheduler that gives up in some slot.'''

    name = "moody"
    mood: int = field(default=0, validator=at_least(0, "slot", most=100))
    '''The slot in which it gives up; 0 for never.'''
    word: str = "calm"
    '''Any word.'''

    def decide(self, slot):
        if self.mood and slot >= self.mood:
            raise RuntimeError(f"the mood is over in slot {slot}")
        super().decide(slot)
"""
SMALL = "clients=20&slots=400&look.every=50"
BOTH = f"{SMALL}&a=pipecycle&a.groups=5&b=fedseq&b.groups=5"


@contextmanager
def running(home: Path) -> Iterator[Studio]:
    """A studio that offers a scheduler of its user's."""
    (home / "own_moody.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.syspath_prepend(str(home))
        server = Studio(
            Offer(("own_moody:Moody",)), f"{SMALL}&{START}", lambda config: home / "runs" / config.policy, 0
        )
        with serving(server):
            yield server


class Visit:
    """A page that remembers what went wrong and whom it asked."""

    def __init__(
        self, browser: Any, studio: Studio, link: str = SMALL + "&a=pipecycle&a.groups=5", **options: Any
    ) -> None:
        self.studio = studio
        self.context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        self.page = self.context.new_page()
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.trouble.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"{studio.address}#{link}")
        self.quiet()

    def until(self, event: Callable[[], object]) -> None:
        """Wait for what an action brings about; evaluated from here, because the page allows no code but its own."""
        end = time.monotonic() + PATIENCE / 5
        while not event():
            assert time.monotonic() < end, self.trouble
            self.page.wait_for_timeout(20)

    def quiet(self) -> None:
        self.until(
            lambda: self.page.evaluate(
                "document.body.dataset.busy === 'false' && Number(document.body.dataset.drawn) > 0"
            )
        )

    def toml(self, side: str = "a") -> str:
        found: str = self.page.evaluate(f"Studio.plans.{side}?.facts.toml ?? ''")
        return found

    def says(self, text: str, side: str = "a") -> None:
        """Wait until everything is drawn from a plan with a line in its configuration."""
        self.until(lambda: text in self.toml(side) and self.page.evaluate("document.body.dataset.busy === 'false'"))

    def control(self, key: str, side: int | None = None) -> Any:
        within = self.page.locator(".scheduler").nth(side) if side is not None else self.page.locator("#controls")
        return within.locator(f"[data-key='{key}']")

    def colours(self, canvas: Any) -> int:
        """Different colours in a picture."""
        found: int = canvas.evaluate(
            """node => { const copy = document.createElement('canvas');
            Object.assign(copy, { width: node.width, height: node.height });
            const context = copy.getContext('2d', { willReadFrequently: true });
            context.drawImage(node, 0, 0);
            return new Set(new Uint32Array(context.getImageData(0, 0, copy.width, copy.height).data.buffer)).size; }"""
        )
        return found

    def stretch(self) -> list[float]:
        found: list[float] = self.page.evaluate("[Studio.time.stretch.from, Studio.time.stretch.to]")
        return found

    def leave(self, refused: int = 0) -> None:
        """`refused` settings were sent; Chromium has a line of its own for each."""
        refusals = [line for line in self.trouble if line.endswith("status of 400 (Bad Request)")]
        assert len(refusals) == refused
        assert [line for line in self.trouble if line not in refusals] == []
        assert {urlsplit(url).netloc for url in self.requests if not url.startswith("blob:")} == {
            f"127.0.0.1:{self.studio.port}"
        }
        self.context.close()
