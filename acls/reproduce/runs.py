"""Training what a table or figure needs, once for all of them, and finding the rows again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from acls.calls import parse_calls
from acls.errors import InputError
from acls.losses.naming import name_losses
from acls.metrics.intervals import REPLICATES
from acls.options import override
from acls.predictions import Predictions
from acls.recipes import Recipe, find
from acls.reproduce.experiments import EMBEDDED, SMALL, Line
from acls.study.engine import Engine
from acls.study.progress import Progress
from acls.study.runs import (
    NONE,
    Cell,
    Failed,
    calibrator_name,
    chosen,
    evaluated,
    method_name,
    numbers,
    plan,
    run_study,
)
from acls.study.store import Row, Store
from acls.train import RunFolder, predict_run

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

    def run(self) -> list[Failed]:
        """Train what is not trained yet."""
        failed: list[Failed] = []
        for cells in self._plans.values():
            progress = Progress(show=self.setup.show)
            failed += run_study(cells, self.setup.engine, progress=progress)
        return failed

    def rows(self, label: str, split: str = "test") -> list[Row]:
        """The rows of a line, a seed each."""
        line = self.lines[label]
        cells = self._plans[_group(line)]
        rows = chosen(cells, Store(cells[0].folder).rows())
        method, posthoc = self._method(line), _posthoc(line.posthoc)
        found = [row for row in rows if row.method == method and row.posthoc == posthoc]
        if split == "test" and not line.passes:
            return found
        return [self._remeasured(row, line, split) for row in found]

    def folder(self, row: Row, label: str) -> RunFolder:
        """Where the run behind a line's row is."""
        return RunFolder(self._folder(self.lines[label]) / row.run)

    def predictions(self, row: Row, label: str, split: str = "test") -> Predictions:
        """The outputs behind a line's row, as the network gives them."""
        folder, passes = self.folder(row, label), self.lines[label].passes
        if passes:
            return predict_run(folder.path, part=split, passes=passes)
        return Predictions.load(folder.predictions(split))

    def _remeasured(self, row: Row, line: Line, split: str) -> Row:
        if line.posthoc != NONE:
            raise InputError(f"{line.posthoc} is fitted on the validation split, so it is not measured on {split}")
        label = next(name for name, other in self.lines.items() if other is line)
        worth = evaluated(self.predictions(row, label, split)).worth(REPLICATES)
        return replace(row, split=split, n=worth.n, metrics=numbers(worth), protocol={**row.protocol, "split": split})

    @cached_property
    def _plans(self) -> dict[tuple[tuple[str, Any], ...], list[Cell]]:
        """The cells by the settings that they share: a study's runs differ in method and seed only."""
        found = {}
        for line in self.lines.values():
            group = [other for other in self.lines.values() if _group(other) == _group(line)]
            methods = ", ".join(dict.fromkeys(self._loss(other) for other in group))
            posthoc = ", ".join(dict.fromkeys(other.posthoc for other in group))
            recipe = override(self.recipe, dict(line.settings))
            found[_group(line)] = plan(self._folder(line), recipe, methods, self.setup.seeds, posthoc)
        return found

    def _folder(self, line: Line) -> Path:
        told = "-".join(f"{name.split('.')[-1]}={value}" for name, value in _group(line))
        return self.setup.out / "studies" / (f"{self.recipe.name}-{told}" if told else self.recipe.name)

    def _loss(self, line: Line) -> str:
        return line.loss.format(margin=self.recipe.loss.protocol.get("margin", 10.0))

    def _method(self, line: Line) -> str:
        (call,) = name_losses(self._loss(line))
        fields = {name: value.plain() if hasattr(value, "plain") else value for name, value in call.fields.items()}
        return method_name(replace(self.recipe.loss, name=call.name, fields=fields))


def _group(line: Line) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(line.settings.items()))


def _posthoc(text: str) -> str:
    (call,) = parse_calls(text, "calibrators", "temperature")
    return calibrator_name(call)


def studies(setup: Setup, papers: Iterable[str], lines: Mapping[str, Line]) -> dict[str, Study]:
    """The study of some lines for each of the paper's recipes that has a sibling of this size."""
    found = {}
    for paper in papers:
        recipe = setup.recipe(paper)
        if recipe is not None:
            found[paper] = Study(setup, recipe, lines)
    return found
