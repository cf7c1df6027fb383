"""Calibration under corruptions: the ECE by severity, before and after temperature scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from acls.report.figures.style import PALETTE, SMALL, canvas, tidy
from acls.watch.shift import CLEAN, Condition, Shift

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 4


def prepare(found: Shift) -> dict[str, list[Condition]]:
    """Return the conditions of each corruption, the clean one first, in the order in which they were measured."""
    clean = [one for one in found.conditions if one.corruption == CLEAN]
    names = dict.fromkeys(one.corruption for one in found.conditions if one.corruption != CLEAN)
    return {name: [*clean, *(one for one in found.conditions if one.corruption == name)] for name in names}


def draw(title: str, rows: Sequence[Condition], ax: Axes) -> None:
    """Draw the ECE and the error of one corruption by severity, in percent."""
    severity = [row.severity for row in rows]
    columns = ("ece", "scaled_ece", "scaled_floor", "accuracy")
    ece, scaled, floor, accuracy = ([100 * getattr(row, column) for row in rows] for column in columns)
    ax.plot(severity, ece, "o-", color=PALETTE[1], markersize=3, label="ECE")
    ax.plot(severity, scaled, "o-", color=PALETTE[0], markersize=3, label="ECE after the clean temperature")
    ax.plot(severity, floor, "--", color="0.4", linewidth=1, label="noise floor")
    ax.plot(severity, [100 - a for a in accuracy], ":", color=PALETTE[2], linewidth=1, label="error")
    ax.set_title(title, fontsize=SMALL + 1)
    ax.set(ylim=(0, None))
    ax.set_xticks(severity)
    tidy(ax)


def plot(found: Shift) -> Figure:
    """Return a figure with one panel per corruption."""
    panels = prepare(found)
    columns = max(1, min(_COLUMNS, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    figure, axes = canvas(rows, columns, width=2.2 * columns + 0.4, height=1.9 * rows + 0.5)
    for (title, conditions), ax in zip(panels.items(), axes, strict=False):
        draw(title, conditions, ax)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    figure.supxlabel("severity", fontsize=SMALL + 1)
    figure.supylabel("%", fontsize=SMALL + 1)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=SMALL, frameon=False)
    return figure
