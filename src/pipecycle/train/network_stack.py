"""Many networks at once, layer by layer, by kernels for each layer.

A graph holds one step and is replayed for each: which samples a step takes is read from a counter on the device."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipecycle.train.network import Network, Norm, Pooling
from pipecycle.train.sessions import Executor
from pipecycle.train.stack import Kind, Room, Stack

if TYPE_CHECKING:
    from pipecycle.train.kernels_network import KernelLayers

MEMORY = 6
"""The buffers of one stack may take this part of a GPU's memory."""
LARGEST_BATCH = 128
"""Samples whose logits one program holds."""


class NetworkStack(Stack):
    """Sessions of a network."""

    def __init__(self, owner: Executor, net: Network) -> None:
        super().__init__(owner, net.row, torch.from_numpy(net.place), net.values[0].channels)
        self.net = net
        self.writers = net.writers()
        self.values: list[Tensor] = []
        self.slopes: list[Tensor | None] = []
        """A gradient for each value that has one."""
        self.extra: dict[int, Tensor] = {}
        """By layer: which value was the largest, or means and deviations."""

    @cached_property
    def layers(self) -> KernelLayers:
        """What computes them; imported when it is used, since it needs Triton."""
        from pipecycle.train.kernels_network import KernelLayers

        return KernelLayers(self)

    def load(self, rows: Tensor) -> None:
        super().load(rows)
        self.buffers["step"].zero_()

    def memory(self, batch: int, views: bool) -> tuple[int, int]:
        whole = torch.cuda.get_device_properties(self.images.device).total_memory if self.images.is_cuda else 16 << 30
        item = torch.empty(0, dtype=self.dtype).element_size()
        values = sum(value.size * (1 + (value.trained and self.trains)) for value in self.net.values)
        return whole // MEMORY, self.row * 14 + batch * values * item

    def make_room(self, room: Room) -> dict[str, Tensor]:
        sessions, _, batch, _ = room
        self.values, self.slopes, self.extra = [], [], {}
        for value in self.net.values:
            wanted = value.trained and self.trains
            self.values.append(self.make(self.dtype, sessions, batch, value.size))
            self.slopes.append(self.make(self.dtype, sessions, batch, value.size) if wanted else None)
        for index, layer in enumerate(self.net.layers):
            value = self.net.values[layer.y]
            if isinstance(layer, Pooling) and layer.largest:
                self.extra[index] = self.make(torch.int8, sessions, batch, value.size)
            elif isinstance(layer, Norm):  # of each sample: means, deviations, and its part in two gradients
                self.extra[index] = self.make(self.images.dtype, sessions, 4, batch, value.channels)
        return {"step": self.make(torch.int32, 1)}

    def step(self, step: int, teach: bool, collect: bool, views: bool = False) -> None:
        """One step of all sessions; which one is counted on the device."""
        self.look(views)
        self.layers.loss(teach, collect)
        for index in reversed(range(len(self.net.layers))):
            self.layers.backward(index, self.net.layers[index])
        self.buffers["step"].add_(1)

    def captured(self, steps: int) -> int:
        return 1

    def prepare(self, kind: Kind) -> None:
        with self.layers.compile():
            self.step(0, *kind)
        self.step(0, *kind)
        self.buffers["step"].zero_()

    def look(self, views: bool = False) -> None:
        self.layers.cut(views)
        for index, layer in enumerate(self.net.layers):
            self.layers.forward(index, layer)

    @property
    def logits(self) -> Tensor:
        return self.values[self.net.output][..., : self.classes]
