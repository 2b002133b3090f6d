"""The app that `pipecycle deploy init` writes; none of this needs Flower."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from pipecycle.commands.live_app import annotated, read_app, write_app
from pipecycle.deploy.node.settings import NodeSettings
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.errors import InputError

Deploy = Callable[..., CompletedProcess[str]]


def test_an_app_says_what_it_was_made_from(tmp_path: Path) -> None:
    settings = RunSettings.of({"policy": "fedavg", "policy-settings": '{"epoch": 40}', "lr": 0.1, "clients": 7})
    files = write_app(tmp_path / "My Forest!", settings)
    assert read_app(tmp_path / "My Forest!").settings == settings
    project = tomllib.loads(files[0].read_text())
    assert project["project"]["name"] == "my-forest"
    for component in project["tool"]["flwr"]["app"]["components"].values():
        module, _, name = component.partition(":")
        source = (tmp_path / "My Forest!" / f"{module.replace('.', '/')}.py").read_text()
        assert f"{name} = {module.partition('.')[2]}()" in source


def test_every_setting_has_a_sentence() -> None:
    for kind in (RunSettings, NodeSettings):
        notes = kind.notes()
        assert set(notes) - set(kind().flat()) <= {"scale", "augment"}
        assert all(text.endswith(".") and text[:1].isalpha() for text in notes.values()), notes
    written = tomllib.loads(annotated(RunSettings()))
    assert list(written) == list(RunSettings.notes())
    assert RunSettings.of(written) == RunSettings()


def test_an_app_is_never_written_over(tmp_path: Path) -> None:
    write_app(tmp_path, RunSettings())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="has an app already"):
        write_app(tmp_path, RunSettings(lr=0.5))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["json", "pipecycle", "class", "7up"])
def test_a_package_hides_nobody(tmp_path: Path, name: str) -> None:
    files = write_app(tmp_path / name, RunSettings())
    assert (tmp_path / name / f"app_{name}" / "server_app.py") in files


def test_own_modules_travel_with_the_app(tmp_path: Path, deploy: Deploy) -> None:
    (tmp_path / "mine.py").write_text(
        "class Lazy:\n    name = 'lazy'\n    grouping = 'launch'\n    def setup(self, world): ...\n"
        "    def decide(self, slot): ...\n    def collect(self, slot, done, lost): ...\n"
    )
    done = deploy("init", "app", "--policy", "mine:Lazy", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "app" / "mine.py").read_text() == (tmp_path / "mine.py").read_text()
    assert "app/mine.py" in json.loads(done.stdout)["files"]
    included = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["fab-include"]
    assert "mine.py" in included
    elsewhere = deploy("init", "again", "--policy", "mine:Nobody", cwd=tmp_path)
    assert elsewhere.returncode == 2
    assert "has no 'Nobody'" in elsewhere.stderr
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("verb", "arguments", "sentence"),
    [
        ("init", ["--policy", "fedavgg"], "did you mean 'fedavg'?"),
        ("init", ["--model", "lent"], "did you mean 'lenet'?"),
        ("init", ["--data", "none.npz"], "--data none.npz: there is no such file"),
        ("init", ["--set", "data=none.npz"], "--set data=none.npz: there is no such file"),
        ("init", ["--set", "slots=-3"], "slots = -3: needs at least 1"),
        ("init", ["--set", "clock=sundial"], "clock = sundial: needs one of logical, wall"),
        ("init", ["--set", "grups=2"], "--set grups=2: is no setting of the run or of pipecycle"),
        ("init", ["--harvest", "moon"], "harvest 'moon': needs"),
        ("init", ["--nodes", "0"], "--nodes 0: needs 1 to 10,000"),
        ("init", ["--nodes", "3", "--set", "clients=4"], "--nodes 3 and --set clients=4: give one of them, not both"),
        (
            "init",
            ["--policy", "mifa", "--set", "policy=flda"],
            "--policy mifa and --set policy=flda: give one of them, not both",
        ),
        (
            "init",
            ["--set", "groups=2", "--set", "policy-settings={}"],
            "--set policy-settings={} and --set groups=2: give one",
        ),
        ("init", ["--set", "clients=99999"], "clients = 99999: needs at most 10,000"),
        ("init", ["--set", "evaluate-clients=9"], "evaluate-clients = 9: needs at most the 4 clients"),
        ("init", ["--nodes", "99999"], "--nodes 99999: needs 1 to 10,000"),
        ("up", ["--set", "clock=logical", "--node", "battery=gauge:/level"], "needs a run with clock = wall"),
        ("up", ["--node", "battery=fleet:no.toml"], "no.toml"),
        ("up", ["--node", "pace"], "--node pace: needs key=value"),
    ],
)
def test_a_mistake_is_one_sentence_and_no_file(
    tmp_path: Path, deploy: Deploy, verb: str, arguments: list[str], sentence: str
) -> None:
    if verb == "up":
        pytest.importorskip("flwr")
    done = deploy(verb, "app", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_folders_without_an_app(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no app"):
        read_app(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(InputError, match="describes no Flower app"):
        read_app(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.flwr.app.components]\n[tool.flwr.app.config]\nslot-seconds = 2.0\nslotz = 3\n"
    )
    with pytest.raises(InputError, match="did you mean 'slots'"):
        read_app(tmp_path)
    inline = 'tool = {flwr = {app = {components = {serverapp = "x"}}}}\n'
    for text, said in {
        "tool = 5\n": "describes no Flower app",
        "[tool]\nflwr = 5\n": "describes no Flower app",
        "[tool.flwr.app]\nconfig = 5\n[tool.flwr.app.components]\n": "config = 5: needs a table",
        inline: "needs tables with headers of their own",
    }.items():
        (tmp_path / "pyproject.toml").write_text(text)
        with pytest.raises(InputError, match=said):
            write_app(tmp_path, RunSettings())
        assert (tmp_path / "pyproject.toml").read_text() == text


def test_an_app_of_the_users_own_may_have_any_keys(tmp_path: Path) -> None:
    own = '[tool.flwr.app.components]\n[tool.flwr.app.config]\nclients = 10\npolicy = "greedy"\ndevice = "cuda:7"\n'
    (tmp_path / "pyproject.toml").write_text(own)
    with pytest.raises(InputError, match=r"has no settings of ours; `pipecycle deploy init .*` adds them"):
        read_app(tmp_path)
    write_app(tmp_path, RunSettings(clients=3))
    assert (tmp_path / "pyproject.toml").read_text().startswith(own)
    assert read_app(tmp_path).overrides(RunSettings(clients=3))["pipecycle.clients"] == 3
    with pytest.raises(InputError, match="has an app already"):
        write_app(tmp_path, RunSettings(clients=3))


@pytest.mark.parametrize("form", ['ledger = "{}"\n', '"pipecycle.ledger" = "{}"\n', '[pipecycle]\nledger = "{}"\n'])
def test_a_node_s_own_settings_are_checked_with_or_without_the_prefix(tmp_path: Path, form: str) -> None:
    pytest.importorskip("flwr")
    from pipecycle.commands.live_node import Device

    device = Device(tmp_path / "node.toml", "127.0.0.1:1", None, None)
    device.settings.write_text("partition-id = 3\n" + form.format("/var/lib/forest/ledger.json"))
    assert device.check().partition_id == 3
    assert device.environment(device.check())["FLWR_HOME"] == "/var/lib/forest/flower"
    device.settings.write_text("partition-id = 3\n" + form.format("ledger.json"))
    with pytest.raises(InputError, match=r"ledger = ledger.json: needs an absolute path"):
        device.check()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pipecycle = 5\n", "needs a table"),
        ("[pipecycle]\nbatery = 'machine'\n", "did you mean 'battery'"),
        ("data = '/none.npz'\n", "data = /none.npz: there is no such file or folder"),
        ("pace = -1\n", "pace = -1"),
    ],
)
def test_a_device_s_mistakes_are_found_before_flower_starts(tmp_path: Path, text: str, said: str) -> None:
    pytest.importorskip("flwr")
    from pipecycle.commands.live_node import Device

    device = Device(tmp_path / "node.toml", "127.0.0.1:1", None, None)
    device.settings.write_text(text)
    with pytest.raises(InputError, match=said):
        device.check()
    for address in ("host", "host:", "host:0", "host:65536", ":80", "http://h:80"):
        device.settings.write_text("")
        with pytest.raises(InputError, match="needs HOST:PORT"):
            Device(device.settings, address, None, None).check()


def test_keys_that_are_not_ours_are_named(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from pipecycle.commands.live_node import Device

    device = Device(tmp_path / "node.toml", "127.0.0.1:1", None, None)
    device.settings.write_text("partition-id = 1\ncapcity = 60.0\nnum-partitions = 4\n")
    assert device.foreign() == ["capcity"]
    device.settings.write_text('partition-id = 1\ncamera = "/dev/video0"\n[pipecycle]\ncapacity = 60.0\n')
    assert device.foreign() == ["camera"]


@pytest.mark.parametrize("kind", ["systemd", "compose"])
def test_what_keeps_it_running_elsewhere(deploy: Deploy, tmp_path: Path, kind: str) -> None:
    command = ["init", "wood", "--nodes", "2", "--with", kind, "--superlink", "pi.local:9000"]
    answer = deploy(*command, "--json", cwd=tmp_path)
    names = {Path(name).name for name in json.loads(answer.stdout)["files"] if "machines" in name}
    text = {name: (tmp_path / "wood" / "machines" / name).read_text() for name in names}
    assert NodeSettings.of(tomllib.loads(text["node-1.toml"])).partition_id == 1
    units = {"pipecycle-superlink.service", "pipecycle-node@.service"}
    own = units if kind == "systemd" else {"compose.yaml", "Dockerfile"}
    assert names == {"node-0.toml", "node-1.toml", *own}
    together = "".join(text.values())
    assert "--superlink pi.local:9000 --root ca.crt --key node-" in together
    assert "--port 9000" in together
    assert "FLWR_TELEMETRY_ENABLED" in together
    # The services' user has no home: data that were fetched lie with what else they keep.
    assert len(re.findall(r"PIPECYCLE_CACHE\W+/var/lib/pipecycle/cache", together)) == 2
    assert kind == "compose" or together.count(" PATH=/opt/pipecycle/bin:") == 2  # a SuperLink starts flower-superexec
    assert together.count("estart: always" if kind == "compose" else "Restart=always") == 2


@pytest.mark.parametrize(
    "address", ["fl.example.org", "a place:8000", "https://fl.example.org:8000", "x:", "x:0", "x:65536"]
)
def test_an_address_that_no_unit_could_use(deploy: Deploy, tmp_path: Path, address: str) -> None:
    refused = deploy("init", "wood", "--with", "systemd", "--superlink", address, cwd=tmp_path)
    assert refused.returncode == 2
    assert f"--superlink {address}: needs HOST:PORT, such as fl.example.org:8000" in refused.stderr
    assert not (tmp_path / "wood").exists()
