"""Search settings on the validation part: a grid, or Optuna's TPE with pruning. The test part is not evaluated.

Trials are stored in Optuna's storage: an SQLite file in the study's folder, or any database that several machines
share. Each trial has its own folder. A search that was stopped first continues the interrupted trials from their
checkpoints, and then runs the remaining trials. If a machine is lost, others repeat its trial (`HEARTBEAT`).
"""

from __future__ import annotations

import hashlib
import itertools
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
from acls.options import flat, override, to_plain
from acls.recipes import RECIPES, Recipe, load_recipe
from acls.shown import Shown
from acls.spec import parse_value
from acls.storage import hold
from acls.study.advisor import Point, unbeaten
from acls.study.engine import Engine
from acls.train import RunFolder, TrainingStopped
from acls.train.folder import NEUTRAL, continued, decisive
from acls.train.guards import isolated
from acls.train.loop import run_epochs
from acls.train.session import Session

EXAMPLE = "lambda1=0:0.15:0.05, margin=6|8|10, optim.lr=0.01:0.3:log"
"""An example of a search space on the command line."""
ALLOWANCE = 0.01
"""Largest allowed accuracy loss relative to the best trial, if no minimum accuracy is given."""
WARMUP = 4
"""A trial is pruned only after at least 1 / WARMUP, a quarter, of its epochs."""
_MEASURED = ("accuracy", "ece", "nll", "epoch")
_UNSAID = ("log", "loss.name", "loss.protocol", "model.source")
HEARTBEAT = 60
"""Seconds between two heartbeats of a trial; a trial without a heartbeat for twice as long is tried again."""


@dataclass(frozen=True)
class Axis:
    """The search space of one setting: a list of values, or a range."""

    name: str
    values: tuple[Any, ...] = ()
    """Empty for a range."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False

    def suggest(self, trial: Any) -> Any:
        """Ask an Optuna trial for a value."""
        if self.values:
            return trial.suggest_categorical(self.name, list(self.values))
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Trial(Point):
    """A point of the search space with the metrics of its best epoch on the validation part."""

    number: int
    params: dict[str, Any]
    nll: float
    epoch: int
    """The number of the epoch, from 1."""


@dataclass(frozen=True, repr=False)
class Found(Shown):
    """The finished trials, the required accuracy, and the trial with the lowest ECE among those that reach it."""

    trials: tuple[Trial, ...]
    pruned: int
    failed: int
    floor: float
    best: Trial | None
    front: tuple[Trial, ...]
    """The Pareto front of accuracy and ECE, sorted by ascending accuracy."""
    n: int
    """Number of validation samples."""
    command: str  # trains the best trial again, and measures it on the test part
    figure: str | None = None


@dataclass(frozen=True)
class Search:
    """The search space and the settings of a search."""

    folder: Path
    recipe: Recipe
    axes: tuple[Axis, ...]
    sampler: str = "grid"
    trials: int = 20
    """Number of trials of TPE; the size of a grid follows from its values."""
    floor: float | None = None
    storage: str | None = None
    """The address of a database; None for an SQLite file in the folder."""

    @property
    def name(self) -> str:
        """The name of the study in the storage: the same search has the same name on every machine."""
        text = json.dumps([_essential(self.recipe), [vars(axis) for axis in self.axes]], sort_keys=True)
        return f"{self.recipe.name}-{self.recipe.loss.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def owner(self) -> str:
        """The owner of the trials, if several machines share a storage."""
        return f"{socket.gethostname()}:{self.folder.absolute()}"

    def open(self, number: int = 0) -> Any:
        """Open the Optuna study; samplers with different ``number`` draw different random points."""
        optuna, sqlalchemy = (require(name, extra="study") for name in ("optuna", "sqlalchemy"))
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        address = self.storage or f"sqlite:///{self.folder.absolute() / 'tune.sqlite'}"
        known = (ValueError, ImportError, RuntimeError, sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError)
        try:
            with _experimental():
                storage = optuna.storages.RDBStorage(
                    address, heartbeat_interval=HEARTBEAT, heartbeat_stale_trial_callback=_again()
                )
                sampler = optuna.samplers.TPESampler(seed=self.recipe.seed + number, constant_liar=True)
                pruner = optuna.pruners.MedianPruner(3, n_warmup_steps=self.recipe.epochs // WARMUP)
                return optuna.create_study(
                    study_name=self.name, storage=storage, sampler=sampler, pruner=pruner, load_if_exists=True
                )
        except known as error:  # invalid address; no driver, server or file; tables of another version
            why = next(iter(str(error).splitlines()), type(error).__name__)
            shown = re.sub("//[^/]*@", "//***@", address)  # without a password
            raise InputError(
                f"cannot store the trials in {shown}: {why}. Pass the address of a database as "
                "--storage, sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME; or leave it out for a file in --out"
            ) from error

    def with_params(self, params: Mapping[str, Any]) -> Recipe:
        """Return the recipe at a point: names with a dot or of a recipe field are settings, others are loss fields."""
        own = to_plain(self.recipe)
        settings = {name: value for name, value in params.items() if "." in name or name in own}
        fields = {name: value for name, value in params.items() if name not in settings}
        recipe = override(self.recipe, settings)
        loss = replace(recipe.loss, fields={**recipe.loss.fields, **fields})
        loss.build()  # raises an error for an unknown field
        return replace(recipe, loss=loss)

    def command(self, params: Mapping[str, Any]) -> str:
        """Return the command that trains the recipe at a point."""
        base, own = (flat(to_plain(one)) for one in (RECIPES.get(self.recipe.name, lambda: self.recipe)(), self.recipe))
        changed = [name for name in own if own[name] != base.get(name) and name not in _UNSAID]
        given = {name if name in own else f"loss.{name}": value for name, value in params.items()}
        for name in changed:
            given.setdefault(name.replace(".fields.", ".").replace(".arguments.", "."), own[name])
        options = (f"--{name} {value}" for name, value in given.items())
        return " ".join([f"acls train {self.recipe.name} --loss {self.recipe.loss.name}", *options])

    def enough(self, accuracies: Sequence[float]) -> float:
        """Return the required accuracy, given the accuracies of the trials."""
        return max(accuracies, default=0.0) - ALLOWANCE if self.floor is None else self.floor


def tune(
    search: Search, engine: Engine, *, wait: bool = False, told: Callable[[int, int], None] = lambda *_: None
) -> Found:
    """Run the remaining trials and return all; ``told`` is called with the numbers of finished and of all trials."""
    _check_space(search)
    with hold(search.folder / "tune.lock", wait=wait):
        study = search.open()
        _retry(search, study)
        if search.sampler == "grid":
            for point in grid(search.axes):
                study.enqueue_trial(point, skip_if_exists=True)
            left, total = len(_trials(study, "WAITING")), len(study.trials)
        else:
            begun = len(_trials(study, "COMPLETE", "PRUNED", "RUNNING")) + len(_failed(study))
            left, total = max(search.trials - begun, 0), search.trials
        numbers = range(len(study.trials), len(study.trials) + left)
        with closing(engine.map(partial(run_trial, search), numbers)) as results:
            for done, _ in enumerate(results, total - left + 1):
                told(done, total)
        return found(search, study)


def found(search: Search, study: Any) -> Found:
    """Return the finished trials in the storage."""
    trials = tuple(
        Trial(number=one.number, params=dict(one.params), **{name: one.user_attrs[name] for name in _MEASURED})
        for one in _trials(study, "COMPLETE")
    )
    floor = search.enough([one.accuracy for one in trials])
    best = min((one for one in trials if one.accuracy >= floor), key=lambda one: one.ece, default=None)
    pruned, failed = len(_trials(study, "PRUNED")), len(_failed(study))
    n, command = study.user_attrs.get("n", 0), search.command(best.params if best else {})
    return Found(trials, pruned, failed, floor, best, unbeaten(trials), n, command)


def _trials(study: Any, *states: str) -> list[Any]:
    return [one for one in study.get_trials() if one.state.name in states]


def _failed(study: Any) -> list[Any]:
    """Return the trials whose training failed; the same training would fail again."""
    return [one for one in study.get_trials() if "why" in one.user_attrs]


def _check_space(search: Search) -> None:
    """Raise an error for an invalid value, before anything is trained or stored.

    For a grid, this checks all points. Otherwise it checks each value and both ends of each range, with the first value
    of the other settings.
    """
    values = {axis.name: axis.values or (axis.low, axis.high) for axis in search.axes}
    first = {name: some[0] for name, some in values.items()}
    points = [{**first, name: value} for name, some in values.items() for value in some]
    for point in grid(search.axes) if search.sampler == "grid" else points:
        search.with_params(point)


@contextmanager
def _experimental() -> Iterator[None]:
    """Suppress Optuna's warnings that heartbeats and settings of its sampler are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", require("optuna", extra="study").exceptions.ExperimentalWarning)
        yield


@_experimental()
def _again() -> Any:
    """Return a callback that queues an interrupted trial again, as Optuna does for a lost machine."""
    optuna = require("optuna", extra="study")
    return optuna.storages.RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)


def _retry(search: Search, study: Any) -> None:
    """Queue interrupted trials of a stopped search again; the lock ensures that none of them is still running."""
    retried = {number for one in study.trials for number in one.system_attrs.get("retry_history", ())}
    for one in _trials(study, "RUNNING", "FAIL"):
        if one.user_attrs.get("owner") == search.owner and "why" not in one.user_attrs and one.number not in retried:
            if one.state.name == "RUNNING":
                study.tell(one.number, state=type(one.state).FAIL)
            _again()(study, one)


@_experimental()
def run_trial(search: Search, number: int) -> None:
    """Train one trial: a queued trial, or one that the sampler chooses."""
    search.open(number).optimize(partial(_objective, search), n_trials=1, catch=TrainingStopped)


def _objective(search: Search, trial: Any) -> float:
    """Return the ECE of a trial's best epoch; trials below the required accuracy rank behind all others."""
    trial.set_user_attr("owner", search.owner)
    recipe = search.with_params({axis.name: axis.suggest(trial) for axis in search.axes})
    first = trial.study.trials[trial.number].system_attrs.get("failed_trial", trial.number)
    # One folder per study: a folder may contain searches of several spaces, and each counts its trials from 0.
    folder = RunFolder(search.folder.absolute() / "trials" / search.name / f"{first:04d}")

    def prunes(row: Mapping[str, float]) -> bool:
        """Judge an epoch by its NLL: in early epochs, the ECE can be small for temporary reasons."""
        trial.report(row["val/nll"], int(row["epoch"]))
        return search.sampler == "tpe" and bool(trial.should_prune())

    with hold(folder.path / ".lock", wait=True):
        try:
            row = _train(recipe, folder, prunes)
        except TrainingStopped as error:
            trial.set_user_attr("why", str(error))
            raise
    if row is None:
        raise require("optuna", extra="study").TrialPruned
    trial.study.set_user_attr("n", int(row["val/n"]))
    for name in _MEASURED:
        trial.set_user_attr(name, int(row["epoch"]) + 1 if name == "epoch" else row[f"val/{name}"])
    accuracy, others = row["val/accuracy"], _trials(trial.study, "COMPLETE")
    short = search.enough([*(one.user_attrs["accuracy"] for one in others), accuracy]) - accuracy
    return row["val/ece"] if short <= 0 else 1 + short


def _train(
    recipe: Recipe, folder: RunFolder, prunes: Callable[[Mapping[str, float]], bool]
) -> Mapping[str, float] | None:
    """Train, or continue training, and return the metrics of the best epoch; None for a pruned trial.

    Unlike `acls.train.fit`, this does not measure on the test part.
    """
    with isolated():
        session = Session(replace(recipe, devices=1))
        # The folder contains the run of another trial if the database was deleted but the folders were not.
        if folder.recipe.exists() and _essential(load_recipe(folder.recipe)) != _essential(recipe):
            folder.resume.unlink(missing_ok=True)
            folder.recipe.unlink()  # last, so that an interruption cannot leave the state of another run
        state = continued(session, folder)
        with closing(run_epochs(session, folder, state)) as epochs:
            return None if any(map(prunes, epochs)) else state.history[state.best_epoch]


def _essential(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that identify a search or a trial; they are the same on every machine."""
    return decisive(recipe, NEUTRAL - {"model.weights"})


# -- parsing the search space ------------------------------------------------------------------------------------------


def parse_space(text: str) -> list[Axis]:
    """Parse a search space: ``low:high:step`` with both ends, ``low:high``, ``low:high:log`` or ``a|b`` per setting.

    >>> parse_space("lambda1=0:0.15:0.05")[0].values
    (0.0, 0.05, 0.1, 0.15)
    """
    axes = [_axis(part.strip()) for part in text.split(",") if part.strip()]
    if not axes:
        raise InputError(f"the space is empty: expected settings with values, as in {EXAMPLE}")
    if len({axis.name for axis in axes}) < len(axes):
        raise InputError(f"{text!r} names a setting twice")
    return axes


def grid(axes: Sequence[Axis]) -> Iterator[dict[str, Any]]:
    """Yield all combinations of the values; raise an error for a range, which has infinitely many values."""
    for axis in axes:
        if not axis.values:
            raise InputError(f"a grid needs steps, but {axis.name} is a range: write low:high:step, or --sampler tpe")
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip((axis.name for axis in axes), values, strict=True))


def show(params: Mapping[str, Any]) -> str:
    """Return a point of the search space as a user would write it."""
    return ", ".join(f"{name}={format(x, 'g') if isinstance(x, float) else x}" for name, x in params.items())


def _axis(text: str) -> Axis:
    name, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not name or not values:
        raise InputError(f"expected a setting with its values, as in {EXAMPLE}, got {text!r}")
    if ":" not in values:
        words = [part.strip() for part in values.split("|")]
        return Axis(name, tuple(x if isinstance(x := parse_value(word), int | float) else word for word in words))
    ends = values.split(":")
    try:
        low, high = float(ends[0]), float(ends[1])
        log = ends[2:] == ["log"]
        step = None if log or len(ends) == 2 else float(ends[2])
    except ValueError:
        raise InputError(f"expected a range low:high:step, low:high or low:high:log, got {text!r}") from None
    if len(ends) > 3 or not low < high or (step is not None and step <= 0) or (log and low <= 0):
        raise InputError(f"expected a range with low < high, a step above 0 and, for log, low above 0, got {text!r}")
    if step is None:
        return Axis(name, low=low, high=high, log=log)
    count = math.floor((high - low) / step + 1e-9) + 1
    # Rounded, so that 3 * 0.05 is 0.15.
    return Axis(name, tuple(round(low + number * step, 12) for number in range(count)))
