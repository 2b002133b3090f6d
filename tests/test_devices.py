"""Fleets in files: what they mean, what is refused and where, and how they enter plans and identities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipecycle import InputError, build, plan
from pipecycle.runs.config import Config, read_config, read_recorded
from pipecycle.runs.planning import shares_of
from pipecycle.schedule.plan import Planning
from pipecycle.schedule.summary import sentences, summarise
from pipecycle.world.devices_file import examples, load
from pipecycle.world.energy import UNIT
from pipecycle.world.field import FieldFleet
from tests.commands import pipecycle

TWO = """
name = "two kinds"
joules = 2.0
slot = 30

[links]
channels = 3
loss = 0.1

[[device]]
name = "board"
count = 3
session = 5
step = 4.0
to_server = 8
capacity = 200
harvest = "bernoulli:0.5"
gain = 6

[[device]]
name = "sensor"
count = 2
step = 1
loss = 0.4
leak = 0.002
harvest = "bernoulli:0.25"
"""


def written(path: Path, text: str, name: str = "fleet.toml") -> Path:
    file = path / name
    file.write_text(text)
    return file


def test_classes_become_clients(tmp_path: Path) -> None:
    run = Planning(build("fedavg"), 1.0, 100, 50, session=7, initial=1.5, fleet=written(tmp_path, TWO))
    fleet = run.fleet
    assert isinstance(fleet, FieldFleet)
    assert fleet.clients == 5
    assert np.asarray(fleet.length).tolist() == [5, 5, 5, 7, 7]
    assert (np.asarray(fleet.step) / UNIT).tolist() == [2.0, 2.0, 2.0, 0.5, 0.5]  # joules, two to a unit
    assert (np.asarray(fleet.to_server) / UNIT).tolist() == [4.0, 4.0, 4.0, 1.0, 1.0]
    assert (np.asarray(fleet.capacity) / UNIT).tolist() == [100.0, 100.0, 100.0, 1e6, 1e6]
    assert fleet.initial == 1.5 * UNIT
    assert np.asarray(fleet.leak).tolist() == [0, 0, 0, 1049, 1049]  # 0.001 units, rounded up
    assert np.asarray(fleet.links.loss).tolist() == [0.1, 0.1, 0.1, 0.4, 0.4]
    assert fleet.links.channels == 3
    gains = run.weather.block(4000)
    assert set(np.unique(gains[:, 0]).tolist()) == {0, 3 * UNIT}
    assert (gains > 0).mean(axis=0) == pytest.approx([0.5] * 3 + [0.25] * 2, abs=0.03)


def test_shares_are_rounded_to_the_whole_fleet(tmp_path: Path) -> None:
    classes = "".join(f"[[device]]\nshare = {share}\n" for share in (0.5, 0.3, 0.2))
    devices = load(written(tmp_path, classes))
    assert devices.sizes(10).tolist() == [5, 3, 2]
    assert devices.sizes(7).tolist() == [4, 2, 1]
    for clients in range(1, 40):
        assert devices.sizes(clients).sum() == clients
        assert (np.abs(devices.sizes(clients) - np.array([0.5, 0.3, 0.2]) * clients) < 1).all()


def test_a_row_per_device(tmp_path: Path) -> None:
    rows = 'name,session,step,harvest,samples\na,4,1,always,10\nb,,0.5,"markov:0.5,4",20\nc,6,,,30\n'
    file = written(tmp_path, rows, "fleet.csv")
    run = Planning(build("fedavg"), 0.0, 100, 50, session=9, fleet=file)
    assert np.asarray(run.fleet.length).tolist() == [4, 9, 6]
    assert (np.asarray(run.fleet.step) / UNIT).tolist() == [1.0, 0.5, 1.0]
    assert run.fleet.samples is not None
    assert run.fleet.samples.tolist() == [10, 20, 30]
    gains = run.weather.block(200) / UNIT
    assert gains[:, 0].tolist() == [1.0] * 200
    assert 0.2 < gains[:, 1].mean() < 0.8
    assert not gains[:, 2].any()
    within = load(written(tmp_path, 'devices = "fleet.csv"\n[links]\nchannels = 1\n'))
    assert within.clients(100) == 3
    assert within.channels == 1


def test_classes_with_one_description_have_independent_weather(tmp_path: Path) -> None:
    half = '[[device]]\nshare = 0.5\nharvest = "markov:0.5,3"\n'
    same = Planning(build("fedavg"), 0.5, 40, 400, fleet=written(tmp_path, half + half)).weather.block(400)
    apart = half + half.replace("0.5,3", "0.5,4")
    other = Planning(build("fedavg"), 0.5, 40, 400, fleet=written(tmp_path, apart)).weather.block(400)
    for gains in (same, other):
        assert not (gains[:, :20] == gains[:, 20:]).all(axis=0).any()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = 3\n", "fleet.toml, line 1: name = 3: needs text"),
        ('name = "x"\nlinks = 4\n', "fleet.toml, line 2: links: needs a table, [links]"),
        ("colour = 1\n", "fleet.toml, line 1: colour: needs one of name, joules, slot, devices, links, device"),
        ("[links]\n\nchannels = 0\n", "fleet.toml, line 3: channels = 0: needs at least 1 channel"),
        ('[links]\nwindows = "no.csv"\n', "fleet.toml, line 2: windows = no.csv: there is no such file"),
        ('slot = 1\ndevices = "no.csv"\n', "fleet.toml, line 2: devices = no.csv: there is no such file"),
        (
            "[[device]]\ncount = 1\nstep = 1\n\n[[device]]\ncount = 2\nstep = -1\n",
            "fleet.toml, line 7: step = -1: needs",
        ),
        ("[[device]]\ncount = 1\n[[device]]\nshare = 1\n", "fleet.toml, line 3: count, share: every [[device]] needs"),
        (
            "[[device]]\ncount = 1\nsamples = 3\n[[device]]\ncount = 1\n",
            "fleet.toml, line 4: samples: give them for all",
        ),
        (
            "joules = 1e-300\n[[device]]\ncount = 1\nstep = 5\n",
            "line 4: step = 5: needs at most 2^40 units of 1e-300 J",
        ),
        ("[[device]]\ncount = 1\nstep.joules = 5\n", "fleet.toml, line 3: step = {'joules': 5}: needs a number"),
        ("device = [{ count = 1, step = -1 }]\n", "fleet.toml, line 1: step = -1: needs a number"),
        ("[[devices]]\ncount = 1\n", "fleet.toml, line 1: devices = [{'count': 1}]: needs text"),
        ("[[device]]\nshare = 0.5\n", "fleet.toml, line 2: share: all of them make 0.5, and need to make 1"),
        ("[[device]]\ncount = 1\nlekk = 1\n", "fleet.toml, line 3: lekk: needs one of name, harvest"),
        ('[[device]]\ncount = 1\nharvest = "moon"\n', "fleet.toml, line 3: harvest 'moon': needs bernoulli"),
        ("[[device]]\ncount = 1\nloss = 2\n", "fleet.toml, line 3: loss = 2: needs a number from 0 to 1"),
        ("[[device]]\ncount = 1\ncontact_share = 0.5\n", "line 3: contact_share: needs contact_period beside it"),
        ("[[device]]\ncount = 1\nsession = 2.5\n", "fleet.toml, line 3: session = 2.5: needs a whole number"),
        ("[[device]\n", "fleet.toml: is not TOML"),
    ],
)
def test_mistakes_are_told_with_file_line_and_key(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError) as told:
        load(written(tmp_path, text))
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("session,steps\n1,2\n", "fleet.csv, line 1: steps: needs one of name, harvest, session"),
        ("session,step\n1,2\n3\n", "fleet.csv, line 3: has 1 columns where the first line has 2"),
        ("session,step\n1,2\n\n3,many\n", "fleet.csv, line 4: step = many: needs a number"),
        ("session\n", "fleet.csv: needs a line that names the columns, and a row per device"),
        ("samples,step\n1,1\n,2\n", "fleet.csv, line 3: samples: give them for all devices or for none"),
        ("step,idle,step\n1,1,1\n", "fleet.csv, line 1: step: is named twice"),
        ('step\n1\n"2\n3\n', "fleet.csv, line 4: is not CSV (unexpected end of data)"),
        ('step\n"2\n3"\n', "fleet.csv, line 3: step = 2 3: needs a number"),
    ],
)
def test_mistakes_in_csv(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError) as told:
        load(written(tmp_path, text, "fleet.csv"))
    assert sentence in str(told.value)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("client,begin,end\n", "windows.csv, line 1: client,first,last: needs to be the first line"),
        ("client,first,last\n0,5,x\n", "windows.csv, line 2: '0,5,x': needs three whole numbers"),
        ("client,first,last\n0,5,4\n", "windows.csv, line 2: 0,5,4: needs client and first of at least 0"),
        ("client,first,last\n0,5,9\n0,0,5\n", "windows.csv, line 2: client 0: this window begins before"),
    ],
)
def test_mistakes_in_windows(tmp_path: Path, rows: str, sentence: str) -> None:
    written(tmp_path, rows, "windows.csv")
    with pytest.raises(InputError) as told:
        load(written(tmp_path, '[links]\nwindows = "windows.csv"\n'))
    assert sentence in str(told.value)


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("capacity = 9\n", 7, "capacity = 9: needs a session's energy, 20"),
        ("capacity = 20\ndownload = 1\n", 7, "capacity = 20: needs a session's energy, 21"),
        ("capacity = 50\ninitial = 60\n", 8, "initial = 60: needs at most the battery's capacity, 50"),
        ("session = 3000000\n", 4, "capacity = 1e+06: needs a session's energy, 3e+06"),  # not given: the device
    ],
)
def test_a_battery_that_is_too_small_is_told_with_its_line(tmp_path: Path, text: str, line: int, sentence: str) -> None:
    """How long a session is may be the run's to say, so a file alone cannot be wrong."""
    device = "[[device]]\nshare = 0.5\n"
    for above, joules in enumerate(("", "joules = 0.5\n")):  # a file in joules is told in joules
        if joules and text.startswith("session"):
            continue  # the capacity is the run's then, in units
        file = written(tmp_path, joules + device + "step = 1\n" + device + "step = 1\n" + text)
        with pytest.raises(InputError) as told:
            plan("fedavg", clients=10, slots=5, fleet=file)
        assert f"fleet.toml, line {line + above}: {sentence}" in str(told.value)


def test_mistakes_in_what_a_harvest_is_worth(tmp_path: Path) -> None:
    for text, sentence in (
        ('harvest = "solar:no.csv"\n', "line 3: harvest = solar:no.csv: "),
        ("joules = 0.001\n", "line 4: gain = 5000: needs at most 2^22 units, 4194.3"),
    ):
        tail = "gain = 5000\n" if "joules" in text else text
        file = written(tmp_path, f"{text if tail != text else ''}[[device]]\ncount = 2\n{tail}")
        with pytest.raises(InputError) as told:
            plan("fedavg", clients=2, slots=5, session=2, fleet=file)
        assert f"fleet.toml, {sentence}" in str(told.value)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_bytes(b"step\n\xff\n")
    with pytest.raises(InputError, match=r"fleet.csv: is not text in UTF-8 \(at byte 5\)"):
        load(tmp_path / "fleet.csv")


def test_a_window_of_a_client_that_does_not_exist(tmp_path: Path) -> None:
    written(tmp_path, "client,first,last\n3,0,5\n12,0,5\n4,0,5\n", "windows.csv")
    file = written(tmp_path, '[links]\nwindows = "windows.csv"\n')
    with pytest.raises(
        InputError, match=r"windows.csv, line 3: client = 12: needs less than 10, the number of clients"
    ):
        plan("fedavg", clients=10, slots=5, fleet=file)


def test_the_digest_is_of_the_meaning(tmp_path: Path) -> None:
    first = load(written(tmp_path, TWO))
    again = load(
        written(tmp_path, "# words\n" + TWO.replace("4.0", "4").replace("count = 3\nsession = 5", "session=5\ncount=3"))
    )
    assert first.digest == again.digest
    for change in (("gain = 6", "gain = 6.5"), ("channels = 3", "channels = 4"), ("slot = 30", "slot = 31")):
        assert load(written(tmp_path, TWO.replace(*change))).digest != first.digest
    written(tmp_path, "client,first,last\n0,1,2\n", "windows.csv")
    text = TWO.replace("loss = 0.1", 'loss = 0.1\nwindows = "windows.csv"', 1)
    windowed = load(written(tmp_path, text)).digest
    written(tmp_path, "client,first,last\n0,1,3\n", "windows.csv")
    assert load(written(tmp_path, text)).digest not in (windowed, first.digest)


def test_the_contents_are_part_of_a_runs_identity(tmp_path: Path) -> None:
    file = written(tmp_path, TWO)
    config = Config().changed({"world.fleet": str(file)})
    assert config.world.clients == 5
    assert config.world.fleet == f"{file}#{load(file).digest}"
    written(tmp_path, config.text(), "config.toml")
    assert read_config(tmp_path / "config.toml").identity() == config.identity()
    written(tmp_path, TWO.replace("gain = 6", "gain = 7"))
    other = Config().changed({"world.fleet": str(file)})
    assert other.identity() != config.identity()
    with pytest.raises(InputError, match="is not the fleet that was meant"):
        plan(build("fedavg"), fleet=config.world.fleet)
    file.unlink()
    assert read_recorded(tmp_path / "config.toml").identity() == config.identity()  # reading needs no fleet
    assert "fleet" not in Config().text()


def test_a_count_wins_over_the_usual_number_only(tmp_path: Path) -> None:
    file = str(written(tmp_path, TWO))
    with pytest.raises(InputError, match="clients = 7: two kinds has 5 devices"):
        Config().changed({"world.fleet": file, "world.clients": 7})
    with pytest.raises(InputError, match="fleet rockets: there is no such file; our own are boards"):
        load("rockets")


def test_samples_decide_who_holds_how_much(tmp_path: Path) -> None:
    text = "[[device]]\nshare = 0.5\nsamples = 12\n[[device]]\nshare = 0.5\nsamples = 5\n"
    for alpha in (None, 0.5):
        config = Config().changed(
            {"world.fleet": str(written(tmp_path, text)), "world.clients": 20, "data.alpha": alpha}
        )
        split = shares_of(config)
        assert split.sizes.tolist() == [12] * 10 + [5] * 10
        assert len(np.unique(split.indices)) == len(split.indices)


@pytest.mark.parametrize("name", examples())
def test_our_examples_can_be_planned(name: str) -> None:
    devices = load(name)
    assert devices.joules is not None
    assert devices.seconds is not None
    assert len(devices.sources) == len(devices.labels)
    schedule = plan(build("pipecycle"), clients=30, slots=1500, fleet=name)
    assert schedule.ancestry.events > 5
    figures = summarise(schedule)
    assert figures["hours"] == 1500 * devices.seconds / 3600
    parts = figures["energy"] | figures["spent_on"]
    assert figures["joules"] == {"unit": devices.joules} | {key: parts[key] * devices.joules for key in parts}
    assert "J spent in" in sentences(figures)["physically"]


def test_reports_speak_of_losses_joules_and_hours(tmp_path: Path) -> None:
    from pipecycle.report.alternatives import _percent
    from pipecycle.report.tables import summary_rows, tables
    from pipecycle.runs.records import load as records

    for name, fleet in (("rough", "satellites"), ("usual", None)):
        plan(build("fedavg"), clients=20, slots=600, fleet=fleet).save(tmp_path / f"{name}.npz")
    groups = records([tmp_path / "rough.npz", tmp_path / "usual.npz"])
    assert [group.label for group in groups] == ["fedavg harvest=bernoulli:0.5 fleet=none", "fedavg fleet=satellites"]
    energy = next(table for table in tables(groups) if table.title.startswith("Where the energy went"))
    assert {"Downloads", "Lost", "Idled away", "Leaked", "Hours"} < set(energy.head)
    cells = dict(zip(energy.head, energy.cells[-1], strict=True))
    assert cells["Hours"] == "10"
    assert cells["Spent, physically"].endswith("MJ")
    row = summary_rows(groups)[1]
    assert row["spent"] == pytest.approx(
        sum(row[key] for key in ("training", "to_hub", "to_server", "download", "lost"))
    )
    assert "% lost" in _percent(row)
    plain = next(table for table in tables(groups[:1]) if table.title.startswith("Where the energy went"))
    assert "Lost" not in plain.head
    assert "Hours" not in plain.head


@pytest.mark.slow
def test_a_fleet_in_every_command(tmp_path: Path) -> None:
    """plan, run, compare and a sweep with the same file, on the same clients."""
    import json

    from tests.commands import pipecycle

    written(tmp_path, TWO.replace("count = 3", "count = 6").replace("count = 2", "count = 4"))
    common = ("--fleet", "fleet.toml", "--slots", "120", "--json")
    planned = json.loads(pipecycle("plan", "fedavg", *common, cwd=tmp_path).stdout)
    assert planned["clients"] == 10
    assert planned["fleet"].startswith("two kinds#")
    small = ("--set", "data.samples=20", "--set", "look.every=60")
    ran = json.loads(pipecycle("run", "fedavg", *common, *small, cwd=tmp_path).stdout)
    assert ran["plan"]["fleet"] == planned["fleet"]
    compared = pipecycle("compare", "fedavg", "--trials", "1", "--validation", "50", *common, *small, cwd=tmp_path)
    assert json.loads(compared.stdout)["rows"][0]["hours"] == 1.0
    sweep = (
        '[base.world]\nslots = 60\n[base.data]\nsamples = 20\n[matrix]\npolicy = ["fedavg"]\nfleet = ["fleet.toml"]\n'
    )
    written(tmp_path, sweep, "sweep.toml")
    swept = pipecycle("sweep", "sweep.toml", "--dry-run", "--json", cwd=tmp_path)
    assert json.loads(swept.stdout)["runs"] == 1


def test_more_samples_than_there_are_is_told_with_file_and_line(tmp_path: Path) -> None:
    text = "[[device]]\ncount = 4\nsamples = 20\n[[device]]\ncount = 1\nsamples = 900\n"
    config = Config().changed({"world.fleet": str(written(tmp_path, text)), "world.clients": 5})
    with pytest.raises(InputError, match=r"fleet\.toml, line 6: samples = 900: digits has 1 to 287 for each of 5"):
        shares_of(config)


def test_what_all_devices_say_cannot_be_said_otherwise(tmp_path: Path) -> None:
    device = "[[device]]\nshare = 0.5\nsession = 5\nsamples = 9\n"
    written(tmp_path, device + 'harvest = "always"\n' + device)
    own = ("plan", "fedavg", "--fleet", "fleet.toml", "--clients", "10", "--slots", "50")
    for options, words in (
        (("--session", "7"), "--session 7"),
        (("--set", "data.samples=5"), "--set data.samples=5"),
    ):
        done = pipecycle(*own, *options, cwd=tmp_path)
        assert done.stderr == f"pipecycle: {words}: has no effect, all devices of fleet have their own\n"
    assert pipecycle(*own, "--delta", "0.3", cwd=tmp_path).returncode == 0  # for the class that has no harvest
