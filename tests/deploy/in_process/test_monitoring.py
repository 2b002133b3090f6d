"""What watches a live run: figures in Prometheus' text format, and the served model, at any time."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from safetensors import safe_open
from safetensors.numpy import load

from pipecycle.deploy.server import monitoring
from pipecycle.deploy.server.monitoring import Family, exposition, with_metadata

pytestmark = pytest.mark.flower
Federation = Callable[..., SimpleNamespace]
Samples = dict[str, dict[frozenset[tuple[str, str]], float]]

LINE = re.compile(r"([a-z][a-z0-9_]*)\{(.*)\} (\S+)")
LABEL = re.compile(r'([a-z]+)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def parse(text: str) -> Samples:
    """Samples by name; fails unless each name has its help, its type and then its samples, all together and once."""
    assert text.endswith("\n")
    found: Samples = {}
    kinds: dict[str, str] = {}
    name = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in found
            assert line.split(" ", 3)[3]
            found[name] = {}
        elif line.startswith("# TYPE "):
            assert line.split(" ")[2] == name
            assert not found[name]
            kinds[name] = line.split(" ")[3]
        else:
            match = LINE.fullmatch(line)
            assert match, line  # and no timestamp, with which node_exporter leaves out the whole file
            assert match[1] == name in kinds
            pairs = LABEL.findall(match[2])
            assert LABEL.sub("", match[2]) == ""
            labels = {
                key: re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text) for key, text in pairs
            }
            assert len(labels) == len(pairs)
            assert frozenset(labels.items()) not in found[name]
            found[name][frozenset(labels.items())] = float(match[3])
    for name, kind in kinds.items():
        assert kind == ("counter" if name.endswith("_total") else "gauge")
    assert kinds.keys() == found.keys()
    return found


def by(samples: Samples, name: str, label: str) -> dict[str, float]:
    return {dict(labels)[label]: value for labels, value in samples[f"pipecycle_{name}"].items()}


def one(samples: Samples, name: str) -> float:
    (value,) = samples[f"pipecycle_{name}"].values()
    return value


def read_model(data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """The format by its description alone."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__")
    kinds, arrays, end = {"F32": "<f4", "I64": "<i8"}, {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        assert first == end
        values = np.frombuffer(data[8 + size :][first:last], kinds[entry["dtype"]])
        arrays[name], end = values.reshape(entry["shape"]), last
    assert len(data) == 8 + size + end
    assert size % 8 == 0  # so that readers may map the values as they lie
    return arrays, metadata


def test_both_files_are_right_whenever_they_are_read(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "PERIOD", 0.0)
    out = tmp_path / 'a "quoted" \\n folder'

    def faults(client: int, message: Any, now: float) -> Any:
        def swell(reply: Any) -> Any:
            if "arrays" in reply.content:
                reply.content["energy"]["samples"] = 10**6
            return reply

        return {1: swell, 2: "raise" if message.content["pipecycle"]["k"] == 1 else None}.get(client)

    live = federation(
        tmp_path,
        fault=faults,
        out=str(out),
        slots=60,
        session=4,
        initial=6.0,
        capacity=9.0,
        evaluate_every=15,
        run_it=False,
    )
    driver, seen, texts = live.driver, [], set()
    update = driver.monitor.update

    def check(*, ended: bool = False) -> None:
        update(ended=ended)
        text = (out / "metrics.prom").read_text()
        texts.add(text)
        samples = parse(text)
        assert all(dict(labels)["run"] == str(out) for values in samples.values() for labels in values)
        levels, spent = by(samples, "node_battery_units", "client"), by(samples, "energy_spent_units", "purpose")
        stored = one(samples, "energy_harvested_units") - sum(spent.values()) - one(samples, "energy_lost_units")
        assert stored == sum(levels.values())  # to the last quantum
        assert all(0 <= level <= 9 for level in levels.values())
        assert by(samples, "replies_refused_total", "reason") == dict(driver.refused)
        present = by(samples, "node_present", "client")
        assert sum(present.values()) == one(samples, "nodes_present") <= one(samples, "nodes_known") == len(present)
        arrays, metadata = read_model((out / "model.safetensors").read_bytes())
        assert metadata["version"] == str(driver.lineage.published) == f"{one(samples, 'model_version'):.0f}"
        served = driver.model.named(driver.weights.version(driver.lineage.published))
        assert {name: value.tobytes() for name, value in arrays.items()} == {
            name: value.tobytes() for name, value in served.items()
        }
        if "accuracy" in metadata:
            assert float(metadata["accuracy"]) == pytest.approx(100 * one(samples, "model_accuracy_ratio"))
        seen.append(samples)

    driver.monitor.update = check
    driver.run()
    assert len(seen) > 60
    for name in ("sessions_started_total", "events_total", "replies_refused_total", "model_version", "slots_elapsed"):
        totals = [sum(samples[f"pipecycle_{name}"].values()) for samples in seen]
        assert totals == sorted(totals)
    last = seen[-1]
    assert by(last, "replies_refused_total", "reason") == {"samples": driver.counts["refused"]}
    assert by(last, "events_total", "event")["reply"] == driver.counts["reply"] > 10
    assert by(last, "events_total", "event")["lost"] >= 1
    assert max(one(samples, "groups_training") for samples in seen) >= 1
    assert max(one(samples, "sessions_training") for samples in seen) >= 2
    assert [one(samples, "run_ended") for samples in seen[-2:]] == [0, 1]
    assert "pipecycle_model_loss" in last
    _, metadata = read_model((out / "model.safetensors").read_bytes())
    slots = [event["slot"] + 1 for event in live.events if event["event"] == "publish"]
    assert metadata["slot"] == str(slots[-1])
    assert float(metadata["loss"]) == one(last, "model_loss")
    if find_spec("prometheus_client") is not None:
        from prometheus_client.parser import text_string_to_metric_families

        for text in texts:
            theirs = {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert theirs == {(name, key): value for name, found in parse(text).items() for key, value in found.items()}


def test_a_fast_run_writes_now_and_then(federation: Federation, tmp_path: Path) -> None:
    """Hundreds of logical slots may pass in a second; what is served at the end is there in any case."""
    written: list[int] = []
    live = federation(tmp_path, out=str(tmp_path / "run"), slots=60, run_it=False)
    update = live.driver.monitor.update

    def watch(*, ended: bool = False) -> None:
        path = tmp_path / "run/metrics.prom"
        before = path.stat().st_mtime_ns if path.exists() else 0
        update(ended=ended)
        if path.stat().st_mtime_ns != before:
            written.append(len(live.driver.levels))

    live.driver.monitor.update = watch
    live.driver.run()
    seconds = live.driver.trace.time()
    assert 2 <= len(written) <= seconds / monitoring.PERIOD + 2 < 30
    _, metadata = read_model((tmp_path / "run/model.safetensors").read_bytes())
    assert metadata["version"] == str(live.driver.lineage.published)


def test_the_model_loads_as_the_page_says(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs/deploy.md").read_text()
    (block,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    live = federation(out=str(tmp_path / "forest/run"), clients=2, slots=30)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block, names)
    assert f"'version': '{live.driver.lineage.published}'" in capsys.readouterr().out
    served = live.driver.model.named(live.driver.weights.version(live.driver.lineage.published))
    assert {name: value.numpy().tobytes() for name, value in names["model"].state_dict().items()} == {
        name: value.tobytes() for name, value in served.items()
    }


def test_every_metric_is_on_the_page(federation: Federation) -> None:
    page = (Path(__file__).parents[3] / "docs/deploy.md").read_text().replace("`_", "`pipecycle_nodes_")
    driver = federation(slots=30).driver
    for family in monitoring.families(driver, ended=True):
        assert f"`{family.name}`" in page


def test_help_and_labels_are_escaped() -> None:
    odd = 'back\\slash "quote"\nline\\n'
    text = exposition([Family("pipecycle_x", odd, [({"name": odd}, 1), ({"name": ""}, 2.5e-9)])], {"run": odd})
    assert text.splitlines()[0] == '# HELP pipecycle_x back\\\\slash "quote"\\nline\\\\n'
    samples = parse(text)["pipecycle_x"]
    assert samples == {frozenset({("run", odd), ("name", odd)}): 1.0, frozenset({("run", odd), ("name", "")}): 2.5e-9}


def test_the_model_file_is_what_the_package_reads(tmp_path: Path) -> None:
    arrays = {
        "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array(7),
        "c": np.float32([1.5])[:, None].T,
    }
    metadata = {"version": "3", "slot": "12", "accuracy": "91.5", "odd": 'a "b" é'}
    data = with_metadata(arrays, metadata)
    assert with_metadata(arrays, metadata) == data  # the package alone would shuffle the metadata
    (tmp_path / "m.safetensors").write_bytes(data)
    with safe_open(tmp_path / "m.safetensors", "np") as file:
        assert file.metadata() == metadata
    for read in (load(data), read_model(data)[0]):
        assert read.keys() == arrays.keys()
        assert all(read[name].dtype == value.dtype and (read[name] == value).all() for name, value in arrays.items())
        assert all(read[name].shape == value.shape for name, value in arrays.items())
    assert list(read_model(data)[1].items()) == list(metadata.items())
