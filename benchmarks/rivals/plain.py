"""The simplest PyTorch program: a deep copy and an optimiser for each session, batches by indexing."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch.nn.functional import cross_entropy

from rivals.work import LR, Report, work


def main() -> None:
    given = work()
    images, labels = given.samples
    model, report = given.network(), Report("plain")
    for sessions in given.batches:
        total = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for batches in sessions:
            local = deepcopy(model)
            optimiser = torch.optim.SGD(local.parameters(), lr=LR)
            for batch in batches:
                optimiser.zero_grad()
                cross_entropy(local(images[batch]), labels[batch]).backward()
                optimiser.step()
            with torch.no_grad():
                torch._foreach_add_(total, list(local.parameters()))
        with torch.no_grad():
            for parameter, values in zip(model.parameters(), total, strict=True):
                parameter.copy_(values / len(sessions))
        report.round(model)


if __name__ == "__main__":
    main()
