from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipecycle import InputError, build, plan
from pipecycle.policies import REGISTRY, TITLES, PipeCycle
from pipecycle.policies.registry import parameters, settings

OWN = '''
class Lazy:
    """Nobody ever trains."""
    name = "lazy"
    grouping = None
    def __init__(self, mood: float = 0.5, loud: bool = False):
        self.mood, self.loud = mood, loud
    def setup(self, world): ...
    def decide(self, slot): ...
    def collect(self, slot, done, lost): ...

class Incomplete:
    name = "incomplete"
'''


def test_every_policy_has_a_title_and_a_row_that_leads_to_its_page() -> None:
    docs = Path(__file__).parents[1] / "docs"
    rows = [line for line in (docs / "index.md").read_text().splitlines() if "](schedulers/" in line]
    for name in REGISTRY:
        assert name in TITLES
        (row,) = (row for row in rows if f"`{name}`" in row)
        assert (docs / row.partition("](")[2].partition(")")[0]).exists()
    assert set(TITLES) == set(REGISTRY)


def test_every_policy_documents_itself() -> None:
    for name, kind in REGISTRY.items():
        assert kind.name == name
        assert kind.__doc__
        assert "\n" not in kind.__doc__.strip()


def test_the_settings_of_every_policy() -> None:
    keys = {name: set(parameters(kind)) for name, kind in REGISTRY.items()}
    pipe = {"groups", "group_size", "interval", "queue_threshold"}
    assert keys == {
        "pipecycle": pipe | {"rotation", "relay_mix"},
        "pipecycle+": pipe | {"kappa"},
        "fedavg": {"epoch"},
        "cycp": {"groups", "epoch", "group_cap", "step"},
        "mifa": {"epoch", "use_memory"},
        "flda": {"epoch", "phase", "upload_ratio"},
        "fedseq": {"groups", "mode", "patience", "step"},
        "fedbacys": {"groups", "epoch", "reference_refresh", "step"},
        "fedbacys-odd": {"groups", "epoch", "reference_refresh", "step"},
        "fedasync": {"concurrency", "mixing"},
        "fedbuff": {"concurrency", "buffer"},
        "fedau": {"epoch", "cutoff"},
        "fedvarp": {"epoch", "beta"},
        "f3ast": {"epoch", "picked", "beta"},
        "isolated": set(),
    }
    assert settings(PipeCycle(groups=5)) == {
        "groups": 5, "group_size": None, "interval": None, "queue_threshold": None,
        "rotation": "longest-idle", "relay_mix": 1.0,
    }  # fmt: skip
    assert settings(build("pipecycle+"))["kappa"] == 0.85
    assert settings(build("flda"))["upload_ratio"] == 100 / 307_842


def test_text_becomes_the_declared_type() -> None:
    policy = build("pipecycle", {"queue_threshold": "2", "relay_mix": "0.25", "interval": "none", "rotation": "spread"})
    assert settings(policy)["queue_threshold"] == 2
    assert settings(policy)["interval"] is None
    assert settings(policy)["relay_mix"] == 0.25
    assert settings(build("mifa", {"use_memory": "false"}))["use_memory"] is False
    assert settings(build("cycp", {"step": "0.3"}))["step"] == 0.3
    assert settings(build("cycp", {"step": "lag-stable"}))["step"] == "lag-stable"


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("pipecycel", {}, "did you mean 'pipecycle'"),
        ("fedprox", {}, "a setting of training, for every scheduler: train.proximal"),
        ("pipecycle", {"group": "2"}, "did you mean 'groups'"),
        ("pipecycle", {"groups": "two"}, "groups = two: needs a whole number"),
        ("pipecycle", {"groups": "0"}, "groups = 0: needs at least 1 concurrent group"),
        ("pipecycle", {"relay_mix": "0"}, "relay_mix = 0.0: needs a number above 0"),
        ("pipecycle", {"rotation": "fast"}, "rotation = fast: needs one of longest-idle, spread"),
        ("pipecycle", {"queue_threshold": "0"}, "queue_threshold = 0: needs at least 1"),
        ("mifa", {"use_memory": "maybe"}, "use_memory = maybe: needs true or false"),
        ("flda", {"phase": "odd"}, "phase = odd"),
        ("pipecycle+", {"kappa": "1.2"}, "kappa = 1.2: needs a number above 0 and at most 1"),
        ("pipecycle+", {"relay_mix": "0.5"}, "relay_mix.*unknown"),
        ("fedbuff", {"buffer": "0"}, "buffer = 0: needs at least 1 update"),
        ("fedasync", {"concurrency": "0"}, "concurrency = 0: needs at least 1 client"),
        ("fedvarp", {"beta": "0"}, "beta = 0.0: needs a number above 0 and at most 1"),
        ("fedseq", {"step": "0"}, "step = 0.0: needs a number above 0 and at most 1, or lag-stable"),
        ("cycp", {"step": "1.5"}, "step = 1.5: needs a number above 0 and at most 1, or lag-stable"),
        ("fedbacys", {"step": "fast"}, "step = fast: needs a number above 0 and at most 1, or lag-stable"),
        ("fedbacys-odd", {"step": "nan"}, "step = nan: needs a number above 0 and at most 1, or lag-stable"),
        ("cycp", {"step": True}, "step = True: needs a number or text"),
        ("cycp", {"step": None}, "step = None: needs a number or text"),
        ("fedseq", {"mode": "chain", "step": "lag-stable"}, "step = lag-stable: needs mode = paper"),
        ("no_such_module_here:Policy", {}, "cannot be imported"),
        ("json:Policy", {}, "has no 'Policy'"),
        ("json:dumps", {}, "needs to be a class"),
    ],
)
def test_mistakes_are_one_sentence(name: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        build(name, options)


def test_an_epoch_must_hold_a_session() -> None:
    with pytest.raises(InputError, match="epoch = 20: needs at least 21 slots"):
        plan(build("fedavg", {"epoch": 20}))


def test_a_users_own_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_policies.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    policy = build("my_policies:Lazy", {"mood": "0.75", "loud": "true"})
    assert settings(policy) == {"mood": 0.75, "loud": True}
    assert plan(policy, 1.0, slots=10).ancestry.events == 0
    with pytest.raises(InputError, match="needs to be a class with grouping, setup, decide, collect"):
        build("my_policies:Incomplete")
