"""A user's own policy or model that fails is named with its file and line; our own failures ask to be reported."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from pipecycle.commands import cli, planning
from pipecycle.errors import InputError, sentence, shown

POLICY = """
import sys
import numpy as np
from pipecycle.policies import FedAvg

class {name}(FedAvg):
    name = "{name}"
    def {method}:
        {code}
"""

POLICIES = {
    # name: method, its code, what is said
    "Raises": ("decide(self, slot)", "return {}[slot]", "own_raises.py, line 9, in decide: KeyError: 0"),
    "Exits": ("collect(self, slot, done, lost)", "sys.exit(3)", "own_exits.py, line 9, in collect: it ends the pro"),
    "Recurses": ("decide(self, slot)", "self.decide(slot)", "own_recurses.py, line 9, in decide: RecursionError"),
    "Overspends": (
        "decide(self, slot)", "self.fleet.start(np.array([1]), 0)",
        "own_overspends.py, line 9, in decide: EnergyError: client 1 cannot train in slot 0: battery",
    ),
    "Cheats": (
        "decide(self, slot)", "self.fleet.start(np.array([1]), 0, 1)",
        "a session costs 20 (own_cheats.py, line 9, in decide)",
    ),
    "Settles": ("setup(self, world)", "open('none.txt')", "own_settles.py, line 9, in setup: FileNotFoundError"),
    "Publishes": ("decide(self, slot)", "self.lineage.publish(7)", "own_publishes.py, line 9, in decide: ActionError"),
    "Asks": ("__init__(self, mood: float = 1)", "raise ValueError('no mood')", "own_asks.py, line 9, in __init__"),
    "Creates": ("decide(self, slot)", "self.fleet.level[:] = 10**9", "policy Creates: has changed what only the fleet"),
    "Forgets": ("__init__(self)", "pass", "own_forgets.py, line 6, in Forgets: AttributeError: 'Forgets' object has"),
    "Needs": ("__init__(self, mood: int)", "pass", "setting 'mood' of own_needs:Needs: has no default, needs a value"),
    "Leaves": ("collect(self, slot)", "pass", "policy 'own_leaves:Leaves': needs collect(self, slot, done, lost)"),
    "Grows": (
        "decide(self, slot)", "np.zeros(10**15)", "own_grows.py, line 9, in decide",
    ),
}  # fmt: skip

MODULES = {
    "import 3": "broken.py, line 1: SyntaxError",
    "raise RuntimeError('x')": "broken.py, line 1: RuntimeError: x",
    "import sys; sys.exit()": "broken.py, line 1: it ends the program",
    "raise GeneratorExit('x')": "broken.py, line 1: GeneratorExit: x",
    "import nothing_like_this": "No module named 'nothing_like_this'",
    "import abc\nclass Policy(abc.ABC):\n  name, grouping = 'x', None\n"
    "  @abc.abstractmethod\n  def setup(self, world): ...\n"
    "  decide = collect = setup": "is abstract, needs collect, decide, setup",
    "class Policy: pass": "needs to be a class with name, grouping, setup, decide, collect",
    "from pipecycle.policies import FedAvg\nclass Policy(FedAvg):\n  name = 5": "the name of policy",
    "from pipecycle.policies import FedAvg\nclass Policy(FedAvg):\n  grouping = 'odd'": "grouping = odd",
    "from pipecycle.policies import FedAvg\nclass Policy(FedAvg):\n"
    "  def setup(self, world): self.x = []\n  def decide(self, slot): self.x[slot]": "line 4, in decide",
}

FACTORY = "import torch\nfrom torch import nn\ndef model(shape, classes):\n    {}\n"
FACTORIES = {
    "raise KeyError('layers')": "its factory failed (factory.py, line 4, in model: KeyError: 'layers')",
    "exit(4)": "its factory failed (factory.py, line 4, in model: it ends the program: exit code 4)",
    "return model(shape, classes)": "RecursionError",
    "return 5": "gave a int",
    "return nn.Linear(3, 3)": "on inputs of shape (1, 8, 8)",
    "return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))": "needs (4, 10)",
    "return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, classes))": "draws random numbers",
    "return nn.Sequential(nn.Flatten(), nn.Linear(64, classes, dtype=torch.complex64))": "not real numbers",
}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    return error


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    method, code, said = POLICIES[name]
    module = f"own_{name.lower()}"
    (tmp_path / f"{module}.py").write_text(POLICY.format(name=name, method=method, code=code))
    monkeypatch.chdir(tmp_path)
    assert said in refused(["plan", f"{module}:{name}", "--slots", "50"], capsys)
    with pytest.raises(SystemExit):
        cli.main(["--debug", "plan", f"{module}:{name}", "--slots", "50"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert not [*tmp_path.glob("pipecycle-error-*")]


@pytest.mark.parametrize("text", MODULES)
def test_a_module_that_cannot_be_used(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text(text + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    assert MODULES[text] in refused(["plan", "broken:Policy", "--slots", "50"], capsys)
    monkeypatch.delitem(sys.modules, "broken", raising=False)


@pytest.mark.parametrize("code", FACTORIES)
def test_a_factory_that_fails(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "factory.py").write_text(FACTORY.format(code))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "factory", raising=False)
    words = ["run", "fedavg", "--model", "factory:model", "--slots", "50", "--clients", "5", "--device", "cpu"]
    assert FACTORIES[code] in refused(words, capsys)
    monkeypatch.delitem(sys.modules, "factory", raising=False)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".py" and path.name != "__pycache__"] == []


def test_brackets_in_names_are_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.py").write_text(
        "from pipecycle.policies import PipeCycle\nclass P(PipeCycle):\n  name = 'x[/]y $\\\\frac{$ [bold]'\n"
    )
    monkeypatch.chdir(tmp_path)
    for words in (
        ["plan", "odd:P", "--slots", "200", "--clients", "10", "--out", "[bold]$x.npz"],
        ["show", "[bold]$x.npz"],
        ["tables", "[bold]$x.npz"],
        ["tables", "[bold]$x.npz", "--format", "latex"],
        ["diff", "[bold]$x.npz", "[bold]$x.npz"],
        ["figures", "[bold]$x.npz", "--out", "f[bold]", "--format", "svg"],
        ["report", "[bold]$x.npz", "--out", "[bold].html"],
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        output = capsys.readouterr()
        assert ended.value.code == 0, output.err
        if words[0] in ("plan", "show"):
            assert "x[/]y $\\frac{$ [bold]" in output.out


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (ZeroDivisionError("by zero"), "an error in pipecycle itself (ZeroDivisionError: by zero)", 1),
        (MemoryError("Unable to allocate 7 TiB"), "not enough memory: Unable to allocate 7 TiB", 2),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory", 2),
        (OSError(28, "No space left on device", "x.npz"), "x.npz: no space left on device", 2),
        (KeyboardInterrupt(), "stopped", 130),
    ],
)
def test_what_nobody_expected(
    error: BaseException, said: str, code: int,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Raised by a library, as far as anybody can tell: no line of this file is in its traceback."""
    monkeypatch.chdir(tmp_path)
    thrower: Future[None] = Future()
    thrower.set_exception(error)
    monkeypatch.setattr(planning.Schedule, "load", thrower.result)
    with pytest.raises(SystemExit) as ended:
        cli.main(["show", "x.npz"])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == code
    assert said in line
    files = [*tmp_path.iterdir()]
    if code == 1:
        assert files[0].name in line
        assert "show x.npz" in files[0].read_text()
        assert "Traceback" in files[0].read_text()
    else:
        assert files == []


def test_values_within_a_sentence() -> None:
    assert shown("a\nb") == "a b"
    assert shown(1 << 20_000) == "a int too long to print"
    assert shown("x" * 100).endswith(" ...")
    assert len(shown("x" * 100)) == 60
    assert shown("\udcff") == "\\udcff"
    assert sentence(InputError("x = 1: needs 2")) == "x = 1: needs 2"
