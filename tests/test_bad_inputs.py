"""What a user can get wrong, over all commands: one sentence, exit code 2, and nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipecycle import build, plan
from pipecycle.commands.cli import main
from tests.commands import PATIENCE

HUGE = "100000000000000000000000"
NUMBERS = ("nan", "inf", "-1", "many")
WHOLE = ("0", "-3", "2.5", "nan", "many", HUGE)

FLAGS: dict[str, tuple[str, tuple[str, ...]]] = {
    # command and flag: what the sentence names, and values that are refused
    "plan pipecycle --slots": ("slots", WHOLE),
    "plan pipecycle --clients": ("clients", WHOLE),
    "plan pipecycle --session": ("session", WHOLE),
    "plan pipecycle --groups": ("groups", WHOLE),
    "plan pipecycle --trial": ("trial", ("-1", "1.5", "x")),
    "plan pipecycle --budget": ("budget", ("0", "-5", *NUMBERS, "1e300")),
    "plan pipecycle --delta": ("", ("-0.1", "1.1", "nan", "inf", "x")),
    "plan": ("policy", ("pipecycel", "nothing:Here", "json:loads", ":", "..:x", "json:", "a/b:C")),
    "plan pipecycle --set": (
        "",
        (
            "capacity=-1", "capacity=nan", "capacity=0", "capacity=1e300", "capacity=lots", "capacity=19",
            "initial=-1", "initial=nan", "initial=inf", "initial=2000000", "relay_mix=0", "relay_mix=nan",
            "relay_mix=2", "group_size=0", f"group_size={HUGE}", "interval=0", "queue_threshold=-1",
            "rotation=fast", "groups=", "=3", "groups", "nothing=3", "world.nothing=3", "wrld.slots=3",
            "world.slots=1e3", "policy.groups=0", "groups=" + "9" * 5000,
        ),
    ),
    "plan fedavg --set": ("epoch", ("epoch=0", "epoch=20", f"epoch={HUGE}", "epoch=x")),
    "plan mifa --set": ("use_memory", ("use_memory=5", "use_memory=maybe")),
    "plan flda --set": ("", ("upload_ratio=0", "upload_ratio=nan", "phase=odd")),
    "plan fedseq --set": ("", ("mode=x", "patience=0")),
    "plan fedbacys --set": ("", ("reference_refresh=x", "groups=999999999")),
    "plan pipecycle --harvest": (
        "",
        (
            "sunny", "bernoulli", "bernoulli:", "bernoulli:x", "bernoulli:2", "bernoulli:nan", "markov:0.5",
            "markov:0.5,0", "markov:0.5,nan", "markov:0.5,inf", "markov:2,5", "solar:", "solar:none.csv",
            "solar:{files}/sun.csv,panel=1e300", "solar:{files}/sun.csv,panel=0", "solar:{files}/sun.csv,minutes=0",
            "solar:{files}/sun.csv,minutes=nan", "solar:{files}/sun.csv,shade=-1", "solar:{files}/sun.csv,shade=2..1",
            "solar:{files}/sun.csv,shift=inf", "solar:{files}/sun.csv,colour=3", "solar:{files}/timeless.csv",
            "solar:{files}/backwards.csv", "solar:{files}/dark.csv", "csv:{files}/ragged.csv", "csv:{files}/ten.csv",
            "csv:{files}/sun.csv,day=0", "csv:{files}/sun.csv,day=99999", "csv:{files}", "csv:{files}/noise.bin",
            "clearsky:91", "clearsky:nan", "clearsky:40,days=0..5", "clearsky:40,days=x", "always:3", "always:", "[/]",
            "csv:{files}/pipe", "csv:/dev/zero", "csv:,day=1", "solar:{files}/sun.csv,panel=1,panel=2",
        ),
    ),
    "plan pipecycle --out": (
        "",
        ("no/such/folder.npz", "{files}", "{files}/sun.csv/x.npz", "n" * 300 + ".npz", "{files}/pipe"),
    ),
    "plan --config": (
        "",
        tuple(
            f"{{files}}/{name}.toml"
            for name in (
                "absent", "policy-text", "policy-list", "name-number", "world-number", "world-list", "deep", "digits",
                "hex", "float", "date", "table", "format", "utf8", "broken", "nul", "served", "bools", "lr",
            )
        ),
    ),
    "run fedavg --set": (
        "",
        (
            "train.lr=-1", "train.lr=0", "train.lr=nan", "train.lr=inf", "train.lr_decay=7", "train.lr_decay=0",
            "train.momentum=5", "train.momentum=1", "train.momentum=-0.1", "train.weight_decay=-1",
            "train.proximal=nan", "train.distillation=-1", "train.batch=0", "train.batch=1000000000000",
            "train.replacement=yes", "train.precision=fp8", "train.model=lenett", "train.model=:", "train.model=a b",
            "train.model=nothing:here", "train.model=json:loads", "data.alpha=0", "data.alpha=-1", "data.alpha=nan",
            "data.name=digit", "data.name=none.npz", "data.name={files}/noise.npz", "data.name={files}/claims.npz",
            "data.samples=0", "data.samples=5000", "data.split=none.npz", "data.split=none.txt",
            "data.split={files}/sun.csv", "look.every=0", "look.clients_every=0", "look.early_stop=soon",
            "look.served=all", "world.clients=100000",
        ),
    ),
    "run fedavg --device": ("device", ("gpu", "cuda:-1", "cuda:99", "mps", "[/]")),
    "run fedavg --save-every": ("save", NUMBERS),
    "run fedavg --out": ("", ("{files}/sun.csv", "{files}/sun.csv/x", "{files}/loop", "{files}/loop/x")),
    "run fedavg --alpha": ("alpha", ("0", "-1", "nan")),
    "run fedavg --data": ("", ("mnist", "none.npz", "{files}/labels.npz", "{files}/pickled.npz")),
    "run": ("", ("fedavgg", "{files}")),
    "compare --target": ("target", ("nan", "inf", "0", "101", "-3")),
    "compare --trials": ("", ("0", "-1", "1000000000", "x")),
    "compare --groups": ("groups", ("0", HUGE)),
    "compare --alpha": ("alpha", ("0", "nan", "x")),
    "compare --workers": ("workers", ("0", "100000")),
    "compare --device": ("device", ("gpu",)),
    "compare": ("", ("pipecycel", "--delta 3", "--clients 0", "--budget nan", "--model x", "--data x", "--set x",
                     "--clients 1438", "--validation 1437", "--augment crop:8", "--harvest csv:x", "--data cifar10")),
    "sweep": (
        "",
        (
            "absent.toml", "{files}",
            *(
                f"{{files}}/{name}.toml"
                for name in (
                    "s-base", "s-matrix", "s-matrix-list", "s-parts", "s-part", "s-exclude", "s-when", "s-set",
                    "s-trials", "s-trial-list", "s-trial-bool", "s-many", "s-cells", "s-delta", "s-lr", "s-harvest",
                    "s-data", "s-file", "s-capacity", "s-epoch", "s-csv", "s-policy", "s-key", "s-initial",
                    "s-samples", "s-clients", "s-crop", "s-labels", "s-model", "s-back", "s-split",
                )
            ),
            "{files}/s-good.toml --on moon", "{files}/s-good.toml --device gpu", "{files}/s-good.toml --save-every nan",
            "{files}/s-good.toml --workers 0",
        ),
    ),
    "reproduce --trials": ("trials", ("0", "x", "5-3", "-2", "3-99999999999999999999", HUGE)),
    "reproduce --piece": ("piece", ("0/4", "5/4", "x", "1/0")),
    "reproduce --only": ("only", ("policy", "colour=red", "policy=nobody")),
    "reproduce --merge": ("", ("none.parquet", "{files}/noise.bin", "{files}/other.parquet")),
    "reproduce --file": ("", ("none.toml", "{files}/s-matrix.toml")),
    "reproduce --save-every": ("save", ("nan",)),
    "theory --groups": ("groups", ("0", "1-999999999", "999999999999", "5-2", "x", "1,,2", "-1", "1-" + "9" * 5000)),
    "theory --L": ("L", ("0", "-1", "nan", "inf", "1e200")),
    "theory --gap": ("gap", ("0", "nan")),
    "theory --sigma2": ("sigma2", ("-1", "inf")),
    "theory --lr": ("lr", ("0", "nan")),
    "theory --models": ("models", ("1", "99999999")),
    "theory --figure": ("", ("x.doc", "no/such/x.png")),
    "theory --policy": ("", ("fedavg", "nobody")),
    "theory --measure": ("", ("nothing", "{files}", "{files}/plan.npz")),
    "show": ("", ("none.npz", "{files}", "{files}/noise.npz", "{files}/claims.npz", "{files}/data.npz")),
    "show {files}/plan.npz --budget": ("budget", ("nan", "-1", "0", "inf")),
    "diff {files}/plan.npz": ("", ("none.npz", "{files}/noise.npz")),
    "report": ("", ("nothing", "{files}/sun.csv", "{files}/plan.npz --target nan", "{files}/plan.npz --out no/x.html")),
    "figures": ("", ("nothing", "{files}/plan.npz --format gif", "{files}/plan.npz --out {files}/sun.csv/x")),
    "tables": ("", ("nothing", "{files}/plan.npz --format word", "{files}/plan.npz --target 0")),
    "config": ("", ("nobody", "fedavg --set x=1", "--config none.toml")),
    "data split": (
        "",
        (
            "nothing", "digits --clients 0", "digits --clients 999999999", "digits --alpha 0", "digits --alpha nan",
            "digits --samples 0", "digits --samples 9999", "digits --trial -1", "digits --out x.txt",
            "digits --out no/x.npz", "{files}/labels.npz", "{files}/claims.npz",
        ),
    ),
    "data fetch": ("", ("mnist", "cifar10 --from none", "cifar10 --from {files}/noise.bin")),
    "deploy init app --set": (
        "",
        (
            "slots=0", "lr=-1", "lr=nan", "momentum=5", "slot-seconds=0", "slot-seconds=nan", "partition=some",
            "partition=dirichlet:-1", "capacity=-1", "capacity=nan", "initial=-1", "clock=sundial", "batch=0",
            "out=relative", "resume=true", "nothing=3", "groups=0", "trial=-1", "deadline=inf", f"clients={HUGE}",
            "margin=-1", "evaluate-every=0", "harvest=sunny", "session=x", "policy-settings=[]",
        ),
    ),
    "deploy init app": ("", ("--policy nobody", "--model x", "--data x", "--nodes 0", "--policy isolated")),
    "": ("", ("dance", "--speed", "plan --speed 3", "sweep", "diff a", "plan fedavg --groups 2")),
}  # fmt: skip

TEXTS = {
    "policy-text": 'policy = "fedavg"\n',
    "policy-list": "policy = [1]\n",
    "name-number": "[policy]\nname = 5\n",
    "world-number": "world = 5\n",
    "world-list": "[[world]]\nslots = 3\n",
    "deep": "x = " + "[" * 5000 + "]" * 5000 + "\n",
    "digits": f"[world]\nslots = {'9' * 5000}\n",
    "hex": f"[world]\nslots = 0x{'f' * 5000}\n",
    "float": f"[world]\nbudget = {'9' * 400}\n",
    "date": "[world]\nslots = 2020-01-01\n",
    "table": "[world.slots]\nx = 1\n",
    "format": "format = [1]\n",
    "broken": "[world\n",
    "nul": '[data]\nname = "a\\u0000.npz"\n',
    "served": "[look]\nserved = 3\n",
    "bools": "[train]\nlr = true\n",
    "lr": "[train]\nlr = -1\n",
    "s-base": "base = 5\n",
    "s-matrix": "matrix = 5\n",
    "s-matrix-list": "[[matrix]]\npolicy = ['fedavg']\n",
    "s-parts": "parts = 5\n",
    "s-part": "parts = [5]\n",
    "s-exclude": "exclude = 5\n",
    "s-when": "[[when]]\npolicy = 'fedavg'\n",
    "s-set": "[[when]]\npolicy = 'fedavg'\nset = 5\n",
    "s-trials": "trials = '12'\n",
    "s-trial-list": "trials = [0, -1]\n",
    "s-trial-bool": "trials = true\n",
    "s-many": "trials = 1000000000000\n",
    "s-cells": "[matrix]\n" + "".join(f"{key} = {[*range(1, 61)]}\n" for key in ("slots", "clients", "trial", "lr")),
    "s-delta": "[matrix]\ndelta = ['x']\n",
    "s-lr": "[matrix]\n'train.lr' = [0.1, -1]\n",
    "s-harvest": "[matrix]\nharvest = ['bernoulli:0.5', 'sunny']\n",
    "s-data": "[matrix]\ndata = ['digits', 'mnist']\n",
    "s-file": "[matrix]\ndata = ['digits', 'none.npz']\n",
    "s-capacity": "[matrix]\ncapacity = [50, 3]\n",
    "s-epoch": "[matrix]\npolicy = ['fedavg']\nepoch = [30, 20]\n",
    "s-csv": "[matrix]\nharvest = ['bernoulli:0.5', 'csv:none.csv']\n",
    "s-policy": "[matrix]\npolicy = ['fedavg', 5]\n",
    "s-key": "[matrix]\nspeed = [1]\n",
    "s-initial": "[matrix]\ninitial = [0, 1e12]\n",
    "s-samples": "[matrix]\n'data.samples' = [10, 99999]\n",
    "s-clients": "[matrix]\nclients = [10, 99999]\n",
    "s-crop": "[matrix]\n'train.augment' = ['crop:2', 'crop:9']\n",
    "s-labels": "[base.world]\nclients = 3\n[matrix]\ndata = ['digits', '{files}/labels.npz']\n",
    "s-model": "[base.world]\nclients = 3\n[matrix]\ndata = ['digits', '{files}/data.npz']\nmodel = ['lenet']\n",
    "s-back": "[matrix]\n'data.validation' = [10, 1437]\n",
    "s-split": "[base.data]\nsplit = '{files}/twice.json'\n",
    "s-good": "[base.world]\nslots = 50\nclients = 5\n",
}  # fmt: skip

ROWS = "".join(f"{minute},{minute % 500}\n" for minute in range(1440))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are good for nothing, and some good ones."""
    home = tmp_path_factory.mktemp("files")
    for name, text in TEXTS.items():
        (home / f"{name}.toml").write_text(text.replace("{files}", str(home)))
    (home / "utf8.toml").write_bytes(b'[data]\nname = "\xff"\n')
    (home / "sun.csv").write_text(ROWS)
    (home / "twice.json").write_text("[[1, 2], [2, 3]]")
    (home / "timeless.csv").write_text("nan,1\nnan,2\nnan,3\n")
    (home / "backwards.csv").write_text("5,1\n4,2\n3,3\n")
    (home / "dark.csv").write_text("0,1\n1,nan\n2,3\n")
    (home / "ragged.csv").write_text("0,1\n1,2,3\n")
    (home / "ten.csv").write_text("".join(f"{row},{','.join('1' * 10)}\n" for row in range(5)))
    (home / "noise.bin").write_bytes(np.random.default_rng(1).bytes(3000))
    os.mkfifo(home / "pipe")
    (home / "loop").symlink_to("loop")
    (home / "noise.npz").write_bytes((home / "noise.bin").read_bytes())
    plan(build("pipecycle"), 0.5, clients=8, slots=60, session=5).save(home / "plan.npz")
    x, y = np.zeros((30, 4), np.float32), np.arange(30) % 3
    np.savez(home / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    np.savez(home / "labels.npz", x_train=x, y_train=y[:20], x_test=x, y_test=y)
    np.savez(home / "pickled.npz", x_train=np.array([None]), y_train=y, x_test=x, y_test=y)
    claim(home / "claims.npz", home / "data.npz")
    import pandas

    pandas.DataFrame({"x": [1]}).to_parquet(home / "other.parquet")
    return home


def claim(target: Path, source: Path) -> None:
    """The same file, whose arrays say that they have 10^12 rows."""
    import zipfile

    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info).replace(b"(30,", b"(1000000000000,", 1))


def cases() -> Iterator[tuple[str, str, str]]:
    for command, (named, values) in FLAGS.items():
        for value in values:
            yield command, value, named


CASES = [*cases()]


def arguments(command: str, value: str, files: Path) -> list[str]:
    """Words as a shell would give them; a flag's value is one word."""
    flag = command.rpartition(" ")[2].startswith("--")
    words = [*command.split(), *([value] if flag else value.split())]
    return [word.replace("{files}", str(files)) for word in words]


def test_there_are_enough() -> None:
    assert len(CASES) >= 200


def said(errors: str) -> list[str]:
    """Without the lines in which a machine under load says how far it is."""
    return [line for line in errors.splitlines() if not line.startswith(("planning ", "training ", "reading "))]


@pytest.mark.parametrize(("command", "value", "named"), CASES, ids=lambda word: word[:40].replace("/", "-"))
def test_refused_in_one_sentence(
    command: str,
    value: str,
    named: str,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPECYCLE_CACHE", str(files.parent / "cache"))
    before = {path: path.lstat().st_mtime_ns for path in files.rglob("*")}
    began = time.process_time()
    with pytest.raises(SystemExit) as ended:
        main(arguments(command, value, files))
    assert time.process_time() - began < 10
    output = capsys.readouterr()
    assert ended.value.code == 2, output.err
    assert output.out == ""
    lines = said(output.err)
    assert 1 <= len(lines) <= 2, output.err
    assert lines[0].startswith("pipecycle: ")
    assert len("".join(lines)) < 1000
    assert named.lower() in output.err.lower()
    assert [*tmp_path.iterdir()] == []
    assert {path: path.lstat().st_mtime_ns for path in files.rglob("*")} == before


@pytest.mark.parametrize(("command", "value", "named"), CASES[3 :: len(CASES) // 20][:20])
def test_as_a_real_process(command: str, value: str, named: str, files: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipecycle", *arguments(command, value, files)],
        check=False, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE,
        env={**os.environ, "PIPECYCLE_CACHE": str(files.parent / "cache")},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert 1 <= len(said(done.stderr)) <= 2
    assert [*tmp_path.iterdir()] == []
