"""Views of images: windows of an image in a black frame, mirrored or not, cut while a batch is gathered."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor


@frozen
class Frame:
    """What stands around an image; `pipecycle.data.augment` says how a view is numbered."""

    width: int = 0
    black: tuple[float, ...] = (0.0,)
    """The value of its pixels, once or for each channel."""

    @property
    def span(self) -> int:
        return 2 * self.width + 1

    def cut(self, images: Tensor, index: Tensor, views: Tensor, black: Tensor) -> Tensor:
        """The views of some images, (count, height, width, channels), out of (n, height, width, channels); `black` is
        the frame's, where the images are."""
        _, height, width, _ = images.shape
        places = views // 2
        row = torch.arange(height, device=views.device) + (places // self.span - self.width)[:, None]
        column = torch.arange(width, device=views.device)
        column = torch.where((views % 2 == 1)[:, None], column.flip(0), column)
        column = column + (places % self.span - self.width)[:, None]
        inside = ((row >= 0) & (row < height))[:, :, None] & ((column >= 0) & (column < width))[:, None, :]
        row, column = row.clamp_(0, height - 1), column.clamp_(0, width - 1)
        seen = images[index[:, None, None], row[:, :, None], column[:, None, :]]
        return torch.where(inside[..., None], seen, black)
