"""How a scheduler looks and what it is called, on every page and in every figure: by its name, never by its place.

Colour, dash and marker say the same thing three times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

from attrs import frozen

from pipecycle.policies import TITLES

# Okabe and Ito's palette without its yellow, which vanishes on white; "ink" is the text colour of the theme.
INK = "ink"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", INK, "#8C8C8C")
# Tol's muted palette, as far as it is not like one of the above: for the others.
_MORE = ("#332288", "#882255", "#999933", "#117733", "#AA4499", "#44AA99", "#661100", "#6699CC")
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

CHAINS = ("#77AADD", "#EE8866", "#BBCC33", "#FFAABB", "#44BB99", "#EEDD88", "#99DDFF", "#AAAA00", "#C9B6E4", "#CCCCCC")
"""Tol's light palette: no scheduler's colour, and dark letters can be read on it."""


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
    """Looks for lines that do not stand for schedulers; the lists differ in length, so few combinations repeat."""
    return [_look(place) for place in range(count)]


def style_of(policy: str) -> Style:
    """The looks of a scheduler; one that is not known here has those that its name leads to."""
    known = list(TITLES)
    return _look(known.index(policy) if policy in known else len(known) + crc32(policy.encode()) % 504)


def styles_of(policies: Sequence[str]) -> list[Style]:
    """The looks of the lines of one report: variants of a scheduler have its colour, lighter or darker."""
    seen: dict[str, int] = {}
    out = []
    for policy in policies:
        style, variant = style_of(policy), seen.get(policy, 0)
        seen[policy] = variant + 1
        if variant:
            dash = DASHES[(DASHES.index(style.dash) + variant) % len(DASHES)]
            marker = MARKERS[(MARKERS.index(style.marker) + variant) % len(MARKERS)]
            style = Style(_shade(style.colour, variant), dash, marker)
        out.append(style)
    return out


def proper(label: str, policy: str, given: Mapping[str, str] | None = None) -> str:
    """A group's label with the scheduler's name as people write it: what they gave, or the usual one."""
    names = {**TITLES, **(given or {})}
    if label in names:
        return names[label]
    return names.get(policy, policy) + label[len(policy) :] if label.startswith(policy) else label


def _look(place: int) -> Style:
    colours = (*COLOURS, *_MORE)
    return Style(colours[place % len(colours)], DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)])


def _shade(colour: str, variant: int) -> str:
    """Towards black, towards white, and further."""
    parts = [0x66] * 3 if colour == INK else [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    end, share = (0, 255)[variant % 2 == 0], min(0.7, 0.3 + 0.15 * ((variant - 1) // 2))
    return "#" + "".join(f"{round(part + share * (end - part)):02X}" for part in parts)
