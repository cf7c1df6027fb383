"""One display for a whole study: epochs of all runs, cells done, and the time that is left."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from acls.errors import MissingExtra, require

if TYPE_CHECKING:
    from acls.study.runs import Cell

EVERY = 0.5
"""Seconds between looks at the run folders."""


class Progress(AbstractContextManager["Progress"]):
    """A bar on the terminal, from the metrics.csv of the runs: whoever trains them, wherever, has one there.

    Silent without a terminal, without rich, and where ``show`` is False.
    """

    def __init__(self, *, show: bool = True) -> None:
        self._bar: Any = None
        self._over = threading.Event()
        if show and sys.stderr.isatty():
            try:
                rich, console = require("rich.progress", extra="train"), require("rich.console", extra="train")
            except MissingExtra:
                return
            bar = rich.BarColumn(bar_width=10)
            columns = ("{task.description}", bar, "{task.percentage:>3.0f}%", rich.TimeRemainingColumn(), "left")
            # A run is slow to begin, so the speed is averaged over minutes.
            self._bar = rich.Progress(
                *columns, console=console.Console(stderr=True), transient=True, speed_estimate_period=300
            )

    def start(self, cells: Sequence[Cell]) -> None:
        """These cells are left to do. Epochs done before tell nothing about the speed, and are not counted."""
        self._before = {cell.run: epochs_of(cell.path.metrics) for cell in cells}
        self._left = {cell.run: cell.recipe.epochs - self._before[cell.run] for cell in cells}
        self._names = {cell.run: (f"{cell.method}, seed {cell.recipe.seed}", cell.recipe.epochs) for cell in cells}
        self._finished: set[str] = set()
        if self._bar is not None and cells:
            self._files = {cell.run: cell.path.metrics for cell in cells}
            self._task = self._bar.add_task("", total=max(sum(self._left.values()), 1))
            self._refresh()
            self._bar.start()
            self._watch = threading.Thread(target=self._look, daemon=True)
            self._watch.start()

    def finish(self, cell: Cell) -> None:
        """This cell is done."""
        self._finished.add(cell.run)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._bar is not None:
            self._bar.stop()

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            self._refresh()

    def _refresh(self) -> None:
        epochs = {run: epochs_of(file) for run, file in self._files.items()}
        done = sum(
            self._left[run] if run in self._finished else min(epochs[run] - self._before[run], self._left[run])
            for run in self._files
        )
        self._bar.update(self._task, completed=done, description=self.describe(epochs))

    def describe(self, epochs: Mapping[str, int]) -> str:
        """What is going on: the runs done, and one that is being trained, with its epoch."""
        told = f"{len(self._finished)}/{len(self._left)} runs"
        for run, (name, last) in self._names.items():
            if run not in self._finished and self._before[run] < epochs[run] < last:
                return f"{told}, {name}, epoch {epochs[run] + 1}/{last}"
        return told


def epochs_of(metrics: Path) -> int:
    """How many epochs a run has finished, by its metrics.csv."""
    try:
        return max(metrics.read_bytes().count(b"\n") - 1, 0)
    except FileNotFoundError:
        return 0
