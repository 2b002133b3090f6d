from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipecycle.errors import InputError
from pipecycle.world.energy import UNIT
from pipecycle.world.harvest import Harvest
from pipecycle.world.specs import parse_harvest
from pipecycle.world.streams import Floats
from pipecycle.world.traces import Solar, Spread, Table, first_day, read


def units(harvest: Harvest, clients: int, slots: int, trial: int = 0) -> Floats:
    return harvest.weather(clients, trial).block(slots) / UNIT


def nrel(path: Path, days: int = 2) -> Path:
    """Night readings of -2, 1,000 W/m2 from 06:00 to 17:59, every minute, in NREL's three columns."""
    lines = ["DATE (MM/DD/YYYY),MST,Global CM3 (cor) [W/m^2]"]
    for day in range(days):
        for minute in range(1440):
            light = 1000.0 * (day + 1) / days if 360 <= minute < 1080 else -2.0
            lines.append(f"6/{day + 1}/2023,{minute // 60:02}:{minute % 60:02},{light:f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_nrel_format(tmp_path: Path) -> None:
    trace = read(nrel(tmp_path / "sun.csv"))
    assert trace.values.shape == (2880, 1)
    assert trace.minutes == 1.0
    assert trace.values[0, 0] == -2.0


def test_a_day_under_a_panel(tmp_path: Path) -> None:
    trace = read(nrel(tmp_path / "sun.csv", days=1))
    day = units(Solar(trace, panel=0.5, minutes=60.0), 1, 24)[:, 0]
    assert day.tolist() == [0.0] * 6 + [0.5] * 12 + [0.0] * 6  # 0.5 units per slot at 1,000 W/m2, nothing at night
    assert units(Solar(trace, panel=0.5, minutes=60.0), 1, 48)[24:, 0].tolist() == day.tolist()  # wraps around


def test_slots_that_do_not_divide_the_day_conserve_the_light(tmp_path: Path) -> None:
    trace = read(nrel(tmp_path / "sun.csv", days=1))
    total = units(Solar(trace, minutes=7.0), 1, 1440)[:, 0].sum()  # seven whole days
    assert total == pytest.approx(7 * 720 / 7.0, rel=1e-5)


def test_time_zones_and_shading(tmp_path: Path) -> None:
    trace = read(nrel(tmp_path / "sun.csv", days=1))
    rows = units(Solar(trace, minutes=60.0, shift=np.array([0.0, 120.0]), shade=np.array([1.0, 0.25])), 2, 24)
    assert rows[:, 0].tolist() == [0.0] * 6 + [1.0] * 12 + [0.0] * 6
    assert rows[:, 1].tolist() == [0.0] * 8 + [0.25] * 12 + [0.0] * 4
    spread = units(Solar(trace, minutes=60.0, shade=Spread(0.2, 0.8)), 500, 24)
    assert 0.2 <= spread[12].min() < 0.22
    assert 0.78 < spread[12].max() <= 0.8
    assert (spread == units(Solar(trace, minutes=60.0, shade=Spread(0.2, 0.8)), 500, 24)).all()


def test_the_trial_picks_the_day(tmp_path: Path) -> None:
    trace = read(nrel(tmp_path / "sun.csv", days=2))
    noons = {units(Solar(trace, minutes=60.0), 1, 24, trial)[12, 0] for trial in (0, 1)}
    assert noons == {0.5, 1.0}
    assert sorted(first_day(trial, 30) for trial in range(30)) == list(range(30))


def test_two_columns_with_and_without_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,ghi\n2023-06-01T00:00,0\n2023-06-01T00:30,500\n")
    (tmp_path / "b.csv").write_text("0,0\n30,500\n")
    for name in ("a.csv", "b.csv"):
        trace = read(tmp_path / name)
        assert trace.minutes == 30.0
        assert trace.values[:, 0].tolist() == [0.0, 500.0]


def test_a_table_of_gains(tmp_path: Path) -> None:
    (tmp_path / "gains.csv").write_text("slot,a,b\n0,1,0\n1,0.5,2\n2,0,0\n")
    table = Table(read(tmp_path / "gains.csv"), day=3)
    assert units(table, 2, 4).tolist() == [[1, 0], [0.5, 2], [0, 0], [1, 0]]
    with pytest.raises(InputError, match="has 2 columns of gains for 3 clients"):
        table.weather(3, 0)


def test_specs_with_options(tmp_path: Path) -> None:
    path = nrel(tmp_path / "sun.csv", days=1)
    solar = parse_harvest(f"solar:{path},panel=2,minutes=60,shift=0..60,shade=0.5")
    assert isinstance(solar, Solar)
    assert (solar.panel, solar.minutes, solar.shift, solar.shade) == (2.0, 60.0, Spread(0.0, 60.0), 0.5)
    assert "panel=2,minutes=60,shift=0..60,shade=0.5" in str(solar)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at least two rows"),
        ("time,ghi\n", "at least two rows"),
        ("1\n2\n", "at least two columns"),
        ("0,1\n1,x\n", "line 2"),
        ("0,1\n1,nan\n", "line 2: the time or a value is not a finite number"),
        ("0,1\n1,2\n3,4\n", "line 3: time must advance"),
        ("0,1\n0,2\n", "time must advance"),
        ("0,1\n1,2,3\n", "line 2: has 3 columns"),
        ("0,NA\n1,2\n2,3\n", "line 1: '0,NA' is not a time and numbers"),
        ("6/1/2024,0:00,NA\n6/1/2024,0:01,2\n6/1/2024,0:02,3\n", "line 1"),
        ("-1.7e308,1\n1.7e308,1\n", "line 1: the time or a value is not a finite number of at most 1e15"),
        ("0,1\n1,1.7e308\n", "line 2: the time or a value"),
        ("2024-06-01T00:00+02:00,1\n2024-06-01T00:01+05:00,2\n", "time must advance"),
    ],
)
def test_unreadable_files_are_refused_by_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        read(path)


def test_a_file_may_name_the_distance_from_utc(tmp_path: Path) -> None:
    hours = ["00:00+02:00", "01:00+02:00", "02:00+02:00", "02:00+01:00", "03:00+01:00"]  # summer time ends
    (tmp_path / "autumn.csv").write_text("".join(f"2024-10-27 {hour},1\n" for hour in hours))
    assert read(tmp_path / "autumn.csv").minutes == 60.0


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="is not text in UTF-8"):
        read(tmp_path / "binary.csv")


def test_negative_gains_are_refused(tmp_path: Path) -> None:
    path = nrel(tmp_path / "sun.csv", days=1)
    with pytest.raises(InputError, match="gains must be from 0"):
        parse_harvest(f"csv:{path}")
    with pytest.raises(InputError, match="harvest option 'colour=red'"):
        parse_harvest(f"solar:{path},colour=red")
    for option in ("panel=0", "minutes=-1"):
        with pytest.raises(InputError, match=r"needs a number (above 0|from 0.001)"):
            parse_harvest(f"solar:{path},{option}")
