"""The folder of a run: its settings, the machine it ran on, and its results."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import platform
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import acls
from acls import distributed
from acls.data.dataset import Data
from acls.errors import InputError
from acls.metrics.catalogue import metric
from acls.options import flat, to_plain
from acls.recipes import Recipe, load_recipe, save_recipe
from acls.storage import load_tensors, save_tensors, write_text
from acls.train.session import Session

RECIPE, METRICS, SUMMARY, ENVIRONMENT = "recipe.yaml", "metrics.csv", "summary.json", "environment.json"
PREDICTIONS = "predictions/{}.safetensors"
TEST, VAL = PREDICTIONS.format("test"), PREDICTIONS.format("val")
FORMAT = "acls resume 1"
"""The format name in a state file."""
_PACKAGES = ("torch", "numpy", "torchvision", "timm", "lightning-fabric", "safetensors", "scikit-learn")
NEUTRAL = {"log", "data.root", "data.workers", "data.download", "save_every", "model.weights"}
NEUTRAL |= {"accelerator", "devices", "nodes", "threads", "compile"}
"""Settings that may change when a run is resumed: they change at most the last bits of its results."""


class RunFolder:
    """The files of one run, by name. Each file is written atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / RECIPE
        self.splits = path / "splits.safetensors"
        self.metrics = path / METRICS
        self.best = path / "best.safetensors"
        self.last = path / "last.safetensors"
        self.resume = path / "resume.safetensors"
        self.summary = path / SUMMARY

    def predictions(self, part: str) -> Path:
        return self.path / PREDICTIONS.format(part)

    def figure(self, name: str) -> Path:
        return self.path / "figures" / f"{name}.png"

    def start(self, recipe: Recipe, data: Data) -> None:
        """Write the recipe and other facts known before training, with all settings of the loss written out."""
        if self.recipe.exists():
            raise InputError(f"{self.path} already contains a run: continue it with --resume, or pass another --out")
        recipe = replace(recipe, loss=recipe.loss.complete())
        described = {"recipe": to_plain(recipe), "data": data.fingerprint()}
        save_tensors(self.splits, data.splits(), {name: json.dumps(value) for name, value in described.items()})
        write_text(self.path / ENVIRONMENT, json.dumps(environment(), indent=2) + "\n")
        save_recipe(recipe, self.recipe)  # last: a folder with a recipe is a run

    def threads(self) -> int | None:
        """The number of threads that the run started with, or None if it was not recorded."""
        with suppress(OSError, ValueError, KeyError):
            return int(json.loads((self.path / ENVIRONMENT).read_text(encoding="utf-8"))["threads"])
        return None

    def check(self, recipe: Recipe, data: Data) -> None:
        """Raise an error if the recipe (except its training length) or the data set changed since the run started.

        Runs of 0.1.0 have no record of their recipe.
        """
        stored, meta = load_tensors(self.splits)
        now = decisive(recipe, {*NEUTRAL, "epochs", "patience"})
        for name, value in flat(json.loads(meta.get("recipe", "{}"))).items():
            if now.get(name, value) != value:
                raise InputError(
                    f"{self.recipe} has changed since the run began: {name} was {value}, now {now[name]}. Restore it, "
                    "or start a new run"
                )
        hashes, known = data.fingerprint(), json.loads(meta.get("data", "{}"))
        for part, numbers in data.splits().items():
            same = part in stored and torch.equal(stored[part], numbers)
            if not same or known.get(part, hashes[part]) != hashes[part]:
                raise InputError(
                    f"the data set is not the one this run began with: its {part} part has different samples. "
                    "Restore the files, or start a new run"
                )

    def write_metrics(self, history: list[dict[str, float]]) -> None:
        """Write one row per epoch; all rows are written again, so that they agree with the state to resume from."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(history[0]), lineterminator="\n")
        writer.writeheader()
        for row in history:
            writer.writerow({name: one if isinstance(one, int) else f"{one:.6g}" for name, one in row.items()})
        write_text(self.metrics, text.getvalue())

    def save_weights(self, model: nn.Module, recipe: Recipe, epoch: int, names: tuple[str, ...], *, best: bool) -> None:
        """Write the weights of a network under their original names as the last and, with ``best``, as the best."""
        meta = {"recipe": recipe.name, "epoch": str(epoch), "classes": json.dumps(names), "acls": acls.__version__}
        for file in (self.last, self.best) if best else (self.last,):
            save_tensors(file, model.state_dict(), meta)


def decisive(recipe: Recipe, free: Collection[str] = NEUTRAL) -> dict[str, Any]:
    """Return the settings that affect the results, by dotted name, including all settings of the loss."""
    settings = flat(to_plain(replace(recipe, loss=recipe.loss.complete())))
    return {name: value for name, value in settings.items() if name not in free}


def open_run(path: Path) -> tuple[RunFolder, Recipe]:
    """Return the folder of a run that was started, and its recipe."""
    folder = RunFolder(path)
    if not folder.recipe.is_file():
        raise InputError(f"{path} is not the folder of a run: there is no {RECIPE} in it")
    recipe = load_recipe(folder.recipe)
    fields = recipe.loss.fields
    if recipe.loss.name == "ACLS" and "form" not in fields and "recipe" not in load_tensors(folder.splits)[1]:
        # Version 0.1.0 recorded only the settings that were given, and its default was different.
        recipe = replace(recipe, loss=replace(recipe.loss, fields={**fields, "form": "paper"}))
    return folder, recipe


def new_folder(recipe: Recipe) -> Path:
    """Return an unused folder name: runs/RECIPE-LOSS-SEED, with a number added if necessary."""
    base = f"runs/{recipe.name}-{recipe.loss.name}-{recipe.seed}"
    names = itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2)))
    return next(Path(name) for name in names if not Path(name).exists())


def environment() -> dict[str, Any]:
    """Return versions, source revision, command and machine, which are needed to repeat the run."""
    versions = {"acls": acls.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "versions": versions,
        "revision": _revision(),
        "command": sys.argv,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _revision() -> str | None:
    """Return the commit of the acls source, with a plus if files have changed; None for an installed package."""
    source = Path(acls.__file__).parent
    command = ["git", "-C", str(source), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# -- the state to resume from ------------------------------------------------------------------------------------------


@dataclass
class TrainState:
    """The progress of training. With the weights and the states of loss and optimiser, it is the state of a run."""

    epoch: int = 0
    """The current epoch, counted from 0."""
    step: int = 0
    """Steps done in the current epoch."""
    best: float | None = None
    best_epoch: int = -1
    sums: Tensor = field(default_factory=lambda: torch.zeros(4, dtype=torch.float64))
    """Sums of this epoch so far: loss times samples, hits, labelled positions, samples."""
    seconds: float = 0.0
    """Time spent in this epoch so far, in seconds."""
    history: list[dict[str, float]] = field(default_factory=list)

    def is_best(self, select: str, row: Mapping[str, float]) -> bool:
        """Return whether an epoch is strictly better than the best so far; of equal epochs, the first is kept."""
        sign = metric(select).sign
        return self.best is None or math.isnan(self.best) or sign * row[f"val/{select}"] < sign * self.best


def _parts(session: Session) -> dict[str, Any]:
    """Return the parts of a session that have a state."""
    parts = {"model": session.model, "average": session.average, "optimizer": session.optimizer, "loss": session.loss}
    precision = session.fabric.strategy.precision
    return {name: part for name, part in {**parts, "scaler": precision}.items() if part is not None}


def save_resume(session: Session, folder: RunFolder, state: TrainState) -> None:
    """Write everything that the rest of the run depends on, of every process, into one file."""
    generators = distributed.all_gather(torch.get_rng_state()[None])
    sums = distributed.all_reduce(state.sums)
    if not session.fabric.is_global_zero:
        return
    saved = {
        "average": {},
        **{name: dict(part.state_dict()) for name, part in _parts(session).items()},
        "generators": generators,
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "at": {**vars(state), "sums": sums},
    }
    save_state(folder.resume, saved)


def continued(session: Session, folder: RunFolder) -> TrainState:
    """Restore the saved state of the run in a folder, or start a new run there.

    Raises an error if the run has other settings or data.
    """
    begin = folder.check if folder.recipe.exists() else folder.start
    begin(session.recipe, session.data)
    if not folder.resume.exists():
        return TrainState()
    try:
        return restore(session, load_state(folder.resume))
    except InputError as error:
        raise InputError(f"{error}; start a new run from the weights with --model.weights {folder.last}") from error


def restore(session: Session, saved: dict[str, Any]) -> TrainState:
    """Restore a saved state of a session, and return the progress of training."""
    for name, part in _parts(session).items():
        part.load_state_dict(saved[name])
    if distributed.rank() < len(saved["generators"]):
        torch.set_rng_state(saved["generators"][distributed.rank()].clone())  # torch crashes if it gets a view of a row
    if saved["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(saved["cuda"])
    state = TrainState(**saved["at"])
    if distributed.rank() != 0:  # the saved sums are over all processes
        state.sums = torch.zeros_like(state.sums)
    return state


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write nested dicts and lists of tensors and plain values atomically."""
    tensors: dict[str, Tensor] = {}
    plain = _pack(state, "", tensors)
    save_tensors(path, tensors, {"format": FORMAT, "state": json.dumps(plain)})


def load_state(path: Path) -> dict[str, Any]:
    """Read a state that `save_state` wrote."""
    tensors, meta = load_tensors(path)
    if meta.get("format") != FORMAT:
        raise InputError(f"{path} is not a state to resume from: expected the resume.safetensors of a run")
    return dict(_unpack(json.loads(meta["state"]), tensors))


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Replace tensors by their names. JSON has only text keys, so dicts become lists of pairs."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, dict):
        return {"dict": [[key, _pack(part, f"{path}/{key}", tensors)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_pack(part, f"{path}/{i}", tensors) for i, part in enumerate(value)]}
    return value


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner].clone()  # the tensor is mapped to the file, which the next save replaces
    if kind == "dict":
        return {key: _unpack(part, tensors) for key, part in inner}
    parts = [_unpack(part, tensors) for part in inner]
    return tuple(parts) if kind == "tuple" else parts
