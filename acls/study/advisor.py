"""Advise which epoch of a run to keep: the choice of the checkpoint changes the ECE more than many methods do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from acls.errors import InputError
from acls.shown import Shown
from acls.study.store import RunFiles
from acls.train.folder import METRICS

NUMBERS = ("accuracy", "nll", "ece", "ece_after_temperature")


@dataclass(frozen=True)
class Point:
    """An accuracy and an ECE, the two numbers of a Pareto front."""

    accuracy: float
    ece: float


P = TypeVar("P", bound=Point)


@dataclass(frozen=True)
class Checkpoint(Point):
    """The metrics of one epoch on the validation part."""

    epoch: int
    """The number of the epoch, from 1."""
    nll: float
    ece_after_temperature: float
    n: int


@dataclass(frozen=True)
class Choice:
    """A rule for choosing an epoch, and the epoch that it chooses."""

    name: str
    when: str
    """When to use the rule."""
    keep: Checkpoint


@dataclass(frozen=True, repr=False)
class CheckpointAdvice(Shown):
    """The epochs, those on the Pareto front of accuracy and ECE, and the epoch that each rule would keep."""

    epochs: tuple[Checkpoint, ...]
    front: tuple[Checkpoint, ...]
    """Sorted by ascending accuracy."""
    close: tuple[Checkpoint, ...]
    """Epochs with an accuracy within one standard error of the best: accuracy alone cannot distinguish them."""
    rules: tuple[Choice, ...]


def read_history(run: str | Path) -> list[dict[str, float]]:
    """Read the rows of the metrics.csv of a run."""
    if not Path(run, METRICS).is_file():
        raise InputError(f"{run} is not the folder of a run with finished epochs: there is no {METRICS}")
    return RunFiles(Path(run), "").history()


def advise(run: str | Path | Sequence[Mapping[str, float]]) -> CheckpointAdvice:
    """Compare the epochs of a run, given by its folder or its history; of equal epochs, the first is chosen."""
    history = read_history(run) if isinstance(run, str | Path) else run
    if not history:
        raise InputError("there is no finished epoch to choose from")
    lacking = [name for name in ("epoch", *(f"val/{one}" for one in (*NUMBERS, "n"))) if name not in history[0]]
    if lacking:
        raise InputError(f"the history lacks {', '.join(lacking)}: train the run again with this version of acls")
    epochs = tuple(
        Checkpoint(epoch=int(row["epoch"]) + 1, n=int(row["val/n"]), **{name: row[f"val/{name}"] for name in NUMBERS})
        for row in history
    )
    best = max(epochs, key=lambda one: one.accuracy)
    least = best.accuracy - math.sqrt(best.accuracy * (1 - best.accuracy) / max(best.n, 1))
    close = tuple(one for one in epochs if one.accuracy >= least)

    def lowest(name: str, among: Sequence[Checkpoint] = epochs) -> Checkpoint:
        return min(among, key=attrgetter(name))

    advised = lowest("nll", close)
    rules = (
        Choice("accuracy", "decisions only; what most papers do", best),
        Choice("nll", "probabilities as they are, a proper score", lowest("nll")),
        Choice("ece", "calibration alone, whatever the accuracy", lowest("ece")),
        Choice(NUMBERS[3], "calibration where a temperature will be fitted", lowest(NUMBERS[3])),
        Choice("nll at accuracy", "recommended: lowest NLL among epochs that accuracy cannot tell apart", advised),
    )
    return CheckpointAdvice(epochs, unbeaten(epochs), close, rules)


def unbeaten(points: Sequence[P]) -> tuple[P, ...]:
    """Return the points of the Pareto front of accuracy and ECE, sorted by ascending accuracy.

    A point is on the front if no other point is at least as good in both and better in one. Of several points with the
    same numbers, only the first is returned.
    """
    front: list[P] = []
    for point in sorted(points, key=lambda one: (-one.accuracy, one.ece)):
        if not front or point.ece < front[-1].ece:
            front.append(point)
    return tuple(reversed(front))
