from __future__ import annotations

from pathlib import Path

import pytest

from pipecycle import InputError
from pipecycle.config import Config, read_config


def test_a_file_says_what_the_configuration_is(tmp_path: Path) -> None:
    config = Config("cycp").changed(
        {
            "groups": "5",
            "world.slots": "300",
            "data.alpha": "0.1",
            "train.replacement": "true",
            "look.clients_every": "75",
        }
    )
    (tmp_path / "config.toml").write_text(config.text())
    again = read_config(tmp_path / "config.toml")
    assert again == config
    assert again.identity() == config.identity()
    assert again.changed({"train.lr": 0.1}).identity() != config.identity()


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[policy]\nname = "mifa"\nuse_memory = false\n[train]\nlr = 1\n')
    config = read_config(tmp_path / "a.toml")
    assert (config.policy, config.settings, config.train.lr) == ("mifa", {"use_memory": False}, 1.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[policy]\nname = "fedavgg"\n', "did you mean 'fedavg'"),
        ("[policy]\ngroup = 3\n", "did you mean 'groups'"),
        ("[wrld]\nslots = 3\n", "did you mean 'world'"),
        ("[world]\nslot = 3\n", "world.slot: unknown, did you mean 'slots'"),
        ("[world]\nslots = 2.5\n", "world.slots = 2.5: needs a whole number"),
        ("[world]\nslots = true\n", "world.slots = True: needs a whole number"),
        ('[world]\nslots = "many"\n', "world.slots = many: needs a whole number"),
        ("[world]\nslots = 0\n", "slots = 0: needs at least 1"),
        ('[train]\nprecision = "fp8"\n', "precision = fp8: needs one of fp32, tf32, bf16"),
        ("slots = 3\n", "slots = 3: unknown"),
        ("format = 99\n", "is a configuration of format 99"),
        ("[world\n", "is not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_config(tmp_path / "bad.toml")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
