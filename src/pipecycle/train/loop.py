"""The lean executor: one session after another, the quickest on a CPU wherever arithmetic dominates."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from pipecycle.train.kernels_chain import Chain, layers
from pipecycle.train.models import split, takes_channels_last
from pipecycle.train.sessions import Executor, Trained, Work


class Loop(Executor):
    """One session after another: a single set of weights updated in place, with no optimiser object, convolutions in
    channels-last order, and for plain chains of common layers no autograd either.  Any module, float32 or float64."""

    how = "one session after another"

    def _prepare(self) -> None:
        images, chain = self.images, layers(self.module)
        self.chain = None if chain is None else Chain(chain, images)
        self.ordered = False
        if images.ndim == 4:
            self.images = images.permute(0, 2, 3, 1).contiguous()
        if self.chain is None:
            self.module = deepcopy(self.module).to(device=images.device, dtype=images.dtype)
            self.ordered = not takes_channels_last(self.module, images)
            self.weights: list[Tensor] = list(self.module.parameters())
        else:
            self.weights = self.chain.parameters

    def _train(self, work: Work, out: Trained) -> None:
        for m in range(len(work.reference)):
            self._session(m, work, out)

    def _session(self, m: int, work: Work, out: Trained) -> None:
        start = split(self.module, work.reference[m])
        with torch.no_grad():
            torch._foreach_copy_(self.weights, start)
        velocity = [torch.zeros_like(p) for p in start] if self.sgd.momentum else []
        lr = self.sgd.lr if work.lr is None else float(work.lr[m])
        table = None if work.table is None else work.table[m]
        for step, row in enumerate(work.batches[m]):
            there = slice(None) if work.scale is None else row >= 0
            index = row[there]
            y = self.labels[index]
            x = self._inputs(index, None if work.views is None else work.views[m, step][there])
            z, grads = self._gradients(x, y, table)
            with torch.no_grad():
                self._update(self.weights, grads, start, velocity, lr)
                if out.sums is not None and out.counts is not None:
                    out.sums[m].addmm_(self.eye[y].t(), z)
                    out.counts[m] += self.eye[y].sum(0)
        for final, weight in zip(split(self.module, out.parameters[m]), self.weights, strict=True):
            final.copy_(weight.detach())

    def _inputs(self, index: Tensor, views: Tensor | None) -> Tensor:
        if views is None:
            x = self.images.index_select(0, index)
        else:
            x = self.frame.cut(self.images, index, views, self.black)
        x = x.permute(0, 3, 1, 2) if x.ndim == 4 else x
        return x.clone(memory_format=torch.contiguous_format) if self.ordered else x

    def _gradients(self, x: Tensor, y: Tensor, table: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        if self.chain is not None:
            with torch.no_grad():
                z = self.chain.forward(x)
                return z, self.chain.gradients(self._slope(z, y, 1.0 / len(y), table))
        z = self.module(x)
        target = self.eye[y] if table is None else table[y]
        loss = -(target * z.log_softmax(1)).sum() / len(y)
        return z.detach(), list(torch.autograd.grad(loss, self.weights, materialize_grads=True))
