"""A node's ledger: runs that take turns, models that stay on the node, kills between any two writes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from pipecycle.deploy import RunSettings, client_app
from pipecycle.deploy.node import ledger
from pipecycle.deploy.node.session import attend
from pipecycle.deploy.server.model import own
from pipecycle.deploy.wire.arrays import write_arrays
from pipecycle.deploy.wire.protocol import Order
from pipecycle.world.energy import UNIT

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
Ledgers = Callable[[Path], dict[int, dict[str, Any]]]
RUN = RunSettings(clients=3, session=4, harvest="always", initial=40.0)


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


class Killed(BaseException):
    """Nothing catches it."""


class Node:
    """One node with its ledger in a folder."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.app = folder, client_app()
        node = {"partition-id": 0, "ledger": str(folder / "ledger.json"), **settings}
        self.context = Context(1, 1, node, RecordDict(), RUN.flat())

    def ask(self, k: int = 0, slot: int = 5, run: str = "r", **changes: Any) -> RecordDict:
        values = {"client": 0, "steps": 4, "need": 5 * UNIT, "step": UNIT, "fee": UNIT, "seconds": 60.0, **changes}
        learning = own(RUN)
        content = RecordDict(
            {
                "pipecycle": Order(run, k=k, slot=slot, **values).record(),
                "config": ConfigRecord({"classes": 10}),
                "arrays": write_arrays(learning.named(learning.initial)),
            }
        )
        message = Message(content, 1, "train")
        message.metadata.__dict__["_message_id"] = "m"
        return self.app(message, self.context).content

    def distil(self, k: int, slot: int, kept: int = -1, **changes: Any) -> RecordDict:
        return self.ask(k, slot, payload="logits", kept=kept, **changes)

    @property
    def books(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "ledger.json").read_text())
        return found

    @property
    def files(self) -> list[str]:
        return sorted(
            path.name for path in self.folder.iterdir() if path.name not in ("ledger.json", "ledger.json.lock")
        )


def units(content: RecordDict) -> tuple[str, float, float, int]:
    energy = content["energy"]
    return content["pipecycle"]["outcome"], energy["battery"] / UNIT, energy["spent"] / UNIT, energy["at"]


def same(one: RecordDict, other: RecordDict) -> bool:
    names = list(one)
    return names == list(other) and all(one[name] == other[name] for name in names)


def test_runs_that_take_turns_harvest_every_slot_once_and_train_every_key_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    first = node.ask(run="a", slot=50)
    assert units(first) == ("trained", 40 + 54 - 5, 5, 53)
    # The other run's weather is its own; the battery is the same, and what was spent is spent.
    assert units(node.ask(k=-1, run="b", slot=2)) == ("present", 89 + 3, 0, 2)
    assert same(node.ask(run="a", slot=50), first)
    assert units(node.ask(k=-1, run="b", slot=3)) == ("present", 89 + 4, 0, 3)
    assert units(node.ask(run="a", k=1, slot=60)) == ("trained", 93 + 10 - 5, 10, 63)
    second = node.ask(run="b", slot=4)
    assert units(second) == ("trained", 98 + 4 - 5, 5, 7)
    assert same(node.ask(run="a", slot=50), first)
    assert same(node.ask(run="b", slot=4), second)
    books = node.books
    assert books["harvested"] == (40 + 64 + 8) * UNIT
    assert (books["training"], books["uploads"], books["broken"]) == (12 * UNIT, 3 * UNIT, 0)
    assert units(node.ask(k=-1, run="a", slot=63)) == ("present", 97, 10, 63)


def test_two_servers_may_share_their_nodes(federation: Federation, ledgers: Ledgers, tmp_path: Path) -> None:
    """Slot by slot in turns: neither takes what the other has its nodes spend for a lie."""
    options = {"policy": "fedavg", "clients": 3, "slots": 60, "session": 4, "initial": 300.0, "run_it": False}
    one, other = (federation(tmp_path, **options) for _ in range(2))
    decide = one.driver.policy.decide
    others = other.driver.slots(other.driver._start())

    def in_turn(slot: int) -> None:
        assert next(others) == slot
        decide(slot)

    one.driver.policy.decide = in_turn
    one.driver.run()
    other.driver._drain(59)
    assert not one.driver.refused
    assert not other.driver.refused
    sessions = 0
    for live in (one, other):
        counts = live.driver.schedule().status_counts()
        assert counts["used"] > 10
        assert counts["lost"] == counts["declined"] == 0
        sessions += len(live.driver.fleet.sessions)
    books = ledgers(tmp_path)
    assert sum(book["training"] for book in books.values()) == sessions * 4 * UNIT
    for client, book in books.items():
        slots = [page["slot"] + 1 for page in book["runs"].values()]
        assert len(slots) == 2
        assert book["harvested"] == (300 + sum(slots)) * UNIT
        parts = [live.driver.fleet.reports[client].spent for live in (one, other)]
        assert sum(parts) == book["training"] + book["uploads"]


def test_only_the_latest_runs_are_remembered(tmp_path: Path) -> None:
    node = Node(tmp_path, initial=100.0)
    first = node.ask(run="0", slot=0)
    for run in range(1, ledger.RUNS + 2):
        node.distil(0, 0, run=str(run))
        assert same(node.ask(run="0", slot=0), first)  # heard of just now
        assert len(node.books["runs"]) <= ledger.RUNS
    assert "1" not in node.books["runs"]
    assert "2" not in node.books["runs"]
    # An answer each, and a model each of the seven that distil.
    assert len(node.files) == ledger.RUNS + ledger.RUNS - 1


def test_a_kept_model_is_its_runs_own(tmp_path: Path) -> None:
    for folder in ("alone", "turns"):
        (tmp_path / folder).mkdir()
    alone, turns = Node(tmp_path / "alone"), Node(tmp_path / "turns")
    alone.distil(0, 5, run="a")
    turns.distil(0, 5, run="a")
    turns.distil(0, 9, run="b")
    turns.ask(1, 20, run="b", kept=0)
    one, other = (node.ask(1, 30, run="a", kept=0) for node in (alone, turns))
    assert one["arrays"] == other["arrays"]
    assert Node(tmp_path / "turns").ask(2, 40, run="a", kept=7)["pipecycle"]["reason"] == "the kept model is gone"


def test_a_kept_model_stays_until_the_server_cannot_go_back_before_it(tmp_path: Path) -> None:
    """The server that goes on from a checkpoint with session 0 in it asks again what it has asked after it."""
    node = Node(tmp_path)
    node.distil(0, 5)
    learnt = node.ask(1, 15, kept=0, settled=0)
    node.distil(2, 25, settled=0)
    node.distil(3, 35, settled=0)
    again = node.ask(4, 45, kept=0, settled=0)
    assert again["pipecycle"]["outcome"] == "trained"
    assert learnt["arrays"] != again["arrays"]  # other batches
    assert node.ask(5, 55, kept=3, settled=4)["pipecycle"]["outcome"] == "trained"
    assert node.ask(6, 65, kept=0, settled=5)["pipecycle"]["reason"] == "the kept model is gone"
    assert [name.partition(".json.")[2].partition("-")[0] for name in node.files] == ["answer", "kept"]


def test_numbers_are_compared_within_a_life_only(tmp_path: Path) -> None:
    node = Node(tmp_path)
    old = [node.ask(k, 10 * k) for k in range(4)]
    new = node.ask(2, 40, life="1-aa")
    assert units(new)[0] == "trained"
    assert units(node.ask(3, 50, life="10-cc"))[0] == "trained"
    # Asked again after all: what is kept is answered, and nothing of an earlier life is begun any more.  Sessions 2
    # and 3 of the first life were forgotten by whoever has asked for another session 2.
    assert same(node.ask(1, 10), old[1])
    assert same(node.ask(2, 40, life="1-aa"), new)
    assert units(node.ask(3, 30))[0] == "declined"
    late = [node.ask(4, 60), node.ask(9, 60, life="1-aa"), node.ask(9, 60, life="9-bb"), node.ask(2, 60, life="10-cc")]
    assert {one["pipecycle"]["reason"] for one in late} == {"an old order, its reply is not kept"}
    assert node.books["training"] == 6 * 4 * UNIT
    # The server has session 3 on disk, whichever life that was.
    node.ask(4, 70, life="10-cc", settled=3)
    assert list(node.books["runs"]["r"]["answers"]) == ["r/10-cc/0/4"]


def test_the_model_of_a_number_is_the_latest_that_was_made_under_it(tmp_path: Path) -> None:
    """Session 1 is forgotten by the server, and asked for again on other batches."""
    for folder in ("straight", "forgotten"):
        (tmp_path / folder).mkdir()
    straight, forgotten = Node(tmp_path / "straight"), Node(tmp_path / "forgotten")
    forgotten.distil(1, 5, steps=2)
    for node in (straight, forgotten):
        node.distil(1, 25, life="1-aa")
    one, other = (node.ask(2, 45, kept=1, life="1-aa", settled=1) for node in (straight, forgotten))
    assert one["arrays"] == other["arrays"]
    assert straight.files == forgotten.files


def killing(patch: pytest.MonkeyPatch, at: int) -> None:
    """Dies before the n-th write or drop, or after it."""
    left = [at]

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            function(*args, **options)
            left[0] -= 1
            if left[0] == 0:
                raise Killed

        return call

    patch.setattr(ledger, "write", wrapped(ledger.write))
    patch.setattr(Path, "unlink", wrapped(Path.unlink))


@pytest.mark.parametrize("at", range(1, 18))
def test_a_node_killed_at_any_write_goes_on_from_the_model_that_it_kept(tmp_path: Path, at: int) -> None:
    """As if it had not been killed: the same logits, the same next model; energy once, and once for a broken one."""
    nodes = []
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
        nodes.append(Node(tmp_path / folder))
        nodes[-1].distil(0, 10)
    whole, killed = nodes
    expected = whole.distil(1, 20, kept=0, settled=0)
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, at)
        try:
            killed.distil(1, 20, kept=0, settled=0)
        except Killed:
            dead = True
        else:
            dead = False
    open_then = killed.books["open"]
    found = killed.distil(1, 20, kept=0, settled=0)
    assert found["logits"] == expected["logits"]
    assert found["pipecycle"] == expected["pipecycle"]
    broken = killed.books["broken"]
    assert broken == int(dead and open_then != "")
    assert killed.books["training"] == whole.books["training"] + broken * 4 * UNIT
    assert killed.books["uploads"] == whole.books["uploads"]
    assert killed.books["harvested"] == whole.books["harvested"]
    after = [node.ask(2, 30, kept=1, settled=1) for node in nodes]
    assert after[0]["arrays"] == after[1]["arrays"]
    assert killed.files == whole.files


def test_what_a_kill_leaves_behind_is_swept_and_nothing_else(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.ask(0, 5)
    kept = node.files
    orphan = "ledger.json.answer-0123456789abcdef"
    for name in (orphan, f".{orphan}.4242.partial", ".ledger.json.4242.partial", f"ledger.json.{'kept-' + 16 * 'f'}"):
        (tmp_path / name).write_text("half")
    others = ["ledger.json.2", "ledger.json.2.answer-0123456789abcdef", "ledger.json.bak", ".ledger.json.2.77.partial",
              "my-ledger.json.answer-0123456789abcdef"]  # fmt: skip
    for name in others:
        (tmp_path / name).write_text("somebody else's")
    node.ask(-1, 6)
    assert node.files == sorted([*kept, *others])


def test_a_sweep_needs_no_order_of_files(tmp_path: Path) -> None:
    """A ledger in Flower's memory forgets alike."""
    node = Node(tmp_path)
    node.context.node_config = {"partition-id": 0}
    for k in range(6):
        node.distil(k, 10 * k, settled=k - 1)
    record = node.context.state["pipecycle-ledger"]
    kinds = sorted(name.partition("-")[0] for name in record)
    assert kinds == ["answer", "kept", "kept", "ledger"]
    assert not np.array_equal(*(record[name] for name in record if name.startswith("kept")))


class Story:
    """Three runs on one node that is killed now and then, and servers that ask again, or forget and ask anew."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.folder = random.Random(seed), folder
        self.context = Context(
            1, 1, {"partition-id": 0, "ledger": str(folder / "ledger.json"), "initial": 400.0}, RecordDict(), RUN.flat()
        )
        self.slots, self.last = dict.fromkeys("abc", 0), dict[str, Order]()
        self.answered: dict[str, RecordDict] = {}
        self.models: dict[tuple[str, int], float] = {}
        self.made, self.serial = dict[str, float](), 0.0
        self.settled = dict.fromkeys("abc", -1)
        self.lives = dict.fromkeys("abc", 0)

    def handler(self, message: Message, context: Context) -> Message:
        order = Order.of(message.content)
        assert order is not None
        assert order.key not in self.answered
        if order.kept >= 0:
            assert message.content["kept"]["w"].numpy()[0] == self.models[order.run, order.kept]
        self.serial += 1.0
        self.made[order.key] = self.serial
        arrays = ArrayRecord({"w": Array(np.array([self.serial]))})
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    def next(self, run: str) -> Order:
        """What the server asks for: something new, the same again, or (in another life) what it has forgotten."""
        chance, last = self.random.random(), self.last.get(run)
        self.slots[run] += self.random.randrange(3)
        k = 0 if last is None else last.k + 1
        if last is not None and chance < 0.2:
            return last
        if last is not None and last.k > self.settled[run] and chance < 0.35:
            self.lives[run] += 1
            k = self.random.randint(self.settled[run] + 1, last.k)
            self.models = {
                (one, number): value for (one, number), value in self.models.items() if one != run or number < k
            }
        elif last is not None and last.key in self.answered:
            self.settled[run] = self.random.randint(self.settled[run], last.k)
        kept = max((number for one, number in self.models if one == run), default=-1)
        life = f"{self.lives[run]}-x" if self.lives[run] else ""
        return Order(
            run, 0, k, self.slots[run], 4, 5 * UNIT, UNIT, UNIT, self.random.choice(("update", "logits")),
            self.random.choice((kept, -1)), self.settled[run], 60.0, life=life,
        )  # fmt: skip

    def ask(self, order: Order) -> None:
        message = Message(RecordDict({"pipecycle": order.record()}), 1, "train")
        message.metadata.__dict__["_message_id"] = "m"
        with pytest.MonkeyPatch.context() as patch:
            if self.random.random() < 0.4:
                killing(patch, self.random.randint(1, 18))
            reply = attend(message, self.context, self.handler, RUN).content
        if order.key in self.answered:
            assert same(reply, self.answered[order.key])
            return
        assert reply["pipecycle"]["outcome"] == "trained", reply["pipecycle"]["reason"]
        self.answered[order.key] = reply
        if order.payload == "logits":
            assert "arrays" not in reply
            self.models[order.run, order.k] = self.made[order.key]

    def check(self, *, whole: bool) -> None:
        if not whole and not (self.folder / "ledger.json").exists():
            return  # killed as it was opened
        books = json.loads((self.folder / "ledger.json").read_text())
        assert books["harvested"] == (400 + sum(page["slot"] + 1 for page in books["runs"].values())) * UNIT
        charged = len(self.answered) + books["broken"] + bool(books["open"])
        if whole:
            assert (books["training"], books["uploads"]) == (charged * 4 * UNIT, len(self.answered) * UNIT)
            named = {
                name for page in books["runs"].values() for kind in ("answers", "kept") for name in page[kind].values()
            }
            files = {path.name for path in self.folder.iterdir()}
            assert files == {"ledger.json", "ledger.json.lock", *(f"ledger.json.{name}" for name in named)}
        assert books["training"] + books["uploads"] == sum(page["spent"] for page in books["runs"].values())


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_in_whatever_order_the_books_add_up(tmp_path: Path, seed: int) -> None:
    story, kills = Story(tmp_path, seed), 0
    for _ in range(60):
        run = story.random.choice("abc")
        order = story.next(run)
        story.last[run] = order
        while True:
            try:
                story.ask(order)
                break
            except Killed:
                kills += 1
                story.check(whole=False)
        story.check(whole=True)
    assert kills > 5
    assert len(story.answered) > 20
