from __future__ import annotations

from pathlib import Path

import pytest

from pipecycle import InputError
from pipecycle.runs.config import Config, TrainSection, read_config, read_recorded


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
        ("[world]\nslot = 3\n", "world.slot: unknown, did you mean 'world.slots'"),
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


def test_inputs_are_named_only_where_they_are_not_the_usual_ones() -> None:
    usual = Config()
    assert "scale" not in usual.text()
    assert "augment" not in usual.text()
    changed = usual.changed({"data.scale": "centre", "train.augment": "crop:4+flip"})
    assert changed.text().count('scale = "centre"') == changed.text().count('augment = "crop:4+flip"') == 1
    assert changed.changed({"data.scale": "none", "train.augment": "none"}).identity() == usual.identity()
    assert TrainSection(augment="none") == TrainSection()
    for key, value, sentence in (
        ("data.scale", "raw", "scale = raw: needs one of standard, unit, half, centre"),
        ("train.augment", "crop:0", r"augment = crop:0: needs none, flip, crop:N or crop:N\+flip"),
        ("train.augment", 4, "train.augment = 4: needs text or none"),
    ):
        with pytest.raises(InputError, match=sentence):
            usual.changed({key: value})


@pytest.mark.parametrize("value", [1, 1.0, "1", "1.0"])
def test_a_default_step_is_no_statement(tmp_path: Path, value: object) -> None:
    (tmp_path / "a.toml").write_text(f'[policy]\nname = "fedseq"\nstep = {value!r}\n')
    assert read_config(tmp_path / "a.toml").identity() == Config("fedseq").identity()
    assert Config("fedseq").changed({"step": value}).identity() == Config("fedseq").identity()
    assert Config("fedseq", {"step": value}).policy == "fedseq"


def test_a_step_is_a_number_or_a_word(tmp_path: Path) -> None:
    for value, text in ((0.3, "step = 0.3\n"), ("0.3", "step = 0.3\n"), ("lag-stable", 'step = "lag-stable"\n')):
        config = Config("cycp").changed({"step": value})
        assert text in config.text()
        (tmp_path / "config.toml").write_text(config.text())
        assert read_config(tmp_path / "config.toml") == config
        assert read_recorded(tmp_path / "config.toml").text() == config.text()
    for value in ("fast", "1.1", 0, True):
        with pytest.raises(InputError, match=f"step = {value}"):
            Config("cycp").changed({"step": value})


def test_the_revision_of_a_policy_is_part_of_its_identity(tmp_path: Path) -> None:
    text = Config("pipecycle+").text()
    assert 'name = "pipecycle+"\nrevision = 2\n' in text
    assert "revision" not in Config("pipecycle").text()
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert read_config(path) == Config("pipecycle+")
    assert read_recorded(path).text() == text
    # A file that a user has written is about what there is now; one that was kept with a run about what there was then.
    path.write_text('[policy]\nname = "pipecycle+"\ngroups = 5\n')
    assert read_config(path) == Config("pipecycle+", {"groups": 5})
    former = {"rotation": "spread", "relay_mix": 0.5, "groups": 5}
    assert (read_recorded(path).policy, read_recorded(path).settings) == ("pipecycle", former)
    path.write_text('[policy]\nname = "pipecycle+"\nrelay_mix = 0.2\n')
    assert read_recorded(path).settings["relay_mix"] == 0.2
    path.write_text('[policy]\nname = "pipecycle+"\nrevision = 3\n')
    with pytest.raises(InputError, match="is about revision 3 of pipecycle\\+, this version has revision 2"):
        read_config(path)
    path.write_text('[policy]\nname = "fedavg"\nrevision = 2\n')
    with pytest.raises(InputError, match="is about revision 2 of fedavg, this version has revision 1"):
        read_config(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
