"""Modules as users write them, for inputs of (3, 8, 9) and ten classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

SHAPE = (3, 8, 9)


class TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(3, 9, 5, padding="same", bias=False)
        self.both, self.hidden = nn.Conv2d(14, 6, 3, stride=2), nn.Linear(6 * 3 * 4, 20)
        self.left, self.right, self.last = nn.Linear(20, 10), nn.Linear(20, 7), nn.Linear(17, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([functional.relu(self.near(x)), torch.tanh(self.far(x))], 1)
        y = functional.silu(self.both(y))
        y = functional.elu(self.hidden(y.view(y.size(0), -1)))
        return self.last(torch.cat([self.left(y), torch.sigmoid(self.right(y))], dim=1))


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(2, after), nn.GroupNorm(4, after)])
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.second(self.relu(self.norms[0](self.first(x)))))
        y += self.short(x)
        return self.relu(y)


class Residuals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(Block(8, 8, 1), Block(8, 12, 2))
        self.last = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.stem(x).relu()).mean((2, 3)))


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(6, 16, (3, 2), stride=(1, 2), padding=(1, 0)),
        nn.GELU(),
        nn.AvgPool2d(2, 1, 1, count_include_pad=False),
        nn.Flatten(),
        nn.Sigmoid(),
        nn.Linear(16 * 4 * 3, 24),
        nn.LayerNorm(24),
        nn.ReLU(),
        nn.Identity(),
        nn.Linear(24, 10),
    )


def flat() -> nn.Module:
    layers = [nn.Flatten(), nn.Tanh(), nn.Linear(3 * 8 * 9, 20, bias=False), nn.GELU("tanh"), nn.Linear(20, 12)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(12, 10))


def pooled() -> nn.Module:
    layers = [nn.AvgPool2d(2, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.Sigmoid(), nn.GroupNorm(1, 4, affine=False)]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 2 * 2, 10))


def normed() -> nn.Module:
    """A norm with factors before all other weights: torch has no gradient of its input to compute."""
    layers = [nn.GroupNorm(3, 3), nn.Conv2d(3, 4, 3, 2), nn.ELU(0.5), nn.Flatten(), nn.Linear(4 * 3 * 4, 10)]
    return nn.Sequential(*layers)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "two branches": TwoBranches,
    "residuals": Residuals,
    "chain": chain,
    "flat": flat,
    "pooled": pooled,
    "normed": normed,
}
