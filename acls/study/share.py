"""Share a study as two files, which contain all data for tables, figures and the page, but no weights.

Paths of data, weights and a user's model file are shortened to the name of the file or folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from acls.errors import InputError
from acls.metrics import Confusion
from acls.metrics.protocols import protocol
from acls.models.own import is_own
from acls.options import from_plain, to_plain
from acls.predictions import Predictions
from acls.recipes import Recipe
from acls.recipes.recipe import recipe_text
from acls.results.details import Details
from acls.results.keeping import save
from acls.shown import Shown
from acls.storage import load_tensors, save_tensors
from acls.study.runs import detailed, refuse_other_settings
from acls.study.store import MAPS, OUTPUTS, STORE, Row, RunFiles, Store, calibrator_file, kept_file, shared_files
from acls.train.folder import ENVIRONMENT, METRICS, RECIPE, SUMMARY

PLACES = ("data.root", "model.weights", "model.name")
"""Settings of a recipe that contain paths; the last one may be a file with the user's own model."""
HALF = 60_000.0
"""Scores up to this value are stored in half precision, whose largest number is 65,504."""


@dataclass(frozen=True, repr=False)
class Shared(Shown):
    """A shared study: the number of its runs, the number of new runs, and its size."""

    folder: str
    runs: int
    added: int
    bytes: int


def share(folder: str | Path, out: str | Path, *, outputs: bool = True) -> Shared:
    """Add the finished runs of a study to a shared study in another folder.

    A shared study is a store and a file of test outputs. The store contains the metrics as they were measured and, for
    each run, its recipe, curve, summary and calibrators. The outputs are in half precision. Without outputs, the
    metrics on resampled test samples are stored, so that differences still have intervals. A shared study can itself be
    shared again.

    Nothing is replaced. A run that already exists with the same numbers is not changed. A run that exists with other
    numbers raises an error, and so do runs with other settings, runs outside of the study's folder, and links.
    """
    store, out = Store(folder), Path(out)
    if out.resolve() == store.folder.resolve():
        raise InputError(f"{out} is the study itself: pass another folder for the copy")
    rows = [_public_row(row) for row in store.rows()]
    if not rows:
        raise InputError(f"{folder} is the folder of a study that has no finished run yet")
    if not (out / STORE).exists() and out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} contains other files: pass a new folder, or one that acls share wrote before")
    there = Store(out).rows() if (out / STORE).exists() else []
    _refuse_conflicts(rows, there, out)
    runs = {row.run: RunFiles(store.folder, row.run) for row in rows if row.run}
    for run in runs.values():
        _refuse_links(run)
    kept = shared_files(out)
    tensors = load_tensors(out / OUTPUTS)[0] if (out / OUTPUTS).is_file() else {}
    files: dict[tuple[str, str], bytes | None] = {}
    for name, run in runs.items():
        files |= {(name, file): content for file, content in _small_files(run).items()}
        if run.has_outputs() and outputs and (name, OUTPUTS) not in kept:
            files[name, OUTPUTS] = json.dumps(_add(tensors, name, run.test())).encode()
        elif run.has_outputs() and not outputs and (test := run.test()).image is not None:
            files[name, MAPS] = json.dumps(to_plain(_of_maps(test))).encode()
    for row in rows if outputs else detailed(store.folder, rows):
        if row.run:
            files[row.run, calibrator_file(row.posthoc)] = runs[row.run].read(calibrator_file(row.posthoc))
            files[row.run, kept_file(row.posthoc)] = None if outputs else _resamples(row)
    shared = Store(out, create=True)
    if tensors:
        save_tensors(out / OUTPUTS, tensors, {"acls": "outputs"})
    known = {row.key for row in there}
    shared.add_files({**{key: content for key, content in files.items() if content is not None}, **kept})
    shared.add(*(row for row in rows if row.key not in known))  # last, so that all listed runs have their files
    old, runs_now = {row.run for row in there}, {row.run for row in (*rows, *there)}
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return Shared(str(out), len(runs_now), len(runs_now - old), size)


def _refuse_conflicts(rows: Sequence[Row], there: Sequence[Row], out: Path) -> None:
    """Raise an error for runs with other settings, and for a run that already exists with other numbers."""
    remedy = "share it in another folder"
    refuse_other_settings(rows, there, str(out), remedy)
    cells = {row.key: row for row in there}
    runs = {row.run: row for row in there}
    for row in rows:
        same, owner = cells.get(row.key), runs.get(row.run)
        if same is not None and same.result != row.result:
            raise InputError(f"{out} has {row.method} of seed {row.seed} with different numbers: {remedy}")
        if owner is not None and (owner.recipe, owner.method, owner.seed) != (row.recipe, row.method, row.seed):
            raise InputError(f"{out} has another run named {row.run}, of {owner.method}: {remedy}")


def _refuse_links(run: RunFiles) -> None:
    """Raise an error for a run with links to other places: shared files must belong to the study."""
    root, places = run.study.resolve(), (run.path, *run.path.rglob("*"))
    for place in (one for one in places if one.exists()):
        if place.resolve() != root / place.relative_to(run.study):
            raise InputError(f"{place} is a link, which is not followed: replace it with its target, or remove it")


def _public_row(row: Row) -> Row:
    recipe = row.settings.get("recipe")
    return replace(row, settings={**row.settings, "recipe": _public(recipe)}) if recipe else row


def _public(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe with paths shortened to file names."""
    recipe = {name: dict(part) if isinstance(part, dict) else part for name, part in recipe.items()}
    for place in PLACES:
        part, name = place.split(".")
        value = recipe.get(part, {}).get(name)
        if value and (name != "name" or is_own(value)):
            recipe[part][name] = PurePath(value).name
    return recipe


def _small_files(run: RunFiles) -> dict[str, bytes | None]:
    """Return the small files of a run, without paths of data, weights and the like."""
    recipe, environment = run.recipe(), json.loads(run.text(ENVIRONMENT) or "null")
    if recipe is None:  # a row without a run has no files
        return {}
    found = {name: run.read(name) for name in (METRICS, SUMMARY)}
    found[RECIPE] = recipe_text(from_plain(Recipe, _public(to_plain(recipe)))).encode()
    if environment is not None:
        environment["command"] = [_last_name(word) for word in environment.get("command", [])]
        found[ENVIRONMENT] = (json.dumps(environment, indent=2) + "\n").encode()
    return found


def _last_name(word: str) -> str:
    """Shorten a path in a word of a command, such as ``cifar10=/data/cifar10.zip``, to its last name."""
    before, equals, path = word.rpartition("=")
    return f"{before}{equals}{PurePath(path).name}" if PurePath(path).is_absolute() else word


def _add(tensors: dict[str, Tensor], run: str, p: Predictions) -> dict[str, Any]:
    """Add the outputs of a run to the tensors, with columns that runs share only once; return the run's columns."""
    assert p.scores is not None  # networks have scores
    small = float(p.scores.abs().max()) <= HALF if len(p) else True
    tensors[run] = p.scores.to(torch.float16) if small else p.scores
    columns: dict[str, str] = {p.kind: run}
    for name, column in (("labels", p.labels), ("image", p.image)):
        if column is None:
            continue
        most = int(column.max()) if len(p) else 0
        narrow = column.to(torch.int16 if most < 2**15 and int(column.min()) >= -(2**15) else torch.int64)
        same = (key for key, other in tensors.items() if key.startswith(f"{name}-") and torch.equal(other, narrow))
        columns[name] = next(same, f"{name}-{len(tensors)}")
        tensors[columns[name]] = narrow
    return {"columns": columns, "meta": p.meta}


def _of_maps(p: Predictions) -> dict[str, float]:
    """Compute the ECE by the protocol of papers on segmentation, and the mean IoU of frequent classes.

    A class is frequent if at least one in ten images shows it. Both metrics use the pixels that were kept of each
    image. The background, class 0, is left out.
    """
    assert p.scores is not None  # networks have scores
    assert p.image is not None
    assert p.kind != "triples"
    found = protocol("mbls-segmentation").measure(p.scores, p.labels, kind=p.kind, image=p.image)
    pairs = torch.stack([p.image, p.labels]).unique(dim=1)  # type: ignore[no-untyped-call]
    images = torch.bincount(pairs[1], minlength=p.scores.shape[1])
    frequent = images >= len(p.image.unique()) / 10  # type: ignore[no-untyped-call]
    frequent[0] = False
    iou = Confusion.of(p.scores, p.labels, kind=p.kind).iou()[frequent]
    return {"ece_protocol": found["ece"], "aece_protocol": found["aece"], "miou_frequent": float(iou.nanmean())}


def _resamples(row: Row) -> bytes | None:
    resamples = row.result.details.resamples
    if resamples is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kept.safetensors")
        save(replace(row.result, suite=None, details=Details(resamples=resamples)), file, "shared")
        return file.read_bytes()
