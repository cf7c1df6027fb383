"""A metric over a grid of two settings, such as the paper's Table A over lambda1 and lambda2."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acls.errors import InputError
from acls.metrics.catalogue import metric as metric_of
from acls.report.figures.style import SMALL, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


def prepare(
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


def draw(data: HeatMap, ax: Axes) -> None:
    """Draw a cell a pair of settings with its value, the least one framed; dark is less."""
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
