"""Where an epoch's numbers go beside the CSV file: TensorBoard, Weights & Biases, MLflow.

A logger is ``name`` or ``name:place``: ``wandb:my-project``, ``mlflow:my-experiment``. Without a place, the tracker's
own variable (``WANDB_PROJECT``, ``MLFLOW_EXPERIMENT_NAME``) decides, else it is "acls".
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from acls.errors import InputError, require
from acls.options import flat, to_plain
from acls.recipes import Recipe


class Logger(Protocol):
    """Takes the numbers of one epoch."""

    def log(self, numbers: Mapping[str, float], epoch: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """An event file in the run's folder, without the thread of `SummaryWriter`: a full disk stops the run in a line."""

    def __init__(self, folder: Path, recipe: Recipe, first: int, place: str) -> None:
        self.proto: Any = require("tensorboard.compat.proto.event_pb2", extra="train")
        records = require("tensorboard.summary.writer.record_writer", extra="train")
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / "tensorboard" / name
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file: Any = records.RecordWriter(open(self.path, "wb", buffering=0))  # noqa: SIM115
        self._write(file_version="brain.Event:2")
        # What a broken run wrote from this epoch on is hidden.
        self._write(step=first, session_log={"status": "START"})

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        values = [{"tag": name, "simple_value": value} for name, value in numbers.items()]
        self._write(step=epoch, summary={"value": values})

    def close(self) -> None:
        self.file.close()

    def _write(self, **event: Any) -> None:
        try:
            self.file.write(self.proto.Event(wall_time=time.time(), **event).SerializeToString())
        except OSError as error:
            error.filename = str(self.path)
            raise


class WandB:
    """A run of Weights & Biases, continued under the same id when training is."""

    def __init__(self, folder: Path, recipe: Recipe, first: int, place: str) -> None:
        kept = folder / "wandb_run"
        if not kept.exists():
            kept.write_text(uuid.uuid4().hex)
        self.run: Any = require("wandb", extra="wandb").init(
            project=place or os.environ.get("WANDB_PROJECT", "acls"),
            name=folder.name,
            id=kept.read_text(),
            dir=str(folder),
            config=to_plain(recipe),
            resume="allow",
        )

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self.run.log(dict(numbers), step=epoch)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of MLflow, at the address that its own settings name; continued when training is."""

    def __init__(self, folder: Path, recipe: Recipe, first: int, place: str) -> None:
        self.mlflow: Any = require("mlflow", extra="mlflow")
        self.mlflow.set_experiment(place or os.environ.get("MLFLOW_EXPERIMENT_NAME", "acls"))
        kept = folder / "mlflow_run"
        if kept.exists():
            self.mlflow.start_run(run_id=kept.read_text())
            return
        kept.write_text(self.mlflow.start_run(run_name=folder.name).info.run_id)
        self.mlflow.log_params(flat(to_plain(recipe)))
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


def make_loggers(folder: Path, recipe: Recipe, first: int) -> list[Logger]:
    """The loggers that a recipe names; ``first`` is the first epoch that they will get."""
    made: list[Logger] = []
    for name, _, place in (entry.partition(":") for entry in recipe.log):
        try:
            made.append(LOGGERS[name](folder, recipe, first, place))
        except Exception as error:
            for logger in made:
                logger.close()
            if isinstance(error, InputError | ImportError | OSError):  # a full disk has a sentence of its own
                raise
            reason = " ".join(str(error).split())
            raise InputError(f"--log {name}: {name} cannot start a run ({reason})") from error
    return made
