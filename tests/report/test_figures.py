from __future__ import annotations

import struct

import pytest

from pipecycle.report import load

pytest.importorskip("matplotlib")

from pipecycle.report.figures import figure_style, figures, save


@pytest.fixture
def drawn(make):
    paths = [make(f"{p}{t}", p, (50, 80 + t), world__trial=t) for p in ("pipecycle", "fedavg") for t in range(2)]
    return figures(load(paths), 80.0)


def test_every_figure_is_there(drawn) -> None:
    both = [f"{kind}_{policy}" for policy in ("pipecycle", "fedavg") for kind in ("pipeline", "mixing", "battery")]
    assert list(drawn) == [
        "accuracy_slots",
        "accuracy_energy",
        "accuracy",
        "differences",
        "energy_to_target",
        "energy_by_purpose",
        "coverage",
        "lag",
        "participation",
        *both,
    ]


def test_sizes_fonts_and_repeatability(drawn) -> None:
    with figure_style():
        for name, inches in (("accuracy_slots", 3.5), ("accuracy", 7.16)):
            png = save(drawn[name](), "png")
            assert struct.unpack(">I", png[16:20])[0] == round(300 * inches)
        pdf = save(drawn["accuracy"](), "pdf")
        assert b"/FontFile2" in pdf  # TrueType, embedded
        assert pdf == save(drawn["accuracy"](), "pdf")
        svg = save(drawn["pipeline_pipecycle"](), "svg")
        assert svg == save(drawn["pipeline_pipecycle"](), "svg")
        assert b"<text" not in svg  # letters are outlines, so no font is needed


def test_all_can_be_drawn(drawn) -> None:
    with figure_style():
        for draw in drawn.values():
            assert save(draw(), "svg").startswith(b"<?xml")


def test_a_plan_alone(make) -> None:
    drawn = figures(load([make("a") / "schedule.npz"]))
    assert "accuracy" not in drawn
    with figure_style():
        for draw in drawn.values():
            save(draw(), "svg")


def test_some_of_the_trials_make_no_bar(make) -> None:
    """A bar is a mean over all trials; who got there in one of two has a mark, and a word beside it."""
    paths = [make(f"a{t}", accuracy=(50.0, 90.0), world__trial=t) for t in range(2)]
    paths += [make(f"b{t}", "fedavg", accuracy=(90.0 if t else 10.0, 20.0), world__trial=t) for t in range(2)]
    with figure_style():
        (pane,) = figures(load(paths), 80.0)["energy_to_target"]().axes
    assert len(pane.patches) == 1
    assert [len(line.get_xdata()) for line in pane.lines] == [2, 1]
    assert [text.get_text() for text in pane.texts] == [" 1 of 2 trials"]


def test_a_group_alone_is_not_compared_with_itself(make) -> None:
    assert "differences" not in figures(load([make("a")]))


def test_names_are_proper_and_can_be_given(make) -> None:
    groups = load([make("a", "pipecycle+"), make("b", "cycp")])
    for labels, names in ((None, ["PipeCycle+", "CyCP+SGD"]), ({"cycp": "Theirs"}, ["PipeCycle+", "Theirs"])):
        with figure_style():
            (pane,) = figures(groups, labels=labels)["energy_by_purpose"]().axes
        assert [text.get_text() for text in pane.get_yticklabels()] == names


def test_a_narrow_figure_cuts_nothing_off(make) -> None:
    """Two panes in one column of a paper lie below each other, and the legend has as many columns as fit."""
    groups = load([make(f"g{k}", policy__groups=k) for k in (1, 2, 3, 4)])
    with figure_style():
        figure = figures(groups, width=3.5)["accuracy"]()
        figure.canvas.draw()
        box = figure.get_tightbbox()
    assert figure.get_figwidth() == 3.5
    assert box.x0 >= 0
    assert box.x1 <= 3.5
    above, below = (pane.get_position() for pane in figure.axes)
    assert above.y0 > below.y1


def test_there_is_no_half_model(make) -> None:
    groups = load([make("few", world__slots=90)])
    with figure_style():
        pane = figures(groups)["mixing_pipecycle"]().axes[0]
        ticks = pane.get_xticks()
    assert pane.get_xlim()[1] < 6  # so few that ticks would fall between them
    assert all(tick == round(tick) for tick in ticks)


def test_there_is_no_half_client(make) -> None:
    groups = load([make("few", world__clients=3)])
    with figure_style():
        figure = figures(groups)["battery_pipecycle"]()
        ticks = figure.axes[0].get_yticks()
    assert all(tick == round(tick) for tick in ticks)
