"""What people see of a run, from its trace."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from pipecycle.commands.live_table import figures, table
from pipecycle.deploy.local.progress import Progress, Tail

TRACE = [
    {"event": "start", "slot": -1, "settings": {"clients": 3, "slots": 50, "clock": "wall", "slot-seconds": 2.0}},
    {"event": "roll-call", "slot": -1, "client": 0, "battery": 12.0},
    {"event": "roll-call", "slot": -1, "client": 2, "battery": 4.5},
    {"event": "launch", "slot": 1, "clients": [0], "sessions": [0], "reference": 0},
    {"event": "launch", "slot": 3, "clients": [2], "sessions": [1], "reference": 0},
    {"event": "decline", "slot": 4, "client": 2, "session": 1, "battery": 4.0},
    {"event": "launch", "slot": 5, "clients": [1], "sessions": [2], "reference": 0},
    {"event": "roll-call", "slot": 6, "client": 1, "node": "7"},
    {"event": "reply", "slot": 9, "client": 0, "session": 0, "battery": 6.0},
    {"event": "aggregation", "slot": 9, "version": 1, "kind": "aggregation"},
    {"event": "aggregation", "slot": 9, "version": 2, "kind": "mixture"},
    {"event": "publish", "slot": 9, "version": 1},
    {"event": "evaluation", "slot": 10, "version": 1, "accuracy": 31.25},
    {"event": "evaluation", "slot": 20, "version": 1, "accuracy": 30.0},
]


def progress_of(trace: list[dict[str, object]]) -> Progress:
    progress = Progress()
    for event in trace:
        progress.add(event)
    return progress


def shown(progress: Progress) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(table(progress))
    return console.export_text()


def test_the_table_follows_the_trace() -> None:
    progress = progress_of(TRACE)
    assert progress.groups == [[1]]
    assert [progress.devices[client].battery for client in range(3)] == [6.0, None, 4.0]
    values = figures(progress)
    assert (values["slot"], values["version"], values["aggregations"]) == (20, 1, 1)
    assert (values["accuracy"], values["best"]) == (30.0, 31.25)
    assert (values["reported"], values["declined"], values["lost"], values["refused"]) == (1, 1, 0, 0)
    text = shown(progress)
    assert "slot 20 of 50; groups in flight: 1 {1}; version 1 served, 1 aggregations" in text
    assert "accuracy 30.0 %, best 31.2 %" in text


def test_time_passes_on_a_wall_clock() -> None:
    progress = progress_of(TRACE)
    progress.waited = 9.0
    assert progress.now == 24
    progress.waited = 1e6
    assert progress.now == 49
    progress.add({"event": "end", "slot": 49})
    assert (progress.now, progress.groups) == (49, [])


def test_nodes_that_are_nobody_are_counted() -> None:
    progress = progress_of([*TRACE, {"event": "refused", "slot": 21, "node": "9", "name": "client", "why": "99"}])
    assert figures(progress)["refused"] == 1
    assert "unknown nodes: 1 refused" in shown(progress)


def test_groups_are_what_started_together() -> None:
    launches = [
        {"event": "launch", "slot": 1, "clients": [0, 1, 2], "reference": [0, 0, 3]},
        {"event": "launch", "slot": 2, "clients": [3], "reference": 3},
    ]
    assert progress_of(launches).groups == [[0, 1], [2], [3]]


def test_strange_lines_do_not_break_the_picture(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    odd = ['{"event": "evaluation", "slot": 1, "accuracy": null}', '{"event": "moon"}', "[1]", "nonsense"]
    path.write_text("\n".join([*odd, '{"event": "launch", "slot": 2, "clients": [1]}', '{"event": "re']))
    progress = Tail(path).read()
    assert progress.groups == [[1]]
    assert "training" in shown(progress)
    assert Tail(tmp_path / "none").read().slot is None


def test_a_growing_trace_and_one_that_was_cut_back(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [json.dumps(event) + "\n" for event in TRACE]
    tail = Tail(path)
    with path.open("w") as file:
        for line in lines:
            file.write(line[:7])
            file.flush()
            tail.read()
            file.write(line[7:])
            file.flush()
            tail.read()
    assert tail.progress == progress_of(TRACE)
    resumed = [*TRACE[:5], *({**event, "slot": event["slot"] + 1} for event in TRACE[5:]), TRACE[-1]]
    path.write_text("".join(json.dumps(event) + "\n" for event in resumed))  # cut at line 5, then longer than before
    assert tail.read() == progress_of(resumed)


def test_a_run_that_ended_and_was_extended() -> None:
    progress = Progress()
    progress.add({"event": "start", "slot": -1, "settings": {"clients": 2, "slots": 30}})
    report = {"battery": 3.5, "report": [31, 0, 0, 0, 0]}
    progress.add({"event": "roll-call", "slot": -1, "client": 0, "battery": 7.0, "report": [-1, 0, 0, 0, 0]})
    progress.add({"event": "launch", "slot": 25, "sessions": [0], "clients": [1], "reference": 0})
    progress.add({"event": "late", "slot": 29, "client": 1, "session": 0, "outcome": "reply", **report})
    progress.add({"event": "late", "slot": 29, "client": 0, "outcome": "away"})
    progress.add({"event": "end", "slot": 29})
    assert progress.ended is not None
    assert [(device.battery, device.at) for device in progress.devices.values()] == [(7.0, -1), (3.5, 31)]
    assert "0      7.0     -  present" in shown(progress)
    assert "1      3.5    31  too late" in shown(progress)
    progress.add({"event": "resume", "slot": 29, "life": "1-x", "slots": 40})
    assert progress.ended is None
    assert progress.settings["slots"] == 40
