"""The pictures of docs/studio.md and of the README's studio, from the studio itself in a real Chromium.

    python docs/pictures.py        # or: make pictures; needs Chromium and the playwright package

They land in docs/images.  The plans in them are equal on every machine; fonts and the trained accuracy are not."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from pipecycle.studio.server import Studio
from pipecycle.studio.settings import START, Offer

IMAGES = Path(__file__).parent / "images"
FIRST = "slots=2000&harvest=bernoulli:0.2&a=pipecycle%2B&a.groups=5&b=cycp&b.groups=5"
TWO = "slots=2000&a=pipecycle&a.groups=10&b=pipecycle%2B&b.groups=10"
STALE = "slots=2000&a=fedseq&a.groups=5&b=pipecycle%2B&b.groups=5"
TRAINED = "clients=40&slots=1000&look.every=25&data.alpha=0.1&a=fedseq&a.groups=5&b=pipecycle%2B&b.groups=5"
SECTIONS = {  # file: link, heading of the section
    "studio-pipeline": (TWO, "h-pipeline"),
    "studio-battery": (f"{TWO}&capacity=60&harvest=markov:0.5,40&client=7", "h-battery"),
    "studio-energy": (f"{TWO}&capacity=60&harvest=markov:0.5,40", "h-energy"),
    "studio-stale": (STALE, "h-stale"),
    "studio-coverage": (TWO, "h-coverage"),
}
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def keep(name: str, picture: bytes) -> None:
    """With as many colours as the eye needs, so that the repository stays small."""
    image = (
        Image.open(io.BytesIO(picture))
        .convert("RGB")
        .quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    image.save(IMAGES / f"{name}.png", optimize=True)
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size / 1000:.0f} kB")


def wait(page: Any, condition: str) -> None:
    while not page.evaluate(condition):
        page.wait_for_timeout(50)


def settled(page: Any) -> None:
    wait(page, "document.body.dataset.busy === 'false' && Studio.shown().length === 2")
    page.wait_for_timeout(500)


def visit(browser: Any, studio: Studio, link: str, **options: Any) -> Any:
    page = browser.new_page(**{"viewport": {"width": 1280, "height": 860}, "color_scheme": "light", **options})
    page.goto(f"{studio.address}#{link}")
    settled(page)
    page.evaluate("document.getElementById('status').textContent = ''")  # it says how long planning took here
    return page


def main() -> None:
    runs = Path(tempfile.mkdtemp())
    studio = Studio(Offer(), START, lambda config: runs / config.policy, 0)
    threading.Thread(target=studio.serve_forever, daemon=True).start()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        page = visit(browser, studio, FIRST, viewport={"width": 1280, "height": 1150})
        keep("studio", page.screenshot())
        for name, (link, heading) in SECTIONS.items():
            page = visit(browser, studio, link)
            section = page.locator(f"section[aria-labelledby={heading}]")
            section.scroll_into_view_if_needed()
            page.wait_for_timeout(400)
            keep(name, section.screenshot())
        page = visit(browser, studio, TRAINED)
        page.get_by_role("button", name="Train this").click()
        wait(page, "['finished', 'failed'].includes(document.getElementById('accuracy').dataset.state)")
        page.evaluate("document.getElementById('training-status').textContent = ''")  # it names a folder
        page.wait_for_timeout(400)
        keep("studio-accuracy", page.locator("#accuracy").screenshot())
        phone = {
            "viewport": {"width": 390, "height": 844},
            "color_scheme": "dark",
            "is_mobile": True,
            "has_touch": True,
        }
        page = visit(browser, studio, TWO, device_scale_factor=2, **phone)
        keep("studio-phone", page.screenshot())
        browser.close()
    studio.shutdown()
    studio.server_close()
    shutil.rmtree(runs)


if __name__ == "__main__":
    main()
