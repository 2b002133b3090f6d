"""Kernels compiled for an H200 on a machine without a GPU: Triton's interpreter takes what its compiler does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from typing import Any, cast

import pytest
import torch
from torch import nn

from pipecycle.train.kernels_chain import layers
from pipecycle.train.kernels_conv import ConvStack
from pipecycle.train.kernels_plan import SHARED, fits
from pipecycle.train.models import build, flatten
from pipecycle.train.network_stack import NetworkStack
from pipecycle.train.sessions import LocalSGD, Precision, Teachers
from pipecycle.train.stack import Stack, StackedLogits
from pipecycle.train.stacked import Stacked
from pipecycle.train.views import Frame
from pipecycle.world.streams import streams
from tests.train.networks import NETWORKS, SHAPE

OPTIONS = {"plain": LocalSGD(), "all": LocalSGD(0.03, momentum=0.9, weight_decay=0.01, proximal=0.1)}
PRESETS = {"lenet": ConvStack, "cnn64": ConvStack, "wide": ConvStack, "cnn64-gn": NetworkStack, "mlp": NetworkStack,
           "resnet8-gn": NetworkStack}  # fmt: skip
USERS = (*NETWORKS, "many classes", "many filters", "large head")


class H200:
    """What Triton's compiler asks its driver."""

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def network(name: str) -> tuple[nn.Module, tuple[int, ...], int, int, type[Stack]]:
    """A module, the shape of its inputs, its classes, samples in a batch, and what trains it."""
    if name in PRESETS:
        kind = PRESETS[name]
        return build(name, (3, 32, 32), 10, streams(3)("model").words(2)), (3, 32, 32), 10, 15, kind
    if name in NETWORKS:
        return NETWORKS[name](), SHAPE, 10, 15, NetworkStack
    if name == "many classes":
        dense = [nn.Linear(32, 4096), nn.LayerNorm(4096), nn.SiLU(), nn.Linear(4096, 256)]
        return nn.Sequential(nn.Flatten(), *dense), (32,), 256, 128, NetworkStack
    if name == "many filters":
        parts = [nn.Conv2d(3, 256, 7, 2, 3), nn.GroupNorm(8, 256), nn.GELU(), nn.Conv2d(256, 512, 1)]
        last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)]
        return nn.Sequential(*parts, *last), SHAPE, 100, 128, NetworkStack
    convolutions = [nn.Conv2d(6, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(1600, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 32)]
    return nn.Sequential(*convolutions, *head), (6, 32, 32), 32, 64, ConvStack


def stack(kind: type[Stack], trainer: Stacked) -> Stack:
    if kind is ConvStack:
        return ConvStack(trainer, cast(list[nn.Module], layers(trainer.module)))
    assert trainer.choice.network is not None, trainer.choice.why
    return NetworkStack(trainer, trainer.choice.network)


def launch_all(name: str, precision: Precision, option: str) -> None:
    """Everything that training and looking at a network launches."""
    module, shape, classes, batch, kind = network(name)
    images, labels = torch.randn(200, *shape), torch.randint(classes, (200,))
    frame = Frame(2, (0.5,) * shape[0]) if len(shape) == 3 else None
    trainer = Stacked(module, images, labels, classes, OPTIONS[option], precision=precision, path="module", frame=frame)
    reference, batches = flatten(module).repeat(2, 1), torch.randint(200, (2, 1, batch))
    how: dict[str, Any] = {}
    if option == "all":
        teachers = Teachers(torch.randn(2, classes, classes), torch.ones(2, classes, dtype=torch.bool), 0.3)
        views = torch.randint(50, batches.shape) if len(shape) == 3 else None
        how = {"teachers": teachers, "collect": True, "views": views}
    own = stack(kind, trainer)
    trainer.path = "conv" if kind is ConvStack else "layers"
    setattr(trainer, trainer.path, own)
    trainer.run(reference, batches, **how)
    if precision != "bf16":  # in which nothing is looked at
        StackedLogits(stack(kind, Stacked(module, images, labels, classes, precision=precision)))(reference)


def compiled(precision: Precision, *names: str) -> None:
    import triton
    from triton.runtime.jit import JITFunction

    triton.runtime.driver.set_active(H200())
    run, made = JITFunction.run, dict[str, Any]()

    def only_compile(self: Any, *given: Any, grid: Any, warmup: bool, **rest: Any) -> Any:
        kernel = run(self, *given, grid=grid, warmup=True, **rest)
        made[kernel.hash] = kernel
        return kernel

    JITFunction.run = only_compile
    for name in names:
        for option in OPTIONS:
            made.clear()
            launch_all(name, precision, option)
            assert len(made) > 8, f"{name}: only {len(made)} kernels"
            for kernel in made.values():
                what = f"{kernel.name} of {name}, {precision}, {option}"
                assert kernel.metadata.shared <= SHARED, f"{what}: {kernel.metadata.shared} bytes of shared memory"
                if precision == "bf16" and option == "plain" and name in PRESETS:
                    assert not spilt(kernel), f"{what}: does not fit its registers"


def spilt(kernel: Any) -> int:
    """Bytes of a thread that its registers do not hold."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.kernel)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.findall(r"STACK:(\d+)", told)[0])


def test_a_last_layer_that_no_program_holds_is_left_to_others() -> None:
    module, shape, *_ = network("large head")
    chain, images = layers(module), torch.zeros(1, *shape)
    assert chain is not None
    assert fits(chain, images)
    chain[-1] = nn.Linear(256, 62)  # 256 KiB in fp32
    assert not fits(chain, images)


@pytest.mark.triton
@pytest.mark.parametrize("names", [tuple(PRESETS), USERS], ids=["presets", "users"])
@pytest.mark.parametrize("precision", ["bf16", "tf32", "fp32"])
def test_kernels_compile_for_an_h200(precision: str, names: tuple[str, ...]) -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        "-c",
        "import sys; from tests.train import test_compiled as t; t.compiled(*sys.argv[1:])",
    ]
    done = subprocess.run([*command, precision, *names], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
