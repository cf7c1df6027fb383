"""The runs of a study: methods and seeds of a recipe, trained, measured, and measured again after calibration.

A cell is one method with one seed. What it leaves is in a run folder, as `acls train` writes it, with the fitted
calibrators beside; what it measured is in the store. A cell that is stored is not touched again, one that was broken
off goes on from its last checkpoint.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from acls.calibrators import Calibrator, make_calibrator
from acls.errors import InputError
from acls.locks import hold
from acls.metrics.bins import BINS
from acls.metrics.catalogue import CATALOGUE
from acls.metrics.estimates import Estimate
from acls.models.own import resolved
from acls.options import flat, from_plain, to_plain
from acls.predictions import Predictions
from acls.recipes import Recipe, load_recipe
from acls.results import Result, evaluate
from acls.results.keeping import kept
from acls.spec import Spec, parse, written
from acls.study.engine import Engine
from acls.study.files import TEST, RunFiles, calibrator_file, file_name, kept_file
from acls.study.methods import decided_by, methods_of
from acls.study.progress import Progress
from acls.study.store import Row, Store
from acls.train import Given, RunFolder, TrainingStopped, fit, resume
from acls.train.folder import NEUTRAL

NONE = "none"
FREE = {"loss", "seed", *NEUTRAL} - {"data.root", "model.weights"}
"""Settings in which the runs of a study may differ: what is compared, and what changes results in their last bits."""


@dataclass(frozen=True)
class Cell:
    """One method with one seed: what to train, where, and after which post-hoc methods to measure."""

    recipe: Recipe
    method: str
    folder: str
    """Of the study, absolute: a worker may have another working folder."""
    run: str
    posthoc: tuple[Calibrator | None, ...]
    """None for the network as it is."""
    given: Given | None = None
    """The model and the data, where they were handed over in Python."""

    @property
    def path(self) -> RunFolder:
        return RunFolder(self.place)

    @property
    def place(self) -> Path:
        return Path(self.folder, self.run)

    def below(self, root: Path) -> Cell:
        """The same cell with the study's folder below another root, as on a machine without a disk in common."""
        return replace(self, folder=str(root / Path(self.folder).relative_to("/")))


@dataclass(frozen=True)
class Failed:
    """A cell whose training cannot go on, and why."""

    method: str
    seed: int
    why: str


def plan(
    folder: str | Path,
    recipe: Recipe,
    methods: str | Iterable[Spec],
    seeds: Iterable[int],
    posthoc: str | Iterable[Calibrator] = NONE,
) -> list[Cell]:
    """The cells of a study, seed by seed, so that a study broken off has compared all methods on some.

    ``methods`` may be text as in `acls.study.methods`, ``posthoc`` as in ``"temperature, ETS(objective=nll)"``; the
    network as it is always is measured.
    """
    if isinstance(posthoc, str):
        posthoc = [make_calibrator(spec) for spec in parse(posthoc, "calibrator", {NONE: ()})]
    after = (None, *{calibrator_name(one): one for one in posthoc}.values())
    found = methods_of(replace(recipe, model=resolved(recipe.model)), methods)
    return [
        Cell(
            replace(method.recipe, seed=seed),
            method.name,
            str(Path(folder).absolute()),
            f"runs/{file_name(method.name)}-{seed}",
            after,
        )
        for seed in seeds
        for method in found
    ]


def run_study(
    cells: Sequence[Cell], engine: Engine, *, wait: bool = False, progress: Progress | None = None
) -> list[Failed]:
    """Work off what is not stored yet, store it, and return the cells that failed."""
    store = Store(cells[0].folder, create=True)
    failed = []
    with store.lock(wait=wait), progress or Progress(show=False) as told:
        _check_settings(cells, store.rows())
        rest = missing(cells, store.rows())
        told.start(rest)
        with closing(engine.map(run_cell, rest)) as results:
            for number, result in results:
                if isinstance(result, Failed):
                    failed.append(result)
                else:
                    store.add(*result)
                told.finish(rest[number])
    return failed


def missing(cells: Iterable[Cell], rows: Iterable[Row]) -> list[Cell]:
    """The cells with what is not stored of them."""
    stored = {row.key for row in rows}
    rest = []
    for cell in cells:
        left = tuple(one for one in cell.posthoc if _blank(cell, one).key not in stored)
        if left:
            rest.append(replace(cell, posthoc=left))
    return rest


def chosen(cells: Sequence[Cell], rows: Iterable[Row]) -> list[Row]:
    """The stored rows of the cells: those of one post-hoc method together, methods in the order of the cells."""
    stored = {row.key: row for row in rows}
    methods = list(dict.fromkeys(cell.method for cell in cells))
    wanted = [_blank(cell, one) for cell in cells for one in cell.posthoc]
    posthocs = list(dict.fromkeys(row.posthoc for row in wanted))
    wanted.sort(key=lambda row: (posthocs.index(row.posthoc), methods.index(row.method), row.seed))
    return [stored[row.key] for row in wanted if row.key in stored]


def run_cell(cell: Cell) -> list[Row] | Failed:
    """Train, or go on training, and measure."""
    folder = cell.path
    folder.path.mkdir(parents=True, exist_ok=True)
    with hold(folder.path / ".lock", wait=True):  # a worker whose study was killed may still be about to end
        try:
            if not folder.recipe.exists():
                fit(cell.recipe, folder.path, show=False, given=cell.given)
            elif not folder.summary.exists():
                resume(folder.path, show=False, given=cell.given)
        except TrainingStopped as error:
            return Failed(cell.method, cell.recipe.seed, str(error))
        return _measured(cell)


def outputs(folder: str | Path, row: Row) -> Predictions:
    """The test predictions behind a row, calibrated where it is a row after a post-hoc method."""
    run = RunFiles(Path(folder), row.run)
    return _after(run, row.posthoc, run.test())


def detailed(folder: str | Path, rows: Iterable[Row]) -> list[Row]:
    """The rows with the sums, mistakes and resamples behind them, where the outputs are there.

    They are kept beside the outputs when a run is measured; an older run is measured again, from one reading.
    """
    found: list[Row] = []
    test: tuple[str, Predictions] | None = None
    for row in rows:
        run = RunFiles(Path(folder), row.run)
        if not row.run or not run.has_outputs():
            details = run.kept(row.posthoc) if row.run else None
            found.append(replace(row, result=replace(row.result, details=details)))
            continue

        def made(run: RunFiles = run, row: Row = row) -> Result:
            nonlocal test
            if test is None or test[0] != row.run:
                test = row.run, run.test()
            return _evaluated_after(run, row.posthoc, test[1])

        file = run.path / TEST
        result = kept(run.path / kept_file(row.posthoc), file, made) if file.is_file() else made()
        sums = replace(row.result, suite=result.suite, details=result.details, labels=result.labels, unit=result.unit)
        found.append(replace(row, result=sums))
    return found


def evaluated(predictions: Predictions) -> Result:
    """Evaluate predictions with all that a page and a ranking need; images, where there are any, are independent."""
    return replace(evaluate(predictions, by_image=None, detailed=True), blocks=None)


def protocol(recipe: Recipe) -> dict[str, Any]:
    """How the numbers of a recipe's runs are computed: two can be compared where this is the same."""
    return {
        "split": "test",
        "bins": BINS,
        "edges": "(lo, hi]",
        "pooled": True,
        "positions": f"all labelled samples; of label maps, {recipe.pixels} labelled pixels each",
        "background": "counted",
        "checkpoint": f"best validation {recipe.select}",
        "calibrated on": "validation",
    }


def calibrator_name(calibrator: Calibrator | None) -> str:
    """A calibrator as one would write it; `NONE` for none."""
    return NONE if calibrator is None else written(calibrator)


def _blank(cell: Cell, calibrator: Calibrator | None) -> Row:
    """The row of a cell before anything is measured."""
    settings = {"recipe": to_plain(cell.recipe), "loss": cell.recipe.loss.build().settings()}
    name, told = cell.recipe.name, protocol(cell.recipe)
    empty = Result(0, {})
    return Row(
        cell.method, cell.recipe.seed, calibrator_name(calibrator), empty, told, name, "test", 0.0, cell.run, settings
    )


def _measured(cell: Cell) -> list[Row]:
    """Measure a finished run as it is and after each post-hoc method; each file of predictions is read once."""
    folder, run = cell.path, RunFiles(Path(cell.folder), cell.run)
    test = run.test()
    summary = json.loads(folder.summary.read_text(encoding="utf-8"))
    seconds = sum(row["seconds"] for row in run.history())
    calibrators = [one for one in cell.posthoc if one is not None]
    if calibrators:
        val = Predictions.load(folder.predictions("val"))
        for calibrator in calibrators:
            fitted = copy.deepcopy(calibrator).fit(val.logits(), val.labels, group=val.image)
            fitted.save(run.path / calibrator_file(calibrator_name(calibrator)))
    rows = []
    for one in cell.posthoc:
        blank = _blank(cell, one)
        file = run.path / kept_file(blank.posthoc)
        file.unlink(missing_ok=True)
        result = kept(file, run.path / TEST, partial(_evaluated_after, run, blank.posthoc, test))
        if one is None:  # of whole label maps, which the saved predictions are a part of
            of_maps = [name for name, about in CATALOGUE.items() if about.needs == "maps" and name in summary["test"]]
            maps = {name: Estimate(summary["test"][name]) for name in of_maps}
            result = replace(result, estimates={**result.estimates, **maps})
        settings = {**blank.settings, "loss": summary["loss"]}
        rows.append(replace(blank, result=result, seconds=seconds, settings=settings))
    return rows


def _evaluated_after(run: RunFiles, posthoc: str, test: Predictions) -> Result:
    return evaluated(_after(run, posthoc, test))


def _after(run: RunFiles, posthoc: str, predictions: Predictions) -> Predictions:
    if posthoc == NONE:
        return predictions
    calibrator = run.calibrator(posthoc)
    if calibrator is None:
        raise InputError(f"{run.path} lacks the calibrator of {posthoc}: {calibrator_file(posthoc)} is missing")
    return predictions.calibrated(calibrator)


def refuse_other_settings(rows: Sequence[Row], stored: Iterable[Row], study: str, remedy: str) -> None:
    """Raise where a study has stored runs of the same recipe with other settings than these rows."""
    by_method = {(row.recipe, row.method): row for row in rows}
    by_recipe = {row.recipe: row for row in reversed(rows)}
    for old in stored:
        same = by_method.get((old.recipe, old.method))
        new = same or by_recipe.get(old.recipe)
        if new is None:
            continue
        # What the method itself decides on can only be compared with the same method's.
        free = set() if same else decided_by(new.method) | decided_by(old.method)
        _refuse_other_recipe(from_plain(Recipe, old.settings["recipe"]), new, free, study, remedy)
        if same:
            _refuse_other_loss(old, new, study, remedy)


def _check_settings(cells: Sequence[Cell], stored: Sequence[Row]) -> None:
    """Raise where the folder holds runs with other settings, before anything is trained."""
    study, remedy = f"the study in {cells[0].folder}", "pass the same settings to go on with it, or another --out"
    for cell in cells:
        if cell.path.recipe.exists():
            _refuse_other_recipe(load_recipe(cell.path.recipe), _blank(cell, None), set(), study, remedy)
    refuse_other_settings([_blank(cell, None) for cell in cells], stored, study, remedy)


def _refuse_other_recipe(recipe: Recipe, row: Row, free: set[str], study: str, remedy: str) -> None:
    before, now = flat(to_plain(recipe)), flat(row.settings["recipe"])
    for name in now:
        if {name, name.split(".")[0]} & (FREE | free) or before.get(name) == now[name]:
            continue
        if name == "model.source":
            raise InputError(
                f"the source of {recipe.model.name} has changed since {study} began: restore it, or {remedy}"
            )
        raise InputError(f"{study} has runs with {name} {before.get(name)}, got {now[name]}: {remedy}")


def _refuse_other_loss(old: Row, new: Row, study: str, remedy: str) -> None:
    """Raise where the stored method has the same name with other settings: a default has changed since."""
    before, now = flat(old.settings["loss"]), flat(new.settings["loss"])
    for name in before.keys() & now.keys() - {"ignore_index"}:
        if before[name] != now[name]:
            raise InputError(
                f"{study} has {old.method} with {name}={before[name]}, but it is now {now[name]}: write {name} out in "
                f"--methods, or {remedy}"
            )
