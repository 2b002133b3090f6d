"""How a group looks, on the page and in figures alike: colour, dash and marker say the same thing three times."""

from __future__ import annotations

from attrs import frozen

# Okabe and Ito's palette without its yellow, which vanishes on white; "ink" is the text colour of the theme.
INK = "ink"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", INK, "#8C8C8C")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "2px 4px 8px 4px")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down", "pentagon", "cross")
_STROKES: dict[str, str | tuple[float, tuple[float, ...]]] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (5, 1.5, 1, 1.5)),
    "longdash": (0, (9, 2)),
    "longdashdot": (0, (9, 1.5, 1, 1.5)),
    "2px 4px 8px 4px": (0, (1, 2, 4, 2)),
}
_POINTS = dict(zip(MARKERS, ("o", "s", "D", "^", "X", "*", "v", "p", "P"), strict=True))

CHAINS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#0072B2", "#999999")
"""Chains are bars with dark letters in them, so light colours come first."""


@frozen
class Style:
    """The looks of one group."""

    colour: str
    dash: str
    marker: str

    @property
    def ink(self) -> str:
        """The colour on white paper."""
        return "#000000" if self.colour == INK else self.colour

    @property
    def stroke(self) -> str | tuple[float, tuple[float, ...]]:
        """The dash as matplotlib has it."""
        return _STROKES[self.dash]

    @property
    def point(self) -> str:
        """The marker as matplotlib has it."""
        return _POINTS[self.marker]


def styles(count: int) -> list[Style]:
    """As many looks as groups; the lists differ in length, so that no combination returns soon."""
    return [Style(COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)], MARKERS[k % len(MARKERS)]) for k in range(count)]
