"""Training what a table or figure needs, once for all of them, and finding the rows again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from acls.errors import InputError
from acls.losses import ACLS
from acls.metrics.intervals import REPLICATES
from acls.options import override
from acls.predictions import Predictions
from acls.recipes import Recipe, find
from acls.reproduce.experiments import EMBEDDED, SMALL, Line
from acls.spec import Spec
from acls.study.engine import Engine
from acls.study.methods import method_of
from acls.study.progress import Progress
from acls.study.ranking import Resampled, resample
from acls.study.resamples import resampled
from acls.study.runs import (
    Cell,
    Failed,
    calibrator_name,
    chosen,
    evaluated,
    numbers,
    plan,
    run_study,
)
from acls.study.store import Row, Store
from acls.train import RunFolder

SCALES = ("mini", "paper")


@dataclass(frozen=True)
class Setup:
    """How the paper is to be reproduced: at which size, from which data, with how many seeds."""

    out: Path
    engine: Engine
    scale: str = "mini"
    roots: Mapping[str, str] = field(default_factory=dict)
    """By the data set's name: its folder or zip file."""
    seeds: tuple[int, ...] = (1, 2, 3)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted settings of all recipes."""
    show: bool = True
    wait: bool = False
    """Wait where another process is at the same study, instead of refusing."""

    def recipe(self, paper: str) -> Recipe | None:
        """The recipe that stands for one of the paper's; None where it has no sibling of that size."""
        recipe = find(paper)
        if self.scale == "mini":
            if paper not in SMALL:
                return None
            at_hand = recipe.data.name in self.roots
            recipe = find(SMALL[paper] if at_hand else EMBEDDED[paper])
        root = self.roots.get(recipe.data.name)
        changes = {"log": (), **self.settings}
        return override(recipe, changes if root is None else {"data.root": root, **changes})


@dataclass(frozen=True)
class Study:
    """The runs of some lines on one recipe."""

    setup: Setup
    recipe: Recipe
    lines: Mapping[str, Line]
    _resampled: dict[tuple[str, str, str], Resampled] = field(default_factory=dict, init=False, repr=False)

    def run(self) -> list[Failed]:
        """Train what is not trained yet."""
        progress = Progress(show=self.setup.show)
        return run_study(self._cells, self.setup.engine, wait=self.setup.wait, progress=progress)

    def rows(self, label: str, split: str = "test") -> list[Row]:
        """The rows of a line, a seed each."""
        line = self.lines[label]
        key = method_of(self.recipe, self._spec(line)).name, calibrator_name(line.posthoc)
        found = [row for row in chosen(self._cells, Store(self._folder).rows()) if (row.method, row.posthoc) == key]
        return found if split == "test" else [self._remeasured(row, line, split) for row in found]

    def folder(self, row: Row) -> RunFolder:
        """Where the run behind a row is."""
        return RunFolder(self._folder / row.run)

    def predictions(self, row: Row, split: str = "test") -> Predictions:
        """The outputs behind a row, as the network gives them."""
        return Predictions.load(self.folder(row).predictions(split))

    def resampled(self, row: Row) -> Resampled:
        """The metrics behind a row on resampled samples, to compare it with others on the same samples."""
        key = row.run, row.posthoc, row.split
        if key not in self._resampled:
            self._resampled[key] = self._resample(row)
        return self._resampled[key]

    def _resample(self, row: Row) -> Resampled:
        if row.split == "test":
            return resampled(self._folder, row)
        counted = evaluated(self.predictions(row, row.split)).blocks
        assert counted is not None  # there are predictions
        return resample(counted)

    def _remeasured(self, row: Row, line: Line, split: str) -> Row:
        if line.posthoc is not None:
            raise InputError(f"{line.posthoc} is fitted on the validation split, so it is not measured on {split}")
        worth = evaluated(self.predictions(row, split)).worth(REPLICATES)
        return replace(row, split=split, n=worth.n, metrics=numbers(worth), protocol={**row.protocol, "split": split})

    @property
    def _folder(self) -> Path:
        return self.setup.out / "studies" / self.recipe.name

    @cached_property
    def _cells(self) -> list[Cell]:
        posthoc = [line.posthoc for line in self.lines.values() if line.posthoc is not None]
        return plan(self._folder, self.recipe, map(self._spec, self.lines.values()), self.setup.seeds, posthoc)

    def _spec(self, line: Line) -> Spec:
        if not line.margin_field:
            return line.method
        margin = self.recipe.loss.protocol.get("margin", ACLS.margin)
        return Spec(line.method.name, {**line.method.fields, line.margin_field: margin})


def studies(setup: Setup, papers: Iterable[str], lines: Mapping[str, Line]) -> dict[str, Study]:
    """The study of some lines for each of the paper's recipes that has a sibling of this size."""
    found = {}
    for paper in papers:
        recipe = setup.recipe(paper)
        if recipe is not None:
            found[paper] = Study(setup, recipe, lines)
    return found
