"""The studio in a real browser: sharing, saving, training, strangers and phones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pipecycle.runs.run import RunFolder
from pipecycle.studio.server import Studio
from pipecycle.studio.settings import Offer, config_of
from tests.browser.studio_page import BOTH, SMALL, Visit

pytestmark = pytest.mark.browser


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
    while any(other.evaluate(f"Studio.plans.{side}?.facts.toml") != visited.toml(side) for side in "ab"):
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
