"""Reading a network off a module: what torch.fx finds, as layers."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from pipecycle.errors import sentence
from pipecycle.train.models import hooked
from pipecycle.train.network import Bend, Network
from pipecycle.train.network_build import Builder, Unknown, window


def _leaky(negative_slope: float = 0.01, inplace: bool = False) -> Bend:
    if not negative_slope > 0:
        raise Unknown("LeakyReLU with a slope that is not above 0")
    return Bend("leaky", float(negative_slope))


def _elu(alpha: float = 1.0, inplace: bool = False) -> Bend:
    if not alpha > 0:
        raise Unknown("ELU with an alpha that is not above 0")
    return Bend("elu", float(alpha))


def _gelu(approximate: str = "none") -> Bend:
    return Bend("gelu_tanh" if approximate == "tanh" else "gelu")


ACTIVATIONS: dict[object, Callable[..., Bend]] = {
    **dict.fromkeys([nn.ReLU, functional.relu, torch.relu, torch.relu_], lambda inplace=False: Bend("relu")),
    **dict.fromkeys([nn.Tanh, functional.tanh, torch.tanh], lambda: Bend("tanh")),
    **dict.fromkeys([nn.Sigmoid, functional.sigmoid, torch.sigmoid], lambda: Bend("sigmoid")),
    **dict.fromkeys([nn.LeakyReLU, functional.leaky_relu], _leaky),
    **dict.fromkeys([nn.ELU, functional.elu], _elu),
    **dict.fromkeys([nn.SiLU, functional.silu], lambda inplace=False: Bend("silu")),
    **dict.fromkeys([nn.GELU, functional.gelu], _gelu),
}
"""Modules and functions, and what each makes of its settings, which are called alike in both."""
POOLINGS: dict[object, tuple[str, ...]] = {
    **dict.fromkeys(
        [nn.MaxPool2d, functional.max_pool2d, torch.max_pool2d],
        ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    ),
    **dict.fromkeys(
        [nn.AvgPool2d, functional.avg_pool2d],
        ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    ),
    **dict.fromkeys([nn.AdaptiveAvgPool2d, functional.adaptive_avg_pool2d], ("output_size",)),
}
"""The same for pooling: the names of the settings."""
METHODS: dict[object, object] = {
    "relu": torch.relu,
    "relu_": torch.relu_,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "flatten": torch.flatten,
    "mean": torch.mean,
    "add": torch.add,
    "add_": operator.iadd,
}
IN_PLACE = (torch.relu_, operator.iadd)


def trace(module: nn.Module, shape: Sequence[int]) -> Network | str:
    """The network that a module is for samples of `shape`, or a sentence that says why it is none."""
    if any(map(hooked, module.modules())):
        return "it has hooks"
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:
        return f"torch.fx cannot follow it ({sentence(error)})"
    try:
        return _Reader(module, graph, tuple(shape)).network()
    except Unknown as unknown:
        return f"there is no fast layer for {unknown}"


class _Reader:
    """Goes through a graph once, adding layers."""

    def __init__(self, module: nn.Module, graph: fx.Graph, shape: tuple[int, ...]) -> None:
        self.module, self.graph = module, graph
        self.known: dict[fx.Node, int] = {}
        self.batch: set[fx.Node] = set()
        """Nodes that are the number of samples."""
        self.shapes: set[fx.Node] = set()
        self.calls: dict[object, Callable[[fx.Node], int]] = {
            **dict.fromkeys([torch.cat, torch.concat], self._cat),
            **dict.fromkeys(["view", "reshape"], self._view),
            torch.mean: self._mean,
        }
        self.build = Builder(shape, list(module.parameters()), self._flat_first())

    def _flat_first(self) -> bool:
        first = next(node for node in self.graph.nodes if node.op == "placeholder")
        return all(self._flattens(node) for node in first.users)

    def _flattens(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return type(self.module.get_submodule(str(node.target))) is nn.Flatten
        return node.target in (torch.flatten, "flatten", "size", getattr, "view", "reshape")

    def network(self) -> Network:
        net = self.build.net
        for node in self.graph.nodes:
            if node.op == "placeholder":
                if self.known:
                    raise Unknown("a second input")
                self.known[node] = 0
            elif node.op == "output":
                net.output = self._value(node.args[0])
            elif node.op == "call_module":
                self.known[node] = self._module(node, self.module.get_submodule(str(node.target)))
            elif node.op in ("call_function", "call_method"):
                self._function(node)
            elif node.users:
                raise Unknown(f"{node.target}, a tensor of its own")
        value = net.values[net.output]
        if not value.flat or not value.tidy or value.height * value.width > 1 or not net.layers:
            raise Unknown("an output that no dense layer made")
        if value.channels > 256:  # one program holds the logits of all samples
            raise Unknown("more than 256 classes")
        if not all(node.users for node in self.known):  # it would have no gradient to pass on
            raise Unknown("a value that nothing depends on")
        if (net.place < 0).any():
            raise Unknown("parameters that nothing depends on")
        return net

    def _value(self, node: object) -> int:
        if not isinstance(node, fx.Node) or node not in self.known:
            raise Unknown(f"{node} as a value")
        return self.known[node]

    def _alone(self, node: object) -> bool:
        """Whether a node's value is read once, under this name or another."""
        mine = self._value(node)
        twins = {other for other, value in self.known.items() if value == mine}
        return len({user for twin in twins for user in twin.users} - twins) == 1

    def _bend(self, node: fx.Node, bend: Bend, in_place: bool = False) -> int:
        alone = self._alone(node.args[0])
        if in_place and not alone:
            raise Unknown("an activation in place of a value that is used elsewhere")
        return self.build.bend(self._value(node.args[0]), bend, alone)

    def _module(self, node: fx.Node, layer: nn.Module) -> int:
        if len(node.args) != 1 or node.kwargs:
            raise Unknown(f"{type(layer).__name__} with more than one input")
        source, kind = node.args[0], type(layer)
        x = self._value(source)
        if kind in ACTIVATIONS:
            given = {name: getattr(layer, name) for name in _settings(ACTIVATIONS[kind])}
            return self._bend(node, ACTIVATIONS[kind](**given), bool(given.get("inplace")))
        if isinstance(layer, nn.Conv2d | nn.Linear) and kind in (nn.Conv2d, nn.Linear):
            return self.build.product(x, layer)
        if isinstance(layer, nn.GroupNorm | nn.LayerNorm) and kind in (nn.GroupNorm, nn.LayerNorm):
            return self.build.norm(x, layer)
        if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
            return self.build.flatten(x)
        if isinstance(layer, nn.Identity) or (isinstance(layer, nn.Dropout) and layer.p == 0):
            return x
        if kind in POOLINGS:
            return self._pool(kind, x, {name: getattr(layer, name) for name in POOLINGS[kind]}, self._alone(source))
        raise Unknown(str(layer))

    def _pool(self, target: object, x: int, given: dict[str, Any], alone: bool) -> int:
        if "output_size" in given:
            if given["output_size"] not in (1, (1, 1)):
                raise Unknown("pooling to more than one value")
            return self.build.pool_all(x)
        if given.get("ceil_mode") or given.get("dilation", 1) not in (1, (1, 1)) or given.get("return_indices"):
            raise Unknown("pooling with dilation, indices or ceil_mode")
        if given.get("divisor_override") is not None:
            raise Unknown("average pooling with a divisor")
        how = window(given["kernel_size"], given.get("stride"), given.get("padding", 0))
        if "count_include_pad" in POOLINGS[target]:
            return self.build.pool(x, how, False, given.get("count_include_pad", True))
        return self.build.pool_largest(x, how, alone)

    def _function(self, node: fx.Node) -> None:
        target = METHODS.get(node.target, node.target) if node.op == "call_method" else node.target
        if self._about_shape(node, target):
            return
        self.known[node] = self._call(node, target)

    def _about_shape(self, node: fx.Node, target: object) -> bool:
        """Sizes of a value, of which only the number of samples may be used."""
        args = node.args
        if target == "size" and len(args) == 2 and args[1] == 0:
            self.batch.add(node)
        elif (target == "size" and len(args) == 1) or (target is getattr and args[1] == "shape"):
            self.shapes.add(node)
        elif target is operator.getitem and args[0] in self.shapes and args[1] == 0:
            self.batch.add(node)
        else:
            return False
        return True

    def _call(self, node: fx.Node, target: object) -> int:
        args = node.args
        if target in ACTIVATIONS:
            given = _given(node, _settings(ACTIVATIONS[target]))
            return self._bend(node, ACTIVATIONS[target](**given), target in IN_PLACE or bool(given.get("inplace")))
        if target in POOLINGS:
            return self._pool(target, self._value(args[0]), _given(node, POOLINGS[target]), self._alone(args[0]))
        if target in (operator.add, operator.iadd, torch.add) and len(args) == 2 and not node.kwargs:
            if target in IN_PLACE and not self._alone(args[0]):
                raise Unknown("a sum in place of a value that is used elsewhere")
            return self.build.add((self._value(args[0]), self._value(args[1])))
        if target in self.calls:
            return self.calls[target](node)
        if target is torch.flatten and _given(node, ("start_dim", "end_dim")) in (
            {"start_dim": 1},
            {"start_dim": 1, "end_dim": -1},
        ):
            return self.build.flatten(self._value(args[0]))
        raise Unknown(getattr(target, "__name__", str(target)))

    def _cat(self, node: fx.Node) -> int:
        dim, parts = _given(node, ("dim",)).get("dim", 0), node.args[0]
        if not isinstance(parts, tuple | list):
            raise Unknown("joining what is no list")
        xs = tuple(self._value(part) for part in parts)
        if dim not in ((1, -1) if self.build.net.values[xs[0]].flat else (1, -3)):
            raise Unknown("joining along anything but channels")
        return self.build.join(xs)

    def _view(self, node: fx.Node) -> int:
        source, *sizes = node.args
        if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
            sizes = list(sizes[0])
        features = len(self.build.net.values[self._value(source)].where)
        value = self.build.net.values[self._value(source)]
        features *= 1 if value.flat else value.height * value.width
        if len(sizes) != 2 or not (sizes[0] in self.batch or sizes[0] == -1) or sizes[1] not in (-1, features):
            raise Unknown("a view that is no flattening")
        return self.build.flatten(self._value(source))

    def _mean(self, node: fx.Node) -> int:
        given = _given(node, ("dim", "keepdim"))
        dims = given.get("dim")
        if not isinstance(dims, tuple | list) or set(dims) not in ({2, 3}, {-1, -2}):
            raise Unknown("a mean over anything but height and width")
        x = self.build.pool_all(self._value(node.args[0]))
        return x if given.get("keepdim") else self.build.flatten(x)


def _settings(make: Callable[..., Bend]) -> tuple[str, ...]:
    return tuple(inspect.signature(make).parameters)


def _given(node: fx.Node, names: tuple[str, ...]) -> dict[str, Any]:
    """The arguments after the first by name; one without a name here is refused."""
    given = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
    if len(node.args) - 1 > len(names) or not set(given) <= set(names):
        raise Unknown(f"{node.name} with the arguments {node.args[1:]} {dict(node.kwargs)}")
    if any(isinstance(value, fx.Node) for value in given.values()):
        raise Unknown(f"{node.name} with arguments that are computed")
    return given
