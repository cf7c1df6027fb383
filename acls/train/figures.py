"""Two pictures of a run, where matplotlib is installed: how its numbers moved, how reliable its confidence is."""

from __future__ import annotations

from typing import Any

from acls.errors import MissingExtra, require
from acls.metrics import Suite
from acls.storage import atomic_write
from acls.train.folder import RunFolder

_CURVES = (
    ("accuracy", "val/accuracy", "train/accuracy"),
    ("NLL", "val/nll", None),
    ("ECE", "val/ece", None),
    ("temperature that fits", "val/temperature", None),
)


def draw_figures(folder: RunFolder, history: list[dict[str, float]], suites: dict[str, Suite]) -> None:
    """Write figures/curves.png and figures/reliability.png."""
    try:
        figure_kind = require("matplotlib.figure", extra="plot").Figure
    except MissingExtra:
        return
    curves: Any = figure_kind(figsize=(9, 6), layout="constrained")
    epochs = [row["epoch"] + 1 for row in history]
    for ax, (title, val, train) in zip(curves.subplots(2, 2).flat, _CURVES, strict=True):
        ax.plot(epochs, [row[val] for row in history], label="validation")
        if train is not None:
            ax.plot(epochs, [row[train] for row in history], label="training")
            ax.legend()
        ax.set(title=title, xlabel="epoch")
    reliability: Any = figure_kind(figsize=(4.5 * len(suites), 4.5), layout="constrained")
    for ax, (name, suite) in zip(reliability.subplots(1, len(suites), squeeze=False).flat, suites.items(), strict=True):
        draw_reliability(ax, suite, name)
    for name, figure in (("curves", curves), ("reliability", reliability)):
        with atomic_write(folder.figure(name)) as temporary:
            figure.savefig(temporary, dpi=110, format="png")


def draw_reliability(ax: Any, suite: Suite, title: str) -> None:
    """Draw accuracy over confidence, a bar a bin that has samples, with the diagonal."""
    diagram = suite.bins.reliability()
    filled = diagram.count > 0
    width = (diagram.upper - diagram.lower)[filled]
    middle = ((diagram.upper + diagram.lower) / 2)[filled]
    ax.bar(middle, diagram.accuracy[filled], width=0.95 * width, label="accuracy")
    ax.plot(diagram.confidence[filled], diagram.accuracy[filled], "o", color="black", markersize=3)
    ax.plot([0, 1], [0, 1], "--", color="gray")
    summary = suite.summary()
    ax.set(
        title=f"{title}: ECE {100 * summary['ece']:.2f} %, n = {suite.n:,}",
        xlabel="confidence",
        ylabel="accuracy",
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
    )
