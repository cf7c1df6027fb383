"""A study to send or publish: all that tables, figures and the page are made of, without weights and private paths."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import torch

from acls.errors import InputError
from acls.predictions import Predictions
from acls.recipes import load_recipe, save_recipe
from acls.storage import write_text
from acls.study import resamples
from acls.study.store import NAME, Row, Store
from acls.train import RunFolder

HALF = 60_000.0
"""Scores up to here are kept in half precision, whose largest number is 65,504."""


def share(folder: str | Path, out: str | Path, *, outputs: bool = True) -> int:
    """Copy a study into another folder, and return how many runs it has.

    Of each run there are its recipe, its curve, its calibrators and its test outputs in half precision, from which the
    page draws its diagrams and tests differences; the stored numbers stay as they were measured. Without outputs there
    are its metrics on resampled test samples, from which differences have their intervals all the same. Where the data
    was is reduced to the name of the file or folder. What is there already is written anew.
    """
    store, out = Store(folder), Path(out)
    if out.resolve() == store.folder.resolve():
        raise InputError(f"{out} is the study itself: name another folder to share it in")
    rows = store.rows()
    if not rows:
        raise InputError(f"{folder} is the folder of a study that has no finished run yet")
    if not (out / NAME).exists() and out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} holds other files: name a new folder, or one that a study was shared in before")
    Store(out, create=True).add(*map(_public, rows))
    runs = dict.fromkeys(row.run for row in rows)
    for run in runs:
        _copy(RunFolder(store.folder / run), RunFolder(out / run), outputs)
    if not outputs:
        for row in rows:
            if resamples.known(store.folder, row):
                resamples.keep(store.folder, row, out)
    return len(runs)


def _public(row: Row) -> Row:
    recipe = row.settings.get("recipe", {})
    data = recipe.get("data", {})
    if not data.get("root"):
        return row
    named = {**data, "root": PurePath(data["root"]).name}
    return replace(row, settings={**row.settings, "recipe": {**recipe, "data": named}})


def _copy(run: RunFolder, to: RunFolder, outputs: bool) -> None:
    if not run.recipe.is_file():  # a row without a run, which is all there is
        return
    to.path.mkdir(parents=True, exist_ok=True)
    recipe = load_recipe(run.recipe)
    root = recipe.data.root
    save_recipe(replace(recipe, data=replace(recipe.data, root=root and PurePath(root).name)), to.recipe)
    for file in (run.metrics, run.summary):
        shutil.copyfile(file, to.path / file.name)
    environment = run.path / "environment.json"
    if environment.is_file():
        told = _anonymous(json.loads(environment.read_text(encoding="utf-8")))
        write_text(to.path / environment.name, json.dumps(told, indent=2) + "\n")
    if (run.path / "calibrators").is_dir():
        shutil.copytree(run.path / "calibrators", to.path / "calibrators", dirs_exist_ok=True)
    if outputs:
        test = Predictions.load(run.predictions("test"))
        to.predictions("test").parent.mkdir(exist_ok=True)
        _halved(test).save(to.predictions("test"))


def _anonymous(environment: dict[str, Any]) -> dict[str, Any]:
    """Without the places of files in the command."""
    return {**environment, "command": [_last_name(word) for word in environment.get("command", [])]}


def _last_name(word: str) -> str:
    """A word of a command, of a path in it, as in ``--data cifar10=/data/cifar10.zip``, only the last name."""
    before, equals, path = word.rpartition("=")
    return f"{before}{equals}{PurePath(path).name}" if PurePath(path).is_absolute() else word


def _halved(predictions: Predictions) -> Predictions:
    scores = predictions.scores
    if scores is None or float(scores.abs().max()) > HALF:
        return predictions
    return replace(predictions, scores=scores.to(torch.float16))
