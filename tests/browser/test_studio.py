"""The studio in a real browser: what is drawn, and what every control does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from pipecycle.policies import REGISTRY
from pipecycle.studio.server import Studio
from tests.browser.studio_page import Visit

pytestmark = pytest.mark.browser


@pytest.fixture
def visit(browser: Any, studio: Studio) -> Iterator[Visit]:
    visited = Visit(browser, studio)
    yield visited
    visited.leave()


def test_it_opens_in_peace_and_everything_is_drawn_and_said(visit: Visit) -> None:
    page = visit.page
    assert "token" not in page.url
    for top in range(0, page.evaluate("document.documentElement.scrollHeight"), 500):
        page.evaluate("top => scrollTo({top, behavior: 'instant'})", top)
        page.wait_for_timeout(50)
    pictures = page.locator("main section:not([hidden]) canvas").all()
    assert len(pictures) == 9  # pipeline, overview, two of batteries, energy, lag, step, coverage, chains
    for picture in pictures:
        assert picture.get_attribute("role") == "img"
        assert len(picture.get_attribute("aria-label") or "") > 40
        visit.until(lambda picture=picture: visit.colours(picture) > 5)
    assert visit.colours(page.locator("#pipelines canvas")) > 20
    unlabelled = page.evaluate(
        """[...document.querySelectorAll('input, select, button')].filter(node =>
        !(node.labels?.length || node.getAttribute('aria-label') || node.textContent.trim())).length"""
    )
    assert unlabelled == 0


def test_each_kind_of_control(visit: Visit) -> None:
    page = visit.page
    groups = visit.control("policy.groups")
    groups.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    visit.says("groups = 6")
    assert groups.locator("input[type=number]").input_value() == "6"
    groups.locator("input[type=number]").fill("3")
    page.keyboard.press("Enter")
    visit.says("groups = 3")
    assert groups.locator("input[type=range]").input_value() == "3"
    box = groups.locator("input[type=range]").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
    visit.says("groups = 20")
    # Left to the scheduler, or not.
    size = visit.control("policy.group_size")
    assert size.locator("input[type=range]").is_hidden()
    size.locator("input[type=checkbox]").uncheck()
    visit.says("group_size = 10")
    size.locator("input[type=checkbox]").check()
    visit.until(lambda: "group_size" not in visit.toml())
    # A choice, and a slider by powers.
    visit.control("policy.rotation").locator("select").select_option("spread")
    visit.says('rotation = "spread"')
    visit.control("world.clients").locator("input[type=range]").focus()
    page.keyboard.press("Home")
    visit.says("clients = 1\n")
    assert visit.control("world.clients").locator("input[type=range]").get_attribute("aria-valuetext") == "1"
    visit.control("world.clients").locator("input[type=number]").fill("20")
    page.keyboard.press("Tab")
    # Another scheduler; a number or a word; true or false; text of one's own.
    page.locator("select.policy").select_option("fedseq")
    visit.says('name = "fedseq"')
    visit.says("groups = 20")  # what both have stays
    step = visit.control("policy.step")
    step.locator("select").select_option("lag-stable")
    visit.says('step = "lag-stable"')
    step.locator("select").select_option("")
    step.locator("input[type=number]").fill("0.25")
    page.keyboard.press("Tab")
    visit.says("step = 0.25")
    page.locator("select.policy").select_option("mifa")
    visit.control("policy.use_memory").locator("input").uncheck()
    visit.says("use_memory = false")
    page.locator("select.policy").select_option("own_moody:Moody")
    visit.control("policy.word").locator("input").fill("stormy")
    page.keyboard.press("Tab")
    visit.says('word = "stormy"')
    assert page.get_by_text("The slot in which it gives up; 0 for never.").is_visible()
    # Where energy comes from.
    harvest = visit.control("world.harvest").locator("select")
    harvest.select_option(label="in bursts")
    visit.says('harvest = "markov:0.5,10"')
    visit.control("burst").locator("input[type=number]").fill("30")
    page.keyboard.press("Tab")
    visit.says('harvest = "markov:0.5,30"')
    harvest.select_option(label="a cloudless sky")
    visit.says('harvest = "clearsky:50,days=152..181,panel=2,minutes=5,shift=0..720,shade=1"')
    harvest.select_option(label="one unit in every slot")
    visit.says('harvest = "always"')
    visit.control("world.budget").locator("input[type=checkbox]").uncheck()
    visit.says("budget = 10000.0")


def test_two_side_by_side_on_the_same_weather(browser: Any, studio: Studio) -> None:
    visit = Visit(browser, studio)
    page = visit.page
    page.get_by_role("button", name="Compare with a second scheduler").click()
    visit.says('name = "pipecycle+"', "b")
    assert page.evaluate("document.activeElement.value") == "pipecycle+"
    assert "groups = 5" in visit.toml("b")
    page.locator("select.policy").nth(1).select_option("fedavg")
    visit.says('name = "fedavg"', "b")
    assert page.locator("#pipelines canvas").count() == 2
    assert [head.inner_text() for head in page.locator("#pipelines h3").all()] == ["A: pipecycle", "B: fedavg"]
    figures = page.evaluate("[Studio.plans.a, Studio.plans.b].map(plan => plan.facts.figures)")
    assert figures[0]["energy"]["harvested"] == figures[1]["energy"]["harvested"]
    rows = {
        row.locator("th").inner_text().split("\n")[0]: row.locator("td").all_inner_texts()
        for row in page.locator("#summary tbody tr").all()
    }
    mine, other, difference = rows["Aggregations"]
    assert int(other) - int(mine) == int(difference.split(" ")[0].replace("\N{MINUS SIGN}", "-"))
    # Only the scheduler whose setting changes is planned again.
    page.evaluate("window.kept = Studio.plans.a, 1")
    visit.control("policy.epoch", 1).locator("input[type=checkbox]").uncheck()
    visit.until(lambda: page.locator("#notices .problem").count() == 1)
    assert "epoch = 10: needs" in page.locator("#notices .problem").inner_text()
    visit.control("policy.epoch", 1).locator("input[type=number]").fill("40")
    page.keyboard.press("Tab")
    visit.says("epoch = 40", "b")
    assert page.locator("#notices .problem").count() == 0
    assert page.evaluate("window.kept === Studio.plans.a")
    page.get_by_role("button", name="Remove").click()
    visit.until(lambda: page.locator("#pipelines canvas").count() == 1)
    assert page.evaluate("document.activeElement.id") == "add-scheduler"
    visit.leave(refused=1)


def test_zoom_pan_hover_and_the_keyboard(visit: Visit) -> None:
    page = visit.page
    first = visit.stretch()
    canvas = page.locator("#pipelines canvas")
    canvas.focus()
    page.keyboard.press("+")
    visit.until(lambda: visit.stretch()[1] - visit.stretch()[0] == pytest.approx((first[1] - first[0]) / 2))
    page.keyboard.press("ArrowRight")
    visit.until(lambda: visit.stretch()[0] > first[0] + (first[1] - first[0]) / 4)
    page.keyboard.press("0")
    visit.until(lambda: visit.stretch() == first)
    page.get_by_role("button", name="Show the whole run").click()
    visit.until(lambda: visit.stretch() == [0, 400])
    page.keyboard.press("Enter")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 40)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    visit.until(lambda: visit.stretch()[1] - visit.stretch()[0] < 200)
    zoomed = visit.stretch()
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 40, steps=4)
    page.mouse.up()
    visit.until(lambda: visit.stretch()[0] < zoomed[0])
    # Hovering says who, from which version and how stale; so do the arrow keys.
    page.get_by_role("button", name="Show the whole run").click()
    visit.until(lambda: visit.stretch() == [0, 400])
    group = page.evaluate(
        "(() => { const g = Studio.plans.a.group, at = 12; return [g.lane[at], g.start[at], g.end[at]]; })()"
    )
    lanes = page.evaluate("Studio.plans.a.facts.lanes")
    inner = {"x": 64, "w": box["width"] - 74, "y": 4, "h": box["height"] - 26 - 20}
    page.mouse.move(
        box["x"] + inner["x"] + (group[1] + group[2] + 1) / 2 / 400 * inner["w"],
        box["y"] + inner["y"] + (group[0] + 0.5) / lanes * inner["h"],
    )
    visit.until(lambda: page.locator("#tip").is_visible())
    told = page.locator("#tip").inner_text()
    assert "Group 13, chain " in told
    assert f"slots {group[1]} to {group[2]}" in told
    assert "from version " in told
    assert "old when used: lag 4" in told
    canvas.focus()
    page.keyboard.press("ArrowDown")
    visit.until(lambda: "Group 1, chain A" in page.locator("#spoken").inner_text())
    page.keyboard.press("ArrowDown")
    visit.until(lambda: "Group 2, chain B" in page.locator("#spoken").inner_text())
    page.get_by_text("The bars in view as a table").click()
    visit.until(lambda: page.locator("#bars-table li").count() > 10)
    page.locator("#rows").select_option("client")
    visit.until(lambda: "Client " in page.locator("#bars-table li").first.inner_text())


def test_one_battery_on_click(visit: Visit) -> None:
    page = visit.page
    canvas = page.locator("#batteries canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 8 + (7.5 / 20) * (box["height"] - 34))
    visit.until(lambda: page.locator("#client").input_value() == "7")
    words = page.locator("#batteries figcaption").nth(1)
    visit.until(lambda: words.inner_text().startswith("Client 7: "))
    page.locator("#client").fill("3")
    page.keyboard.press("Enter")
    visit.until(lambda: words.inner_text().startswith("Client 3: "))
    visit.until(lambda: "client=3" in page.url)
    page.locator("#all-clients").click()
    visit.until(lambda: words.inner_text().startswith("All clients"))


@pytest.fixture(scope="module")
def chosen(browser: Any, studio: Studio) -> Iterator[Visit]:
    """A page on which one scheduler after the other is chosen; opening one for each would take longer."""
    visited = Visit(browser, studio)
    yield visited
    visited.leave()


@pytest.mark.parametrize("policy", REGISTRY)
def test_every_scheduler_is_drawn(chosen: Visit, policy: str) -> None:
    chosen.page.locator("select.policy").select_option(policy)
    chosen.says(f'name = "{policy}"')
    assert chosen.page.evaluate("Studio.plans.a.facts.policy") == policy
    assert chosen.colours(chosen.page.locator("#pipelines canvas")) > 10
    chosen.until(lambda: f"a={quote(policy)}" in chosen.page.url)
