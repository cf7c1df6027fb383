"""A line an epoch and, on a terminal, a bar with the time that is left."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from acls.errors import MissingExtra, require
from acls.metrics.catalogue import metric, names


class Progress(AbstractContextManager["Progress"]):
    """Tells how far training is; silent where ``show`` is False."""

    def __init__(self, *, epochs: int, steps: int, done: int, show: bool) -> None:
        """Expect so many epochs and steps in all, of which so many steps are done."""
        self.epochs, self.show = epochs, show
        self.bar: Any = None
        if show:
            try:
                rich = require("rich.progress", extra="train")
            except MissingExtra:
                return
            # Steps that were done before a resume tell nothing about the speed, so they are not counted.
            columns = ("{task.description}", rich.BarColumn(), "{task.percentage:>3.0f}%", rich.TimeRemainingColumn())
            self.bar = rich.Progress(*columns, transient=True)
            self.task = self.bar.add_task("training", total=max(steps - done, 1))

    def __enter__(self) -> Progress:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, epoch: int) -> None:
        """One step is done."""
        if self.bar is not None:
            self.bar.update(self.task, advance=1, description=f"epoch {epoch + 1}/{self.epochs}")

    def epoch(self, number: int, row: Mapping[str, float], best: bool) -> None:
        """An epoch is done, with these numbers."""
        if not self.show:
            return
        told = [f"epoch {number + 1:>{len(str(self.epochs))}}/{self.epochs}", f"loss {row['train/loss']:.4f}"]
        told += [metric(name).phrase(row[f"val/{name}"]) for name in names(1) if f"val/{name}" in row]
        told += [f"T {row['val/temperature']:.3f}", f"{row['seconds']:.1f} s"]
        line = "  ".join(told) + ("  *" if best else "")
        if self.bar is not None:
            self.bar.console.print(line, highlight=False, soft_wrap=True)
        else:
            print(line, flush=True)
