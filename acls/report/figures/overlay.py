"""Reliability of several methods in one diagram."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acls.metrics.bins import Reliability
from acls.report.figures.reliability import ReliabilityDiagram, diagonal
from acls.report.figures.reliability import prepare as prepare_one
from acls.report.figures.style import LEGEND, SMALL, colour, marker, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST = 10
"""Samples that a bin needs to be drawn: the accuracy of fewer is anything."""


@dataclass(frozen=True)
class Overlay:
    """The diagram of each method by its name."""

    methods: dict[str, ReliabilityDiagram]


def prepare(methods: Mapping[str, Reliability]) -> Overlay:
    """Compute the diagrams of several methods' bins."""
    return Overlay({name: prepare_one(found) for name, found in methods.items()})


def draw(data: Overlay, ax: Axes) -> None:
    """Draw a line per method: accuracy against confidence, with the 95 % interval of each bin as a bar."""
    diagonal(ax)
    for number, (name, one) in enumerate(data.methods.items()):
        rows = [row for row in one.rows if row.count >= FEWEST]
        x, y = [row.confidence for row in rows], [row.accuracy for row in rows]
        errors = [[row.accuracy - row.low for row in rows], [row.high - row.accuracy for row in rows]]
        ax.errorbar(
            x, y, yerr=errors, color=colour(number), marker=marker(number), markersize=3.5, linewidth=1.2,
            elinewidth=0.5, capsize=1, label=f"{name}: ECE {100 * one.ece:.2f} %", zorder=4,
        )  # fmt: skip
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")
    ax.legend(loc="upper left", fontsize=SMALL, **LEGEND)
    tidy(ax)
