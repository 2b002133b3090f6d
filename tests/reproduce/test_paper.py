"""The transcription against sums that were taken from the manuscript's lines, and cells quoted elsewhere."""

from __future__ import annotations

import pytest

from pipecycle_paper import paper
from pipecycle_paper.paper import TABLE_I, TABLE_II

ROW_SUMS = {
    "iid": (242.0, 241.3, 248.8, 251.4, 258.7, 180.5, 257.4, 229.3, 133.9, 202.8, 110.4, 67.2, 276.1, 277.0, 279.5),
    "non-iid": (214.4, 148.4, 218.4, 191.3, 89.4, 41.2, 249.3, 46.8, 41.2, 40.8, 40.8, 40.4, 259.3, 246.7, 219.5),
}
COLUMN_SUMS = {"iid": (801.3, 826.6, 813.6, 814.8), "non-iid": (553.7, 539.7, 485.0, 509.5)}


@pytest.mark.parametrize("where", paper.DISTRIBUTIONS)
def test_rows_and_columns_add_up(where: str) -> None:
    rows = paper.TABLES[where]
    assert [sum(row.values) for row in rows] == pytest.approx(ROW_SUMS[where])
    columns = zip(*(row.values for row in rows), strict=True)
    assert [sum(column) for column in columns] == pytest.approx(COLUMN_SUMS[where])


def test_cells_that_the_specification_quotes() -> None:
    """Typed a second time, from the paper."""
    quoted = {
        ("fedavg", None): (65.4, 64.8, 61.4, 50.4),
        ("mifa", None): (62.2, 62.7, 60.5, 55.9),
        ("flda", None): (64.6, 64.4, 63.2, 56.6),
        ("pipecycle", 2): (68.5, 69.0, 69.4, 69.2),
        ("pipecycle", 5): (67.3, 70.2, 69.9, 69.6),
        ("pipecycle", 10): (66.5, 69.1, 72.0, 71.9),
    }
    for (policy, groups), values in quoted.items():
        assert tuple(paper.value("iid", policy, groups, delta) for delta in paper.DELTAS) == values
    others = {
        ("fedavg", None): (62.7, 58.7, 51.1, 41.9),
        ("flda", None): (63.4, 59.9, 51.6, 43.5),
        ("cycp", 2): (60.0, 55.4, 44.8, 31.1),
        ("pipecycle", 10): (65.3, 55.7, 52.7, 45.8),
    }
    for (policy, groups), values in others.items():
        assert tuple(paper.value("non-iid", policy, groups, delta) for delta in paper.DELTAS) == values


def test_fifteen_rows_on_lines_in_order() -> None:
    for rows in (TABLE_I, TABLE_II):
        assert len(rows) == 15
        lines = [row.line for row in rows]
        assert lines == sorted(set(lines))
    assert paper.value("iid", "pipecycle+", 2, 0.1) is None
