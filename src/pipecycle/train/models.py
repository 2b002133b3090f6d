"""Models by name: four presets that adapt to the input's shape, or a user's own module as `module:factory`.

A model is any `torch.nn.Module` from a batch of inputs to one logit per class whose samples do not see each other
and whose forward pass is a function: a session can then be replayed, and many can be trained side by side.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipecycle.errors import InputError, sentence
from pipecycle.policies.registry import MODELS, check_model, named
from pipecycle.world.streams import Words, raw

SMALL = 16
"""Images below this many pixels a side keep their size in convolutions, or nothing would be left of them."""


def build(name: str, shape: Sequence[int], classes: int, seed_words: Words) -> nn.Module:
    """A model for inputs of `shape`, (features,) or (channels, height, width), checked and initialised.

    Presets take PyTorch's default initialisation, but from raw words, so that a trial begins with the same
    weights on every machine.  A user's factory runs under a fork of torch's generator seeded with the first word;
    the global generator is left alone."""
    if classes < 1:
        raise InputError(f"classes = {classes}: needs at least 1")
    if name in PRESETS:
        with torch.device("meta"):
            module = PRESETS[name](tuple(shape), classes)
        initialise(module, seed_words)
    else:
        factory = _factory(name)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(seed_words[0]) >> 1)
            try:
                module = factory(tuple(shape), classes)
            except (Exception, SystemExit) as error:
                raise InputError(f"model {name!r}: its factory failed ({sentence(error)})") from error
        if not isinstance(module, nn.Module):
            raise InputError(f"model {name!r}: its factory gave a {type(module).__name__}, not a torch.nn.Module")
    return check(module, shape, classes, name)


def initialise(module: nn.Module, words: Words) -> None:
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases, which is PyTorch's default for both kinds of layer."""
    key = int.from_bytes(np.resize(words, 2).astype("<u8").tobytes(), "little")
    bits = np.random.Philox(key=key)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1.0 / sqrt(layer.weight[0].numel())
            for name, parameter in list(layer.named_parameters(recurse=False)):
                steps = (raw(bits, parameter.numel()) >> np.uint64(40)).astype(np.float32)
                values = torch.from_numpy((steps * np.float32(2.0**-23) - np.float32(1.0)) * np.float32(bound))
                setattr(layer, name, nn.Parameter(values.view(parameter.shape)))


def mlp(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """inputs-64-classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 64), nn.ReLU(), nn.Linear(64, classes))


def lenet(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """62,006 parameters on CIFAR-10."""
    return convolutional(shape, classes, (6, 16), (120, 84), "lenet")


def cnn64(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """307,842 parameters on CIFAR-10."""
    return convolutional(shape, classes, (64, 64), (120, 64), "cnn64")


def wide(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """940,362 parameters on CIFAR-10."""
    return convolutional(shape, classes, (32, 64), (512, 128), "wide")


def convolutional(
    shape: tuple[int, ...], classes: int, channels: tuple[int, int], hidden: tuple[int, int], name: str = "model"
) -> nn.Sequential:
    """Two 5x5 convolutions, each followed by the same 2x2 pooling, then three dense layers."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise InputError(f"{name} on inputs of shape {shape}: needs (channels, height, width) of at least 4 x 4")
    padding = 2 if min(shape[1:]) < SMALL else 0
    layers: list[nn.Module] = []
    previous, sides = shape[0], list(shape[1:])
    for width in channels:
        layers += [nn.Conv2d(previous, width, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        previous, sides = width, [(side + 2 * padding - 4) // 2 for side in sides]
    layers.append(nn.Flatten())
    inputs = previous * prod(sides)
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


PRESETS: dict[str, Callable[[tuple[int, ...], int], nn.Sequential]] = dict(
    zip(MODELS, (mlp, lenet, cnn64, wide), strict=True)
)


def _factory(name: str) -> Callable[..., Any]:
    check_model(name)
    found = named(name, "model")
    if not callable(found):
        raise InputError(f"model {name!r}: needs a function of (shape, classes)")
    try:
        inspect.signature(found).bind((1,), 1)
    except (TypeError, ValueError):
        raise InputError(f"model {name!r}: needs a function of (shape, classes)") from None
    factory: Callable[..., Any] = found
    return factory


def check(module: nn.Module, shape: Sequence[int], classes: int, name: str = "model") -> nn.Module:
    """The module in training mode, if it is a pure function of each sample by itself.

    Refused: batch statistics, buffers that change, anything random (dropout), frozen or shared parameters."""
    module.train()
    parameters = list(module.parameters())
    if not parameters:
        raise InputError(f"model {name!r}: has no parameters to train")
    if any(not parameter.is_floating_point() for parameter in parameters):
        raise InputError(f"model {name!r}: has parameters that are no real numbers, needs float32")
    if any(not parameter.requires_grad for parameter in parameters):
        raise InputError(f"model {name!r}: has frozen parameters, which belong in buffers")
    if len(parameters) != len(list(module.named_parameters(remove_duplicate=False))):
        raise InputError(f"model {name!r}: uses a parameter under two names")
    example = parameters[0]
    inputs = _probe(shape, example)
    before = {key: value.clone() for key, value in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        state = torch.random.get_rng_state()
        try:
            whole = module(inputs)
        except (Exception, SystemExit) as error:
            raise InputError(f"model {name!r} on inputs of shape {tuple(shape)}: {sentence(error)}") from error
        if not isinstance(whole, Tensor) or whole.shape != (len(inputs), classes):
            given = tuple(whole.shape) if isinstance(whole, Tensor) else type(whole).__name__
            raise InputError(f"model {name!r}: gives {given} for {len(inputs)} inputs, needs {(len(inputs), classes)}")
        if not torch.equal(state, torch.random.get_rng_state()):
            raise InputError(f"model {name!r}: draws random numbers in its forward pass (dropout?), needs none")
        for layer in module.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                raise InputError(f"model {name!r}: {type(layer).__name__} mixes the samples of a batch, try GroupNorm")
        if any(not torch.equal(value, before[key]) for key, value in module.named_buffers()):
            raise InputError(f"model {name!r}: has buffers that change in its forward pass, needs constant ones")
        apart = torch.cat([module(inputs[:1]), module(inputs[1:])])
    scale = float(whole.abs().max())
    if not torch.allclose(whole, apart, rtol=1e-3, atol=1e-4 * max(scale, 1e-6)):
        raise InputError(f"model {name!r}: a sample's logits depend on the others in its batch, needs them independent")
    return module


def _probe(shape: Sequence[int], like: Tensor) -> Tensor:
    count = 4 * prod(shape)
    values = torch.arange(count, dtype=torch.float64).mul_(0.754877666).frac_().sub_(0.5).mul_(4.0)
    return values.view(4, *shape).to(like)


def size(module: nn.Module) -> int:
    """Parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def flatten(module: nn.Module) -> Tensor:
    """All parameters as one vector, in the order of `module.parameters()`."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def unflatten(module: nn.Module, vector: Tensor) -> nn.Module:
    """The module itself, with its parameters copied from such a vector."""
    for parameter, values in zip(module.parameters(), split(module, vector), strict=True):
        parameter.data.copy_(values)
    return module


def split(module: nn.Module, vectors: Tensor) -> list[Tensor]:
    """Views of (..., P) vectors, one for each parameter, (..., *shape)."""
    if vectors.shape[-1] != size(module):
        raise InputError(f"{vectors.shape[-1]} parameters: the model has {size(module)}")
    parts = vectors.split_with_sizes([parameter.numel() for parameter in module.parameters()], -1)
    return [
        part.unflatten(-1, parameter.shape) if parameter.ndim else part.squeeze(-1)
        for part, parameter in zip(parts, module.parameters(), strict=True)
    ]
