from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from pipecycle.studio.server import Studio
from tests.browser.studio_page import running

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: needs Chromium and the playwright package")


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of three schedulers, two trials each, really trained."""
    pytest.importorskip("plotly")
    from pipecycle.report import load
    from pipecycle.report.page import page
    from pipecycle.runs.config import Config
    from pipecycle.runs.run import RunFolder, train_folders

    folder = tmp_path_factory.mktemp("browser")
    world = {"world.clients": 20, "world.slots": 500, "look.every": 50, "data.alpha": 0.5}
    runs = []
    for policy in ("pipecycle", "fedavg", "cycp"):
        for trial in range(2):
            config = Config(policy).changed({**world, "world.trial": trial})
            runs.append(RunFolder(folder / f"{policy}-{trial}", config))
    train_folders(runs, device="cpu")
    file = folder / "report.html"
    file.write_text(page(load([folder]), references={"centralised": 93.25, "without energy limits": 92.55}))
    return file


@pytest.fixture(scope="session")
def variants_report(report: Path) -> Path:
    """The page of the same runs under the long names that variants have."""
    from pipecycle.report import load
    from pipecycle.report.page import page

    names = {"pipecycle": "pipecycle groups=2 train.lr=0.02", "cycp": "pipecycle groups=4 train.lr=0.02"}
    groups = [attrs.evolve(group, label=names.get(group.policy, "fedavg")) for group in load([report.parent])]
    file = report.with_name("variants.html")
    file.write_text(page(groups))
    return file


@pytest.fixture(scope="session")
def run_report(report: Path) -> Path:
    """The page of one run."""
    from pipecycle.report import load
    from pipecycle.report.page import page

    file = report.with_name("run.html")
    file.write_text(page(load([report.with_name("pipecycle-0")])))
    return file


@pytest.fixture(scope="session")
def plan_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a schedule that nobody trained on."""
    pytest.importorskip("plotly")
    from pipecycle import build, plan
    from pipecycle.report import load
    from pipecycle.report.page import page

    folder = tmp_path_factory.mktemp("plan")
    plan(build("pipecycle", {"groups": 5}), 0.5, 50, 1000).save(folder / "schedule.npz")
    file = folder / "report.html"
    file.write_text(page(load([folder / "schedule.npz"])))
    return file


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    with running(tmp_path_factory.mktemp("studio")) as started:
        yield started
