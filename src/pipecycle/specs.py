"""Harvests as one word on a command line: `bernoulli:0.3`, `markov:0.3,10`, `solar:FILE`, `clearsky:LATITUDE`,
`csv:FILE`, `always`."""

from __future__ import annotations

from pipecycle.errors import InputError
from pipecycle.harvest import Always, Bernoulli, Harvest, Markov
from pipecycle.sky import clear_sky
from pipecycle.traces import Solar, Spread, Table, Trace, read

FORMS = (
    "bernoulli:RATE, markov:RATE,BURST, solar:FILE[,panel=,minutes=,shift=,shade=], "
    "clearsky:LATITUDE[,days=,panel=, ...], csv:FILE[,day=] or always"
)
PANEL = ("panel", "minutes", "shift", "shade")


def parse_harvest(spec: str) -> Harvest:
    """A harvest from its description; options of `solar`, `clearsky` and `csv` follow the first word.

    solar: `panel` (units per slot at 1,000 W/m2), `minutes` (slot length), `shift` (minutes by which a client's
    day is late) and `shade` (factor); the last two take LOW..HIGH to differ between clients.
    clearsky: the same, and `days` (FIRST..LAST of the year).
    csv: `day` (rows in a day)."""
    kind, _, rest = spec.partition(":")
    if kind == "always" and not rest:
        return Always()
    if kind == "bernoulli" and rest:
        return Bernoulli(_number("rate", rest))
    if kind == "markov" and rest.count(",") == 1:
        rate, burst = rest.split(",")
        return Markov(_number("rate", rate), _number("burst", burst))
    if kind == "solar" and rest:
        path, options = _options(rest, PANEL)
        return _solar(read(path), options)
    if kind == "clearsky" and rest:
        latitude, options = _options(rest, ("days", *PANEL))
        days = options.pop("days", None)
        return _solar(clear_sky(_number("latitude", latitude), *([] if days is None else _days(days))), options)
    if kind == "csv" and rest:
        path, options = _options(rest, ("day",))
        return Table(read(path), **{key: int(_number(key, value)) for key, value in options.items()})
    raise InputError(f"harvest {spec!r}: needs {FORMS}")


def _solar(trace: Trace, options: dict[str, str]) -> Solar:
    return Solar(trace, **{key: _range(key, value) for key, value in options.items()})  # type: ignore[arg-type]


def _days(text: str) -> tuple[int, int]:
    first, _, last = text.partition("..")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise InputError(f"days = {text}: needs FIRST..LAST, whole numbers") from None


def _options(text: str, allowed: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    path, *pairs = text.split(",")
    options: dict[str, str] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in allowed or not value:
            raise InputError(f"harvest option {pair!r}: needs one of {', '.join(f'{name}=...' for name in allowed)}")
        options[key] = value
    return path, options


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} = {text}: needs a number") from None


def _range(name: str, text: str) -> float | Spread:
    low, dots, high = text.partition("..")
    if dots and name in ("shift", "shade"):
        return Spread(_number(name, low), _number(name, high))
    return _number(name, text)
