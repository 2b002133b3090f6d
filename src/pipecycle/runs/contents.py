"""The contents of a user's files that decide a run: sources of policies and models, data, splits and harvests.

Modules are followed through their import statements, from the module that a configuration names to every module of the
same folder tree that it imports.  Installed packages are not followed, nor is what code imports or reads by a name that
it computes."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

import attrs

from pipecycle.errors import is_library
from pipecycle.files import reading
from pipecycle.runs.config import Config
from pipecycle.words import some
from pipecycle.world import specs

DATA = (".npz", ".json", ".csv")

_SEEN: WeakKeyDictionary[ModuleType, dict[str, str]] = WeakKeyDictionary()
"""Sources of loaded modules as they were when first asked for: a process runs what it has imported, whatever is written
to the file later."""


def sealed(config: Config) -> Config:
    """The configuration with the contents of the files that it names; one without such files stays as it is."""
    contents: dict[str, str] = {}
    for name in (config.policy, config.train.model):
        if ":" in name:
            contents |= sources(name.partition(":")[0])
    contents |= {path: digest(Path(path)) for path in files(config)}
    return attrs.evolve(config, contents=contents)


def files(config: Config) -> list[str]:
    """The data files that a configuration names."""
    named = [
        value
        for value in config.fields().values()
        if isinstance(value, str) and value.endswith(DATA) and ":" not in value
    ]
    return [*named, *specs.files(config.world.harvest)]


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What differs between two contents, in words: `race.py has changed`."""
    kinds = {
        "changed": [name for name in now if name in before and before[name] != now[name]],
        "been added": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
    }
    words = [
        f"{some(sorted(names), 3)} {'has' if len(names) == 1 else 'have'} {how}"
        for how, names in kinds.items()
        if names
    ]
    return " and ".join(words).replace("has gone", "is gone").replace("have gone", "are gone")


def digest(path: Path) -> str:
    """Of a file's bytes, which are read again only if the file was written since."""
    with reading(path):
        about = path.stat()
        return _digest(path.resolve(), about.st_mtime_ns, about.st_size, about.st_ino)


@lru_cache(256)
def _digest(path: Path, *stamp: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def sources(name: str) -> dict[str, str]:
    """Digests of a user's module and of those that it imports from the same folder tree, by path in that tree.

    Empty for a module of an installed package, and for one that is not there: importing it says why."""
    loaded = sys.modules.get(name)
    if loaded is not None and loaded in _SEEN:
        return _SEEN[loaded]
    start = _origin(name, loaded)
    if start is None:
        return {}
    root = start.parents[name.count(".") + (start.name == "__init__.py")]
    digests = {path.relative_to(root).as_posix(): digest(path) for path in sorted(_followed(root, start))}
    if loaded is not None:
        _SEEN[loaded] = digests
    return digests


def _origin(name: str, loaded: ModuleType | None) -> Path | None:
    """The file of a user's module."""
    file = getattr(loaded, "__file__", None)
    if loaded is None:
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            spec = importlib.util.find_spec(name)
        except (Exception, SystemExit):  # a package above it fails
            return None
        file = None if spec is None else spec.origin
    path = Path(file).absolute() if file else None
    if path is None or is_library(path) or is_library(path.resolve()):
        return None
    return path.resolve() if path.suffix == ".py" and path.is_file() else None


def _followed(root: Path, start: Path) -> set[Path]:
    """Every file of the tree that importing `start` may execute."""
    files: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in files:
            files.add(path)
            waiting += [module for name in _imports(path, root) for module in _modules(root, name)]
    return files


def _imports(path: Path, root: Path) -> Iterator[str]:
    """Names that a file imports, whole; of `from a import b` both `a` and `a.b`, which may be a module."""
    package = path.relative_to(root).parts[:-1]
    yield ".".join(package)
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # importing it says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def _modules(root: Path, name: str) -> list[Path]:
    """The files behind a dotted name in a tree: the module and the packages above it."""
    parts = name.split(".") if name else []
    if parts[:1] == ["pipecycle"]:
        return []
    places = [root.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    files = [file for place in places for file in (place.with_name(f"{place.name}.py"), place / "__init__.py")]
    return [file for file in files if file.is_file()]
