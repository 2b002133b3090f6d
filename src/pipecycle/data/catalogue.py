"""The sets that are known by name: where they come from and how their files are checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import Factory, frozen

from pipecycle.data import cache
from pipecycle.errors import InputError


@frozen
class Entry:
    """A named set.  `files` maps the name of each file to its md5; one without files comes with a dependency.

    `site` is the official place; its files are there one by one, or together in `archive`."""

    name: str
    about: str
    files: Mapping[str, str] = Factory(dict)
    site: str = ""
    archive: str = ""
    archive_md5: str = ""
    size: int = 0
    shape: tuple[int, ...] = ()
    """Of one sample."""
    classes: int = 10
    samples: int = 0
    """To train on."""

    def folder(self) -> Path:
        return cache.root() / self.name

    def cached(self) -> bool:
        """All files are there; `fetch` has checked them when it put them there."""
        return all((self.folder() / name).is_file() for name in self.files)

    def intact(self) -> bool:
        return self.cached() and all(cache.md5(self.folder() / name) == md5 for name, md5 in self.files.items())

    def stored(self) -> int:
        """Bytes on disk."""
        return sum((self.folder() / name).stat().st_size for name in self.files) if self.cached() else 0

    def where(self) -> Path:
        """The folder with the files, or a sentence that says how to get them."""
        if not self.cached():
            raise InputError(f"{self.name} is not in the cache: `{self.command}` puts it there")
        return self.folder()

    @property
    def command(self) -> str:
        return f"pipecycle data fetch {self.name}"


DIGITS = Entry("digits", "8x8 grey digits, part of scikit-learn", shape=(1, 8, 8), samples=1437)

FASHION_MNIST = Entry(
    "fashion-mnist",
    "28x28 grey articles of clothing, Zalando SE",
    files={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    site="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    size=30_878_645,
    shape=(1, 28, 28),
    samples=60_000,
)

CIFAR10 = Entry(
    "cifar10",
    "32x32 colour photographs, A. Krizhevsky 2009",
    files={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    site="https://www.cs.toronto.edu/~kriz",
    archive="cifar-10-binary.tar.gz",
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
    size=170_052_171,
    shape=(3, 32, 32),
    samples=50_000,
)

CATALOGUE = {entry.name: entry for entry in (DIGITS, FASHION_MNIST, CIFAR10)}


def find(name: str) -> Entry:
    if name not in CATALOGUE:
        raise InputError(f"data = {name!r}: known sets are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]
