"""Show progress: one line per epoch and, on a terminal, a bar, both with the remaining time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from acls.errors import MissingExtra, require
from acls.metrics.catalogue import metric


def progress_bar(*, stderr: bool = False, **settings: Any) -> Any:
    """Return a rich progress bar with the remaining time, removed at the end; None if rich is not installed."""
    try:
        rich, console = (require(f"rich.{name}", extra="train") for name in ("progress", "console"))
    except MissingExtra:
        return None
    bar, left = rich.BarColumn(bar_width=10), rich.TimeRemainingColumn()
    columns = ("{task.description}", bar, "{task.percentage:>3.0f}%", left, "left")
    return rich.Progress(*columns, console=console.Console(stderr=stderr), transient=True, **settings)


class EpochProgress:
    """Shows the progress of training; prints nothing if ``show`` is False."""

    def __init__(self, epochs: int, steps: int, *, show: bool) -> None:
        """Set the total number of epochs and the steps left; steps before a resume do not count for the speed."""
        self.epochs, self.show, self.done, self.began = epochs, show, 0, time.perf_counter()
        self.bar = progress_bar() if show else None
        if self.bar is not None:
            self.task = self.bar.add_task("training", total=max(steps, 1))

    def shown(self) -> AbstractContextManager[Any]:
        """Return a context manager that shows the bar, if there is one, on the terminal."""
        return nullcontext() if self.bar is None else self.bar

    def step(self, epoch: int) -> None:
        """Record one finished step."""
        if self.bar is not None:
            self.bar.update(self.task, advance=1, description=f"epoch {epoch + 1}/{self.epochs}")

    def epoch(self, number: int, row: Mapping[str, float], best: bool) -> None:
        """Print the metrics of a finished epoch in a line of at most 80 characters."""
        if not self.show:
            return
        self.done += 1
        left = (time.perf_counter() - self.began) / self.done * (self.epochs - number - 1)
        shown = ("miou" if "val/miou" in row else "accuracy", "ece")
        line = [f"epoch {number + 1:>{len(str(self.epochs))}}/{self.epochs}", f"loss {row['train/loss']:.3f}"]
        line += [metric(name).phrase(row[f"val/{name}"]) for name in shown]
        line += [f"T {row['val/temperature']:.2f}", f"{duration(left)} left"]
        text = "  ".join(line) + (" *" if best else "")
        if self.bar is not None:
            self.bar.console.print(text, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)


def duration(seconds: float) -> str:
    """Format a duration: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds != seconds or seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
