"""Who is let into a studio, what a bad request gets, and that training is an ordinary run."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from pipecycle.runs.run import RunFolder
from pipecycle.studio import desk
from pipecycle.studio.server import MOST_BODY, Studio
from pipecycle.studio.settings import START, Offer, config_of
from tests.commands import PATIENCE, end, process, serving, until

SMALL = {"world.clients": 20, "world.slots": 300}


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    home = tmp_path_factory.mktemp("studio")
    (home / "own_studio.py").write_text(
        "import os\nfrom pipecycle.policies import FedAvg\nclass Raises(FedAvg):\n  name = 'raises'\n"
        "  def decide(self, slot): return {}[slot]\n"
        "class Sleeps(FedAvg):\n  name = 'sleeps'\n"
        "  def decide(self, slot):\n    while slot == 5: pass\n"
        "class Dies(FedAvg):\n  name = 'dies'\n"
        "  def decide(self, slot): os._exit(3)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        own = Offer(tuple(f"own_studio:{name}" for name in ("Raises", "Sleeps", "Dies")))
        server = Studio(own, START, lambda config: home / "runs" / config.policy, 0)
        with serving(server):
            yield server


def ask(
    server: Studio | SimpleNamespace, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    sent = {"Host": f"127.0.0.1:{server.port}", "X-Studio-Token": server.token, **(headers or {})}
    connection.putrequest(method, path, skip_host=True)
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    for name, value in sent.items():
        connection.putheader(name, value)
    if "Content-Length" not in sent:
        connection.putheader("Content-Length", str(len(data)))
    connection.endheaders(data)
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.headers
    connection.close()
    return found


PLAN = {"page": "p", "side": "a", "number": 1, "values": {"policy": "fedavg", **SMALL}}


def test_only_our_own_page_gets_in(studio: Studio) -> None:
    own, before = f"http://127.0.0.1:{studio.port}", studio.training.state()
    assert ask(studio, "POST", "/api/plan", PLAN)[0] == 200
    assert ask(studio, "POST", "/api/plan", PLAN, {"Origin": own})[0] == 200
    for headers in (
        {"X-Studio-Token": "wrong"},
        {"X-Studio-Token": ""},
        {"Host": "evil.example"},
        {"Host": f"evil.example:{studio.port}"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": f"http://127.0.0.1:{studio.port + 1}"},
        {"Origin": "null"},
    ):
        for method, path in (
            ("POST", "/api/plan"),
            ("POST", "/api/train"),
            ("POST", "/api/stop"),
            ("GET", "/api/train"),
        ):
            status, text, _ = ask(studio, method, path, PLAN if method == "POST" else None, headers)
            assert (status, text[:11]) == (403, b"pipecycle: "), headers
    assert studio.training.state() == before


def test_the_token_becomes_a_cookie_and_leaves_the_address(studio: Studio) -> None:
    nothing = {"X-Studio-Token": ""}
    assert ask(studio, "GET", "/", headers=nothing)[0] == 403
    assert ask(studio, "GET", "/?token=wrong", headers=nothing)[0] == 403
    status, _, headers = ask(studio, "GET", f"/?token={studio.token}", headers=nothing)
    assert (status, headers["Location"]) == (303, "/")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    status, text, headers = ask(studio, "GET", "/", headers={**nothing, "Cookie": cookie.partition(";")[0]})
    assert status == 200
    assert b"<title>pipecycle studio</title>" in text
    allowed = headers["Content-Security-Policy"]
    assert "default-src 'none'" in allowed
    assert "frame-ancestors 'none'" in allowed
    assert "unsafe" not in allowed
    assert ask(studio, "GET", "/", headers={**nothing, "Host": "evil.example", "Cookie": cookie})[0] == 403
    assert ask(studio, "GET", "/etc/passwd")[0] == 404
    assert ask(studio, "GET", "http://[/")[0] == 400


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/api/plan", b"{", "not JSON"),
        ("/api/plan", b"[" * 60_000, "not JSON"),
        ("/api/plan", [1], "not a table"),
        ("/api/plan", {"page": "p"}, "needs a page, a side (a or b) and a number"),
        ("/api/plan", {**PLAN, "page": "large", "number": 10**400}, ""),
        ("/api/plan", {**PLAN, "side": "c"}, "needs a page, a side"),
        ("/api/plan", b" " * (MOST_BODY + 1), f"needs at most {MOST_BODY:,}"),
        ("/api/train", {"sides": []}, "needs one or two schedulers"),
        ("/api/export", {"sides": [{}] * 3}, "needs one or two schedulers"),
        ("/api/export", {"sides": [PLAN["values"]], "view": {"from": []}}, "view: needs a table"),
        ("/api/none", {}, "needs one of /api/plan"),
        ("/api/plan", {**PLAN, "values": {"policy": "own_studio:Raises", **SMALL}}, "own_studio.py, line 5, in decide"),
        ("/api/plan", {**PLAN, "values": {"policy": "own_studio:Dies", **SMALL}}, "in slot 0, with exit code 3"),
        ("/api/plan", {**PLAN, "values": {"policy": "own_studio:Other"}}, "own_studio:Other"),
    ],
)  # fmt: skip
def test_bad_requests_get_a_sentence_and_the_studio_lives_on(studio: Studio, path: str, body: Any, said: str) -> None:
    status, text, _ = ask(studio, "POST", path, body)
    if said:
        assert status == 400
        assert said in json.loads(text)["error"]
    assert ask(studio, "POST", "/api/plan", {**PLAN, "page": "q"})[0] == 200


def test_a_long_plan_gives_way_to_a_newer_one(studio: Studio) -> None:
    answers: list[int] = []
    sleepy = {**PLAN, "page": "long", "values": {"policy": "own_studio:Sleeps", **SMALL}}
    first = threading.Thread(target=lambda: answers.append(ask(studio, "POST", "/api/plan", sleepy)[0]))
    first.start()
    latest = time.monotonic() + PATIENCE
    while ("long", "a") not in studio.desk._newest:
        assert time.monotonic() < latest
        time.sleep(0.001)
    newer = {**PLAN, "page": "long", "number": 2}
    assert ask(studio, "POST", "/api/plan", newer)[0] == 200
    assert ask(studio, "POST", "/api/plan", {**newer, "number": 1})[0] == 409
    assert ask(studio, "POST", "/api/plan", {**newer, "number": 1, "side": "b"})[0] == 200
    first.join()
    assert answers == [409]


def test_a_policy_that_never_returns_is_given_up(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it does, its process ends; the studio then plans as before."""
    assert _plan(studio, "cycp")[0] == 200  # a process has started
    monkeypatch.setattr(desk, "MOST_SECONDS", 1.0)
    status, text = _plan(studio, "own_studio:Sleeps")
    assert status == 400
    assert json.loads(text)["error"] == "planning took more than 1 s, and was given up in slot 5"
    monkeypatch.undo()
    assert _plan(studio, "fedseq")[0] == 200


def _plan(studio: Studio, policy: str) -> tuple[int, bytes]:
    body = {**PLAN, "page": policy, "values": {"policy": policy, **SMALL}}
    return ask(studio, "POST", "/api/plan", body)[:2]


def test_training_is_an_ordinary_run(studio: Studio) -> None:
    sides = [
        {"policy": policy, "world.clients": 10, "world.slots": 120, "look.every": 20} for policy in ("fedavg", "cycp")
    ]
    status, _, _ = ask(studio, "POST", "/api/train", {"sides": sides})
    assert status == 200
    assert "under way" in json.loads(ask(studio, "POST", "/api/train", {"sides": sides})[1])["error"]
    latest = time.monotonic() + PATIENCE
    while (state := json.loads(ask(studio, "GET", "/api/train")[1]))["state"] == "running":
        assert time.monotonic() < latest
        time.sleep(0.05)
    assert state["state"] == "finished", state["error"]
    for run, values in zip(state["runs"], sides, strict=True):
        folder = RunFolder(Path(run["folder"]), config_of(values, Offer()))
        assert folder.finished
        assert run["points"][-1][2] == folder.result()["final"]["accuracy"]
        assert len(run["points"]) == 6
    status, text, _ = ask(studio, "POST", "/api/export", {"sides": sides})
    assert status == 200
    assert studio.token.encode() not in text
    assert text.count(b'class="plan"') == 2


@pytest.mark.slow
def test_ctrl_c_saves_what_is_being_trained(tmp_path: Path) -> None:
    """A terminal's Ctrl-C reaches the studio and the process that trains for it."""
    started = process("studio", "--no-open", "--port", "0", cwd=tmp_path)
    assert started.stdout is not None
    address = urlsplit(started.stdout.readline().split()[-1])
    assert address.port is not None
    there = SimpleNamespace(port=address.port, token=address.query.partition("=")[2])
    sides = [{"policy": "pipecycle", "world.clients": 40, "world.slots": 40_000}]
    assert ask(there, "POST", "/api/train", {"sides": sides})[0] == 200
    until(lambda: json.loads(ask(there, "GET", "/api/train")[1])["done"], started)
    _, error = end(started, signal.SIGINT)
    assert started.returncode == 0, error
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "checkpoint" / "state.safetensors").exists()
