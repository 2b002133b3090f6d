from __future__ import annotations

import html.parser
import json
import re
import subprocess
import sys

import pytest

from pipecycle.report import load

pytest.importorskip("plotly")

from pipecycle.report.page import page


class Reader(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes) -> None:
        self.tags.append((tag, dict(attributes)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside != "style":
            self.text.append(data)

    def data(self):
        return json.loads(self.scripts[0])


def test_one_page_with_everything_in_it(make) -> None:
    paths = [make(f"{p}{t}", p, (50, 80 + t), world__trial=t) for p in ("pipecycle", "fedavg") for t in range(2)]
    text = page(load(paths), 80.0, references={"centralised": 96.5})
    seen = Reader(text)
    assert len(text.encode()) < 8_000_000
    links = [attributes.get(key) for _, attributes in seen.tags for key in ("src", "href") if attributes.get(key)]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert [tag for tag, _ in seen.tags].count("script") == 3
    policy = next(attributes["content"] for tag, attributes in seen.tags if attributes.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    data = seen.data()
    assert [group["label"] for group in data["groups"]] == ["PipeCycle", "FedAvg"]
    assert data["references"] == [{"name": "centralised", "accuracy": 96.5}]
    assert data["curves"]["slot"][0] == {"x": [100, 200], "mean": [50, 80.5], "trials": 2, "sd": [0, 0.71]}
    shown = " ".join(seen.text)
    for words in ("4 runs (2 trials)", "To reach 80 % accuracy", "world.harvest", "how many clients", "bernoulli:0.5"):
        assert words in shown
    plots = {attributes["id"]: attributes["data-alt"] for _, attributes in seen.tags if "data-alt" in attributes}
    assert len(plots) == 11
    assert all(plots.values())
    assert not re.search(r"\$[a-z]", text.split("<script", 1)[0])


def test_labels_cannot_break_out_of_the_page(make) -> None:
    (group,) = load([make("a")])
    evil = '</script><script>alert("x")</script>&$title'
    text = page([type(group)(evil, group.records)])
    assert Reader(text).data()["groups"][0]["label"] == evil
    assert '<script>alert("x")' not in text


def test_a_plan_alone_and_a_world_without_energy(make) -> None:
    for run in (make("a") / "schedule.npz", make("dark", world__harvest="bernoulli:0") / "schedule.npz"):
        text = page(load([run]))
        assert '<section id="accuracy" hidden' in text
        assert Reader(text).data()["curves"]["slot"] == [None]


def test_a_single_run_is_not_compared_with_itself(make) -> None:
    text = page(load([make("a")]))
    assert Reader(text).data()["differences"] == []
    assert '<section id="differences" hidden' in text
    assert '<form class="switches" hidden' in text
    assert "Difference to the best" not in text
    assert 'href="#h-differences"' not in text


def test_differences_are_taken_trial_by_trial(make) -> None:
    paths = [make(f"a{t}", accuracy=(50, 80 + t), world__trial=t) for t in range(2)]
    paths += [make(f"b{t}", "fedavg", accuracy=(50, 79 - t), world__trial=t) for t in range(2)]
    paths += [make(f"c{t}", "mifa", accuracy=(50, 70 + t), world__trial=t) for t in range(2)]
    best, second, third = Reader(page(load(paths))).data()["differences"]
    assert (best["group"], best["mean"], best["trials"]) == (best["best"], None, [])
    assert (second["mean"], second["trials"]) == (-2.0, [-1, -3])
    assert second["low"] < -2 < second["high"]
    assert (third["mean"], third["low"], third["high"]) == (-10.0, None, None)  # equal trials: no interval


def test_classes_and_clients(make) -> None:
    """Two classes of ten are known; a client's figure is their accuracy weighted by what it holds."""
    from pipecycle.report.holdings import client_accuracy, holdings

    run = make("a", data__alpha=0.1)
    lines = (run / "metrics.csv").read_text().splitlines()
    scores = ",".join(str(10 * k) for k in range(10))
    heads = ",".join(f"class_{k}" for k in range(10))
    (run / "metrics.csv").write_text(
        "\n".join([f"{lines[0]},{heads}", *(f"{line},{scores}" for line in lines[1:])]) + "\n"
    )
    (group,) = load([run])
    data = Reader(page([group])).data()
    assert data["panels"][0]["classes"] == [10 * k for k in range(10)]
    held = holdings(group.example)
    assert held.sum(axis=1) == pytest.approx(1.0)
    mine = client_accuracy(group.example, held)
    assert mine is not None
    assert mine == pytest.approx([sum(10 * k * share for k, share in enumerate(row)) for row in held])
    assert data["panels"][0]["clients"]["y"] == pytest.approx(sorted(mine), abs=0.01)
    assert len(data["holdings"]["z"]) == 10


def test_the_relay_tells_pipecycle_from_pipecycle_plus(make) -> None:
    """PipeCycle's chains take turns, a model holds one; PipeCycle+ adds every chain's updates to one model."""
    data = Reader(page(load([make("a", "pipecycle"), make("b", "pipecycle+")]))).data()
    plain, plus = (panel["mixing"] for panel in data["panels"])
    assert all(max(column) == 100 for column in zip(*plain["share"], strict=True))
    assert plain["sources"] == 1
    assert max(column[-1] for column in plus["share"]) < 70
    assert plus["sources"] > 1.7


def test_heat_map_ends_at_the_recorded_levels(make) -> None:
    (group,) = load([make("a")])
    battery = Reader(page([group])).data()["panels"][0]["battery"]
    assert [row[-1] for row in battery["z"]] == (group.example.schedule.energy.level / 2**20).tolist()


def test_ten_large_runs_stay_small(make) -> None:
    options = {"world__clients": 100, "world__slots": 3000, "accuracy": list(range(30)), "groups": 10}
    groups = load([make("a", "pipecycle+", **options)])
    assert len(page(groups * 10)) < 8_000_000


def test_the_package_imports_without_plotly_and_matplotlib() -> None:
    code = (
        "import sys\n"
        "for name in ('plotly', 'matplotlib'): sys.modules[name] = None\n"
        "import pipecycle.report, pipecycle.commands.reporting, pipecycle.report.page, pipecycle.report.figures\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
