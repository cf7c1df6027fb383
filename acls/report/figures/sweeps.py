"""A metric over settings or epochs: against one setting, over a grid of two, against accuracy, by epoch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.errors import InputError
from acls.metrics.catalogue import metric as metric_of
from acls.report.figures.style import GREY, LEGEND, SMALL, colour, drawn, marker, save, tidy
from acls.study.advisor import unbeaten

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Sweep:
    """By method: the settings tried, ascending, with the mean and the standard deviation over seeds at each."""

    metric: str
    setting: str
    methods: dict[str, tuple[list[float], list[float], list[float]]]
    levels: dict[str, float]
    """Methods that have no such setting, by their value."""


def prepare_sweep(
    methods: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    metric: str = "ece",
    setting: str = "margin",
    levels: Mapping[str, float] | None = None,
) -> Sweep:
    """Compute the lines from ``{method: {margin: [value of each seed]}}``; ``levels`` are drawn as straight lines."""
    lines = {}
    for name, tried in methods.items():
        if not tried:
            continue
        at = sorted(tried)
        mean = [statistics.fmean(tried[x]) for x in at]
        deviation = [statistics.stdev(tried[x]) if len(tried[x]) > 1 else 0.0 for x in at]
        lines[name] = (at, mean, deviation)
    return Sweep(metric, setting, lines, dict(levels or {}))


def draw_sweep(data: Sweep, ax: Axes) -> None:
    """Draw a line per method with its deviation as bars, and the levels dashed."""
    shown = metric_of(data.metric)
    for number, (name, (at, mean, deviation)) in enumerate(data.methods.items()):
        ax.errorbar(
            at, [shown.scale * value for value in mean], yerr=[shown.scale * value for value in deviation],
            color=colour(number), marker=marker(number), markersize=4, linewidth=1.3, elinewidth=0.8, capsize=2,
            label=name,
        )  # fmt: skip
    for number, (name, value) in enumerate(data.levels.items(), len(data.methods)):
        ax.axhline(shown.scale * value, color=colour(number), linestyle=(0, (4, 2)), linewidth=1.1, label=name)
    ax.set(xlabel=data.setting, ylabel=shown.title)
    ax.set_ylim(bottom=0)
    if len(data.methods) + len(data.levels) > 1:
        ax.legend(fontsize=SMALL, **LEGEND)
    tidy(ax)


@dataclass(frozen=True)
class HeatMap:
    """Means: one row per value of the first setting, one column per value of the second; None where none was run."""

    metric: str
    settings: tuple[str, str]
    first: list[float]
    second: list[float]
    values: list[list[float | None]]

    def best(self) -> tuple[int, int]:
        """Row and column of the least value."""
        filled = [
            (value, i, j) for i, row in enumerate(self.values) for j, value in enumerate(row) if value is not None
        ]
        return min(filled)[1:]


def prepare_grid(
    runs: Mapping[tuple[float, float], Sequence[float]],
    *,
    metric: str = "ece",
    settings: tuple[str, str] = ("lambda1", "lambda2"),
) -> HeatMap:
    """Compute the map from ``{(lambda1, lambda2): [value of each seed]}``."""
    if not runs:
        raise InputError("a heat map needs at least one run")
    first, second = sorted({a for a, _ in runs}), sorted({b for _, b in runs})
    values = [[statistics.fmean(runs[a, b]) if runs.get((a, b)) else None for b in second] for a in first]
    return HeatMap(metric, settings, first, second, values)


def draw_grid(data: HeatMap, ax: Axes) -> None:
    """Draw a cell per pair of settings with its value, the least one framed; dark is less."""
    shown = metric_of(data.metric)
    scaled = [[float("nan") if value is None else shown.scale * value for value in row] for row in data.values]
    found = [value for row in scaled for value in row if value == value]
    low, high = min(found), max(found)
    ax.imshow(scaled, cmap="cividis", origin="lower", aspect="auto", vmin=low, vmax=high + (low == high))
    for i, row in enumerate(scaled):
        for j, value in enumerate(row):
            if value == value:
                dark = value < (low + high) / 2
                ax.text(
                    j, i, f"{value:.{shown.decimals}f}", ha="center", va="center", fontsize=SMALL,
                    color="white" if dark else "black", fontweight="bold" if (i, j) == data.best() else "normal",
                )  # fmt: skip
    y, x = data.best()
    left, right, bottom, top = x - 0.47, x + 0.47, y - 0.46, y + 0.46
    ax.plot([left, right, right, left, left], [bottom, bottom, top, top, bottom], color="white", linewidth=1.5)
    ax.set_xticks(range(len(data.second)), [f"{value:g}" for value in data.second])
    ax.set_yticks(range(len(data.first)), [f"{value:g}" for value in data.first])
    ax.set(xlabel=data.settings[1], ylabel=data.settings[0], title=shown.title)
    tidy(ax)
    ax.tick_params(length=0)


FEW = 7
"""Names that fit inside the axes; more stand beside them."""


@dataclass(frozen=True)
class Point:
    """A method, or an epoch of a run, and its two numbers."""

    name: str
    accuracy: float
    ece: float


@dataclass(frozen=True)
class Pareto:
    """All points and, by ascending accuracy, those that no other beats in both."""

    points: tuple[Point, ...]
    front: tuple[Point, ...]


def prepare_front(points: Mapping[str, Sequence[tuple[float, float]]]) -> Pareto:
    """Compute the front of ``{name: [(accuracy, ece) of each seed]}``."""
    all_points = tuple(Point(name, *pair) for name, pairs in points.items() for pair in pairs)
    return Pareto(all_points, unbeaten(all_points))


def draw_front(data: Pareto, ax: Axes) -> None:
    """Draw the points and the staircase of the front; right and low is better."""
    steps = [(100 * point.accuracy, 100 * point.ece) for point in data.front]
    ax.step([x for x, _ in steps], [y for _, y in steps], where="pre", color=GREY, linewidth=1, label="front", zorder=1)
    for number, name in enumerate(dict.fromkeys(point.name for point in data.points)):
        own = [point for point in data.points if point.name == name]
        ax.plot(
            [100 * point.accuracy for point in own], [100 * point.ece for point in own], linestyle="none",
            color=colour(number), marker=marker(number), markersize=5, markeredgecolor="white", markeredgewidth=0.4,
            label=name,
        )  # fmt: skip
    ax.set(xlabel="accuracy %  →  better", ylabel="ECE %  →  worse")
    ax.set_ylim(bottom=0)
    ax.margins(x=0.08)
    many = len({point.name for point in data.points}) > FEW
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if many else {}
    ax.legend(fontsize=SMALL, **LEGEND, **beside)
    tidy(ax)


def save_front(points: Mapping[str, Sequence[tuple[float, float]]], path: str | Path) -> None:
    """Draw the points that `prepare_front` takes to a file."""
    save(drawn(draw_front, prepare_front(points)), path)


History = Sequence[Mapping[str, float]]
"""The rows of a run's metrics.csv."""


@dataclass(frozen=True)
class EpochCurve:
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
    methods: dict[str, EpochCurve]


def prepare_epochs(methods: Mapping[str, Sequence[History]], metric: str = "ece", *, part: str = "val") -> Epochs:
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
        lines[name] = EpochCurve(
            epoch=[epoch for epoch, _ in found],
            mean=[statistics.fmean(seen) for _, seen in found],
            low=[min(seen) for _, seen in found],
            high=[max(seen) for _, seen in found],
            seeds=len(histories),
        )
    return Epochs(metric, lines)


def draw_epochs(data: Epochs, ax: Axes) -> None:
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
