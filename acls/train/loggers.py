"""Loggers for the metrics of each epoch, in addition to the CSV file: TensorBoard, Weights & Biases, MLflow.

A logger is ``name`` or ``name:place``: ``wandb:my-project``, ``mlflow:my-experiment``. The default place is the value
of the tracker's environment variable (``WANDB_PROJECT``, ``MLFLOW_EXPERIMENT_NAME``) or, if it is not set, "acls".
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from acls import distributed
from acls.errors import InputError, require
from acls.options import flat, to_plain
from acls.recipes import Recipe

Log = Callable[[Mapping[str, float], int], None]
"""A function that takes the metrics of an epoch and the number of the epoch."""


@contextmanager
def tensorboard(folder: Path, recipe: Recipe, first: int, place: str) -> Iterator[Log]:  # noqa: ARG001
    """Write an event file in the run folder, without the thread of `SummaryWriter`, so a full disk stops the run."""
    proto: Any = require("tensorboard.compat.proto.event_pb2", extra="train")
    records: Any = require("tensorboard.summary.writer.record_writer", extra="train")
    path = folder / f"tensorboard/events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(records.RecordWriter(open(path, "wb", buffering=0))) as file:

        def write(**event: Any) -> None:
            try:
                file.write(proto.Event(wall_time=time.time(), **event).SerializeToString())
            except OSError as error:
                error.filename = str(path)
                raise

        def log(numbers: Mapping[str, float], epoch: int) -> None:
            write(step=epoch, summary={"value": [{"tag": tag, "simple_value": one} for tag, one in numbers.items()]})

        write(file_version="brain.Event:2")
        write(step=first, session_log={"status": "START"})  # hides events of an interrupted run from this epoch on
        yield log


@contextmanager
def wandb(folder: Path, recipe: Recipe, first: int, place: str) -> Iterator[Log]:  # noqa: ARG001
    """Log to a Weights & Biases run; a resumed training continues the run with the same id."""
    kept = folder / "wandb_run"
    if not kept.exists():
        kept.write_text(uuid.uuid4().hex)
    project = place or os.environ.get("WANDB_PROJECT", "acls")
    run: Any = require("wandb", extra="wandb").init(
        project=project, name=folder.name, id=kept.read_text(), dir=str(folder), config=to_plain(recipe), resume="allow"
    )
    try:
        yield lambda numbers, epoch: run.log(dict(numbers), step=epoch)
    finally:
        run.finish()


@contextmanager
def mlflow(folder: Path, recipe: Recipe, first: int, place: str) -> Iterator[Log]:  # noqa: ARG001
    """Log to an MLflow run, at the address in the MLflow settings; a resumed training continues the run."""
    tracker: Any = require("mlflow", extra="mlflow")
    tracker.set_experiment(place or os.environ.get("MLFLOW_EXPERIMENT_NAME", "acls"))
    kept = folder / "mlflow_run"
    try:
        if kept.exists():
            tracker.start_run(run_id=kept.read_text())
        else:
            kept.write_text(tracker.start_run(run_name=folder.name).info.run_id)
            tracker.log_params(flat(to_plain(recipe)))
            tracker.log_dict(to_plain(recipe), "recipe.json")
        yield lambda numbers, epoch: tracker.log_metrics(
            {name.replace("/", "."): value for name, value in numbers.items()}, step=epoch
        )
    finally:
        tracker.end_run()


LOGGERS = {logger.__name__: logger for logger in (tensorboard, wandb, mlflow)}


@contextmanager
def logging(folder: Path, recipe: Recipe, first: int) -> Iterator[Log]:
    """Combine the loggers of a recipe into one, in the first process; ``first`` is the first epoch to log."""
    logs: list[Log] = []
    with ExitStack() as stack:
        for name, _, place in (entry.partition(":") for entry in recipe.log if distributed.rank() == 0):
            try:
                logs.append(stack.enter_context(LOGGERS[name](folder, recipe, first, place)))
            except (InputError, ImportError, OSError):  # a full disk has its own message
                raise
            except Exception as error:
                reason = " ".join(str(error).split())
                raise InputError(f"--log {name}: {name} cannot start a run ({reason})") from error

        def log(numbers: Mapping[str, float], epoch: int) -> None:
            for one in logs:
                one(numbers, epoch)

        yield log
