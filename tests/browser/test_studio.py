"""The studio in a real browser."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pipecycle.policies import REGISTRY
from pipecycle.runs.run import RunFolder
from pipecycle.studio.server import Studio
from pipecycle.studio.settings import START, Offer, config_of
from tests.commands import PATIENCE

pytestmark = pytest.mark.browser

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


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    home = tmp_path_factory.mktemp("studio")
    (home / "own_moody.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.syspath_prepend(str(home))
        server = Studio(
            Offer(("own_moody:Moody",)), f"{SMALL}&{START}", lambda config: home / "runs" / config.policy, 0
        )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        server.server_close()
        thread.join()


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
        """Wait until what is drawn was planned with a line in its configuration."""
        self.until(lambda: text in self.toml(side))

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


def test_an_address_restores_everything(browser: Any, studio: Studio) -> None:
    link = f"{BOTH}&harvest=markov:0.4,12&capacity=60&trial=3&a.rotation=spread&b.step=lag-stable"
    link += "&from=50&to=150&client=4&rows=client"
    visited = Visit(browser, studio, link)
    visited.says("step", "b")
    expected = [
        config_of({"policy": "pipecycle", "policy.groups": 5, "policy.rotation": "spread", **shared}, Offer())
        for shared in [{"world.clients": 20, "world.slots": 400, "world.harvest": "markov:0.4,12", "world.capacity": 60,
            "world.trial": 3, "look.every": 50}]
    ]  # fmt: skip
    assert visited.toml("a") == expected[0].text()
    assert 'step = "lag-stable"' in visited.toml("b")
    assert visited.stretch() == [50, 150]
    assert visited.page.locator("#client").input_value() == "4"
    assert visited.page.locator("#rows").input_value() == "client"
    # A change is in the address at once, and a second window shows the same.
    visited.control("world.trial").locator("input[type=number]").fill("9")
    visited.page.keyboard.press("Enter")
    visited.says("trial = 9")
    visited.until(lambda: "trial=9" in visited.page.url)
    assert "token" not in visited.page.url
    other = visited.context.new_page()
    other.goto(visited.page.url)
    end = time.monotonic() + 60
    while other.evaluate("Studio.plans.b?.facts.toml") != visited.toml("b"):
        assert time.monotonic() < end
        other.wait_for_timeout(20)
    assert other.evaluate("Studio.plans.a.facts.figures.digest") == visited.page.evaluate(
        "Studio.plans.a.facts.figures.digest"
    )
    other.close()
    visited.leave()


def test_copy_buttons(browser: Any, studio: Studio) -> None:
    visited = Visit(browser, studio, permissions=["clipboard-read", "clipboard-write"])
    page = visited.page
    for name, expected in {
        "Copy Command, pipecycle": "pipecycle plan pipecycle --groups 5 --clients 20 --slots 400",
        "Copy Digest of the schedule, pipecycle": page.evaluate("Studio.plans.a.facts.figures.digest"),
        "Copy config.toml, pipecycle": visited.toml(),
        "Copy link": f"http://127.0.0.1:{studio.port}/#clients=20&slots=400&look.every=50&a=pipecycle&a.groups=5",
    }.items():
        page.get_by_role("button", name=name, exact=True).click()
        visited.until(lambda expected=expected: page.evaluate("navigator.clipboard.readText()") == expected)
    visited.leave()


def test_a_saved_page_opens_from_disk(browser: Any, studio: Studio, tmp_path: Path) -> None:
    visited = Visit(browser, studio, f"{BOTH}&from=20&to=120")
    visited.says("fedseq", "b")
    with visited.page.expect_download() as download:
        visited.page.get_by_role("button", name="Save page").click()
    file = tmp_path / "saved.html"
    download.value.save_as(file)
    visited.leave()
    context = browser.new_context(offline=True)
    page = context.new_page()
    trouble: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    assert page.locator("#pipelines canvas").count() == 2
    assert page.evaluate("[Studio.time.stretch.from, Studio.time.stretch.to]") == [20, 120]
    assert page.evaluate("Studio.plans.b.facts.policy") == "fedseq"
    page.get_by_role("button", name="Zoom in").click()
    end = time.monotonic() + 60
    while page.evaluate("Studio.time.stretch.to - Studio.time.stretch.from") != 50:
        assert time.monotonic() < end
        page.wait_for_timeout(20)
    assert page.locator("select.policy").first.is_disabled()
    assert page.locator("#train").is_hidden()
    assert trouble == []
    assert requests == [file.as_uri()]
    assert studio.token not in file.read_text()
    context.close()


def test_train_and_stop(browser: Any, studio: Studio) -> None:
    visited = Visit(browser, studio, "clients=10&slots=300&look.every=30&a=fedavg&b=cycp")
    visited.says("cycp", "b")
    page = visited.page
    assert studio.training.state()["state"] == "idle"  # a link starts nothing
    page.get_by_role("button", name="Train this").click()
    state = page.locator("#accuracy")
    visited.until(lambda: state.get_attribute("data-state") == "finished")
    assert page.evaluate("document.querySelectorAll('#accuracy canvas').length") == 2
    words = page.locator("#figure-accuracy-energy figcaption").inner_text()
    for policy in ("fedavg", "cycp"):
        values = {"policy": policy, "world.clients": 10, "world.slots": 300, "look.every": 30}
        folder = RunFolder(studio.folder(config_of(values, Offer())), config_of(values, Offer()))
        assert folder.finished
        assert f"{policy}: {folder.result()['final']['accuracy']:.1f} % after" in words
    # A long one is stopped, keeps what it has, and the page plans on.
    page.get_by_role("button", name="Remove").click()
    visited.control("world.slots").locator("input[type=number]").fill("20000")
    page.keyboard.press("Tab")
    page.locator("select.policy").select_option("pipecycle")
    visited.says('name = "pipecycle"')
    page.get_by_role("button", name="Train this").click()
    visited.until(lambda: "steps" in page.locator("#training-status").inner_text())
    visited.control("world.trial").locator("input[type=number]").fill("5")
    page.keyboard.press("Tab")
    visited.says("trial = 5")
    page.get_by_role("button", name="Stop").click()
    visited.until(lambda: state.get_attribute("data-state") == "stopped")
    assert "resumes it" in page.locator("#training-status").inner_text()
    folder_ = Path(studio.training.state()["runs"][0]["folder"])
    assert (folder_ / "checkpoint" / "state.safetensors").exists()
    assert not (folder_ / "result.json").exists()
    visited.leave()


def test_a_policy_that_raises_shows_its_sentence_and_the_page_lives_on(browser: Any, studio: Studio) -> None:
    visited = Visit(browser, studio, f"{SMALL}&a=own_moody:Moody")
    page = visited.page
    visited.control("policy.mood").locator("input[type=number]").fill("30")
    page.keyboard.press("Tab")
    problem = page.locator("#notices .problem")
    visited.until(lambda: problem.count() == 1)
    assert "own_moody.py, line 18, in decide: RuntimeError: the mood is over in slot 30" in problem.inner_text()
    assert page.locator("#pipelines canvas").count() == 1  # the last that worked
    visited.control("policy.mood").locator("input[type=number]").fill("0")
    page.keyboard.press("Tab")
    visited.until(lambda: problem.count() == 0)
    visited.leave(refused=1)


def test_strangers_are_refused(browser: Any, studio: Studio, tmp_path: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    assert page.goto(f"http://127.0.0.1:{studio.port}/?token=wrong").status == 403
    assert page.goto(f"http://127.0.0.1:{studio.port}/").status == 403
    assert "open the address that its command has printed" in page.inner_text("body")
    assert page.evaluate("typeof Studio") == "undefined"
    # Another page in the same browser, which has the cookie, can neither read nor drive the studio.
    page.goto(studio.address)
    evil = tmp_path / "evil.html"
    evil.write_text("<title>evil</title><iframe></iframe>")
    page.goto(evil.as_uri())
    for method, path in (("GET", "/"), ("GET", "/api/train"), ("POST", "/api/train"), ("POST", "/api/plan")):
        outcome = page.evaluate(
            """([url, method]) => fetch(url, {method, credentials: 'include', body: method === 'POST' ? '{}' : null})
            .then(answer => answer.status, error => error.name)""",
            [f"http://127.0.0.1:{studio.port}{path}", method],
        )
        assert outcome == "TypeError"
    assert studio.training.state()["state"] in ("idle", "finished", "stopped")
    # A name that somebody points at this machine.
    foreign = browser.new_context()
    page = foreign.new_page()
    status = page.request.get(
        f"http://127.0.0.1:{studio.port}/", headers={"Host": f"evil.example:{studio.port}"}
    ).status
    assert status == 403
    foreign.close()
    context.close()


def test_a_phone_light_and_dark(browser: Any, studio: Studio) -> None:
    visited = Visit(
        browser,
        studio,
        BOTH,
        viewport={"width": 390, "height": 844},
        is_mobile=True,
        has_touch=True,
        device_scale_factor=2,
    )
    page = visited.page
    visited.says("fedseq", "b")
    assert page.locator("#controls").is_hidden()
    page.locator("#settings > summary").tap()
    assert page.locator("select.policy").first.is_visible()
    for scheme, body in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 26)")):
        page.emulate_media(color_scheme=scheme)
        visited.until(lambda body=body: page.evaluate("getComputedStyle(document.body).backgroundColor") == body)
        visited.until(
            lambda scheme=scheme: page.evaluate("Studio.theme.paper") == ("#ffffff" if scheme == "light" else "#14171a")
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    visited.leave()


@pytest.mark.parametrize("policy", REGISTRY)
def test_every_scheduler_is_drawn(browser: Any, studio: Studio, policy: str) -> None:
    visited = Visit(browser, studio, f"{SMALL}&a={policy.replace('+', '%2B')}")
    assert visited.page.evaluate("Studio.plans.a.facts.policy") == policy
    assert visited.colours(visited.page.locator("#pipelines canvas")) > 10
    visited.leave()
