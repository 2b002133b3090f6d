"""Four policies on cases that can be worked out with a pencil: three clients and a model of one number.

The model's logits for an input x are (w x, 0), so that it gives label 0 the probability p = 1 / (1 + exp(-w x)), and
the loss of a sample has the slope (p - 1) x by w if its label is 0 and p x if it is 1.  With w = u ln 3 and a learning
rate of 2 ln 3 all logarithms drop out of a step:

    p = 3^(u x) / (1 + 3^(u x)),    u <- u + 2 x (1 - p) for label 0,    u <- u - 2 x p for label 1.

The test sample is x = 1 of label 0, whose loss is ln(1 + 3^(-u)); it is looked at after every slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, log1p
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipecycle import Schedule, plan
from pipecycle.data import Split, Task
from pipecycle.policies import FLDA, MIFA, FedSeq, PipeCycle
from pipecycle.train import problems
from pipecycle.train.engine import train_many
from pipecycle.train.history import Checkpoint, History, Score
from pipecycle.train.job import Job, Watch
from pipecycle.train.problems import Problem, problem
from pipecycle.train.sessions import LocalSGD
from pipecycle.world.harvest import Bernoulli

from .naive import Training, vector

TRAINERS = pytest.mark.parametrize("trainer", ["loop", "stacked", "naive"])
LAMBDA = 0.5


class Slope(nn.Module):
    def __init__(self, u: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(u * log(3), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        z = self.w * x[:, 0]
        return torch.stack([z, torch.zeros_like(z)], 1)


def clients(*samples: tuple[float, int, int], u: float = 0.0) -> Problem:
    """Each client is (x, label, how many such samples it holds); everybody starts from u."""
    counts = [count for _, _, count in samples]
    x = np.repeat([[x] for x, _, _ in samples], counts, axis=0)
    y = np.repeat([label for _, label, _ in samples], counts)
    split = Split.of(np.split(np.arange(len(y)), np.cumsum(counts)[:-1]), [0])
    training = problems.Training(LocalSGD(2 * log(3)), batch=3, distillation=LAMBDA)
    return problem(Task(x, y, [[1.0]], [0], classes=2), Slope(u), split=split, training=training)


def check(trainer: str, schedule: Schedule, given: Problem, expected: Sequence[float]) -> None:
    """`expected` is the server's u at the end of every slot."""
    assert len(expected) == schedule.slots
    if trainer == "naive":
        served = torch.cat([vector(model) for model in Training(schedule, given).server])
        np.testing.assert_allclose(served.numpy(), np.array(expected) * log(3), rtol=0, atol=1e-12)
        return
    job = Job(schedule, given, Watch(every=1))
    options: dict[str, Any] = {"device": "cpu", "trainer": trainer, "dtype": torch.float64}
    (history,) = train_many([job], **options)
    assert job.model is not None
    assert job.model.item() == pytest.approx(expected[-1] * log(3), rel=0, abs=1e-12)
    losses = [log1p(3**-u) for u in expected]
    np.testing.assert_allclose([row.loss for row in history.rows], losses, rtol=0, atol=1e-12)
    assert all(row.accuracy == 100.0 * (u > 0) for row, u in zip(history.rows, expected, strict=True) if u)


@TRAINERS
def test_pipecycle_relays_two_chains(trainer: str) -> None:
    """Groups of one client, sessions of two steps, a formation in every slot, two groups at once.

    One client after the other has its three units, in slots 0, 1 and 2, and again three slots later:

        slot 0  client 0 starts from the initial model
        slot 1  client 1 starts from it as well; client 0 is done: A
        slot 2  client 2 pops A and goes on from it;     client 1 is done: B
        slot 3  client 0 pops B and goes on from it;     client 2 is done: C
        slot 4  client 1 pops C;                         client 0 is done: D
        slot 5  client 2 pops D

    so that the server holds A, B, C, D in slots 2 to 5, and B is nothing to C, nor A to D."""
    schedule = plan(PipeCycle(groups=2, group_size=1), 1.0, 3, 6, session=2, initial=[2.0, 1.0, 0.0])
    assert schedule.sessions.client.tolist() == [0, 1, 2, 0, 1, 2]
    assert schedule.sessions.start.tolist() == [0, 1, 2, 3, 4, 5]
    # Client 0, x = 1, label 0, from 0: p = 1/2, u = 0 + 2 * 1/2 = 1; p = 3/4, u = 1 + 2 * 1/4.
    a = 1.5
    # Client 1, x = 1, label 1, from 0: p = 1/2, u = 0 - 2 * 1/2 = -1; p = 1/4, u = -1 - 2 * 1/4.
    b = -1.5
    # Client 2, x = 2, label 1, from A: p = 27/28, u = 3/2 - 4 * 27/28 = -33/14; p = q / (1 + q), q = 3^(-33/7).
    q = 3 ** (-33 / 7)
    c = -33 / 14 - 4 * q / (1 + q)
    # Client 0 from B: 1 - p = 1 / (1 + 3^(-3/2)), and once more.
    d = -1.5 + 2 / (1 + 3**-1.5)
    d = d + 2 / (1 + 3**d)
    check(trainer, schedule, clients((1, 0, 1), (1, 1, 1), (2, 1, 1)), [0, 0, a, b, c, d])


@TRAINERS
@pytest.mark.parametrize("mix", [1.0, 0.5])
def test_pipecycle_averages_by_samples_and_flushes(trainer: str, mix: float) -> None:
    """Clients 0 (one sample) and 1 (three) have energy for one session each and form the first group, in slots 0 and
    1; client 2, which gains a unit in every slot, trains in slots 1 and 2.  Then nobody is eligible and nobody
    trains, so that slots 3 and 4 flush the two models.  Client 2 trains on from the server's model in slots 5 and 6,
    and slot 7 flushes."""
    policy = PipeCycle(groups=2, group_size=2, relay_mix=mix)
    harvest = Bernoulli([0.0, 0.0, 1.0])
    schedule = plan(policy, harvest, 3, 8, session=2, initial=[3.0, 3.0, 1.0], samples=[1, 3, 1])
    assert schedule.sessions.client.tolist() == [0, 1, 2, 2]
    assert schedule.sessions.start.tolist() == [0, 0, 1, 5]
    # Clients 0 and 1 move by 1.5 and -1.5, as above: (1 * 1.5 - 3 * 1.5) / 4.
    a = -0.75
    # Client 2, x = 2, label 1, from 0: p = 1/2, u = -2; p = 1/82, u = -2 - 4/82.
    b = -2 - 2 / 41
    first = mix * a
    second = (1 - mix) * first + mix * b
    # It goes on from there: p = 3^(2u) / (1 + 3^(2u)) = 1 / (1 + 3^(-2u)), twice.
    c = second - 4 / (1 + 3 ** (-2 * second))
    c = c - 4 / (1 + 3 ** (-2 * c))
    third = (1 - mix) * second + mix * c
    given = clients((1, 0, 1), (1, 1, 3), (2, 1, 1))
    check(trainer, schedule, given, [0, 0, 0, first, second, second, second, third])


@TRAINERS
@pytest.mark.parametrize("use_memory", [True, False])
def test_mifa_reuses_old_updates(trainer: str, use_memory: bool) -> None:
    """Epochs of two slots: a session of one step, then the report.  Client 0 has energy for two epochs, client 1 for
    one; in the third epoch nobody takes part and only the memory is left."""
    policy = MIFA(epoch=2, use_memory=use_memory)
    schedule = plan(policy, 0.0, 2, 6, session=1, initial=[4.0, 2.0])
    assert schedule.sessions.client.tolist() == [0, 1, 0]
    # From 0, client 0 (x = 1, label 0) moves by 2 * 1/2 and client 1 (x = 2, label 1) by -4 * 1/2.
    one = 0 + (1 - 2) / 2
    # From -1/2, client 0 moves by 2 (1 - p) with 1 - p = 1 / (1 + 3^(-1/2)).
    again = 2 / (1 + 3**-0.5)
    two = one + ((again - 2) / 2 if use_memory else again)
    three = two + ((again - 2) / 2 if use_memory else 0)
    check(trainer, schedule, clients((1, 0, 1), (2, 1, 1)), [0, one, one, two, two, three])


@TRAINERS
def test_fedseq_hands_a_model_from_client_to_client(trainer: str) -> None:
    """Two clusters, sessions of one step, energy for all.  Trial 0 draws the clusters 1-0 and 2, then 2-1 and 0:

    slot 0  clients 1 and 2 train from the initial model
    slot 1  client 1 hands on to client 0; client 2 reports
    slot 2  client 0 trains
    slot 3  client 0 reports, the server averages; client 2 trains
    slot 4  client 2 hands on to client 1; client 0, which reported in slot 3, trains
    slot 5  client 1 trains; client 0 reports
    slot 6  client 1 reports, the server averages"""
    schedule = plan(FedSeq(groups=2, mode="chain"), 0.0, 3, 7, session=1, initial=20.0)
    started = list(zip(schedule.sessions.start.tolist(), schedule.sessions.client.tolist(), strict=True))
    assert started[:6] == [(0, 1), (0, 2), (2, 0), (3, 2), (4, 0), (5, 1)]
    # Client 1 (x = 1, label 1) from 0: -2 * 1/2; client 0 (x = 1, label 0) from -1: p = 1/4, -1 + 2 * 3/4 = 1/2.
    # Client 2 (x = 2, label 0) from 0: 4 * 1/2 = 2.  Two sessions against one: (2 * 1/2 + 2) / 3.
    one = 1.0
    # Client 2 from 1: p = 9/10, 1 + 4 * 1/10 = 7/5; client 1 from there: -2 p with p = 1 / (1 + 3^(-7/5)).
    # Client 0 from 1: p = 3/4, 1 + 2 * 1/4 = 3/2.
    two = (2 * (1.4 - 2 / (1 + 3**-1.4)) + 1.5) / 3
    given = clients((1, 0, 1), (1, 1, 1), (2, 0, 1))
    check(trainer, schedule, given, [0, 0, 0, one, one, one, two])


@TRAINERS
def test_flda_teaches_with_the_others_logits(trainer: str) -> None:
    """Epochs of two slots: a session of one step, then the report.  Even clients send logits in even epochs and
    updates in odd ones, client 1 the other way round.  Clients 0 and 2 hold label 0, client 1 label 1.

    A teacher's row (t ln 3, 0) stands for the probability q = 3^t / (1 + 3^t) and changes a step to
    u <- u + 2 x ((1 - p) + lambda (q - p)) for label 0."""
    schedule = plan(FLDA(epoch=2), 0.0, 3, 8, session=1, initial=20.0)
    given = clients((1, 0, 1), (1, 1, 1), (2, 0, 1), u=1.0)
    # Epoch 0, from 1, no teacher: client 1 (x = 1) has p = 3/4 and moves by -2 * 3/4.  Clients 0 (x = 1) and 2 (x = 2)
    # meet the logits t = 1 and t = 2 of label 0, whose mean is 3/2.
    one = -0.5
    # Epoch 1, from -1/2: without its own share, client 0's teacher is (2 * 3/2 - 1) / 1 = 2, q = 9/10, and
    # 1 - p = 1 / (1 + 3^(-1/2)); client 2's is 1, q = 3/4, and p = 1/4.  Client 1 is the only one to send label 1.
    p = 1 / (1 + 3**0.5)
    moves = 2 * ((1 - p) + LAMBDA * (9 / 10 - p)), 4 * (3 / 4 + LAMBDA * (3 / 4 - 1 / 4))
    two = one + sum(moves) / 2
    # Epoch 2: nobody else has sent client 1's label, so it learns without a teacher: -2 p.  Clients 0 and 2 meet the
    # logits t = u and t = 2u of label 0.
    three = two - 2 / (1 + 3**-two)
    # Epoch 3: client 0's teacher is t = 2u of epoch 2, client 2's t = u of epoch 2.
    p0, p2 = 1 / (1 + 3**-three), 1 / (1 + 3 ** (-2 * three))
    q0, q2 = 1 / (1 + 3 ** (-2 * two)), 1 / (1 + 3**-two)
    four = three + (2 * ((1 - p0) + LAMBDA * (q0 - p0)) + 4 * ((1 - p2) + LAMBDA * (q2 - p2))) / 2
    check(trainer, schedule, given, [1, one, one, two, two, three, three, four])


@TRAINERS
def test_flda_goes_on_from_a_kept_model(trainer: str) -> None:
    """The global phase: in epoch 0 both clients distil and keep their models; in epoch 1 client 0 goes on from its
    own, and what it sends counts from the server's model that it first started from.  Client 1 has energy for one
    session."""
    schedule = plan(FLDA(epoch=2, phase="global"), 0.0, 2, 4, session=1, initial=[4.0, 2.0])
    assert schedule.sessions.client.tolist() == [0, 1, 0]
    # Epoch 0, from 0: client 0 (x = 1, label 0) gets to 1.  Client 1 (x = 2, label 0) sends the logits t = 0.
    # Epoch 1: client 0 is at 1, p = 3/4, and client 1's row says q = 1/2: 1 + 2 (1/4 + lambda (1/2 - 3/4)).
    kept = 1 + 2 * (1 / 4 - LAMBDA / 4)
    # The server is still at 0, and moves by the whole way from there.
    check(trainer, schedule, clients((1, 0, 1), (2, 0, 1)), [0, 0, 0, 0 + (kept - 0)])


def test_an_evaluation_that_nobody_answered_forgets_no_best_accuracy() -> None:
    points = [Checkpoint(slot, 0, 0.0) for slot in range(1, 5)]
    history = History(points)
    for point, accuracy in zip(points, (float("nan"), 50.0, float("nan"), 40.0), strict=True):
        history.record(point, Score(accuracy, 1.0, ()), None)
    assert [row.best for row in history.rows][1:] == [50.0, 50.0, 50.0]
