"""A metric against a setting, such as ECE against the margin: the paper's Figure A."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acls.metrics.catalogue import metric as metric_of
from acls.report.figures.style import LEGEND, SMALL, colour, marker, tidy

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


def prepare(
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


def draw(data: Sweep, ax: Axes) -> None:
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
