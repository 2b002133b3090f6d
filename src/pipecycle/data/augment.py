"""Random crops and mirroring, the same for every scheduler, trainer and node.

A view is one number that says how an image is seen: `(top * span + left) * 2 + mirrored`, where the image stands in a
black frame of `crop` pixels on every side, a window of the image's own size begins `top` rows and `left` columns into
it, span = 2 * crop + 1, and the window is then mirrored or not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from attrs import frozen

from pipecycle.errors import InputError
from pipecycle.world.streams import Ints, Words

FORMS = "flip, crop:N or crop:N+flip"
_FORM = re.compile(r"(?:crop:([1-9]\d{0,3}))?(\+?flip)?")


@frozen
class Augment:
    """Which views there are; all of them are equally likely."""

    crop: int = 0
    """Pixels of the frame; 0 leaves images where they are."""
    flip: bool = False

    def __str__(self) -> str:
        return "+".join([f"crop:{self.crop}"] * bool(self.crop) + ["flip"] * self.flip)

    @property
    def span(self) -> int:
        """Places of the window along each side."""
        return 2 * self.crop + 1

    def check(self, shape: Sequence[int]) -> None:
        """Refuse samples that are not images, or smaller than the frame is wide."""
        if len(shape) != 3:
            raise InputError(f"augment = {self}: samples have shape {tuple(shape)}, needs images")
        if self.crop >= min(shape[1:]):
            size = f"{shape[1]} x {shape[2]}"
            raise InputError(f"augment = {self}: images have {size} pixels, needs a crop below {min(shape[1:])}")

    def codes(self, words: Words) -> Ints:
        """A view for each random word: 31 bits for each offset and the last for the mirror, so that offsets do not
        depend on whether images are mirrored."""
        span, low = np.uint64(self.span), np.uint64(0x7FFFFFFF)
        top = (words >> np.uint64(33)) * span >> np.uint64(31)
        left = (words >> np.uint64(2) & low) * span >> np.uint64(31)
        mirrored = words & np.uint64(self.flip)
        return ((top * span + left) * np.uint64(2) + mirrored).view(np.int64)


def augmentation(text: str | Augment | None) -> Augment | None:
    """From its text; None and `none` mean no augmentation."""
    if text is None or text == "none":
        return None
    if isinstance(text, Augment):
        return text
    match = _FORM.fullmatch(text) if isinstance(text, str) and text else None
    made = None if match is None else Augment(int(match[1] or 0), match[2] is not None)
    if made is None or str(made) != text:
        raise InputError(f"augment = {text}: needs none, {FORMS}")
    return made
