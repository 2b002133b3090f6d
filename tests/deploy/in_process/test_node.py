"""A node by itself: its battery, its ledger, its deadline, and anybody's app behind them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from pipecycle.deploy import NodeSettings, RunSettings, battery_mod, client_app, with_battery
from pipecycle.deploy.node.battery import SOURCES, Emulated, Gauge, battery
from pipecycle.deploy.node.ledger import Account, FileStore
from pipecycle.deploy.node.session import Node
from pipecycle.deploy.server.forecast import Forecast
from pipecycle.deploy.server.model import own
from pipecycle.deploy.wire.arrays import write_arrays
from pipecycle.deploy.wire.packing import pack, unpack
from pipecycle.deploy.wire.protocol import Order
from pipecycle.errors import InputError
from pipecycle.world.energy import UNIT
from pipecycle.world.specs import parse_harvest

from ..local_grid import VirtualTime

pytestmark = pytest.mark.flower
RUN = RunSettings(clients=3, session=4, harvest="always", clock="wall")


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def context(**node: Any) -> Context:
    values = {key.replace("_", "-"): value for key, value in node.items()}
    return Context(1, 1, {"partition-id": 0, **values}, RecordDict(), RUN.flat())


def ask(k: int = 0, slot: int = 5, **changes: Any) -> Message:
    values = {"run": "r", "client": 0, "k": k, "slot": slot, "steps": 4, "need": 5 * UNIT, "step": UNIT, "fee": UNIT,
              "seconds": 60.0, **changes}  # fmt: skip
    learning = own(RUN)
    content = RecordDict(
        {
            "pipecycle": Order(**values).record(),
            "config": ConfigRecord({"classes": 10, "lr": 0.1, "local-steps": 4}),
            "arrays": write_arrays(learning.named(learning.initial)),
        }
    )
    message = Message(content, 1, "train")
    message.metadata.__dict__["_message_id"] = "m"
    return message


def told(reply: Message) -> tuple[str, float, float, int]:
    """Outcome, battery, spent and slot of a reply."""
    energy = reply.content["energy"]
    outcome = reply.content["pipecycle"]["outcome"]
    return outcome, energy["battery"] / UNIT, energy["spent"] / UNIT, energy["at"]


def test_a_session_by_hand() -> None:
    """Six units by slot 5, four steps and an upload, three more units by the last step's slot."""
    app, node = client_app(), context()
    assert told(app(ask(), node)) == ("trained", 6 + 3 - 5, 5, 8)
    # Asked again: the very same answer, nothing spent, nothing harvested.
    assert told(app(ask(), node)) == ("trained", 4, 5, 8)
    # The next session may begin at once: one more unit by slot 9, which is just enough.
    assert told(app(ask(k=1, slot=9), node)) == ("trained", 5 + 3 - 5, 10, 12)


def test_it_declines_below_the_need_and_says_the_same_again() -> None:
    app, node = client_app(), context()
    assert told(app(ask(slot=3), node)) == ("declined", 4, 0, 3)
    assert told(app(ask(slot=3), node)) == ("declined", 4, 0, 3)
    assert told(app(ask(k=1, slot=4), node)) == ("trained", 5 + 3 - 5, 5, 7)


def test_it_declines_what_is_not_for_it() -> None:
    app, node = client_app(), context()
    reply = app(ask(client=2), node)
    assert told(reply)[0] == "declined"
    assert reply.content["energy"]["client"] == 0
    app(ask(k=3), node)
    old = app(ask(k=1, slot=30), node)
    assert told(old)[0] == "declined"
    assert "not kept" in old.content["pipecycle"]["reason"]


def test_answers_are_kept_until_the_server_has_them(tmp_path: Path) -> None:
    app, node = client_app(), context(ledger=str(tmp_path / "ledger.json"))
    first = app(ask(k=0, slot=10), node)
    second = app(ask(k=1, slot=20), node)
    assert app(ask(k=0, slot=10), node).content["energy"] == first.content["energy"]
    third = app(ask(k=2, slot=30, settled=0), node)
    assert told(app(ask(k=0, slot=10), node))[0] == "declined"
    assert app(ask(k=1, slot=20), node).content["energy"] == second.content["energy"]
    assert app(ask(k=2, slot=30), node).content["energy"] == third.content["energy"]
    kept = json.loads((tmp_path / "ledger.json").read_text())["runs"]["r"]["answers"]
    assert sorted(kept) == ["r//0/1", "r//0/2"]
    assert len(list(tmp_path.glob("ledger.json.*"))) == 2 + 1  # and the lock


def test_a_new_run_counts_anew_with_the_energy_that_is_there(tmp_path: Path) -> None:
    app, node = client_app(), context(ledger=str(tmp_path / "ledger.json"))
    app(ask(), node)
    level = app(ask(k=-1, slot=-1, run="other"), node).content["energy"]["battery"]
    assert level == 4 * UNIT
    assert told(app(ask(run="other", slot=2), node)) == ("trained", 4 + 3 + 3 - 5, 5, 5)
    runs = json.loads((tmp_path / "ledger.json").read_text())["runs"]
    assert {run: list(page["answers"]) for run, page in runs.items()} == {"r": ["r//0/0"], "other": ["other//0/0"]}


def test_it_stops_at_its_deadline_and_counts_the_steps_done() -> None:
    reply = client_app()(ask(slot=20, steps=40, need=10 * UNIT, seconds=0.25), context(pace=0.1))
    outcome, battery, spent, _ = told(reply)
    assert outcome == "failed"
    assert "deadline" in reply.content["pipecycle"]["reason"]
    assert spent == reply.content["energy"]["steps"]
    assert 1 <= spent <= 4
    assert "arrays" not in reply.content
    assert battery >= 21 - 4


def test_without_the_energy_to_report_it_waits_for_it() -> None:
    node = context(harvest="bernoulli:0.2", initial=4.0)
    outcome, battery, spent, at = told(client_app()(ask(slot=0, need=4 * UNIT), node))
    column = parse_harvest("bernoulli:0.2").weather(3, 0).block(400)[:, 0] // UNIT
    first = int(np.argmax(np.cumsum(column) >= 1))
    assert (outcome, spent) == ("trained", 5)
    assert at == max(3, first)
    assert battery == 4 + column[: at + 1].sum() - 5
    never = client_app()(ask(slot=0, need=4 * UNIT), context(harvest="bernoulli:0.0", initial=4.0))
    assert told(never)[:3] == ("failed", 0, 4)
    assert "no energy to report" in never.content["pipecycle"]["reason"]


def test_on_the_wall_clock_the_wait_ends_with_the_deadline() -> None:
    timer = VirtualTime()
    node = context(harvest="bernoulli:0.0", initial=4.0)
    never = client_app(timer=timer)(ask(slot=0, need=4 * UNIT, slot_seconds=2.0, seconds=30.0), node)
    assert told(never)[0] == "failed"
    assert 30.0 <= timer.monotonic() < 31.0


def test_a_full_battery_overflows(tmp_path: Path) -> None:
    node = context(capacity=7.0, ledger=str(tmp_path / "ledger.json"))
    assert told(client_app()(ask(slot=50), node))[:3] == ("trained", 7 - 1 + 0 + 1 - 1 + 1 - 1 + 1 - 1 - 1, 5)
    one = json.loads((tmp_path / "ledger.json").read_text())
    assert one["harvested"] == 54 * UNIT
    assert one["overflowed"] == (51 - 7) * UNIT


@pytest.mark.parametrize("where", ["memory", "file"])
def test_an_app_that_raises_has_still_spent_its_energy(tmp_path: Path, where: str) -> None:
    app = ClientApp()

    def broken(message: Message, context: Context) -> Message:
        raise RuntimeError("the sensor is unplugged")

    app.train()(broken)
    node = context(**({} if where == "memory" else {"ledger": str(tmp_path / "ledger.json")}))
    reply = with_battery(app)(ask(), node)
    assert told(reply)[:3] == ("failed", 6 + 3 - 4, 4)
    assert reply.content["pipecycle"]["reason"] == "RuntimeError: the sensor is unplugged"
    assert told(with_battery(app)(ask(k=-1, slot=8), node)) == ("present", 5, 4, 8)


def test_a_mod_or_a_wrapper_give_anybodys_app_a_battery() -> None:
    def train(message: Message, context: Context) -> Message:
        doubled = {key: Array(2 * array.numpy()) for key, array in message.content["arrays"].items()}
        metrics = MetricRecord({"num-examples": 12, "train-loss": 0.5})
        return Message(RecordDict({"arrays": ArrayRecord(doubled), "metrics": metrics}), reply_to=message)

    wrapped = ClientApp()
    wrapped.train()(train)
    modded = ClientApp(mods=[battery_mod])
    modded.train()(train)
    for app in (with_battery(wrapped, RUN.flat()), modded):
        reply = app(ask(), context())
        assert told(reply) == ("trained", 4, 5, 8)
        assert reply.content["energy"]["samples"] == 12
        assert reply.content["metrics"]["train-loss"] == 0.5
        # Anybody else's message goes through untouched.
        plain = ask()
        del plain.content["pipecycle"]
        assert set(app(plain, context()).content) == {"arrays", "metrics"}


def test_a_gauge_in_joules(tmp_path: Path) -> None:
    gauge = tmp_path / "gauge"
    gauge.write_text("30")
    node = NodeSettings(battery=f"gauge:{gauge}", joules=4.0)
    made = battery(RUN, node, VirtualTime())
    assert isinstance(made, Gauge)
    assert made.read() == 7.5
    gauge.write_text("-1")
    with pytest.raises(InputError, match="at least 0 joules"):
        made.read()


def test_the_path_of_a_gauge_is_absolute() -> None:
    with pytest.raises(InputError, match="battery = gauge:level: needs an absolute path"):
        NodeSettings(battery="gauge:level")


def test_a_measured_battery_needs_a_wall_clock(tmp_path: Path) -> None:
    sentence = "battery = gauge:/x: needs a run with clock = wall, this one has clock = logical"
    with pytest.raises(InputError, match=sentence):
        battery(RunSettings(), NodeSettings(battery="gauge:/x"), VirtualTime())


def test_a_gauge_is_the_truth(tmp_path: Path) -> None:
    gauge = tmp_path / "gauge"
    gauge.write_text("7.5\n")
    node = context(battery=f"gauge:{gauge}", ledger=str(tmp_path / "ledger.json"))
    app = client_app()
    assert told(app(ask(k=-1, slot=0), node))[:2] == ("present", 7.5)
    # Training costs five by the books and nothing by the gauge: the sun shone.
    assert told(app(ask(), node))[:3] == ("trained", 6.5, 5)
    gauge.write_text("2")
    assert told(app(ask(k=1, slot=20), node)) == ("declined", 2, 5, 20)
    one = json.loads((tmp_path / "ledger.json").read_text())
    assert one["harvested"] == one["overflowed"] + one["training"] + one["uploads"] + 2 * UNIT
    for text, why in (("lots", "needs the battery's level"), ("-1", "at least 0"), ("nan", "at least 0")):
        gauge.write_text(text)
        with pytest.raises(InputError, match=why):
            Gauge(gauge, VirtualTime()).read()
    with pytest.raises(InputError, match="cannot be read"):
        Gauge(tmp_path / "nowhere", VirtualTime()).read()


def test_the_machines_own_battery(monkeypatch: pytest.MonkeyPatch) -> None:
    psutil = pytest.importorskip("psutil")
    monkeypatch.setattr(psutil, "sensors_battery", lambda: SimpleNamespace(percent=40.0), raising=False)
    assert told(client_app()(ask(k=-1, slot=0), context(battery="machine", capacity=50.0)))[:2] == ("present", 20)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    with pytest.raises(InputError, match="no battery that can be read"):
        client_app()(ask(k=-1, slot=0), context(battery="machine"))


def test_damaged_foreign_and_busy_ledgers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    node = context(ledger=str(path))
    path.write_text("half of a led")
    with pytest.raises(InputError, match="damaged"):
        client_app()(ask(), node)
    path.unlink()
    client_app()(ask(), node)
    with pytest.raises(InputError, match="belongs to client 0"):
        client_app()(ask(client=1), context(partition_id=1, ledger=str(path)))
    with FileStore(path).locked(), pytest.raises(InputError, match="another session of this node"):
        client_app()(ask(k=1), node)


def test_own_data_in_a_folder_or_a_file(tmp_path: Path) -> None:

    task = RUN.problem().task
    x, y = task.x_train[:20], task.y_train[:20]
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder/x.npy", x)
    np.save(tmp_path / "folder/y.npy", y)
    replies = [client_app()(ask(), context(data=str(tmp_path / name))) for name in ("mine.npz", "folder")]
    assert replies[0].content["arrays"] == replies[1].content["arrays"]
    assert replies[0].content["energy"]["samples"] == 4 * 15
    bad = client_app()(ask(), context(data=str(tmp_path / "nothing")))
    assert told(bad)[0] == "failed"
    assert "nothing" in bad.content["pipecycle"]["reason"]


def test_records_survive_being_packed() -> None:
    content = RecordDict(
        {
            "arrays": ArrayRecord({"b": Array(np.arange(6.0).reshape(2, 3)), "a": Array(np.array([True, False]))}),
            "metrics": MetricRecord({"loss": 0.1, "list": [1, 2]}),
            "config": ConfigRecord({"word": "é", "raw": b"\x00\xff", "flag": True}),
        }
    )
    again = unpack(pack(content))
    assert again is not None
    assert list(again) == list(content)
    assert again == content
    assert list(again["arrays"]) == ["b", "a"]
    before = io.BytesIO()
    with zipfile.ZipFile(before, "w") as archive:  # as earlier versions stored answers
        archive.writestr("records.json", "[]")
    assert unpack(before.getvalue()) is unpack(None) is None


def test_a_session_needs_neither_scikit_learn_nor_pandas() -> None:
    """Importing them would take longer than the session, and more memory than the model."""
    text = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.deploy.in_process.test_node import RUN, TaskIdentity, ask, client_app, context
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
reply = client_app()(ask(), context(initial=40.0))
assert reply.content["pipecycle"]["outcome"] == "trained", reply.content
print(*sorted(sys.modules.keys() & {{"sklearn", "pandas", "scipy", "matplotlib", "plotly", "pyarrow"}}))
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


def test_an_emulated_battery_is_the_simulators_weather() -> None:
    for spec in ("bernoulli:0.3", "markov:0.3,8", "always"):
        account, battery = Account(0, 10**15), Emulated(spec, 5, 3, trial=2)
        for slot in (0, 7, 7, 3, 2000):
            battery.advance(account, slot)
        rows = parse_harvest(spec).weather(5, 2).block(2001)
        assert account.harvested == int(rows[:, 3].sum())
        assert account.page.slot == 2000


def test_forecasts(tmp_path: Path) -> None:
    (tmp_path / "gains.csv").write_text("".join(f"{row},{row % 3}\n" for row in range(30)))
    assert Forecast("bernoulli:0.25", 3, 0).through(7).tolist() == [2 * UNIT] * 3
    assert Forecast("always", 3, 0).gains(7).tolist() == [UNIT] * 3
    recorded = Forecast(f"csv:{tmp_path / 'gains.csv'}", 2, 0)
    rows = parse_harvest(f"csv:{tmp_path / 'gains.csv'}").weather(2, 0).block(50)
    assert np.array_equal(recorded.through(49), rows.sum(axis=0))
    assert np.array_equal(recorded.gains(11), rows[11])


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("polici", "x", "did you mean 'policy'"),
        ("policy", "nobody", "unknown"),
        ("policy", "isolated", "need no federation"),
        ("policy-settings", "[1]", "JSON object"),
        ("policy-settings", '{"grups": 2}', "did you mean 'groups'"),
        ("clock", "sundial", "logical, wall"),
        ("slots", 0, "at least 1"),
        ("slots", 2.5, "a whole number"),
        ("slot-seconds", 0.0, "above 0"),
        ("lr", float("nan"), "above 0"),
        ("partition", "dirichlet", "dirichlet:ALPHA"),
        ("harvest", "rain", "harvest"),
        ("out", "runs/x", "absolute"),
        ("resume", True, "needs `out`"),
    ],
)
def test_settings_are_refused_in_a_sentence(key: str, value: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        RunSettings.of({key: value})


def test_settings_survive_being_flat() -> None:
    run = RunSettings(policy="fedavg", partition="dirichlet:0.5", slots=7, out="/tmp/x", resume=True)
    assert RunSettings.of(run.flat()) == run
    assert all(isinstance(value, bool | int | float | str) for value in run.flat().values())
    text = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in run.flat().items()}
    assert RunSettings.of(text) == run


def test_a_battery_source_is_a_line_in_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings accept it, messages name it, and it is measured as the gauge is."""
    gauge = tmp_path / "level"
    gauge.write_text("7.5")
    monkeypatch.setitem(SOURCES, "level:FILE", lambda file, run, node, timer: Gauge(Path(file), timer))
    node = NodeSettings(battery=f"level:{gauge}", partition_id=2)
    account = Account(2, 100 * UNIT)
    battery(RUN, node, VirtualTime()).advance(account, 3)
    assert account.level == int(7.5 * UNIT)
    for text in ("level", "level:", "machine:x"):
        with pytest.raises(InputError, match=f"needs {', '.join(SOURCES)}"):
            NodeSettings(battery=text)


def test_a_node_may_be_a_device_of_a_fleet(tmp_path: Path) -> None:
    """Its column of the fleet's weather, its capacity and its charge, in steps of its own."""
    file = tmp_path / "fleet.toml"
    board = '[[device]]\ncount = 1\nstep = 4\ncapacity = 200\ninitial = 20\nharvest = "always"\ngain = 6\n'
    sensor = '[[device]]\ncount = 2\nstep = 0.5\nharvest = "bernoulli:0.5"\n'
    file.write_text(board + sensor)
    run = RunSettings.of({"clients": 3, "capacity": 1000.0, "initial": 7.0})

    def node(client: int) -> Node:
        settings = NodeSettings.of({"partition-id": client, "battery": f"fleet:{file}"})
        return Node(run, settings, FileStore(tmp_path / f"{client}.json"), VirtualTime())

    first = node(0)
    assert first.capacity == 50 * UNIT
    assert first.account.level == 5 * UNIT
    first.ledger.enter("one")
    first.battery.advance(first.account, 9)
    assert first.account.level == 20 * UNIT  # ten slots of 1.5 steps
    other = node(1)
    assert other.capacity == 1000 * UNIT
    assert other.account.level == 14 * UNIT
    other.ledger.enter("one")
    other.battery.advance(other.account, 99)
    assert 60 < other.account.level / UNIT - 14 < 140  # two steps in every other slot
    for clients in (4, 100):
        run = RunSettings.of({"clients": clients})
        with pytest.raises(InputError, match="has 3 devices"):
            node(0)
