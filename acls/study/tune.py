"""Search settings on the validation part: a grid, or Optuna's TPE with pruning. The test part is not evaluated.

Trials are kept in Optuna's storage, an SQLite file in the study's folder or any database that several machines share;
each trains in a folder of its own. A search that was stopped goes on with the trials that were under way, from their
checkpoints, and then with what is left; a trial whose machine is lost is tried again by the others (`HEARTBEAT`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
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
from acls.train.guards import interruptions, isolated
from acls.train.loop import run_epoch
from acls.train.progress import EpochProgress
from acls.train.session import Session
from acls.train.state import TrainState, load_state, restore

ALLOWANCE = 0.01
"""How far below the best trial's the accuracy may be, where no floor is given."""
WARMUP = 4
"""A trial is pruned after a quarter of its epochs at the earliest."""
HEARTBEAT = 60
"""Seconds between signs of life of a trial; one that gave none for two of them is tried again."""


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

    def open(self, number: int = 0) -> Any:
        """The Optuna study; the sampler of each ``number`` draws other random points."""
        optuna, sqlalchemy = (require(name, extra="study") for name in ("optuna", "sqlalchemy"))
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            with _experimental():
                storage = optuna.storages.RDBStorage(
                    self.address, heartbeat_interval=HEARTBEAT, heartbeat_stale_trial_callback=_again()
                )
                return optuna.create_study(
                    study_name=self.name,
                    storage=storage,
                    sampler=optuna.samplers.TPESampler(seed=self.recipe.seed + number, constant_liar=True),
                    pruner=optuna.pruners.MedianPruner(3, n_warmup_steps=self.recipe.epochs // WARMUP),
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

    search: Search
    number: int
    """Its place among all that are asked for."""


def tune(
    search: Search, engine: Engine, *, wait: bool = False, told: Callable[[int, int], None] | None = None
) -> Found:
    """Run the trials that are left, and return all there are. ``told`` is called with how many of how many are done."""
    _check_space(search)
    with hold(search.folder / "tune.lock", wait=wait):
        study = search.open()
        states = require("optuna", extra="study").trial.TrialState
        _retry(search, study)
        if search.sampler == "grid":
            for point in grid(list(search.axes)):
                study.enqueue_trial(point, skip_if_exists=True)
            left = len(study.get_trials(states=(states.WAITING,)))
        else:
            begun = study.get_trials(states=(states.COMPLETE, states.PRUNED, states.RUNNING))
            left = max(search.trials - len(begun) - len(_failed(study)), 0)
        first = len(study.trials)
        total = first if search.sampler == "grid" else search.trials
        with closing(engine.map(run_trial, [Task(search, first + number) for number in range(left)])) as results:
            for done, _ in enumerate(results, total - left + 1):
                if told is not None:
                    told(done, total)
        return found(search, study)


def found(search: Search, study: Any) -> Found:
    """What the storage holds."""
    optuna = require("optuna", extra="study")
    states = optuna.trial.TrialState
    trials = tuple(
        Trial(one.number, dict(one.params), **{k: one.user_attrs[k] for k in ("accuracy", "ece", "nll", "epoch")})
        for one in study.get_trials(states=(states.COMPLETE,))
    )
    floor = _floor(search, [one.accuracy for one in trials])
    enough = [one for one in trials if one.accuracy >= floor]
    return Found(
        trials,
        len(study.get_trials(states=(states.PRUNED,))),
        len(_failed(study)),
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
                raise InputError(f"{name}: expected a finite number in the space, got {value}: leave it out")
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


def _again() -> Any:
    """Queues a trial again that was cut off, as Optuna does for one whose machine is lost."""
    callback = require("optuna", extra="study").storages.RetryHeartbeatStaleTrialCallback
    with _experimental():
        return callback(inherit_intermediate_values=True)


@contextmanager
def _experimental() -> Iterator[None]:
    """Without Optuna's warnings that heartbeats and its sampler's settings may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", require("optuna", extra="study").exceptions.ExperimentalWarning)
        yield


def _retry(search: Search, study: Any) -> None:
    """Queue the trials again that were under way when the search was stopped; the lock says that none still is."""
    states = require("optuna", extra="study").trial.TrialState
    retried = {number for one in study.trials for number in one.system_attrs.get("retry_history", ())}
    for one in study.get_trials(states=(states.RUNNING, states.FAIL)):
        if one.user_attrs.get("owner") == search.owner and "why" not in one.user_attrs and one.number not in retried:
            if one.state == states.RUNNING:
                study.tell(one.number, state=states.FAIL)
            _again()(study, one)


def _failed(study: Any) -> list[Any]:
    """The trials whose training had to stop; the same training would fail again."""
    return [one for one in study.trials if "why" in one.user_attrs]


def run_trial(task: Task) -> None:
    """Train one trial: of those that wait, or one that the sampler chooses."""
    with _experimental():
        task.search.open(task.number).optimize(partial(_objective, task.search), n_trials=1, catch=TrainingStopped)


def _objective(search: Search, trial: Any) -> float:
    """The ECE of a trial's best epoch; one that is not accurate enough counts as worse than any that is."""
    optuna = require("optuna", extra="study")
    trial.set_user_attr("owner", search.owner)
    recipe = search.with_params({axis.name: axis.suggest(trial) for axis in search.axes})
    first = trial.study.trials[trial.number].system_attrs.get("failed_trial", trial.number)
    # By study, as one folder may see searches of several spaces, and each counts its trials from 0.
    folder = RunFolder(search.folder.absolute() / "trials" / search.name / f"{first:04d}")
    folder.path.mkdir(parents=True, exist_ok=True)

    def prunes(row: dict[str, float]) -> bool:
        """Judge an epoch by its NLL: early on, an ECE is small for reasons that do not last."""
        trial.report(row["val/nll"], int(row["epoch"]))
        return search.sampler == "tpe" and bool(trial.should_prune())

    with hold(folder.path / ".lock", wait=True):
        try:
            numbers = _train(recipe, folder, prunes)
        except TrainingStopped as error:
            trial.set_user_attr("why", str(error))
            raise
    if numbers is None:
        raise optuna.TrialPruned
    trial.study.set_user_attr("n", int(numbers.pop("n")))
    for name, value in numbers.items():
        trial.set_user_attr(name, value)
    done = trial.study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    short = _floor(search, [*(one.user_attrs["accuracy"] for one in done), numbers["accuracy"]]) - numbers["accuracy"]
    return numbers["ece"] if short <= 0 else 1 + short


def _train(recipe: Recipe, folder: RunFolder, prunes: Callable[[dict[str, float]], bool]) -> dict[str, float] | None:
    """Train epoch by epoch to the best epoch's numbers; None for one that was pruned.

    What `acls.train.fit` does last, measuring on the test part, is left out.
    """
    with isolated():
        session, at = Session(recipe), TrainState()
        _clear_unless_of(recipe, folder)
        if folder.recipe.exists():
            folder.check(recipe, session.data)
            if folder.resume.exists():
                at = restore(session, load_state(folder.resume))
        else:
            folder.start(recipe, session.data)
        silent = EpochProgress(epochs=recipe.epochs, steps=1, done=0, show=False)
        with interruptions() as interrupted:
            while at.epoch < recipe.epochs:
                run_epoch(session, folder, at, silent, interrupted, [])
                if prunes(at.history[-1]):
                    return None
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
    plain: dict[str, Any] = to_plain(recipe)
    plain["data"].pop("root")
    return plain


def _floor(search: Search, accuracies: Sequence[float]) -> float:
    if search.floor is not None:
        return search.floor
    return max(accuracies, default=0.0) - ALLOWANCE
