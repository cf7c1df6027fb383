"""Train the networks of tables and figures, each once for all of them, and find their rows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acls.calibrators import Temperature
from acls.data import load
from acls.errors import InputError
from acls.metrics.batch import Batch
from acls.metrics.estimates import Estimate
from acls.metrics.protocols import Meter, Protocol
from acls.options import override, to_plain
from acls.predictions import Predictions
from acls.recipes import Recipe, find
from acls.reproduce.experiments import SMALL, MethodLine
from acls.results.details import Resampled, counts_of
from acls.spec import Spec
from acls.storage import write_text
from acls.study import runs
from acls.study.engine import Engine
from acls.study.methods import method_of
from acls.study.store import Row, RunFiles, Store, file_name
from acls.train import RunFolder
from acls.train.evaluate import open_weights
from acls.train.guards import isolated


@dataclass(frozen=True)
class Setup:
    """The settings of a reproduction: size, data and number of seeds."""

    out: Path
    engine: Engine
    scale: str = "mini"
    roots: Mapping[str, str] = field(default_factory=dict)
    """The folder or zip file of each data set, by name."""
    seeds: tuple[int, ...] = (1, 2, 3)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings for all recipes, by dotted name."""
    form: str | None = None
    """An additional form of ACLS for every table."""
    show: bool = True
    wait: bool = False
    """Whether to wait while another process runs the same study, instead of raising an error."""

    def recipe(self, paper: str) -> Recipe | None:
        """Return the recipe for a recipe of the paper; None if it has no version of that size."""
        recipe = find(paper)
        if self.scale == "mini":
            if paper not in SMALL:
                return None
            own, embedded = SMALL[paper]
            recipe = find(own if recipe.data.name in self.roots else embedded)
        root = self.roots.get(recipe.data.name)
        # At the paper's size, a number of devices is for the recipes that the paper trained on several GPUs.
        kept = self.scale == "mini" or recipe.devices > 1
        changes = {"log": (), **{name: value for name, value in self.settings.items() if kept or name != "devices"}}
        return override(recipe, changes if root is None else {"data.root": root, **changes})

    def check_data(self, papers: Iterable[str]) -> None:
        """Open the data sets of the paper's recipes, so that a missing one is an error before the first training.

        At the paper's size, all must be given; otherwise embedded data replaces those that are not.
        """
        recipes = (self.recipe(paper) for paper in papers)
        needed = dict.fromkeys(recipe.data for recipe in recipes if recipe is not None)
        given = [data for data in needed if data.name in self.roots]
        if self.scale == "paper" and (lacking := {data.name: data for data in needed if data not in given}):
            raise InputError("at --scale paper, add " + " ".join(f"--data {name}=PATH" for name in lacking))
        for data in given:
            load(data)


@dataclass(frozen=True)
class Study:
    """The runs of some lines on one recipe."""

    setup: Setup
    recipe: Recipe
    lines: Mapping[str, MethodLine]

    @property
    def regime(self) -> str:
        """The conditions under which a verdict was found; it does not apply to others."""
        recipe, numbers = self.recipe, {"epoch": self.recipe.epochs, "seed": len(self.setup.seeds)}
        epochs, seeds = (f"{number} {name}{'s' * (number > 1)}" for name, number in numbers.items())
        return f"{recipe.name}: {recipe.model.name}, {epochs}, batches of {recipe.batch}, {seeds}"

    def run(self) -> list[runs.Failed]:
        """Train the networks that are not trained yet."""
        return runs.run_study(self._cells, self.setup.engine, wait=self.setup.wait, show=self.setup.show)

    def rows(self, label: str, split: str = "test") -> list[Row]:
        """Return the rows of a line, one per seed, with the sums for differences on the same samples."""
        method = self.method(label)
        stored = runs.chosen(self._cells, Store(self._folder).rows())
        found = [row for row in stored if f"{row.method} {row.posthoc}" == method]
        if split == "test":
            return runs.detailed(self._folder, found)
        return [self._remeasured(row, split) for row in found]

    def method(self, label: str) -> str:
        """Return the method and calibrator of a line, as they are stored."""
        line = self.lines[label]
        return f"{method_of(self.recipe, self._spec(line)).name} {runs.calibrator_name(line.posthoc)}"

    def by_protocol(self, row: Row, protocol: Protocol) -> Row:
        """Return the row with ECE and AECE computed by a protocol.

        For label maps, all labelled pixels are used, not only those that were kept. A protocol that averages over
        batches of images has intervals, from resamples of whole batches.
        """
        file = self.folder(row).path / f"{protocol.name}-{protocol.bins}-{file_name(row.posthoc)}.json"
        if not file.is_file():
            meter = self._measured(row, protocol)
            write_text(file, json.dumps(to_plain({"metrics": meter.result(), "batches": meter.batches()})))
        found = json.loads(file.read_text(encoding="utf-8"))
        drawn = _resampled_batches(found["batches"], protocol) if len(found["batches"]) > 1 else {}
        central = torch.tensor([0.025, 0.975], dtype=torch.float64)
        ends = {name: values.quantile(central).tolist() for name, values in drawn.items()}
        new = {name: Estimate(found["metrics"][name], None, *ends.get(name, ())) for name in ("ece", "aece")}
        details, kept = row.result.details, row.result.details.resamples
        if kept is not None:
            others = {name: values for name, values in kept.metrics.items() if name not in new}
            details = replace(details, resamples=Resampled({**others, **drawn}, kept.units))
        result = replace(row.result, estimates={**row.result.estimates, **new}, floors={}, details=details)
        return replace(row, result=result)

    def _measured(self, row: Row, protocol: Protocol) -> Meter:
        meter, p = protocol.meter(), runs.outputs(self._folder, row)
        if p.image is None or row.posthoc != runs.NONE:
            assert p.scores is not None
            assert p.kind != "triples"
            meter.add(Batch.of(p.scores, p.labels, kind=p.kind), p.image)
            return meter
        with isolated():
            session, _ = open_weights(self.folder(row).path)
            for logits, target, _ in session.outputs(session.data.test):
                meter.add(Batch.of(logits, target, kind="logits", ignore_index=session.data.void))
        return meter

    def temperature(self, row: Row) -> float:
        """Return the temperature of a row after temperature scaling."""
        calibrator = RunFiles(self._folder, row.run).calibrator(row.posthoc)
        assert isinstance(calibrator, Temperature)
        return float(calibrator.temperature)

    def folder(self, row: Row) -> RunFolder:
        """Return the folder of the run of a row."""
        return RunFolder(self._folder / row.run)

    def _remeasured(self, row: Row, split: str) -> Row:
        result = runs.evaluated(Predictions.load(self.folder(row).predictions(split)))
        return replace(row, split=split, result=result, protocol={**row.protocol, "split": split})

    @property
    def _folder(self) -> Path:
        return self.setup.out / "studies" / self.recipe.name

    @cached_property
    def _cells(self) -> list[runs.Cell]:
        posthoc = [line.posthoc for line in self.lines.values() if line.posthoc is not None]
        return runs.plan(self._folder, self.recipe, map(self._spec, self.lines.values()), self.setup.seeds, posthoc)

    def _spec(self, line: MethodLine) -> Spec:
        if not line.margin_field:
            return line.method
        return Spec(line.method.name, {**line.method.fields, line.margin_field: self.recipe.loss.margin})


def _resampled_batches(batches: Sequence[Mapping[str, float]], protocol: Protocol) -> dict[str, Tensor]:
    """Return ECE and AECE on resamples of whole batches; networks on the same images share the same resamples."""
    sizes = torch.tensor([batch["n"] for batch in batches], dtype=torch.float64)
    weights = counts_of(sizes) * (sizes if protocol.weighted else 1.0)
    drawn = {}
    for name in ("ece", "aece"):
        means = weights @ torch.tensor([batch[name] for batch in batches], dtype=torch.float64) / weights.sum(1)
        # Resamples of B batches vary by the factor (B - 1) / B too little.
        drawn[name] = means.mean() + (means - means.mean()) * math.sqrt(len(batches) / (len(batches) - 1))
    return drawn
