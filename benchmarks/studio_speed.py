"""From a slider's release to the drawn pipeline, in a real Chromium, for every scheduler.

    python benchmarks/studio_speed.py            # needs Chromium and the playwright package
    python benchmarks/studio_speed.py --small    # 100 clients x 2,000 slots only

The studio runs in a process of its own, as it does for a user. A slider is dragged with the mouse and let go, so that a
plan is often under way when the last one is asked for. Time runs from the browser's `change` event to the message that
follows the frame with the new pipeline. The parts are Python (planning and packing; `cpu` is the processor time of the
same, which other work on the machine hardly touches), the way there and back with waiting for a turn, decoding and
drawing the pipeline, and the wait for its frame. `rest` is what follows: the other pictures in the window, and tables.
All figures are medians."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from playwright.sync_api import sync_playwright

from pipecycle.policies import REGISTRY

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PATIENCE = 120.0
LISTEN = """() => {
  document.addEventListener('change', () => { window.released = performance.now(); }, true);
  document.addEventListener('drawn', (event) => {
    window.seen = { ...event.detail, trial: Studio.plans.a.facts.figures.trial };
  });
}"""
SETTLED = "window.released < Infinity && window.seen?.trial === Studio.state.shared['world.trial']"


def wait(page: Any, condition: str) -> None:
    end = time.monotonic() + PATIENCE
    while not page.evaluate(condition):
        if time.monotonic() > end:
            sys.exit(f"the page never came to: {condition}")
        page.wait_for_timeout(5)


def drag(page: Any, begin: float, end: float) -> dict[str, float]:
    """Drag the slider of trials from one place to another, let go, and wait for the picture."""
    box = page.locator("[data-key='world.trial'] input[type=range]").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.evaluate("window.seen = null, window.released = Infinity, 1")
    page.mouse.move(box["x"] + 8 + begin * (box["width"] - 16), middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 8 + end * (box["width"] - 16), middle, steps=3)
    page.mouse.up()
    wait(page, SETTLED)
    seen, released = page.evaluate("[window.seen, window.released]")
    return {
        "total": max(0.0, seen["painted"] - released),  # the last value of a drag may be drawn before the release
        "python": seen["took"]["all"],
        "cpu": seen["took"]["cpu"],
        "way": seen["received"] - seen["sent"] - seen["took"]["all"],
        "drawing": seen["ready"] - seen["received"],
        "frame": seen["painted"] - seen["ready"],
        "rest": seen["complete"] - seen["painted"],
        "bytes": seen["bytes"],
    }


def measure(page: Any, home: str, policy: str, clients: int, slots: int, times: int) -> dict[str, float]:
    page.goto("about:blank")
    page.goto(f"{home}#clients={clients}&slots={slots}&a={policy.replace('+', '%2B')}")
    wait(page, "document.body.dataset.busy === 'false' && Number(document.body.dataset.drawn) > 0")
    page.locator("[data-key='world.trial']").scroll_into_view_if_needed()
    page.evaluate(LISTEN)
    taken = [drag(page, k / times, (k + 1) / times) for k in range(times)]
    return {key: statistics.median(one[key] for one in taken) for key in taken[0]}


def table(page: Any, home: str, clients: int, slots: int, times: int, goal: float) -> None:
    print(
        f"\n{clients:,} clients x {slots:,} slots, {times} releases each, load {os.getloadavg()[0]:.1f}, milliseconds"
    )
    print(
        f"{'scheduler':<14}{'total':>8}{'python':>8}{'cpu':>8}{'way':>8}{'drawing':>9}{'frame':>8}{'rest':>8}{'kB':>8}"
    )
    rows = {policy: measure(page, home, policy, clients, slots, times) for policy in REGISTRY}
    for policy, row in rows.items():
        print(
            f"{policy:<14}{row['total']:>8.0f}{row['python']:>8.0f}{row['cpu']:>8.0f}{row['way']:>8.0f}{row['drawing']:>9.0f}"
            f"{row['frame']:>8.0f}{row['rest']:>8.0f}{row['bytes'] / 1000:>8.0f}"
        )
    median = statistics.median(row["total"] for row in rows.values())
    worst = max(rows, key=lambda policy: rows[policy]["total"])
    slowest = f"slowest {worst} {rows[worst]['total']:.0f} ms"
    print(f"median over schedulers {median:.0f} ms (goal: under {goal:.0f}), {slowest}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--times", type=int, default=7)
    given = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    command = [sys.executable, "-m", "pipecycle", "studio", "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as studio, sync_playwright() as driver:
        try:
            assert studio.stdout is not None
            address = re.search(r"http://\S+", studio.stdout.readline())
            assert address is not None
            browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.goto(address[0])
            home = address[0].partition("?")[0]
            table(page, home, 100, 2000, given.times, 200)
            if not given.small:
                table(page, home, 10_000, 1000, max(3, given.times // 2), 2000)
            browser.close()
        finally:
            studio.terminate()


if __name__ == "__main__":
    main()
