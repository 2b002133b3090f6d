"""By which path a module is trained, and why not by a quicker one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal

import torch
from attrs import frozen
from torch import Tensor, nn

from pipecycle.train.kernels_chain import dense, layers
from pipecycle.train.kernels_plan import fits
from pipecycle.train.network import Network
from pipecycle.train.network_trace import trace

Path = Literal["conv", "layers", "dense", "module"]
WORDS = {
    "conv": "kernels made for two convolutions with pooling and three dense layers",
    "layers": "kernels for each layer",
    "dense": "batched products",
    "module": "torch.func, the slowest way",
}


@frozen(eq=False)
class Choice:
    """The paths that `Stacked` can take for a module where its images are, the quickest first."""

    paths: tuple[Path, ...]
    chain: list[nn.Module] | None
    network: Network | None
    why: str
    """Why there are no kernels for its layers; empty if there are."""

    @property
    def path(self) -> Path:
        return self.paths[0]

    def __str__(self) -> str:
        because = f" ({self.why})" if self.path == "module" and self.why else ""
        return WORDS[self.path] + because


def describe(module: nn.Module, shape: Sequence[int]) -> str:
    """How a GPU would train a module on samples of `shape`, in words."""
    return str(choose(module, torch.zeros(1, *shape, dtype=torch.float32), gpu=True))


def choose(module: nn.Module, images: Tensor, *, gpu: bool | None = None) -> Choice:
    """What there is for a module on images of a device, or as if they were on a GPU: our kernels need CUDA, float32 and
    Triton."""
    gpu = images.is_cuda if gpu is None else gpu
    chain = layers(module)
    traced = trace(module, images.shape[1:])
    network, why = (None, traced) if isinstance(traced, str) else (traced, "")
    paths: list[Path] = []
    kernels = gpu and images.dtype == torch.float32
    if kernels and images.is_cuda and not find_spec("triton"):
        kernels, why = False, "Triton is not installed"
    if kernels and chain is not None and fits(chain, images):
        paths.append("conv")
    if kernels and network is not None:
        paths.append("layers")
    if all_dense(module, images):
        paths.append("dense")
    paths.append("module")
    return Choice(tuple(paths), chain, network, why)


def all_dense(module: nn.Module, images: Tensor) -> bool:
    """Whether a module is a chain of dense layers and activations."""
    chain = layers(module)
    return chain is not None and dense(chain) and (images.ndim == 2 or isinstance(chain[0], nn.Flatten))
