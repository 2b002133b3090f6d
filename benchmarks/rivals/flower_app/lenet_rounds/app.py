"""Flower's own FedAvg over its own records; a worker reads the data once and keeps one module."""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn.functional import cross_entropy

from rivals.work import CLIENTS, LR, ROUNDS, SAMPLES, Report, lenet, work

client = ClientApp()
server = ServerApp()


@functools.cache
def module() -> nn.Sequential:
    return lenet()


@client.train()
def train(message: Message, context: Context) -> Message:
    given, local = work(), module()
    images, labels = given.samples
    local.load_state_dict(message.content["arrays"].to_torch_state_dict())
    turn = int(message.content["config"]["server-round"]) - 1
    optimiser = torch.optim.SGD(local.parameters(), lr=LR)
    for batch in given.batches[turn, int(context.node_config["partition-id"])]:
        optimiser.zero_grad()
        cross_entropy(local(images[batch]), labels[batch]).backward()
        optimiser.step()
    reply = {"arrays": ArrayRecord(local.state_dict()), "metrics": MetricRecord({"num-examples": SAMPLES})}
    return Message(content=RecordDict(reply), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    report = Report("flower")
    names = list(lenet().state_dict())

    def note(turn: int, arrays: ArrayRecord) -> None:
        if turn:
            state = arrays.to_torch_state_dict()
            report.round(torch.cat([state[name].reshape(-1) for name in names]))

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    strategy.start(grid, ArrayRecord(work().network().state_dict()), num_rounds=ROUNDS, evaluate_fn=note)
