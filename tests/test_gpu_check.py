"""What is left of the ten minutes on a GPU, whatever went wrong in them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

CHECK = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "gpu_check.py"))


def test_a_summary_of_parts_that_failed_and_parts_that_were_stopped(tmp_path: Path) -> None:
    cases = '<testcase classname="a" name="x"/><testcase classname="a" name="y"><failure/></testcase>'
    (tmp_path / "tests.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    lines = [
        {"device": "some", "torch": "2"},
        {"network": "lenet", "how": "conv", "client_steps_per_s": 694536},
        {"network": "lenet", "how": "layers", "failed": "out of memory"},
        {
            "check": "lenet",
            "how": "conv",
            "relative_error": {"fp32": 1e-6},
            "same_bits": {"alone": True, "other": False},
        },
    ]
    (tmp_path / "models.json").write_text(json.dumps(lines))
    said = CHECK["summary"](tmp_path, {"tests": "ended", "models": "stopped", "grid": "running"})
    assert said == (tmp_path / "summary.md").read_text()
    assert "tests: 1 passed, 1 failed, 0 skipped\n- FAILED a::y\n" in said
    assert "| lenet | conv | 694,536 | 347,268 | 2.00 | 1e-06, None (None) | False |" in said
    assert "| lenet | layers | FAILED out of memory |" in said
    (tmp_path / "tests.xml").write_text("<testsuites>")  # stopped while it was being written
    (tmp_path / "tests.log").write_text("No module named\npytest")
    assert "tests: no results; No module named pytest" in CHECK["summary"](tmp_path, {"tests": "ended"})
