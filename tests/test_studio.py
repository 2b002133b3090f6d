"""The studio without a browser: what may be asked for, what is drawn, and who is let in."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipecycle import InputError, build, plan
from pipecycle.commands import running
from pipecycle.policies import REGISTRY
from pipecycle.policies.registry import parameters
from pipecycle.report.lanes import pipeline
from pipecycle.runs.config import Config
from pipecycle.runs.run import RunFolder, train_folders
from pipecycle.schedule.schedule import Schedule
from pipecycle.studio import planner
from pipecycle.studio.describe import describe
from pipecycle.studio.page import SCRIPTS, asset
from pipecycle.studio.picture import picture
from pipecycle.studio.planner import TYPES, Superseded, message, pack, planned
from pipecycle.studio.settings import START, Offer, command, config_of, link_of, of_run, values_of
from pipecycle.world.energy import UNIT
from tests.commands import PATIENCE, end, pipecycle, process

SMALL = {"world.clients": 20, "world.slots": 300}


def small(policy: str, **settings: Any) -> Config:
    return config_of(
        {"policy": policy, **SMALL, **{f"policy.{key}": value for key, value in settings.items()}}, Offer()
    )


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What a browser reads."""
    size = int.from_bytes(message[:4], "little")
    facts = json.loads(message[4 : 4 + size])
    kinds = {name: f"<{kind}" for kind, name in TYPES.items()}
    columns = {
        name: np.frombuffer(message, kinds[kind], length, 4 + size + offset)
        for name, (kind, offset, length) in facts.pop("columns").items()
    }
    return facts, columns


# What may be asked for.


def test_every_setting_of_every_scheduler_is_a_control_with_its_docstring() -> None:
    described = describe(Offer())["policies"]
    assert list(described) == list(REGISTRY)
    for name, kind in REGISTRY.items():
        controls = {one["key"].removeprefix("policy."): one for one in described[name]["settings"]}
        assert list(controls) == list(parameters(kind))
        assert all(len(one["note"]) > 20 for one in controls.values()), name
        assert described[name]["about"].endswith(".")
    pipecycle_ = {one["key"]: one for one in described["pipecycle"]["settings"]}
    assert pipecycle_["policy.groups"] == {
        "key": "policy.groups", "label": "Groups", "note": "Groups in training at once, at most (G).", "kind": "whole",
        "optional": False, "default": 2, "choices": [], "unit": "concurrent group", "least": 1, "above": None,
        "most": 100_000, "low": 1, "high": 20, "powers": False,
    }  # fmt: skip
    assert pipecycle_["policy.interval"]["optional"]
    assert pipecycle_["policy.rotation"]["choices"] == ["longest-idle", "spread"]
    step = next(one for one in described["fedseq"]["settings"] if one["key"] == "policy.step")
    assert (step["kind"], step["choices"], step["above"], step["most"]) == ("either", ["lag-stable"], 0, 1)


def test_a_class_without_attrs_is_described_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_plain.py").write_text(
        "from pipecycle.policies import FedAvg\nclass Plain(FedAvg):\n  '''Plain.'''\n"
        "  def __init__(self, mood: float = 2.5, word: str = 'x', epoch=None): super().__init__(epoch)\n"
    )
    monkeypatch.chdir(tmp_path)
    controls = describe(Offer(("own_plain:Plain",)))["policies"]["own_plain:Plain"]["settings"]
    assert [(one["key"], one["kind"], one["default"]) for one in controls] == [
        ("policy.mood", "number", 2.5), ("policy.word", "text", "x"), ("policy.epoch", "text", None)
    ]  # fmt: skip


LINKS = [
    START,
    "clients=30&session=5&slots=400&harvest=markov:0.3,10&trial=3&capacity=40&initial=2.5&budget=900.0&a=fedbacys&"
    "a.reference_refresh=broadcast&a.step=lag-stable&b=pipecycle%2B&b.kappa=0.5",
    "slots=500&harvest=clearsky:60,days=152..181,panel=2,minutes=5,shift=0..720&a=mifa&a.use_memory=false",
    "slots=300&data.alpha=0.1&train.lr=0.01&a=fedseq&a.mode=chain&a.patience=50&b=flda&b.upload_ratio=0.01",
]


@pytest.mark.parametrize("link", LINKS)
def test_links_and_commands_say_exactly_what_is_shown(link: str) -> None:
    configs = [config_of(values, Offer()) for values in values_of(link)]
    again = [config_of(values, Offer()) for values in values_of(f"http://127.0.0.1:1/#{link_of(configs)}")]
    assert [config.text() for config in again] == [config.text() for config in configs]
    for config in configs:
        facts, _ = unpack(message(config))
        printed = pipecycle(*shlex.split(facts["commands"]["plan"])[1:], "--json").stdout
        assert json.loads(printed)["digest"] == facts["figures"]["digest"]


@pytest.mark.parametrize("link", LINKS)
def test_the_training_command_is_the_run_that_is_shown(link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained here: what `pipecycle run` would train is compared."""
    seen: list[Config] = []
    monkeypatch.setattr(running, "conduct", lambda config, *_: seen.append(config))
    configs = [config_of(values, Offer()) for values in values_of(link)]
    for config in configs:
        assert pipecycle(*shlex.split(command(config, "run"))[1:]).returncode == 0
    assert [config.text() for config in seen] == [config.text() for config in configs]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"policy": "os:system"}, "policy 'os:system': unknown"),
        ({"policy": "pipecicle"}, "did you mean 'pipecycle'?"),
        ({"policy": "pipecycle", "policy.groups": 0}, "groups = 0: needs at least 1 concurrent group"),
        ({"policy": "pipecycle", "policy.gruops": 3}, "did you mean 'groups'?"),
        ({"policy": "pipecycle", "train.model": "os:system"}, "train.model: unknown"),
        ({"policy": "pipecycle", "data.split": "x.npz"}, "data.split: unknown"),
        ({"policy": "pipecycle", "world.harvest": "solar:/dev/zero"}, "one that reads a file is given when"),
        ({"policy": "pipecycle", "world.clients": 10**6}, "clients = 1,000,000: the studio plans at most 20,000"),
        ({"policy": "pipecycle", "world.clients": 20_000, "world.slots": 2000}, "clients x slots = 40,000,000"),
        ({"policy": "pipecycle", "world.clients": "many"}, "world.clients = many: needs a whole number"),
        ({"policy": "pipecycle", "world.clients": [1]}, "needs a number or a text"),
        ({"policy": "pipecycle", "world.harvest": "x" * 400}, "at most 300 letters"),
        ({str(key): 1 for key in range(200)}, "a table of at most 100 values"),
        ([], "a table of at most 100 values"),
    ],
)
def test_what_is_refused(values: Any, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        config_of(values, Offer())


def test_bounds_on_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MOST_SESSIONS", 10)
    with pytest.raises(InputError, match="more than 10 sessions in"):
        message(small("fedavg"))


# What is drawn.


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        *((name, {}) for name in REGISTRY),
        ("pipecycle", {"groups": 7, "queue_threshold": 1}),
        ("fedseq", {"mode": "chain"}),
    ],
)
def test_the_picture_is_the_reports(policy: str, settings: dict[str, Any]) -> None:
    schedule = plan(build(policy, settings), 0.3, 40, 500)
    drawn = pipeline(schedule, most=10**6, clients=10**6)
    facts, columns = picture(schedule)
    assert facts["sessions"] == len(schedule.sessions) == len(columns["session.client"])
    if schedule.meta["grouping"] is None:
        bars = zip(*(columns[f"session.{name}"].tolist() for name in ("client", "start", "end", "chain")), strict=True)
        assert sorted(bars) == sorted((bar.lane, bar.start, bar.end, bar.chain) for bar in drawn.bars)
        assert facts["groups"] == 0
        return
    group = {name.removeprefix("group."): column for name, column in columns.items() if name.startswith("group.")}
    bars = zip(*(group[name].tolist() for name in ("lane", "start", "end", "chain", "state")), strict=True)
    words = ["used", "unused", "flying"]
    assert [(*bar, words[state]) for *bar, state in bars] == [
        (bar.lane, bar.start, bar.end, bar.chain, bar.state) for bar in drawn.bars
    ]
    assert facts["lanes"] == len(drawn.lanes)
    passed = zip(*(columns[f"handover.{name}"].tolist() for name in ("from", "to", "main")), strict=True)
    lines = [
        (int(group["end"][a]) + 1, int(group["lane"][a]), int(group["start"][b]), int(group["lane"][b]), bool(main))
        for a, b, main in passed
    ]
    assert sorted(lines) == sorted((one.start, one.lane, one.end, one.to, one.main) for one in drawn.handovers)


@pytest.mark.parametrize("policy", REGISTRY)
def test_figures_beside_the_picture(policy: str) -> None:
    config = small(policy)
    facts, columns = unpack(message(config))
    schedule, levels, slots = planned(config)
    assert np.array_equal(levels[-1], schedule.energy.level)
    assert slots[-1] == schedule.slots - 1
    shown = columns["battery.level"].reshape(schedule.clients, -1) * facts["fullest"] / 65535
    assert np.abs(shown.T - levels / UNIT).max() <= facts["fullest"] / 65535
    for name in ("training", "to_hub", "to_server", "stored", "overflowed"):
        expected = int(getattr(schedule.energy, name)[-1]) / UNIT
        assert float(columns[f"energy.{name}"][-1]) == pytest.approx(expected)
    assert columns["lag.count"].sum() == len(schedule.ancestry.lags)
    assert [one["coverage"] for one in facts["chains"]] == sorted(one.coverage for one in schedule.ancestry.chains)[:24]
    met = columns["chain.met"].reshape(len(facts["chains"]), -1)
    assert [int(row.sum()) // 255 for row in met] == [one["coverage"] for one in facts["chains"]]
    assert facts["figures"]["digest"] == schedule.digest()
    versions = np.arange(len(schedule.versions))[-70:]
    met = schedule.ancestry.met(versions).sum(axis=1).tolist()  # two walks, for more than 64
    assert met == [schedule.ancestry.coverage(int(version)) for version in versions]


def test_the_energy_of_a_fleet_adds_up(tmp_path: Path) -> None:
    """Devices that idle, leak and download, from the command line to the page."""
    (tmp_path / "own.toml").write_text(
        'name = "own"\n[[device]]\nshare = 1.0\nidle = 0.01\nleak = 0.001\ndownload = 0.5\ncapacity = 60\n'
    )
    offer = Offer(kept={"world.fleet": str(tmp_path / "own.toml")})
    facts, columns = unpack(message(config_of({"policy": "pipecycle", **SMALL}, offer)))
    parts = {name: float(column[-1]) for name, column in columns.items() if name.startswith("energy.")}
    assert {f"energy.{name}" for name in ("download", "lost", "idle", "leaked")} < set(parts)
    total = sum(part for name, part in parts.items() if name not in ("energy.moment", "energy.busy"))
    assert total == pytest.approx(facts["figures"]["energy"]["harvested"], rel=1e-6)
    done = pipecycle("studio", "--fleet", "own.toml", "--export", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--fleet own.toml" in (tmp_path / "page.html").read_text()


def test_steps_stand_beside_their_limits() -> None:
    facts, columns = unpack(message(small("fedseq", groups=5)))
    assert facts["limits"][:5] == pytest.approx([2, 1, 0.618, 0.445, 0.347], abs=1e-3)
    assert set(columns["step.step"].tolist()) == {1.0}
    assert columns["step.lag"].max() == 4
    assert facts["step"]["ratio_max"] == pytest.approx(2.88, abs=0.01)


def test_nobody_trains() -> None:
    """Batteries that never charge are a picture, too."""
    for policy in REGISTRY:
        facts, columns = unpack(
            message(config_of({"policy": policy, **SMALL, "world.harvest": "bernoulli:0"}, Offer()))
        )
        assert facts["sessions"] == 0
        assert columns["energy.busy"].max() == 0


def test_messages_are_aligned_and_read_back() -> None:
    columns = {"a.x": np.arange(3, dtype="u1"), "a.y": np.arange(5, dtype="f4"), "b.z": np.zeros(0, "i4")}
    message_ = pack({"é": 1.5}, columns)
    facts, found = unpack(message_)
    assert facts == {"é": 1.5}
    assert all(np.array_equal(columns[name], found[name]) for name in columns)
    size = int.from_bytes(message_[:4], "little")
    listed = json.loads(message_[4 : 4 + size])["columns"]
    assert all((4 + size + offset) % 8 == 0 for _, offset, _ in listed.values())


def test_a_plan_can_be_dropped_in_every_slot() -> None:
    seen = []

    def watch(over: int) -> None:
        seen.append(over)
        if over == 7:
            raise Superseded

    with pytest.raises(Superseded):
        message(small("pipecycle"), watch)
    assert seen == list(range(1, 8))


def test_the_page_is_in_small_files() -> None:
    for name in SCRIPTS:
        script = asset(name, "pipecycle.studio")
        assert len(script.splitlines()) < 400
        assert "http" not in script.replace("http.server", "")
        assert "eval(" not in script


# The command.


def test_a_run_opens_with_its_settings_and_its_report_says_how(tmp_path: Path) -> None:
    config = Config("fedseq").changed(
        {**SMALL, "groups": 3, "data.alpha": 0.5, "look.every": 60, "train.momentum": 0.5}
    )
    folder = RunFolder(tmp_path / "runs" / "x", config)
    train_folders([folder], device="cpu")
    opened, offer = of_run(folder.path, Offer())
    assert opened.text() == config.text()
    assert offer.kept == {"train.momentum": 0.5}
    assert message(opened)
    printed = pipecycle("report", "runs/x", cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert "<code>pipecycle studio runs/x</code>" in (tmp_path / "report.html").read_text()
    done = pipecycle("studio", "runs/x", "--export", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.html").read_text()
    assert Schedule.load(folder.path / "schedule.npz").policy == "fedseq"
    assert '"saved":true' in text
    assert '"token":""' in text
    assert "connect-src 'none'" in text.replace("&#x27;", "'")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "nothing: cannot be read"),
        (["--policy", "nothing"], "policy 'nothing'"),
        (["--policy", "nothing:Here"], "cannot be imported"),
        (["--harvest", "solar:none.csv"], "none.csv"),
        (["--port", "70000"], "port = 70000"),
        (["#clients=3"], "names no scheduler"),
        (["#a=os:system"], "policy 'os:system'"),
        (["own.toml"], "own.toml: was planned by nothing:Here; add --policy nothing:Here"),
        (["--export", "none/page.html"], "cannot be written"),
    ],
)
def test_the_command_refuses(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('format = 1\n[policy]\nname = "nothing:Here"\n')
    done = pipecycle("studio", "--no-open", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr


def test_several_at_once_and_ctrl_c(tmp_path: Path) -> None:
    """Two real processes on two ports; Ctrl-C is how each ends."""
    started = [process("studio", "--no-open", cwd=tmp_path) for _ in range(2)]
    ports = set()
    for one in started:
        assert one.stdout is not None
        address = re.fullmatch(r"Studio at http://127.0.0.1:(\d+)/\?token=(\S+)\n", one.stdout.readline())
        assert address is not None
        ports.add(address[1])
        connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=PATIENCE)
        connection.request("GET", f"/?token={address[2]}")
        assert connection.getresponse().status == 303
        connection.close()
    assert len(ports) == 2
    for one in started:
        out, error = end(one, signal.SIGINT)  # its processes that plan hear it, too, and are still starting
        assert (one.returncode, error) == (0, "")
        assert out.endswith("Ended.\n")
