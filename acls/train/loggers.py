"""Where an epoch's numbers go beside the CSV file: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from acls.errors import InputError, require, suggest
from acls.options import to_plain
from acls.recipes import Recipe


class Logger(Protocol):
    """Takes the numbers of one epoch."""

    def log(self, numbers: Mapping[str, float], epoch: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run's folder."""

    def __init__(self, folder: Path, recipe: Recipe, first: int) -> None:
        require("tensorboard", extra="train")
        from torch.utils.tensorboard import SummaryWriter

        # What a broken run wrote from this epoch on is hidden.
        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=first)

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A run of Weights & Biases, continued under the same id when training is."""

    def __init__(self, folder: Path, recipe: Recipe, first: int) -> None:
        wandb = require("wandb", extra="train")
        self.run: Any = wandb.init(
            project="acls", name=folder.name, id=folder.name, dir=str(folder), config=to_plain(recipe), resume="allow"
        )

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self.run.log(dict(numbers), step=epoch)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of MLflow, at the address that its own settings name."""

    def __init__(self, folder: Path, recipe: Recipe, first: int) -> None:
        self.mlflow: Any = require("mlflow", extra="train")
        self.mlflow.set_experiment("acls")
        self.mlflow.start_run(run_name=folder.name)
        self.mlflow.log_dict(to_plain(recipe), "recipe.json")

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self.mlflow.log_metrics({name.replace("/", "."): value for name, value in numbers.items()}, step=epoch)

    def close(self) -> None:
        self.mlflow.end_run()


LOGGERS: dict[str, type[TensorBoard] | type[WandB] | type[MLflow]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def check_loggers(names: Sequence[str]) -> None:
    """Raise for a logger that there is not."""
    for name in names:
        if name not in LOGGERS:
            raise InputError(f"there is no logger {name!r}{suggest(name, LOGGERS)}")


def make_loggers(folder: Path, recipe: Recipe, first: int) -> list[Logger]:
    """The loggers that a recipe names; ``first`` is the first epoch that they will get."""
    return [LOGGERS[name](folder, recipe, first) for name in recipe.log]
