"""A metric over the epochs of training, a line per method with its seeds' spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acls.errors import InputError
from acls.metrics.catalogue import metric as metric_of
from acls.report.figures.style import LEGEND, SMALL, colour, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

History = Sequence[Mapping[str, float]]
"""The rows of a run's metrics.csv."""


@dataclass(frozen=True)
class Line:
    """Mean, least and largest value at each epoch, over the seeds that reached it."""

    epoch: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    seeds: int


@dataclass(frozen=True)
class Epochs:
    """The lines by method."""

    metric: str
    methods: dict[str, Line]


def prepare(methods: Mapping[str, Sequence[History]], metric: str = "ece", *, part: str = "val") -> Epochs:
    """Take ``part/metric`` from the histories of each method's runs; epochs count from 1, as a reader does."""
    column = f"{part}/{metric}"
    lines = {}
    for name, histories in methods.items():
        values: dict[int, list[float]] = {}
        for row in (row for history in histories for row in history):
            if column not in row:
                raise InputError(f"{name} has no {column} in its history: there are {', '.join(row)}")
            values.setdefault(round(row["epoch"]) + 1, []).append(row[column])
        found = sorted(values.items())
        lines[name] = Line(
            epoch=[epoch for epoch, _ in found],
            mean=[statistics.fmean(seen) for _, seen in found],
            low=[min(seen) for _, seen in found],
            high=[max(seen) for _, seen in found],
            seeds=len(histories),
        )
    return Epochs(metric, lines)


def draw(data: Epochs, ax: Axes) -> None:
    """Draw a line per method, and the range of its seeds where there are several."""
    shown = metric_of(data.metric)
    for number, (name, line) in enumerate(data.methods.items()):
        mean, low, high = ([shown.scale * value for value in part] for part in (line.mean, line.low, line.high))
        ax.plot(line.epoch, mean, color=colour(number), linewidth=1.3, label=name)
        if line.seeds > 1:
            ax.fill_between(line.epoch, low, high, color=colour(number), alpha=0.18, linewidth=0)
    ax.set(xlabel="epoch", ylabel=shown.title)
    ax.set_ylim(bottom=0 if data.metric != "accuracy" else None)
    ax.margins(x=0.01)
    ax.legend(fontsize=SMALL, **LEGEND)
    tidy(ax)
