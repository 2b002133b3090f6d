"""Models by name: presets that adapt to the input's shape, or a user's own module as `module:factory`.

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
from pipecycle.policies.registry import check_model, named
from pipecycle.train import presets
from pipecycle.world.streams import Words, raw


def build(name: str, shape: Sequence[int], classes: int, seed_words: Words) -> nn.Module:
    """A model for inputs of `shape`, (features,) or (channels, height, width), checked and initialised.

    Presets take PyTorch's default initialisation, but from raw words, so that a trial begins with the same
    weights on every machine.  A user's factory runs under a fork of torch's generator seeded with the first word;
    the global generator is left alone."""
    if classes < 1:
        raise InputError(f"classes = {classes}: needs at least 1")
    module: Any
    if name in presets.PRESETS:
        with torch.device("meta"):
            module = preset(name, shape, classes)
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
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases, which is PyTorch's default for both kinds of layer;
    1 and 0 for norms."""
    key = int.from_bytes(np.resize(words, 2).astype("<u8").tobytes(), "little")
    bits = np.random.Philox(key=key)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1.0 / sqrt(layer.weight[0].numel())
            for name, parameter in list(layer.named_parameters(recurse=False)):
                steps = (raw(bits, parameter.numel()) >> np.uint64(40)).astype(np.float32)
                values = torch.from_numpy((steps * np.float32(2.0**-23) - np.float32(1.0)) * np.float32(bound))
                setattr(layer, name, nn.Parameter(values.view(parameter.shape)))
        elif isinstance(layer, nn.GroupNorm):
            layer.weight = nn.Parameter(torch.ones(layer.num_channels, device="cpu"))
            layer.bias = nn.Parameter(torch.zeros(layer.num_channels, device="cpu"))


def preset(name: str, shape: Sequence[int], classes: int) -> nn.Sequential:
    """The module of a preset: convolutions, each with ReLU and pooling, then dense layers with ReLU in between; or
    residual blocks, a mean over all pixels and a dense layer."""
    made = presets.layers(name, shape, classes)
    convolutions = [layer for layer in made if layer.kernel]
    modules: list[nn.Module] = []
    if presets.PRESETS[name].residual:
        modules += [*_convolution(convolutions.pop(0)), nn.ReLU()]
        while convolutions:
            inner, outer = convolutions.pop(0), convolutions.pop(0)
            beside = convolutions.pop(0) if convolutions and convolutions[0].kernel == 1 else None
            modules.append(Residual(inner, outer, beside))
        modules.append(nn.AdaptiveAvgPool2d(1))
    for layer in convolutions:
        modules += [*_convolution(layer), nn.ReLU(), nn.MaxPool2d(2)]
    modules.append(nn.Flatten())
    for layer in made:
        if not layer.kernel:
            modules += [nn.Linear(layer.inputs, layer.outputs), nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def _convolution(layer: presets.Layer) -> list[nn.Module]:
    about = (layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.padding)
    norm = [nn.GroupNorm(layer.groups, layer.outputs)] if layer.groups else []
    return [nn.Conv2d(*about, bias=layer.bias), *norm]


class Residual(nn.Module):
    """relu(two convolutions of x + x), where x passes through a convolution of its own if their shapes differ."""

    def __init__(self, inner: presets.Layer, outer: presets.Layer, beside: presets.Layer | None) -> None:
        super().__init__()
        self.inside = nn.Sequential(*_convolution(inner), nn.ReLU(), *_convolution(outer))
        self.beside = nn.Sequential(*_convolution(beside)) if beside else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inside(x) + self.beside(x))


def _factory(name: str) -> Callable[..., Any]:
    check_model(name)
    factory: Callable[..., Any] = named(name, "model")
    if not callable(factory):
        raise InputError(f"model {name!r}: needs a function of (shape, classes)")
    try:
        inspect.signature(factory).bind((1,), 1)
    except (TypeError, ValueError):
        raise InputError(f"model {name!r}: needs a function of (shape, classes)") from None
    return factory


def check(module: nn.Module, shape: Sequence[int], classes: int, name: str = "model") -> nn.Module:
    """The module in training mode, if it is a pure function of each sample by itself.

    Refused: batch statistics, buffers that change, anything random (dropout), frozen or shared parameters."""
    module.train()
    parameters = list(module.parameters())
    if not parameters:
        raise InputError(f"model {name!r}: has no parameters to train")
    if any(not parameter.is_floating_point() for parameter in parameters):
        raise InputError(f"model {name!r}: has parameters that are not real numbers, needs float32")
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


def hooked(part: nn.Module) -> bool:
    """Whether somebody listens to a module, so that its layers alone do not say what it does."""
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def takes_channels_last(module: nn.Module, images: Tensor) -> bool:
    """Whether a module can be given images in channels-last order, in which convolutions are quicker on a CPU.  Those
    that flatten them by `view` cannot; and torch crashes in the backward pass of a GroupNorm before all weights."""
    if images.ndim != 4 or not len(images):
        return False
    try:
        with torch.enable_grad():
            logits = module(images[:2].contiguous(memory_format=torch.channels_last))
    except RuntimeError:
        return False
    open_ones, seen = [logits.grad_fn], set()
    while open_ones:
        node = open_ones.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        before = [below for below, _ in node.next_functions]
        if node.name() == "NativeGroupNormBackward0" and before[0] is None:
            return False
        open_ones += before
    return True


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
