"""The logits of many networks on the same images, by the kernels that train them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipecycle.train.kernels_conv import LARGEST_BATCH, ConvStack
from pipecycle.train.kernels_plan import power
from pipecycle.train.sessions import LocalSGD


class ConvLogits:
    """A network's images are taken in parts of one batch each, every part as if it were a network of its own."""

    def __init__(self, chain: list[nn.Module], images: Tensor, classes: int, precision: str) -> None:
        self.count, self.batch = len(images), min(LARGEST_BATCH, len(images))
        self.parts = -(-self.count // self.batch)
        labels = torch.zeros(self.count, dtype=torch.int64, device=images.device)
        self.stack = ConvStack(chain, images, labels, classes, LocalSGD(), precision)
        which = torch.arange(self.parts * self.batch, dtype=torch.int32, device=images.device)
        self.picks = which.clamp_(max=self.count - 1).view(self.parts, self.batch)

    def __call__(self, rows: Tensor) -> Tensor:
        """(networks, images, classes) of (networks, P) parameters."""
        at_once = max(1, self.stack.most(self.batch) // self.parts)
        return torch.cat([self._some(rows[first : first + at_once]) for first in range(0, len(rows), at_once)])

    def _some(self, rows: Tensor) -> Tensor:
        stack, places = self.stack, len(rows) * self.parts
        stack.reserve(power(places), 1, self.batch)
        held = stack.buffers
        held["w"][:places].zero_()
        held["w"][:places].index_copy_(1, stack.place, rows.repeat_interleave(self.parts, 0))
        held["picks"][0, :places].unflatten(0, (len(rows), self.parts)).copy_(self.picks)
        held["live"].fill_(places)
        for launch in stack.launches(False, False, look=True):
            stack.launch(launch, power(places))
        return held["z"][:places].reshape(len(rows), self.parts * self.batch, -1)[:, : self.count].clone()
