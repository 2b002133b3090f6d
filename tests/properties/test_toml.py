"""Whatever stands in a configuration or a sweep: a configuration, or one sentence."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipecycle import InputError
from pipecycle.deploy.node.settings import NodeSettings
from pipecycle.deploy.wire.settings import RunSettings
from pipecycle.policies import REGISTRY
from pipecycle.policies.registry import parameters
from pipecycle.runs import sweep
from pipecycle.runs.config import SECTIONS, read_config, sections, toml

SCALARS = st.one_of(
    st.integers(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.booleans(),
    st.text(max_size=12),
    st.sampled_from(
        ["none", "nan", "1e999", "0", "-1", "digits", "lenet", "always", "bernoulli:0.5", "markov:1,1", "x:y"]
    ),
    st.dates(),
    st.booleans().map(lambda _: 2**16_000),  # Hypothesis cannot print what it draws itself
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted({field.name for kind in SECTIONS.values() for field in attrs.fields(kind)} | {"nothing", ""})
POLICY = sorted({key for kind in REGISTRY.values() for key in parameters(kind)} | {"nothing"})
TABLES = st.fixed_dictionaries(
    {},
    optional={
        "format": st.just(1) | VALUES,
        "policy": VALUES
        | st.dictionaries(st.sampled_from(POLICY), VALUES, max_size=3).flatmap(
            lambda table: st.sampled_from(sorted(REGISTRY)).map(lambda name: {"name": name, **table})
        ),
        **{name: VALUES | st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4) for name in SECTIONS},
    },
)
FILES = st.fixed_dictionaries(
    {},
    optional={
        "base": VALUES | TABLES,
        "matrix": VALUES | st.dictionaries(st.sampled_from(["policy", "delta", "alpha", "groups", "slots", "train.lr"]),
                                           st.lists(VALUES, max_size=3), max_size=3),
        "trials": VALUES | st.integers(1, 3),
        "exclude": VALUES | st.lists(TABLES, max_size=2),
        "when": VALUES | st.lists(st.fixed_dictionaries({"set": VALUES}), max_size=2),
        "parts": VALUES | st.lists(st.fixed_dictionaries({}, optional={"matrix": VALUES, "name": VALUES}), max_size=2),
    },
)  # fmt: skip


def accepted_or_told(call: Callable[[], object]) -> bool:
    """Whether nothing worse than one sentence comes of it."""
    try:
        call()
    except InputError as error:
        return "\n" not in str(error) and len(str(error)) < 1000
    return True


def test_of_this_test() -> None:
    with pytest.raises(ZeroDivisionError):
        accepted_or_told(lambda: 1 / 0)


@settings(max_examples=300, deadline=None)
@given(TABLES)
@example({"world": {"slots": 2**20_000}})
@example({"world": {"budget": 10**400}})
@example({"data": {"alpha": 2**20_000}})
def test_sections_are_a_configuration_or_a_sentence(values: dict[str, Any]) -> None:
    def twice() -> None:
        config = sections(values, "x.toml")
        assert sections(tomllib.loads(config.text()), "again") == config

    assert accepted_or_told(twice)


@settings(max_examples=150, deadline=None)
@given(FILES)
def test_sweeps_are_runs_or_a_sentence(values: dict[str, Any]) -> None:
    with patch.object(sweep, "read_toml", lambda path: values):
        assert accepted_or_told(lambda: sweep.check_runs(sweep.read_sweep(Path("x.toml"))))


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*RunSettings().flat(), *NodeSettings().flat(), "nothing"]), VALUES, max_size=4))
@example({"partition": 2**20_000})
def test_live_settings_are_settings_or_a_sentence(values: dict[str, Any]) -> None:
    assert accepted_or_told(lambda: RunSettings.of(values))
    assert accepted_or_told(lambda: NodeSettings.of(values))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@example(b"x = " + b"[" * 3000)
def test_bytes_are_a_configuration_or_a_sentence(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(data)
    assert accepted_or_told(lambda: read_config(path))


@given(st.text() | st.floats(allow_nan=False) | st.integers() | st.booleans())
def test_what_we_write_is_toml(value: Any) -> None:
    if isinstance(value, str):
        value = value.encode("utf-8", "ignore").decode()
    assert tomllib.loads(f"x = {toml(value)}")["x"] == value
