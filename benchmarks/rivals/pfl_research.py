"""pfl-research: its simulated backend, FedAvg and local SGD, users' data as tensors in memory.  Users
are not evaluated after the first iteration, which is not timed."""

from __future__ import annotations

import itertools
import os

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"

from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from rivals.work import BATCH, CLIENTS, LR, ROUNDS, Report, work


class Lenet(nn.Module):
    """The two methods that pfl asks for."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(cross_entropy(self(x), y, reduction="sum")), len(y))}


class Rounds(TrainingProcessCallback):
    def __init__(self, report: Report) -> None:
        self.report = report

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.report.round(model.pytorch_model)
        return False, Metrics()


def main() -> None:
    given = work()
    images, labels = given.samples
    module = Lenet(given.network())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    sessions = itertools.count()

    def user(client: int) -> Dataset:
        order = given.batches[next(sessions) // CLIENTS, client].flatten()
        return Dataset(raw_data=[images[order], labels[order]])

    users = FederatedDataset(user, get_user_sampler("minimize_reuse", range(CLIENTS)))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS, evaluation_frequency=ROUNDS, train_cohort_size=CLIENTS, val_cohort_size=None
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Rounds(Report("pfl"))],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
