"""The folder of a run: its settings, the machine it ran on, and its results."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import acls
from acls.data.dataset import Data
from acls.errors import InputError
from acls.options import flat, to_plain
from acls.recipes import Recipe, load_recipe, save_recipe
from acls.storage import atomic_write, load_tensors, save_tensors, write_text

_PACKAGES = ("torch", "numpy", "torchvision", "timm", "lightning-fabric", "safetensors", "scikit-learn")


NEUTRAL = {"log", "data.root", "data.workers", "data.download", "save_every", "model.weights"}
NEUTRAL |= {"accelerator", "devices", "nodes", "threads"}
"""Settings that may change in a run under way: they change its results in their last bits at most."""


class RunFolder:
    """The files of one run, by name; each is written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.splits = path / "splits.safetensors"
        self.metrics = path / "metrics.csv"
        self.best = path / "best.safetensors"
        self.last = path / "last.safetensors"
        self.resume = path / "resume.safetensors"
        self.summary = path / "summary.json"
        self.tensorboard = path / "tensorboard"

    def predictions(self, part: str) -> Path:
        return self.path / "predictions" / f"{part}.safetensors"

    def figure(self, name: str) -> Path:
        return self.path / "figures" / f"{name}.png"

    def start(self, recipe: Recipe, data: Data) -> None:
        """Write what is known before training."""
        if self.recipe.exists():
            raise InputError(f"{self.path} holds a run already: continue it with --resume, or pass another --out")
        described = {"recipe": to_plain(recipe), "data": data.fingerprint()}
        save_tensors(self.splits, data.splits(), {name: json.dumps(value) for name, value in described.items()})
        write_text(self.path / "environment.json", json.dumps(environment(), indent=2) + "\n")
        save_recipe(recipe, self.recipe)  # last: a folder with a recipe is a run

    def threads(self) -> int | None:
        """The number of threads that the run began with, where it is recorded."""
        try:
            recorded = json.loads((self.path / "environment.json").read_text(encoding="utf-8"))["threads"]
        except (OSError, ValueError, KeyError):
            return None
        return int(recorded)

    def check(self, recipe: Recipe, data: Data) -> None:
        """Raise unless recipe and data set are still those that the run began with, but for how long it trains.

        Runs of 0.1.0 have no record of their recipe.
        """
        stored, meta = load_tensors(self.splits)
        whole = replace(recipe, loss=recipe.loss.complete())
        before, now = flat(json.loads(meta.get("recipe", "{}"))), flat(to_plain(whole))
        for name, value in before.items():
            if name in now and now[name] != value and name not in {*NEUTRAL, "epochs", "patience"}:
                raise InputError(
                    f"{self.recipe} was changed since the run began: {name} was {value}, is {now[name]}. Restore it, "
                    "or start a new run"
                )
        hashes = data.fingerprint()
        known = json.loads(meta.get("data", "{}"))
        for part, numbers in data.splits().items():
            same = part in stored and torch.equal(stored[part], numbers)
            if not same or known.get(part, hashes[part]) != hashes[part]:
                raise InputError(
                    f"the data set is not the one this run began with: its {part} part has other samples. "
                    "Restore the files, or start a new run"
                )

    def write_metrics(self, history: list[dict[str, float]]) -> None:
        """Write one row per epoch, all of them anew, so that they agree with the state to resume from."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(history[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _short(value) for name, value in row.items()} for row in history)
        write_text(self.metrics, text.getvalue())

    def save_weights(self, model: nn.Module, recipe: Recipe, epoch: int, names: tuple[str, ...], *, best: bool) -> None:
        """Write a network's weights under their own names as the last ones and, if they are, as the best ones."""
        meta = {"recipe": recipe.name, "epoch": str(epoch), "classes": json.dumps(names), "acls": acls.__version__}
        save_tensors(self.last, model.state_dict(), meta)
        if best:
            with atomic_write(self.best) as temporary:
                try:
                    os.link(self.last, temporary)  # the same file under two names, until the last one is replaced
                except OSError:
                    shutil.copyfile(self.last, temporary)


def open_run(path: Path) -> tuple[RunFolder, Recipe]:
    """The folder of a run that was started, and its recipe."""
    folder = RunFolder(path)
    if not folder.recipe.is_file():
        raise InputError(f"{path} is not the folder of a run: there is no recipe.yaml in it")
    return folder, load_recipe(folder.recipe)


def new_folder(recipe: Recipe) -> Path:
    """A folder's name that is not taken yet: runs/RECIPE-LOSS-SEED, with a number if need be."""
    base = Path("runs") / f"{recipe.name}-{recipe.loss.name}-{recipe.seed}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


def environment() -> dict[str, Any]:
    """Versions, source revision, command and machine: what another needs to repeat the run."""
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
    """The commit of acls's own source, with a plus where it was changed since; None where it is installed."""
    source = Path(acls.__file__).parent
    command = ["git", "-C", str(source), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) or math.isnan(value) else f"{value:.6g}"
