"""`deploy up` in a folder that holds a run: what is refused before anything is written, started or deleted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.flower

from pipecycle.commands.live_app import read_app, write_app  # noqa: E402
from pipecycle.commands.live_up import Site, StartOptions  # noqa: E402
from pipecycle.deploy import RunSettings  # noqa: E402
from pipecycle.deploy.local.federation import lines  # noqa: E402
from pipecycle.files import make_folder  # noqa: E402

from ..shared import stop_after  # noqa: E402

Deploy = Callable[..., CompletedProcess[str]]
Federation = Callable[..., SimpleNamespace]
SETTINGS = {"policy": "fedavg", "clients": 2, "slots": 12, "session": 3, "harvest": "always", "initial": 9.0}


class Killed(Exception):
    """The server, from one moment to the next."""


def go(site: Site, federation: Federation, options: dict[str, Any], *, resume: bool, last: int | None = None) -> Any:
    """What `deploy up` does, with the nodes in this process; killed after the slot `last`."""
    settings = site.prepare(options, StartOptions(), resume=resume, fresh=False)
    make_folder(site.federation)
    (site.federation / "run.toml").write_text(lines(read_app(site.folder).overrides(settings)))
    live = federation(site.federation, run_it=False, **settings.flat())
    if last is None:
        live.driver.run()
        return live
    stop_after(live.driver, last, Killed)
    with pytest.raises(Killed):
        live.driver.run()
    return live


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An app in a folder whose name a shell takes for two."""
    write_app(tmp_path / "my app", RunSettings.of(SETTINGS))
    return Site(tmp_path / "my app")


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_setting_that_differs_is_named_and_the_next_plain_resume_knows_nothing_of_it(
    site: Site, federation: Federation, deploy: Deploy
) -> None:
    go(site, federation, {}, resume=False, last=5)
    before = everything(site.folder)
    refused = deploy("up", "my app", "--resume", "--set", "lr=0.3", cwd=site.folder.parent)
    assert refused.returncode == 2
    assert refused.stderr.startswith("pipecycle: lr = 0.3: the run was started with 0.05; resumed, it may change only")
    assert everything(site.folder) == before
    go(site, federation, {}, resume=True)
    assert (site.out / "result.json").exists()


def test_a_run_that_has_ended_is_extended_and_stays_extended(
    site: Site, federation: Federation, deploy: Deploy
) -> None:
    go(site, federation, {}, resume=False)
    for arguments in ([], ["--resume"], ["--resume", "--set", "slots=12"]):
        refused = deploy("up", "my app", *arguments, cwd=site.folder.parent)
        assert refused.returncode == 2
        assert "has ended (--resume --set slots=N with N above 12 extends it, --fresh deletes it" in refused.stderr
    go(site, federation, {"slots": 30}, resume=True, last=20)
    live = go(site, federation, {}, resume=True)  # it was told 30 already
    assert live.driver.schedule().slots == 30
    refused = deploy("up", "my app", "--resume", cwd=site.folder.parent)
    assert "with N above 30 extends it" in refused.stderr


def test_whoever_is_refused_loses_no_run(site: Site, federation: Federation, deploy: Deploy) -> None:
    go(site, federation, {}, resume=False, last=5)
    refused = deploy("up", "my app", cwd=site.folder.parent)
    assert "holds a run already (--resume continues it, --fresh deletes it and its ledgers" in refused.stderr
    before = everything(site.folder)
    gauge = deploy("up", "my app", "--fresh", "--node", "battery=gauge:/run/level", cwd=site.folder.parent)
    assert gauge.returncode == 2
    assert "battery = gauge:/run/level: needs a run with clock = wall" in gauge.stderr
    assert everything(site.folder) == before
    project = site.folder / "pyproject.toml"
    project.write_text(project.read_text().replace("\nlr = ", "\n# lr = "))
    unlisted = deploy("up", "my app", "--fresh", "--set", "lr=0.3", cwd=site.folder.parent)
    assert "needs a line `lr = 0.3` beside the other settings" in unlisted.stderr
    assert everything(site.out) == {path: data for path, data in before.items() if path.is_relative_to(site.out)}
    running = {"pid": os.getpid(), "born": psutil.Process().create_time()}
    (site.federation / "running.json").write_text(json.dumps(running))
    twice = deploy("up", "my app", "--fresh", cwd=site.folder.parent)
    assert "runs there already (`pipecycle deploy status 'my app'` shows it)" in twice.stderr
    assert everything(site.out) == {path: data for path, data in before.items() if path.is_relative_to(site.out)}
