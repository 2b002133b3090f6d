"""How schedules, histories and comparisons show themselves, in a notebook and elsewhere.

The methods are here, so that every room's objects can have them; what draws is a room above, which the package names
when it is imported (`drawn_by`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure


class Drawing(Protocol):
    """What a module that draws has to offer."""

    def summary(self, shown: Any) -> str: ...

    def html(self, shown: Any) -> str: ...

    def plot(self, shown: Any, kind: str | None) -> Figure: ...

    def report(self, shown: Any, path: str | Path, target: float | None) -> Path: ...


class Text(str):
    """Text that a notebook shows line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Shown:
    """What can be summed up, drawn, and written as a page."""

    __slots__ = ()

    def summary(self) -> Text:
        """What there is to say, as text for a terminal."""
        return Text(_drawing().summary(self))

    def plot(self, kind: str | None = None) -> Figure:
        """A matplotlib figure in the style of our reports; `kind` is one of those that an error lists."""
        return _drawing().plot(self, kind)

    def report(self, path: str | Path = "report.html", target: float | None = None) -> Path:
        """Write one self-contained HTML page and return its path.  `target` is the accuracy in percent to ask the
        energy for, by default nine tenths of the best."""
        return _drawing().report(self, path, target)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return _drawing().html(self)


_modules: list[str] = []


def drawn_by(module: str) -> None:
    """Name the module that draws; it is imported when something is shown."""
    _modules[:] = [module]


def _drawing() -> Drawing:
    return cast(Drawing, import_module(_modules[0]))
