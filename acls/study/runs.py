"""The runs of a study: train the methods and seeds of a recipe, and measure them before and after calibration.

A cell is one method with one seed. Its files are in a run folder, as `acls train` writes it, together with the fitted
calibrators. Its metrics are in the store. A cell that is in the store is not changed again. A cell that was interrupted
continues from its last checkpoint.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from acls.calibrators import Calibrator, make_calibrator
from acls.errors import InputError, require
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
from acls.storage import hold
from acls.study.engine import Engine, Local, repeated
from acls.study.methods import decided_by, methods_of
from acls.study.store import Row, RunFiles, Store, calibrator_file, file_name, kept_file
from acls.train import Given, RunFolder, TrainingStopped, fit, resume
from acls.train.folder import NEUTRAL, SUMMARY, TEST, VAL
from acls.train.progress import progress_bar

NONE = "none"
FREE = {"loss", "seed", *NEUTRAL} - {"data.root", "model.weights"}
"""Settings that may differ between runs of a study: those compared, and those that change only the last bits."""
BINNED = {"bins": BINS, "edges": "(lo, hi]", "pooled": True}
"""How the metrics of any predictions are computed, of runs and of files."""
EVERY = 0.5
"""Seconds between two checks of the run folders."""


@dataclass(frozen=True)
class Cell:
    """One method with one seed: the recipe to train, its folder, and the post-hoc methods to measure."""

    recipe: Recipe
    method: str
    folder: str
    """The absolute path of the study: a worker may have another working folder."""
    run: str
    posthoc: tuple[Calibrator | None, ...]
    """The post-hoc methods to measure; None is the network without one."""
    given: Given | None = None
    """The model and the data, if they were passed in Python."""

    @property
    def place(self) -> Path:
        return Path(self.folder, self.run)

    def below(self, root: Path) -> Cell:
        """Return the same cell with the study's folder under another root, for a machine without a shared disk."""
        return replace(self, folder=str(root / Path(self.folder).relative_to("/")))


@dataclass(frozen=True)
class Failed:
    """A cell whose training cannot continue, and the reason."""

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
    """Return the cells of a study, ordered by seed, so that an interrupted study has all methods for some seeds.

    ``methods`` may be text as in `acls.study.methods`, and ``posthoc`` may be text such as
    ``"temperature, ETS(objective=nll)"``. The network without a post-hoc method is always measured.
    """
    if isinstance(posthoc, str):
        posthoc = [make_calibrator(spec) for spec in parse(posthoc, "calibrator", {NONE: ()})]
    after = (None, *{calibrator_name(one): one for one in posthoc}.values())
    found = methods_of(replace(recipe, model=resolved(recipe.model)), methods)
    place = str(Path(folder).absolute())
    return [
        Cell(replace(method.recipe, seed=seed), method.name, place, f"runs/{file_name(method.name)}-{seed}", after)
        for seed in seeds
        for method in found
    ]


def run_study(cells: Sequence[Cell], engine: Engine, *, wait: bool = False, show: bool = False) -> list[Failed]:
    """Run and store the cells that are not stored yet; return those that failed. ``show`` displays a progress bar."""
    store, failed = Store(cells[0].folder, create=True), list[Failed]()
    with store.lock(wait=wait):
        stored = store.rows()
        _check_settings(cells, stored)
        rest = missing(cells, stored)
        progress = Progress(rest)
        mapped = replace(engine, devices=cells[0].recipe.devices).map(run_cell, rest)
        with progress.shown(show=show), closing(mapped) as results:
            for number, result in results:
                if isinstance(result, Failed):
                    failed.append(result)
                else:
                    store.add(*result)
                progress.finished.add(rest[number].run)
    return failed


class Progress:
    """The progress of the cells, read from the metrics.csv files of their runs, so it works with every engine."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.finished: set[str] = set()
        """The runs that the engine has reported as done."""

    def look(self) -> tuple[int, str]:
        """Return the number of finished epochs, and a text about the first unfinished cell, which is running.

        Cells are started in order. A run that ended before its last epoch counts as complete.
        """
        epochs = {
            cell.run: cell.recipe.epochs if cell.run in self.finished else epochs_of(RunFolder(cell.place).metrics)
            for cell in self.cells
        }
        text = f"{len(self.finished)}/{len(self.cells)} runs"
        if now := next((cell for cell in self.cells if cell.run not in self.finished), None):
            last = now.recipe.epochs
            text += f", {now.method}, seed {now.recipe.seed}, epoch {min(epochs[now.run] + 1, last)}/{last}"
        return sum(epochs.values()), text

    @contextmanager
    def shown(self, *, show: bool) -> Iterator[None]:
        """Show a progress bar during the block; no bar without a terminal or rich, or if ``show`` is False."""
        # A run starts slowly, so the speed is averaged over minutes.
        bar = progress_bar(stderr=True, speed_estimate_period=300) if show and sys.stderr.isatty() else None
        if bar is None or not self.cells:
            yield
            return
        before, text = self.look()  # epochs done before say nothing about the speed and are not counted
        task = bar.add_task(text, total=max(sum(cell.recipe.epochs for cell in self.cells) - before, 1))

        def look_again() -> None:
            done, text = self.look()
            bar.update(task, completed=done - before, description=text)

        with bar, repeated(look_again, EVERY):
            yield


def epochs_of(metrics: Path) -> int:
    """Return the number of finished epochs of a run, from its metrics.csv."""
    with suppress(FileNotFoundError):
        return max(metrics.read_bytes().count(b"\n") - 1, 0)
    return 0


def missing(cells: Iterable[Cell], rows: Iterable[Row]) -> list[Cell]:
    """Return the cells of which a row is not stored, each with only its missing post-hoc methods."""
    stored = {row.key for row in rows}
    left = ((cell, tuple(one for one in cell.posthoc if _blank(cell, one).key not in stored)) for cell in cells)
    return [replace(cell, posthoc=posthoc) for cell, posthoc in left if posthoc]


def chosen(cells: Sequence[Cell], rows: Iterable[Row]) -> list[Row]:
    """Return the stored rows of the cells, grouped by post-hoc method, with the methods in the order of the cells."""
    stored = {row.key: row for row in rows}
    methods = list(dict.fromkeys(cell.method for cell in cells))
    wanted = [_blank(cell, one) for cell in cells for one in cell.posthoc]
    posthocs = list(dict.fromkeys(row.posthoc for row in wanted))
    wanted.sort(key=lambda row: (posthocs.index(row.posthoc), methods.index(row.method), row.seed))
    return [stored[row.key] for row in wanted if row.key in stored]


def run_cell(cell: Cell) -> list[Row] | Failed:
    """Train a cell, or continue its training, and measure it."""
    folder = RunFolder(cell.place)
    folder.path.mkdir(parents=True, exist_ok=True)
    with hold(folder.path / ".lock", wait=True):  # a worker of a killed study may not have ended yet
        fresh, finished = not folder.recipe.exists(), folder.summary.exists()
    devices = (cell.recipe if fresh else load_recipe(folder.recipe)).devices
    try:
        if not finished and devices == 1:
            _train((cell, fresh, {}))
        elif not finished:
            port = require("lightning_fabric.plugins.environments.lightning", extra="train").find_free_network_port()
            # What torchrun would set: Lightning would start this command again for each process.
            told = {"WORLD_SIZE": devices, "LOCAL_WORLD_SIZE": devices, "MASTER_ADDR": "127.0.0.1"}
            told |= {"MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "acls"}
            ranks = [(cell, fresh, told | {"RANK": rank, "LOCAL_RANK": rank}) for rank in range(devices)]
            together = Local(devices, max(1, torch.get_num_threads() // devices), devices=0, tries=1)
            list(together.map(_train, ranks))
    except TrainingStopped as error:
        return Failed(cell.method, cell.recipe.seed, str(error))
    with hold(folder.path / ".lock", wait=True):
        return _rows(cell)


def _train(task: tuple[Cell, bool, dict[str, Any]]) -> None:
    """Train a cell, or continue it if it is not fresh, as one of several processes if the environment says so."""
    cell, fresh, environment = task
    os.environ |= {name: str(value) for name, value in environment.items()}
    train = partial(fit, cell.recipe) if fresh else resume
    train(cell.place, show=False, given=cell.given, wait=True)


def outputs(folder: str | Path, row: Row) -> Predictions:
    """Return the test predictions of a row, calibrated if the row has a post-hoc method."""
    run = RunFiles(Path(folder), row.run)
    return _after(run, row.posthoc, run.test())


def detailed(folder: str | Path, rows: Iterable[Row]) -> list[Row]:
    """Return the rows with their sums, mistakes and resamples, if the outputs are available.

    These are stored beside the outputs when a run is measured. An older run is measured again, and its outputs are read
    once.
    """
    found, test = [], lru_cache(1)(RunFiles.test)
    for row in rows:
        run, result = RunFiles(Path(folder), row.run), row.result
        if row.run and run.has_outputs():
            new = _measured(run, row.posthoc, test)
            result = replace(result, suite=new.suite, details=new.details, labels=new.labels, unit=new.unit)
        elif row.run:
            result = replace(result, details=run.kept(row.posthoc))
        found.append(replace(row, result=result))
    return found


def evaluated(predictions: Predictions, **settings: Any) -> Result:
    """Evaluate predictions with the details for a page and a ranking; images, if any, are the independent units."""
    return replace(evaluate(predictions, detailed=True, **settings), blocks=None)


def protocol(recipe: Recipe) -> dict[str, Any]:
    """Return how the metrics of a recipe's runs are computed; runs are comparable if this is equal."""
    return {
        "split": "test",
        **BINNED,
        "positions": f"all labelled samples; of label maps, {recipe.pixels} labelled pixels each",
        "background": "counted",
        "checkpoint": f"best validation {recipe.select}",
        "calibrated on": "validation",
    }


def calibrator_name(calibrator: Calibrator | None) -> str:
    """Return a calibrator as a user would write it; `NONE` for no calibrator."""
    return NONE if calibrator is None else written(calibrator)


def _blank(cell: Cell, calibrator: Calibrator | None) -> Row:
    """Return the row of a cell before anything is measured."""
    recipe, posthoc = cell.recipe, calibrator_name(calibrator)
    settings = {"recipe": to_plain(recipe), "loss": recipe.loss.build().settings()}
    empty, measured = Result(0, {}), protocol(recipe)
    return Row(cell.method, recipe.seed, posthoc, empty, measured, recipe.name, "test", 0.0, cell.run, settings)


def _rows(cell: Cell) -> list[Row]:
    """Measure a finished run before and after each post-hoc method; each file of predictions is read once."""
    run, test = RunFiles(Path(cell.folder), cell.run), lru_cache(1)(RunFiles.test)
    summary = json.loads(run.text(SUMMARY))
    seconds = sum(row["seconds"] for row in run.history())
    calibrators = [one for one in cell.posthoc if one is not None]
    if calibrators:
        val = Predictions.load(run.path / VAL)
        for calibrator in calibrators:
            fitted = copy.deepcopy(calibrator).fit(val.logits(), val.labels, group=val.image)
            fitted.save(run.path / calibrator_file(calibrator_name(calibrator)))
    rows = []
    for one in cell.posthoc:
        blank = _blank(cell, one)
        (run.path / kept_file(blank.posthoc)).unlink(missing_ok=True)
        result = _measured(run, blank.posthoc, test)
        if one is None:  # metrics of whole label maps; the saved predictions are only a part
            of_maps = [name for name, about in CATALOGUE.items() if about.needs == "maps" and name in summary["test"]]
            maps = {name: Estimate(summary["test"][name]) for name in of_maps}
            result = replace(result, estimates={**result.estimates, **maps})
        settings = {**blank.settings, "loss": summary["loss"]}
        rows.append(replace(blank, result=result, seconds=seconds, settings=settings))
    return rows


def _measured(run: RunFiles, posthoc: str, test: Callable[[RunFiles], Predictions]) -> Result:
    """Return the result after a post-hoc method: the one stored beside the outputs, or else computed from them."""
    file = run.path / TEST

    def made(**settings: Any) -> Result:
        return evaluated(_after(run, posthoc, test(run)), **settings)

    # Of a shared run only the sums are of use, as its rows have the intervals and floors.
    return kept(run.path / kept_file(posthoc), file, made) if file.is_file() else made(replicates=0)


def _after(run: RunFiles, posthoc: str, predictions: Predictions) -> Predictions:
    if posthoc == NONE:
        return predictions
    calibrator = run.calibrator(posthoc)
    if calibrator is None:
        raise InputError(f"{run.path} lacks the calibrator of {posthoc}: {calibrator_file(posthoc)} is missing")
    return predictions.calibrated(calibrator)


def refuse_other_settings(rows: Sequence[Row], stored: Iterable[Row], study: str, remedy: str) -> None:
    """Raise an error if a study has stored runs of the same recipe with settings that differ from these rows."""
    by_method = {(row.recipe, row.method): row for row in rows}
    by_recipe = {row.recipe: row for row in reversed(rows)}
    for old in stored:
        same = by_method.get((old.recipe, old.method))
        new = same or by_recipe.get(old.recipe)
        if new is None:
            continue
        # Settings that the method itself sets can only be compared with those of the same method.
        free = FREE if same else FREE | decided_by(new.method) | decided_by(old.method)
        before, now = flat(to_plain(from_plain(Recipe, old.settings["recipe"]))), flat(new.settings["recipe"])
        for name in now:
            if {name, name.split(".")[0]} & free or before.get(name) == now[name]:
                continue
            if name == "data.root" and before.get(name) == Path(str(now[name])).name:  # a shared study has no folders
                continue
            if name == "model.source":
                what = f"the source of {before['model.name']} has changed since {study} began"
                raise InputError(f"{what}: restore it to continue, or pass another folder")
            raise InputError(f"{study} has runs with {name} {before.get(name)}, got {now[name]}: {remedy}")


def _check_settings(cells: Sequence[Cell], stored: Sequence[Row]) -> None:
    """Raise an error, before any training, if the folder has stored or started runs with other settings."""
    study, remedy = f"the study in {cells[0].folder}", "pass the same settings to continue it, or another --out"
    rows = [_blank(cell, None) for cell in cells]
    there = {row.run: row.method for row in stored}
    for row in rows:
        if there.get(row.run, row.method) != row.method:  # a default has changed since
            raise InputError(
                f"{study} has {there[row.run]} instead of {row.method}: write it in full in --methods, or {remedy}"
            )
    begun = [
        replace(row, settings={"recipe": to_plain(load_recipe(file))})
        for cell, row in zip(cells, rows, strict=True)
        if (file := RunFolder(cell.place).recipe).exists()
    ]
    refuse_other_settings(rows, [*begun, *stored], study, remedy)
