"""Search settings on the validation part: a grid, or Optuna's TPE with pruning. The test part is not evaluated.

Trials are kept in Optuna's storage, an SQLite file in the study's folder or any database that several machines share;
each trains in a folder of its own. A search that was stopped goes on with the trials that were under way, from their
checkpoints, and then with what is left.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acls.errors import InputError, require
from acls.locks import hold
from acls.options import override, to_plain
from acls.recipes import LossOptions, Recipe, load_recipe
from acls.study.advisor import unbeaten
from acls.study.engine import Engine
from acls.study.space import Axis, grid
from acls.train import RunFolder, TrainingStopped
from acls.train.checkpoint import load_state
from acls.train.guards import interruptions, own_generator
from acls.train.loop import run_epoch
from acls.train.progress import Progress
from acls.train.session import Session
from acls.train.state import TrainState, restore

ALLOWANCE = 0.01
"""How far below the best trial's the accuracy may be, where no floor is given."""
WARMUP = 4
"""A trial is pruned after a quarter of its epochs at the earliest."""


@dataclass(frozen=True)
class Trial:
    """A point of the space with the numbers of its best epoch on the validation part."""

    number: int
    params: dict[str, Any]
    accuracy: float
    ece: float
    nll: float
    epoch: int
    """From 1."""


@dataclass(frozen=True)
class Found:
    """The finished trials, the accuracy that counts as enough, and the one of least ECE among those that have it."""

    trials: tuple[Trial, ...]
    pruned: int
    failed: int
    floor: float
    best: Trial | None
    front: tuple[Trial, ...]
    """Those that none beats in accuracy and ECE at once, by ascending accuracy."""
    n: int
    """Validation samples."""


@dataclass(frozen=True)
class Search:
    """What is searched, and how."""

    folder: Path
    recipe: Recipe
    axes: tuple[Axis, ...]
    sampler: str = "grid"
    trials: int = 20
    """Of TPE; a grid has its own number."""
    floor: float | None = None
    storage: str | None = None
    """A database's address; None for an SQLite file in the folder."""

    @property
    def address(self) -> str:
        return self.storage or f"sqlite:///{self.folder.absolute() / 'tune.sqlite'}"

    @property
    def name(self) -> str:
        """The study's name in the storage: the same search is the same study, on any machine."""
        told = json.dumps([_portable(self.recipe), [vars(axis) for axis in self.axes]], sort_keys=True)
        return f"{self.recipe.name}-{self.recipe.loss.name}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    @property
    def owner(self) -> str:
        """Whose trials these are, where several machines share a storage."""
        return f"{socket.gethostname()}:{self.folder.absolute()}"

    def open(self) -> Any:
        """The Optuna study."""
        optuna, sqlalchemy = (require(name, extra="study") for name in ("optuna", "sqlalchemy"))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            return optuna.create_study(
                study_name=self.name,
                storage=self.address,
                sampler=optuna.samplers.TPESampler(seed=self.recipe.seed, constant_liar=True),
                load_if_exists=True,
            )
        # An address that cannot be read, no driver for it, no such server or file, or tables of another version.
        except (
            ValueError,
            ImportError,
            RuntimeError,
            sqlalchemy.exc.SQLAlchemyError,
            optuna.exceptions.OptunaError,
        ) as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            shown = re.sub("//[^/]*@", "//***@", self.address)  # without a password
            raise InputError(
                f"the trials cannot be kept in {shown}: {why}. Pass a database's address as "
                "--storage, sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME; or none, for a file in --out"
            ) from error

    def with_params(self, params: Mapping[str, Any]) -> Recipe:
        """The recipe at a point: names with a dot, or of a recipe's own field, are settings; others, the loss's."""
        own = to_plain(self.recipe)
        settings = {name: value for name, value in params.items() if "." in name or name in own}
        fields = {name: value for name, value in params.items() if name not in settings}
        recipe = override(self.recipe, settings)
        loss = LossOptions(recipe.loss.name, recipe.loss.protocol, {**recipe.loss.fields, **fields})
        loss.build()  # raises for a field that it does not have
        return replace(recipe, loss=loss)


@dataclass(frozen=True)
class Task:
    """One trial for a worker."""

    recipe: Recipe
    run: str
    trial: int
    """Its id in the storage."""
    address: str
    study: str
    prunes: bool


def tune(
    search: Search, engine: Engine, *, wait: bool = False, told: Callable[[int, int], None] | None = None
) -> Found:
    """Run the trials that are left, and return all there are. ``told`` hears how many of how many are done."""
    _check_space(search)
    with hold(search.folder / "tune.lock", wait=wait):
        study = search.open()
        _run(search, study, engine, told)
        return found(search, study)


def found(search: Search, study: Any) -> Found:
    """What the storage holds."""
    optuna = require("optuna", extra="study")
    states = optuna.trial.TrialState
    trials = tuple(
        Trial(one.number, dict(one.params), **{k: one.user_attrs[k] for k in ("accuracy", "ece", "nll", "epoch")})
        for one in study.get_trials(states=(states.COMPLETE,))
    )
    counts = {state: len(study.get_trials(states=(state,))) for state in (states.PRUNED, states.FAIL)}
    floor = _floor(search, [one.accuracy for one in trials])
    enough = [one for one in trials if one.accuracy >= floor]
    return Found(
        trials,
        counts[states.PRUNED],
        counts[states.FAIL],
        floor,
        min(enough, key=lambda one: one.ece, default=None),
        unbeaten(trials),
        study.user_attrs.get("n", 0),
    )


def _check_space(search: Search) -> None:
    """Raise for a value that cannot be, before anything is trained or stored."""
    for point in _points_to_check(search):
        for name, value in point.items():
            # No trial with nan is equal to its point, so that a grid would never end.
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"the space has {name} {value}, but a finite number is called for: leave it out")
        search.with_params(point)


def _points_to_check(search: Search) -> Iterator[dict[str, Any]]:
    """What a search may come to: all of a grid, else each value and both ends of a range, the other settings alike."""
    if search.sampler == "grid":
        yield from grid(list(search.axes))
        return
    values = {axis.name: axis.values or (axis.low, axis.high) for axis in search.axes}
    first = {name: some[0] for name, some in values.items()}
    for name, some in values.items():
        for value in some:
            yield {**first, name: value}


def _run(search: Search, study: Any, engine: Engine, told: Callable[[int, int], None] | None) -> None:
    """Adopt the trials that a stopped search left under way, then ask for more until there are enough."""
    optuna = require("optuna", extra="study")
    states = optuna.trial.TrialState
    batch = [
        optuna.trial.Trial(study, one._trial_id)
        for one in study.get_trials(states=(states.RUNNING,))
        if one.user_attrs.get("owner") == search.owner
    ]
    while True:
        counted = study.get_trials(states=(states.COMPLETE, states.PRUNED, states.RUNNING, states.FAIL))
        left, total = _left(search, counted, engine.workers)
        batch += [_ask(search, study, point) for point in left]
        if not batch:
            return
        tasks = [_task(search, study, trial) for trial in batch]
        before = len(counted) + len(left) - len(batch)
        with closing(engine.map(run_trial, tasks)) as results:
            for done, (number, result) in enumerate(results, 1):
                _tell(search, study, batch[number], result)
                if told is not None:
                    told(before + done, total)
        batch = []


def _left(search: Search, trials: Sequence[Any], workers: int) -> tuple[list[dict[str, Any]], int]:
    """The points to try next, empty ones for those that the sampler is to choose, and how many trials there will be.

    A trial that failed is not tried again: the same training would fail again.
    """
    if search.sampler == "grid":
        points = list(grid(list(search.axes)))
        taken = [one.params for one in trials]
        return [point for point in points if point not in taken], len(points)
    return [{}] * min(max(search.trials - len(trials), 0), workers), search.trials


def _ask(search: Search, study: Any, point: dict[str, Any]) -> Any:
    if point:
        study.enqueue_trial(point)
    trial = study.ask()
    for axis in search.axes:
        axis.suggest(trial)
    trial.set_user_attr("owner", search.owner)  # last: a trial with an owner is complete, and can be adopted
    return trial


def _task(search: Search, study: Any, trial: Any) -> Task:
    recipe = search.with_params(trial.params)
    # By study, as one folder may see searches of several spaces, and each counts its trials from 0.
    run = str(search.folder.absolute() / "trials" / study.study_name / f"{trial.number:04d}")
    return Task(recipe, run, trial._trial_id, search.address, study.study_name, search.sampler == "tpe")


def run_trial(task: Task) -> dict[str, float] | str:
    """Train, and return the best epoch's numbers; or ``"pruned"``, or why training had to stop."""
    optuna = require("optuna", extra="study")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=task.recipe.epochs // WARMUP)
    study = optuna.load_study(study_name=task.study, storage=task.address, pruner=pruner)
    trial = optuna.trial.Trial(study, task.trial)
    folder = RunFolder(Path(task.run))
    folder.path.mkdir(parents=True, exist_ok=True)
    known = len(study.trials[trial.number].intermediate_values)

    def prunes(row: dict[str, float]) -> bool:
        """Judge an epoch by its NLL: early on, an ECE is small for reasons that do not last."""
        if row["epoch"] >= known:
            trial.report(row["val/nll"], int(row["epoch"]))
        return task.prunes and bool(trial.should_prune())

    with hold(folder.path / ".lock", wait=True):
        try:
            return _train(task.recipe, folder, prunes)
        except TrainingStopped as error:
            return str(error)


def _train(recipe: Recipe, folder: RunFolder, prunes: Callable[[dict[str, float]], bool]) -> dict[str, float] | str:
    """Train epoch by epoch; what `acls.train.fit` does last, measuring on the test part, is left out."""
    with own_generator():
        session, at = Session(recipe), TrainState()
        _clear_unless_of(recipe, folder)
        if folder.recipe.exists():
            folder.check(recipe, session.data)
            if folder.resume.exists():
                at = restore(session, load_state(folder.resume))
        else:
            folder.start(recipe, session.data)
        silent = Progress(epochs=recipe.epochs, steps=1, done=0, show=False)
        with interruptions() as interrupted:
            while at.epoch < recipe.epochs:
                run_epoch(session, folder, at, silent, interrupted, [])
                if prunes(at.history[-1]):
                    return "pruned"
        row = at.history[at.best_epoch]
        numbers = {name: row[f"val/{name}"] for name in ("accuracy", "ece", "nll", "n")}
        return {**numbers, "epoch": at.best_epoch + 1}


def _clear_unless_of(recipe: Recipe, folder: RunFolder) -> None:
    """Make room where the run of another trial lies, as after the database was deleted and the trials were not."""
    if folder.recipe.exists() and _portable(load_recipe(folder.recipe)) != _portable(recipe):
        folder.resume.unlink(missing_ok=True)
        folder.recipe.unlink()  # last: were it gone first, a break here would leave another run's state to go on from


def _portable(recipe: Recipe) -> dict[str, Any]:
    """A recipe's settings but for the place of its data, which may be another on every machine."""
    plain = to_plain(recipe)
    plain["data"].pop("root")
    return plain


def _tell(search: Search, study: Any, trial: Any, result: dict[str, float] | str) -> None:
    """Store a trial's numbers; one that is not accurate enough counts as worse than any that is."""
    states = require("optuna", extra="study").trial.TrialState
    if isinstance(result, str):
        trial.set_user_attr("why", result)
        study.tell(trial, state=states.PRUNED if result == "pruned" else states.FAIL, skip_if_finished=True)
        return
    study.set_user_attr("n", int(result.pop("n")))
    for name, value in result.items():
        trial.set_user_attr(name, value)
    others = [one.user_attrs["accuracy"] for one in study.get_trials(states=(states.COMPLETE,))]
    short = _floor(search, [*others, result["accuracy"]]) - result["accuracy"]
    study.tell(trial, result["ece"] if short <= 0 else 1 + short)


def _floor(search: Search, accuracies: Sequence[float]) -> float:
    if search.floor is not None:
        return search.floor
    return max(accuracies, default=0.0) - ALLOWANCE
