"""Chains of common layers with forward and backward passes written out: no graph, no optimiser object.

One session at a time (`Chain`, channels-last convolutions) or many dense ones at once (`DenseStack`, batched products).
Both are reached through `sessions`; autograd and torch.func are the references that they are tested against.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pipecycle.train.models import hooked

aten = torch.ops.aten


def layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers of a plain chain in order, or None where the module is anything else.

    A ReLU before max-pooling is moved behind it: the same function and gradient on a quarter of the values."""
    if type(module) is not nn.Sequential or len(list(module.modules())) != 1 + len(module):
        return None
    chain = list(module)
    if any(hooked(layer) or layer._buffers for layer in [module, *chain]) or not all(_known(layer) for layer in chain):
        return None
    for i in range(len(chain) - 1):
        if isinstance(chain[i], nn.ReLU) and isinstance(chain[i + 1], nn.MaxPool2d):
            chain[i], chain[i + 1] = chain[i + 1], chain[i]
    return chain


def dense(chain: list[nn.Module]) -> bool:
    """Whether a chain is made of dense layers and activations alone, after an optional flattening."""
    return all(isinstance(layer, nn.Linear | nn.ReLU | nn.Tanh) for layer in chain[isinstance(chain[0], nn.Flatten) :])


def _known(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.MaxPool2d:
        return not layer.return_indices and not layer.ceil_mode
    if type(layer) is nn.Flatten:
        return layer.start_dim == 1 and layer.end_dim == -1
    return type(layer) in OPS


class Op:
    """One layer of a session: keeps what its backward pass needs, appends the gradients of its parameters."""

    in_place = False
    """Whether its input may be written over: nobody else keeps it."""

    def __init__(self, layer: Any, like: Tensor) -> None:
        self.parameters = [like.new_empty(p.shape) for p in layer.parameters()]

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def backward(self, g: Tensor, grads: list[Tensor], deeper: bool) -> Tensor:
        raise NotImplementedError


class _Linear(Op):
    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        weight = self.parameters[0].t()
        return torch.addmm(self.parameters[1], x, weight) if len(self.parameters) > 1 else x @ weight

    def backward(self, g: Tensor, grads: list[Tensor], deeper: bool) -> Tensor:
        if len(self.parameters) > 1:
            grads.append(g.sum(0))
        grads.append(g.t() @ self.x)
        return g @ self.parameters[0] if deeper else g


class _Conv(Op):
    def __init__(self, layer: nn.Conv2d, like: Tensor) -> None:
        super().__init__(layer, like)
        self.parameters[0] = self.parameters[0].contiguous(memory_format=torch.channels_last)
        self.how = (list(layer.stride), list(layer.padding), list(layer.dilation), False, [0, 0], 1)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        bias = self.parameters[1] if len(self.parameters) > 1 else None
        y: Tensor = aten.convolution(x, self.parameters[0], bias, *self.how)
        return y

    def backward(self, g: Tensor, grads: list[Tensor], deeper: bool) -> Tensor:
        # The sum over the bias is quicker by itself than inside the convolution's backward.
        wanted = [deeper, True, False]
        dx, dw, _ = aten.convolution_backward(g, self.x, self.parameters[0], None, *self.how, wanted)
        grads.extend([g.sum((0, 2, 3)), dw] if len(self.parameters) > 1 else [dw])
        return dx if deeper else g


class _MaxPool(Op):
    def __init__(self, layer: nn.MaxPool2d, like: Tensor) -> None:
        super().__init__(layer, like)
        pairs = [layer.kernel_size, layer.stride, layer.padding, layer.dilation]
        self.how = [[value, value] if isinstance(value, int) else list(value) for value in pairs]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor
        y, self.where = aten.max_pool2d_with_indices(x, *self.how)
        self.x = x
        return y

    def backward(self, g: Tensor, grads: list[Tensor], deeper: bool) -> Tensor:
        dx: Tensor = aten.max_pool2d_with_indices_backward(g, self.x, *self.how, False, self.where)
        return dx


class _Flatten(Op):
    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return x.flatten(1)

    def backward(self, g: Tensor, grads: list[Tensor], deeper: bool) -> Tensor:
        g = g.view(self.shape)
        return g.contiguous(memory_format=torch.channels_last) if g.ndim == 4 else g


class _Relu(Op):
    def forward(self, x: Tensor) -> Tensor:
        self.y = x.relu_() if self.in_place else x.relu()
        return self.y

    def backward(self, g: Tensor, grads: list[Tensor], deeper: bool) -> Tensor:
        dx: Tensor = aten.threshold_backward(g, self.y, 0)
        return dx


class _Tanh(Op):
    def forward(self, x: Tensor) -> Tensor:
        self.y = x.tanh_() if self.in_place else x.tanh()
        return self.y

    def backward(self, g: Tensor, grads: list[Tensor], deeper: bool) -> Tensor:
        dx: Tensor = aten.tanh_backward(g, self.y)
        return dx


OPS: dict[type[nn.Module], type[Op]] = {
    nn.Linear: _Linear,
    nn.Conv2d: _Conv,
    nn.MaxPool2d: _MaxPool,
    nn.Flatten: _Flatten,
    nn.ReLU: _Relu,
    nn.Tanh: _Tanh,
}


class Chain:
    """Logits and gradients of one session; `parameters` are in the module's order."""

    def __init__(self, chain: list[nn.Module], like: Tensor) -> None:
        self.ops = [OPS[type(layer)](layer, like) for layer in chain]
        for before, op in pairwise(self.ops):
            op.in_place = isinstance(before, _Linear | _Conv | _MaxPool)
        self.parameters = [parameter for op in self.ops for parameter in op.parameters]
        self.first = next(i for i, op in enumerate(self.ops) if op.parameters)

    def forward(self, x: Tensor) -> Tensor:
        for op in self.ops:
            x = op.forward(x)
        return x

    def gradients(self, g: Tensor) -> list[Tensor]:
        """Of all parameters, from the gradient of the logits."""
        grads: list[Tensor] = []
        for i in range(len(self.ops) - 1, self.first - 1, -1):
            g = self.ops[i].backward(g, grads, i > self.first)
        return grads[::-1]


class DenseStack:
    """Logits, gradients and plain steps of many dense networks at once: (M, batch, ...) through batched products."""

    def __init__(self, chain: list[nn.Module]) -> None:
        self.chain = [layer for layer in chain if not isinstance(layer, nn.Flatten)]
        self.weights: list[Tensor] = []
        """(M, out, in) and (M, 1, out) in the module's order."""

    def load(self, parts: list[Tensor]) -> None:
        """Contiguous copies of each parameter, (M, *shape), because in-place batched products need them so."""
        self.weights = [part.clone(memory_format=torch.contiguous_format) for part in parts]
        self.weights = [part.unsqueeze(1) if part.ndim == 2 else part for part in self.weights]

    def forward(self, x: Tensor) -> Tensor:
        self.tape: list[Tensor] = []
        weights = iter(self.weights)
        for layer in self.chain:
            if isinstance(layer, nn.Linear):
                self.tape.append(x)
                weight = next(weights).mT
                x = torch.bmm(x, weight) if layer.bias is None else torch.baddbmm(next(weights), x, weight)
            else:
                x = x.tanh() if isinstance(layer, nn.Tanh) else x.relu()
                self.tape.append(x)
        return x

    def gradients(self, g: Tensor) -> list[Tensor]:
        """Of all parameters, from the gradient of the logits."""
        grads: list[Tensor] = []

        def collect(index: int, d: Tensor, x: Tensor, bias: bool) -> None:
            grads.extend([d.sum(1, keepdim=True)] if bias else [])
            grads.append(torch.bmm(d.mT, x))

        self._backward(g, collect)
        return grads[::-1]

    def descend(self, g: Tensor) -> None:
        """One step along a gradient of the logits that is already scaled by the learning rate: the update of each
        layer is part of the product that makes its gradient."""

        def collect(index: int, d: Tensor, x: Tensor, bias: bool) -> None:
            self.weights[index].baddbmm_(d.mT, x, alpha=-1)
            if bias:
                self.weights[index + 1].sub_(d.sum(1, keepdim=True))

        self._backward(g, collect)

    def _backward(self, g: Tensor, collect: _Collect) -> None:
        index = len(self.weights)
        for layer, kept in zip(reversed(self.chain), reversed(self.tape), strict=True):
            if isinstance(layer, nn.Linear):
                bias = layer.bias is not None
                index -= 1 + bias
                below = torch.bmm(g, self.weights[index]) if index else g
                collect(index, g, kept, bias)
                if not index:
                    return
                g = below
            elif isinstance(layer, nn.Tanh):
                g = aten.tanh_backward(g, kept)
            else:
                g = aten.threshold_backward(g, kept, 0)


class _Collect(Protocol):
    def __call__(self, index: int, d: Tensor, x: Tensor, bias: bool) -> None: ...
