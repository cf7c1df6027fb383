"""Figures of a metric by one setting, by a grid of two settings, by accuracy, and by epoch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from acls.errors import InputError
from acls.metrics.catalogue import Metric
from acls.metrics.catalogue import metric as metric_of
from acls.report.figures.style import GREY, LEGEND, SMALL, colour, drawn, marker, save, tidy
from acls.study.advisor import Point, unbeaten

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Series:
    """The metric of one method by setting or epoch: mean, standard deviation, minimum and maximum over seeds."""

    x: list[float]
    mean: list[float]
    deviation: list[float]
    low: list[float]
    high: list[float]

    @classmethod
    def of(cls, values: Mapping[float, Sequence[float]], scale: float) -> Series:
        """Compute the series from ``{setting or epoch: [value of each seed]}``, multiplied by ``scale``."""
        x = sorted(values)
        seen = [[scale * value for value in values[one]] for one in x]
        deviation = [statistics.stdev(some) if len(some) > 1 else 0.0 for some in seen]
        return cls(x, [*map(statistics.fmean, seen)], deviation, [*map(min, seen)], [*map(max, seen)])


@dataclass(frozen=True)
class Sweep:
    """A metric of several methods by setting or epoch, in the unit of the tables."""

    x: str
    metric: Metric
    methods: dict[str, Series]


def prepare_sweep(methods: Mapping[str, Mapping[float, Sequence[float]]]) -> Sweep:
    """Compute the ECE by margin from ``{method: {margin: [ECE of each seed]}}``."""
    ece = metric_of("ece")
    return Sweep("margin", ece, {name: Series.of(tried, ece.scale) for name, tried in methods.items() if tried})


def draw_sweep(data: Sweep, ax: Axes) -> None:
    """Draw one line per method, with the standard deviation as error bars."""
    for number, (name, line) in enumerate(data.methods.items()):
        ax.errorbar(
            line.x, line.mean, yerr=line.deviation, color=colour(number), marker=marker(number), markersize=4,
            linewidth=1.3, elinewidth=0.8, capsize=2, label=name,
        )  # fmt: skip
    ax.set(xlabel=data.x, ylabel=data.metric.title)
    ax.set_ylim(bottom=0)
    if len(data.methods) > 1:
        ax.legend(fontsize=SMALL, **LEGEND)
    tidy(ax)


@dataclass(frozen=True)
class HeatMap:
    """Mean ECEs, with one row per lambda1 and one column per lambda2. NaN if there is no run."""

    first: list[float]
    second: list[float]
    values: NDArray[np.float64]

    def best(self) -> tuple[int, int]:
        """Return the row and column of the lowest value."""
        row, column = np.unravel_index(np.nanargmin(self.values), self.values.shape)
        return int(row), int(column)


def prepare_grid(runs: Mapping[tuple[float, float], Sequence[float]]) -> HeatMap:
    """Compute the heat map from ``{(lambda1, lambda2): [ECE of each seed]}``."""
    if not runs:
        raise InputError("a heat map needs at least one run")
    first, second = sorted({a for a, _ in runs}), sorted({b for _, b in runs})
    values = [[statistics.fmean(runs[a, b]) if runs.get((a, b)) else math.nan for b in second] for a in first]
    return HeatMap(first, second, np.array(values))


def draw_grid(data: HeatMap, ax: Axes) -> None:
    """Draw one cell per pair of settings with its value. Lower is darker, and the lowest value has a frame."""
    shown = metric_of("ece")
    scaled = shown.scale * data.values
    low, high = np.nanmin(scaled), np.nanmax(scaled)
    ax.imshow(scaled, cmap="cividis", origin="lower", aspect="auto", vmin=low, vmax=high + (low == high))
    y, x = data.best()
    for (i, j), value in np.ndenumerate(scaled):
        if not np.isnan(value):
            ax.text(
                j, i, f"{value:.{shown.decimals}f}", ha="center", va="center", fontsize=SMALL,
                color="white" if value < (low + high) / 2 else "black",
                fontweight="bold" if (i, j) == (y, x) else "normal",
            )  # fmt: skip
    left, right, bottom, top = x - 0.47, x + 0.47, y - 0.46, y + 0.46
    ax.plot([left, right, right, left, left], [bottom, bottom, top, top, bottom], color="white", linewidth=1.5)
    ax.set_xticks(range(len(data.second)), [f"{value:g}" for value in data.second])
    ax.set_yticks(range(len(data.first)), [f"{value:g}" for value in data.first])
    ax.set(xlabel="lambda2", ylabel="lambda1", title=shown.title)
    tidy(ax)
    ax.tick_params(length=0)


FEW = 7
"""The legend is inside the axes for at most this many names, and beside them for more."""


def draw_front(data: Mapping[str, Sequence[Point]], ax: Axes) -> None:
    """Draw the points of each name and the Pareto front of all. Points further right and further down are better."""
    front = unbeaten([point for points in data.values() for point in points])
    ax.step(*_in_percent(front), where="pre", color=GREY, linewidth=1, label="front", zorder=1)
    for number, (name, points) in enumerate(data.items()):
        ax.plot(
            *_in_percent(points), linestyle="none", color=colour(number), marker=marker(number), markersize=5,
            markeredgecolor="white", markeredgewidth=0.4, label=name,
        )  # fmt: skip
    ax.set(xlabel="accuracy %  →  better", ylabel="ECE %  →  worse")
    ax.set_ylim(bottom=0)
    ax.margins(x=0.08)
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if len(data) > FEW else {}
    ax.legend(fontsize=SMALL, **LEGEND, **beside)
    tidy(ax)


def _in_percent(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Return the accuracies and the ECEs."""
    return [100 * point.accuracy for point in points], [100 * point.ece for point in points]


def save_front(name: str, points: Sequence[Point], path: str | Path) -> None:
    """Save a figure of the Pareto front of the epochs or trials of one name."""
    save(drawn(draw_front, {name: points}), path)


History = Sequence[Mapping[str, float]]
"""The rows of the metrics.csv of a run."""


def prepare_epochs(methods: Mapping[str, Sequence[History]], metric: str = "ece") -> Sweep:
    """Compute a validation metric by epoch from the histories of the runs of each method. The first epoch is 1."""
    column, shown = f"val/{metric}", metric_of(metric)
    lines = {}
    for name, histories in methods.items():
        values: dict[float, list[float]] = {}
        for row in (row for history in histories for row in history):
            if column not in row:
                raise InputError(f"{name} has no {column} in its history: choose from {', '.join(row)}")
            values.setdefault(round(row["epoch"]) + 1, []).append(row[column])
        lines[name] = Series.of(values, shown.scale)
    return Sweep("epoch", shown, lines)


def draw_epochs(data: Sweep, ax: Axes) -> None:
    """Draw one line per method, and the range over its seeds if there are several."""
    for number, (name, line) in enumerate(data.methods.items()):
        ax.plot(line.x, line.mean, color=colour(number), linewidth=1.3, label=name)
        if line.low != line.high:
            ax.fill_between(line.x, line.low, line.high, color=colour(number), alpha=0.18, linewidth=0)
    ax.set(xlabel=data.x, ylabel=data.metric.title)
    ax.set_ylim(bottom=0 if data.metric.name != "accuracy" else None)
    ax.margins(x=0.01)
    ax.legend(fontsize=SMALL, **LEGEND)
    tidy(ax)
