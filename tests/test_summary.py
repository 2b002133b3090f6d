"""The figures of schedules that can be worked out with a pencil."""

from __future__ import annotations

import pytest
from attrs import define

from pipecycle import Bernoulli, World, plan
from pipecycle.policies import FedAvg, PipeCycle
from pipecycle.report.picture import picture
from pipecycle.schedule.schedule import Status
from pipecycle.schedule.summary import sentences, summarise, warnings
from pipecycle.words import number


def relay() -> dict[str, object]:
    """Three clients in groups of one, sessions of two slots, two groups at once, a formation in every slot.

    Clients 0, 1 and 2 start in slots 0, 1 and 2 and again three slots later.  The models of the first five sessions
    are A to E; the relay of slot 2 sends A to the server, and so on to D in slot 5.  C continues A and E continues C;
    D continues B.  The session that starts in slot 5 is under way when the run ends."""
    schedule = plan(PipeCycle(groups=2, group_size=1), 1.0, 3, 6, session=2, initial=[2.0, 1.0, 0.0])
    return summarise(schedule, budget=7.0)


def test_the_relay_in_figures() -> None:
    figures = relay()
    assert figures["sessions"] == 6
    assert figures["sessions_by_status"] == {"used": 5, "unused": 0, "lost": 0, "declined": 0, "in_flight": 1}
    assert figures["wasted"] == 0
    assert figures["aggregations"] == 5  # A to E
    assert figures["published"] == 4  # A to D
    # 2 + 1 + 0 at the start and three in each of six slots; 1, 2, 2, 2, 2 and 2 steps, and four uploads.
    assert figures["energy"] == {"harvested": 21, "spent": 15, "stored": 6, "overflowed": 0}
    assert figures["spent_on"] == {"training": 11, "to_hub": 0, "to_server": 4}
    assert figures["budget_slot"] == 3  # 1, 3, 6, 9, ... by the end of the slots
    assert figures["group_size"] == {"mean": 1, "max": 1}
    assert figures["max_concurrent_groups"] == 2
    assert figures["lag"] == {"mean": 0.8, "max": 1}  # none before A; B is made after A is served, C after B, ...
    assert figures["ancestry_max"] == 2
    # A, C, E: clients 0, 2, 1; B, D: clients 1, 0.
    assert figures["chains"] == {"count": 2, "coverage_min": 2, "coverage_mean": 2.5, "depth_max": 3}
    assert figures["participants"] == 3
    assert figures["fairness"] == 1


def test_the_relay_in_sentences() -> None:
    said = sentences(relay())
    assert said["energy"] == "21 harvested = 15 spent + 6 stored + 0 overflowed"
    assert said["spent on"] == "training 11, to hubs 0, to the server 4"
    assert said["sessions"] == "6: 5 used, 1 in flight"
    assert said["aggregations"] == "5 of 1 updates on average, 1 at most"
    assert said["groups"] == "at most 2 in training at once"
    assert said["chains"] == "2, 3 aggregations deep; they have met 2 (fewest) and 2.5 (mean) of 3 participants"
    assert said["budget"] == "7 units, reached in slot 3"
    (warning,) = warnings(relay())
    assert warning.startswith("A chain has met only 2 of the 3 clients that took part")
    alone = sentences(summarise(plan(FedAvg(), 1.0, 3, 90, session=5)))
    assert alone["chains"] == "1, 3 aggregations deep; it has met 3 of 3 participants"


def test_who_takes_part_and_what_is_worth_a_warning() -> None:
    """Two of three clients have energy for one session and its report; then nobody has."""
    figures = summarise(plan(FedAvg(), 0.0, 3, 60, session=2, initial=[3.0, 3.0, 1.0]))
    assert (figures["participants"], figures["chains"]["coverage_min"]) == (2, 2)
    assert figures["fairness"] == pytest.approx(2**2 / (3 * 2))
    assert warnings(figures) == []
    (warning,) = warnings(summarise(plan(FedAvg(), 0.0, 3, 60, session=2)))
    assert warning.startswith("Nothing was aggregated")


def test_clients_that_never_report_are_no_reason_for_a_note() -> None:
    alone = summarise(plan("isolated", 1.0, 3, 60, session=5))
    assert alone["aggregations"] == 0
    assert warnings(alone) == []
    assert sentences(alone)["aggregations"] == "none"
    assert "lag" not in sentences(alone)


def test_groups_at_once_are_the_most_there_ever_were() -> None:
    """One client trains in slots 0 to 4, the other in 3 to 7, and nobody after that."""
    schedule = plan(PipeCycle(groups=2, group_size=1), 0.0, 2, 60, session=5, initial=6.0)
    assert summarise(schedule)["max_concurrent_groups"] == 2


def test_a_discarded_models_sessions_are_wasted() -> None:
    schedule = plan(PipeCycle(groups=3, queue_threshold=1), 0.12, 10, 300, session=4)
    thrown = [
        session
        for version in range(len(schedule.versions))
        if schedule.versions.discarded[version]
        for session in schedule.ancestry.recipe(version).sessions
    ]
    unused = [row for row, status in enumerate(schedule.sessions.status) if status == Status.UNUSED]
    assert thrown
    assert schedule.wasted() == len(set(thrown) | set(unused)) == len(thrown) + len(unused)


def test_figures_have_as_many_digits_as_help() -> None:
    shown = [number(value) for value in (None, 1234567, 12.0, 0.12345, 1234.56, True, "spread")]
    assert shown == ["-", "1,234,567", "12", "0.123", "1,234.6", "True", "spread"]


@define(slots=False, eq=False)
class Eager:
    """Starts whoever can pay for a session in every slot from `first` on, and that is often nobody."""

    name = "eager"
    grouping = "launch"

    first: int = 0

    def setup(self, world: World) -> None:
        self.fleet, self.lineage = world.fleet, world.lineage
        self.need = self.fleet.to_train + self.fleet.to_server

    def decide(self, slot: int) -> None:
        senders = self.fleet.unsent(self.fleet.to_server)
        if len(senders):
            self.lineage.publish(self.lineage.mean(self.lineage.published, self.fleet.send(senders, "server")))
        free = self.fleet.free(self.need)
        self.fleet.start(free if slot >= self.first else free[:0], self.lineage.published, self.need)

    def collect(self, slot: int, done: object, lost: object) -> None:
        pass


def test_a_policy_that_starts_nobody_is_drawn() -> None:
    """Client 0 can pay for sessions in slots 0 to 1 and 3 to 4, the other one never; all other starts are empty."""
    schedule = plan(Eager(), 0.0, 2, 12, session=2, initial=[6.0, 0.0])
    assert (len(schedule.launches), len(schedule.sessions)) == (12, 2)
    drawn = picture(schedule, 40).plain.splitlines()
    assert drawn[0] == "lane 1      A─ A─" + " " * 23
    nothing = picture(plan(Eager(first=99), 0.0, 2, 12, session=2, initial=6.0), 40).plain
    assert "lane" not in nothing


def test_a_client_in_flight_has_met_no_chain_and_is_no_reason_for_a_note() -> None:
    """The second client has its three units in slot 2, and is still training when the run ends after that slot."""
    schedule = plan(Eager(), Bernoulli([0.0, 1.0]), 2, 3, session=2, initial=[3.0, 0.0])
    figures = summarise(schedule)
    assert (figures["participants"], figures["contributors"], figures["chains"]["coverage_min"]) == (2, 1, 1)
    assert warnings(figures) == []


def test_the_note_names_only_settings_that_the_policy_has() -> None:
    figures = relay()  # of PipeCycle
    (note,) = warnings(figures)
    assert note.endswith("(try rotation=spread and relay_mix=0.5, or pipecycle+).")
    better = {**figures, "settings": {**figures["settings"], "rotation": "spread"}}
    assert warnings(better)[0].endswith("(try relay_mix=0.5, or pipecycle+).")
    assert warnings(figures, figures)[0].startswith("In both trials a chain has met only 2 of the 3 clients")
    other = {**figures, "settings": {"winners": 4}}
    assert warnings(other)[0].endswith("chains that never mix learn from a part of the data.")
