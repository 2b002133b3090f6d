"""The report in a real browser."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

SHARED = (
    "differences", "slot", "energy", "classes", "holdings", "clients", "target", "purpose", "coverage", "lag",
    "participation",
)  # fmt: skip
LABELS = ["PipeCycle", "FedAvg", "CyCP+SGD"]


class Visit:
    """A page that remembers what went wrong."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.trouble.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def scroll(self) -> None:
        """To the end, so that every plot has been near the window."""
        height = self.page.evaluate("document.documentElement.scrollHeight")
        for top in range(0, height + 600, 600):
            self.page.evaluate("top => scrollTo({top, behavior: 'instant'})", top)
            self.page.wait_for_timeout(30)
        self.page.wait_for_function(
            "[...document.querySelectorAll('.plot')].every(node => node.offsetParent === null || node.data)"
        )

    def until(self, event: Callable[[], object]) -> None:
        """Wait for what an action brings about; the page draws when it gets to it."""
        end = time.monotonic() + 60
        while not event():
            assert time.monotonic() < end
            self.page.wait_for_timeout(20)

    def traces(self, plot: str) -> set[int]:
        """The schedulers that a plot shows."""
        return set(self.page.evaluate(f"document.getElementById('plot-{plot}').data.map(trace => trace.meta)"))

    def range(self, plot: str) -> list[float]:
        found: list[float] = self.page.evaluate(
            f"document.getElementById('plot-{plot}')._fullLayout.xaxis.range.slice()"
        )
        return found


@pytest.fixture
def visit(browser: Any, report: Path) -> Iterator[Visit]:
    visited = Visit(browser, report)
    yield visited
    assert visited.trouble == []
    visited.context.close()


@pytest.fixture(scope="module")
def drawn(browser: Any, report: Path) -> Iterator[Visit]:
    """A page on which everything is drawn, for tests that only look: drawing it takes seconds."""
    visited = Visit(browser, report)
    visited.scroll()
    yield visited
    assert visited.trouble == []
    visited.context.close()


def test_it_loads_in_peace_and_draws_everything(drawn: Visit, report: Path) -> None:
    visit = drawn
    assert visit.requests == [report.as_uri()]
    page = visit.page
    plots = page.locator(".plot").all()
    assert len(plots) == len(SHARED) + 3 * len(LABELS) - page.locator("#relays .reason").count()
    for plot in plots:
        assert plot.locator("svg.main-svg").count() >= 1
        assert plot.get_attribute("role") == "img"
        assert len(plot.get_attribute("aria-label") or "") > 20
    for name in ("slot", "energy", "coverage", "lag", "participation"):
        assert visit.traces(name) == {0, 1, 2}
    assert page.locator("#plot-slot .fills path").count() == len(LABELS)  # the bands
    assert page.locator("#plot-pipeline-0 .bars path").count() > 5
    arrows = page.evaluate(
        "document.getElementById('plot-pipeline-0').data.some(t => t.marker?.symbol?.includes?.('arrow'))"
    )
    assert arrows
    assert page.locator("#plot-battery-0 .hm image").count() == 1
    headings = page.locator("h1, h2").all_inner_texts()
    assert headings[0] == "PipeCycle, FedAvg and CyCP+SGD compared"
    assert "Batteries" in headings


def test_one_switch_hides_a_scheduler_in_every_plot(visit: Visit) -> None:
    visit.scroll()
    page = visit.page
    page.get_by_label("FedAvg", exact=True).uncheck()
    for name in ("slot", "energy", "target", "coverage", "lag", "participation"):
        visit.until(lambda name=name: 1 not in visit.traces(name))
        assert visit.traces(name) >= {0}, name
    labels = "document.getElementById('plot-purpose').data[0].customdata"
    visit.until(lambda: page.evaluate(labels) == ["PipeCycle", "CyCP+SGD"])
    assert page.locator("[data-panel='1']:visible").count() == 0
    assert page.locator("[data-panel='0']:visible").count() == 3
    assert page.locator("#status").inner_text() == "2 of 3 schedulers shown."
    page.get_by_role("button", name="None", exact=True).click()
    visit.until(lambda: visit.traces("slot") == set())
    page.get_by_role("button", name="All", exact=True).click()
    visit.until(lambda: visit.traces("slot") == {0, 1, 2})
    assert page.locator("[data-panel='1']:visible").count() == 3


def test_the_keyboard_reaches_and_works_everything(visit: Visit) -> None:
    page = visit.page
    visit.until(lambda: page.evaluate("Boolean(document.getElementById('plot-slot').data)"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(24):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.group") == "0":
            break
    outline = page.evaluate("getComputedStyle(document.activeElement.closest('label')).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Space")
    visit.until(lambda: 0 not in visit.traces("slot"))
    page.keyboard.press("Space")
    visit.until(lambda: 0 in visit.traces("slot"))
    # Arrow keys pan and +, - and 0 zoom the plot in focus.
    page.focus("#plot-pipeline-0")  # which brings it into view, and so it is drawn
    visit.until(lambda: page.evaluate("Boolean(document.getElementById('plot-pipeline-0').data)"))
    before = visit.range("pipeline-0")
    page.keyboard.press("ArrowRight")
    visit.until(lambda: visit.range("pipeline-0")[0] > before[0])
    moved = visit.range("pipeline-0")
    assert moved[1] - moved[0] == pytest.approx(before[1] - before[0])
    page.keyboard.press("+")
    visit.until(lambda: visit.range("pipeline-0") != moved)
    zoomed = visit.range("pipeline-0")
    assert zoomed[1] - zoomed[0] == pytest.approx((before[1] - before[0]) / 2)
    page.keyboard.press("0")
    visit.until(lambda: visit.range("pipeline-0") == pytest.approx(before))
    button = page.get_by_role("button", name="Later: PipeCycle", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    visit.until(lambda: visit.range("pipeline-0")[0] > before[0])


def test_hovering_tells_the_numbers(drawn: Visit) -> None:
    page = drawn.page
    page.locator("#plot-slot .nsewdrag").scroll_into_view_if_needed()
    box = page.locator("#plot-slot .scatterlayer .point").nth(3).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#plot-slot .hoverlayer text")
    assert "slots" in (page.locator("#plot-slot .hoverlayer").text_content() or "")


def test_the_tool_bar_keeps_everything_here(drawn: Visit) -> None:
    page = drawn.page
    titles = page.eval_on_selector_all("#plot-slot .modebar-btn", "found => found.map(node => node.dataset.title)")
    assert titles == ["Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]
    page.hover("#plot-slot .nsewdrag")
    with page.expect_download() as download:
        page.locator("#plot-slot .modebar-btn").first.click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("width", [320, 400])
def test_a_phone_does_not_scroll_sideways(browser: Any, report: Path, width: int) -> None:
    visited = Visit(
        browser, report, viewport={"width": width, "height": 740}, is_mobile=True, has_touch=True, device_scale_factor=2
    )
    visited.scroll()
    page = visited.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.evaluate(
        "w => [...document.querySelectorAll('.plot')].filter(n => n.getBoundingClientRect().right > w + 1).length",
        width,
    )
    assert wide == 0
    assert page.evaluate("document.getElementById('plot-slot')._fullLayout.dragmode") is False
    assert visited.trouble == []
    visited.context.close()


def test_light_and_dark(browser: Any, report: Path) -> None:
    visited = Visit(browser, report, color_scheme="light")
    page = visited.page
    for scheme, body, paper in (("light", "rgb(255, 255, 255)", "#ffffff"), ("dark", "rgb(20, 23, 26)", "#14171a")):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function("colour => getComputedStyle(document.body).backgroundColor === colour", arg=body)
        page.wait_for_function(
            "colour => document.getElementById('plot-slot')._fullLayout?.paper_bgcolor === colour", arg=paper
        )
    assert visited.trouble == []
    visited.context.close()


def test_a_plan_alone(browser: Any, plan_report: Path) -> None:
    visited = Visit(browser, plan_report)
    visited.scroll()
    page = visited.page
    assert page.locator("#accuracy").is_hidden()
    assert page.locator("#figure-target").is_hidden()
    assert visited.traces("pipeline-0") == {0}
    assert page.locator("#plot-battery-0 .hm image").count() == 1
    assert visited.trouble == []
    visited.context.close()


CLIPPED = """[...document.querySelectorAll('.scroll')].filter(node => node.offsetParent)
    .filter(node => node.scrollWidth > node.clientWidth + 1).map(node => node.ariaLabel)"""
OVERPRINTED = """(id) => {
    const boxes = [...document.querySelectorAll(`#${id} .annotation-text-g`)].map(node => node.getBoundingClientRect());
    return boxes.some((a, at) => boxes.slice(at + 1).some(b =>
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
}"""


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_is_clipped_or_overprinted(browser: Any, report: Path, width: int) -> None:
    visited = Visit(browser, report, viewport={"width": width, "height": 900})
    visited.scroll()
    page = visited.page
    page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    assert page.evaluate(CLIPPED) == []
    assert width == 1400 or page.locator("td:empty:visible").count() == 0  # a list has no entries that say nothing
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for plot in ("slot", "energy", "differences"):
        assert page.locator(f"#plot-{plot} .annotation-text-g").count() >= 2
        assert not page.evaluate(OVERPRINTED, f"plot-{plot}")
    for link in page.locator(".contents a").all():
        assert page.locator(link.get_attribute("href") or "").is_visible()
    top = "document.getElementById('{}').getBoundingClientRect().top"
    assert page.evaluate(top.format("plot-differences")) < page.evaluate(top.format("plot-slot"))
    assert visited.trouble == []
    visited.context.close()


def test_the_axis_shows_where_lines_differ(drawn: Visit) -> None:
    low, high = drawn.page.evaluate("document.getElementById('plot-slot')._fullLayout.yaxis.range.slice()")
    lines = drawn.page.evaluate("document.getElementById('plot-slot').data.filter(t => t.name).map(t => t.y)")
    assert low <= min(line[-1] for line in lines)
    assert high >= max(max(line) for line in lines)
    assert high - low < 100


def test_plots_round_as_tables_do(drawn: Visit) -> None:
    said = drawn.page.locator("#plot-slot .annotation-text-g").all_text_contents()
    assert f"centralised {93.25:.1f} %" in said  # a tie
    assert f"without energy limits {92.55:.1f} %" in said  # less than a tie, though it does not look so


@pytest.mark.parametrize("width", [1400, 390])
def test_variants_can_be_told_apart(browser: Any, variants_report: Path, width: int) -> None:
    visited = Visit(browser, variants_report, viewport={"width": width, "height": 900})
    visited.scroll()
    page = visited.page
    for plot in ("target", "purpose", "classes", *(["differences"] if width == 1400 else [])):
        ticks = page.locator(f"#plot-{plot} .ytick text")
        assert len({*ticks.all_text_contents()}) == 3, plot
        boxes = [box.bounding_box() for box in ticks.all()]
        ends = sorted((box["y"], box["y"] + box["height"]) for box in boxes)
        assert all(end <= start + 1 for (_, end), (start, _) in pairwise(ends)), plot
    said = " ".join(page.locator("#plot-differences").locator(".annotation-text-g, .ytick text").all_text_contents())
    for groups in (2, 4):
        assert f"groups={groups}" in said
    assert visited.trouble == []
    visited.context.close()


def test_print_on_a4(browser: Any, report: Path) -> None:
    visited = Visit(browser, report, color_scheme="dark")
    page = visited.page
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    assert page.locator(".printing").count() == 0  # and the page is as before
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 696, "height": 1000})  # A4 less its margins
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    visited.until(
        lambda: page.evaluate(
            "[...document.querySelectorAll('.plot')].every(node => node.offsetParent === null || node.data)"
        )
    )
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(CLIPPED) == []
    right = "(nodes) => Math.max(...nodes.map(node => node.getBoundingClientRect().right))"
    assert page.eval_on_selector_all(".main-svg, table", right) <= 700
    assert page.locator(".switches").is_hidden()
    for whole in (
        ".scroll >> nth=0",
        ".caption >> nth=0",
    ):  # no head without rows, no sentence cut at the end of a page
        assert page.eval_on_selector(whole, "node => getComputedStyle(node).breakInside") == "avoid"
    assert visited.trouble == []
    visited.context.close()


def test_a_run_alone(browser: Any, run_report: Path) -> None:
    visited = Visit(browser, run_report)
    visited.scroll()
    page = visited.page
    for hidden in ("#differences", ".switches", "#figure-target"):
        assert page.locator(hidden).is_hidden()
    assert page.locator("#plot-slot").is_visible()
    assert "best" not in page.locator("table").first.inner_text().split()
    assert visited.trouble == []
    visited.context.close()


@pytest.fixture(scope="module")
def paper_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page about the paper, from the results that are in the repository."""
    report = pytest.importorskip("pipecycle_paper.report")
    made = tmp_path_factory.mktemp("results") / "paper"
    shutil.copytree(Path(__file__).parents[2] / "experiments" / "results" / "paper", made)
    report.write_report(made)
    return made / "report.html"


@pytest.mark.parametrize("width", [1400, 1024, 390])
def test_tables_and_claims_of_the_paper_can_be_read(browser: Any, paper_report: Path, width: int) -> None:
    visited = Visit(browser, paper_report, viewport={"width": width, "height": 900})
    page = visited.page
    page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    claim = page.locator(".t-claims tbody tr").first
    assert claim.locator("td").first.bounding_box()["width"] > 250  # a column to read, not a gutter
    assert claim.locator("td").nth(1).inner_text().startswith("abstract")
    if width == 390:
        # A paper's figure and the difference stand with their own rate, and a title that is a number says of what.
        cells = page.locator(".t-accuracy tbody tr").first.locator("td").all()
        left = [round(cell.bounding_box()["x"]) for cell in cells if "δ" in (cell.get_attribute("data-head") or "")]
        assert len(left) == 4
        assert len({*left}) == 1
        title = "node => getComputedStyle(node, '::before').content"
        assert claim.locator("th").evaluate(title) == '"No. "'
    assert visited.trouble == []
    visited.context.close()
