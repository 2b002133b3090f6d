"""By which path a module is trained, and why not by a quicker one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from pipecycle.errors import sentence, shown
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
    """The paths that `Stacked` can take for a module where its images are, the quickest first; none if its sessions
    can only be computed one after another."""

    paths: tuple[Path, ...]
    chain: list[nn.Module] | None
    network: Network | None
    why: str
    """Why there are no kernels for its layers, or no paths at all; empty if there are."""

    @property
    def path(self) -> Path | None:
        return self.paths[0] if self.paths else None

    def __str__(self) -> str:
        because = f" ({self.why})" if self.path in ("module", None) and self.why else ""
        return (WORDS[self.path] if self.path else "one session after another") + because


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
    unfollowed = _unfollowed(module, images.shape[1:]) if network is None else ""
    if unfollowed:
        why = f"torch.func cannot follow it: {unfollowed}"
    else:
        paths.append("module")
    return Choice(tuple(paths), chain, network, why)


def all_dense(module: nn.Module, images: Tensor) -> bool:
    """Whether a module is a chain of dense layers and activations."""
    chain = layers(module)
    return chain is not None and dense(chain) and (images.ndim == 2 or isinstance(chain[0], nn.Flatten))


def _unfollowed(module: nn.Module, shape: Sequence[int]) -> str:
    """Why torch.func cannot compute the gradients of two sessions at once; empty if it can."""
    weights = {name: weight.detach().expand(2, *weight.shape) for name, weight in module.named_parameters()}

    def logits(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(module, weights, (x,)).sum()  # type: ignore[no-any-return]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that an operation is slow is no news for those who wait for it
            vmap(grad(logits))(weights, next(iter(weights.values())).new_zeros(2, 2, *shape))
    except Exception as error:
        return shown(sentence(error), 160)
    return ""
