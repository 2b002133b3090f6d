"""Where else a history may go; each is called with the job and its newest row."""

from __future__ import annotations

from typing import Any

from pipecycle.train.history import Row
from pipecycle.train.job import Callback, Job


def _figures(row: Row) -> dict[str, float]:
    figures = {"accuracy": row.accuracy, "loss": row.loss, "best": row.best, "energy": row.energy}
    if row.clients_accuracy is not None:
        figures["clients_accuracy"] = row.clients_accuracy
    return figures


def tensorboard(folder: str, **options: Any) -> Callback:
    """Scalars against slots for TensorBoard (needs the package `tensorboard`)."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder, **options)

    def write(job: Job, row: Row) -> None:
        for name, value in _figures(row).items():
            writer.add_scalar(f"{job.name}/{name}", value, row.slot)
        writer.flush()

    return write


def mlflow(**options: Any) -> Callback:
    """Metrics against slots in the active MLflow run, or in a new one made with the options (needs `mlflow`)."""
    import mlflow as package

    if package.active_run() is None:
        package.start_run(**options)

    def write(job: Job, row: Row) -> None:
        package.log_metrics({f"{job.name}/{name}": value for name, value in _figures(row).items()}, step=row.slot)

    return write
