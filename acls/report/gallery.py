"""Write all applicable figures for a set of networks to a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from acls.errors import MissingExtra
from acls.metrics.bins import Reliability
from acls.report.figures import reliability, sweeps
from acls.report.figures.style import COLUMN_INCHES, canvas, drawn, save
from acls.report.page.subjects import Subject, by_method, records
from acls.report.results import grouped
from acls.storage import check_output
from acls.study.advisor import Point
from acls.study.runs import NONE
from acls.study.store import file_name
from acls.train import RunFolder, TrainedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_run(run: TrainedRun) -> None:
    """Draw reliability diagrams of both parts and the metrics over epochs into a run folder, if matplotlib exists."""
    folder = RunFolder(run.folder)
    try:
        figure, axes = canvas(2, 2, width=2 * COLUMN_INCHES, height=1.5 * COLUMN_INCHES)
    except MissingExtra:
        return
    for ax, metric in zip(axes, ("accuracy", "nll", "ece", "temperature"), strict=True):
        sweeps.draw_epochs(sweeps.prepare_epochs({"validation": [run.history]}, metric), ax)
    save(figure, folder.figure("epochs"))
    for part, suite in run.suites.items():
        figure, _ = reliability.plot(suite.bins.reliability(), cells=suite.confidences.cells())
        save(figure, folder.figure(f"reliability_{part}"))


def write_figures(
    subjects: Sequence[Subject], folder: str | Path, form: str = "png", *, force: bool = True
) -> list[Path]:
    """Write figures of each network and of all networks together, as png, svg or pdf; return the files.

    Without ``force``, a file that acls did not write is not replaced.
    """
    folder = Path(folder)
    written = []

    def keep(figure: Figure, name: str) -> None:
        path = folder / f"{name}.{form}"
        check_output(path, "figure", force=force)
        save(figure, path)
        written.append(path)

    overlays: dict[str, dict[str, Reliability]] = {}
    for subject in subjects:
        for state in subject.states:
            if (suite := state.result.suite) is None:
                continue
            seed = "" if subject.seed is None else f"-{subject.seed}"
            name = f"{_slug(subject.method)}{seed}{_suffix(state.posthoc)}"
            bins, cells = suite.bins.reliability(), suite.confidences.cells()
            overlays.setdefault(state.posthoc, {})[subject.title] = bins
            keep(reliability.plot(bins, cells=cells)[0], f"reliability-{name}")
            histogram = reliability.prepare_histogram(cells)
            keep(drawn(reliability.draw_histogram, histogram, height=2.6), f"confidence-{name}")
            if suite.classwise is not None:
                keep(reliability.class_figure(suite.classwise, subject.names), f"classes-{name}")
    for posthoc, shown in overlays.items():
        if len(shown) > 1:
            keep(drawn(reliability.draw_overlay, reliability.prepare_overlay(shown)), f"overlay{_suffix(posthoc)}")
    points = _points(subjects)
    if len(points) > 1:
        keep(drawn(sweeps.draw_front, points, height=3.0), "pareto")
    if trained := by_method([one for one in subjects if one.history]):
        histories = {name: [one.history for one in group] for name, group in trained.items()}
        keep(drawn(sweeps.draw_epochs, sweeps.prepare_epochs(histories), height=2.6), "epochs")
    return written


def _points(subjects: Sequence[Subject]) -> dict[str, list[Point]]:
    """Return the accuracy and ECE of each network by method, with and without post-hoc calibration."""
    known = [one for one in records(subjects) if {"accuracy", "ece"} <= one.result.estimates.keys()]
    groups = grouped(known, lambda one: one.method if one.posthoc == NONE else f"{one.method} + {one.posthoc}")
    return {name: [Point(one.result["accuracy"], one.result["ece"]) for one in group] for name, group in groups.items()}


def _suffix(posthoc: str) -> str:
    return "" if posthoc == NONE else f"-after-{_slug(posthoc)}"


def _slug(text: str) -> str:
    return file_name(text).strip("-.") or "network"
