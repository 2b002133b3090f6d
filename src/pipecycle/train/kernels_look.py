"""The logits of many networks on the same images, by the kernels that train them."""

from __future__ import annotations

import torch
from torch import Tensor

from pipecycle.train.kernels_conv import LARGEST_BATCH, ConvStack
from pipecycle.train.kernels_plan import power
from pipecycle.train.network_stack import NetworkStack


class StackedLogits:
    """A network's images are taken in parts of one batch each, every part as if it were a network of its own."""

    def __init__(self, stack: ConvStack | NetworkStack) -> None:
        self.stack, self.count = stack, len(stack.images)
        self.batch = min(LARGEST_BATCH, self.count)
        self.parts = -(-self.count // self.batch)
        which = torch.arange(self.parts * self.batch, dtype=torch.int32, device=stack.images.device)
        self.picks = which.clamp_(max=self.count - 1).view(self.parts, self.batch)

    def __call__(self, rows: Tensor) -> Tensor:
        """(networks, images, classes) of (networks, P) parameters."""
        at_once = max(1, self.stack.most(self.batch) // self.parts)
        return torch.cat([self._some(rows[first : first + at_once]) for first in range(0, len(rows), at_once)])

    def _some(self, rows: Tensor) -> Tensor:
        stack, places = self.stack, len(rows) * self.parts
        stack.reserve(power(places), 1, self.batch)
        stack.load(rows.repeat_interleave(self.parts, 0))
        stack.buffers["picks"][0, :places].unflatten(0, (len(rows), self.parts)).copy_(self.picks)
        stack.look()
        return stack.logits[:places].reshape(len(rows), self.parts * self.batch, -1)[:, : self.count].clone()
