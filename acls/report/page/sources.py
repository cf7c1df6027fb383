"""Opening what a report is about: run folders, study folders, files of predictions."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from acls.calibrators import Temperature
from acls.errors import InputError
from acls.metrics import Blocks
from acls.metrics.bins import BINS
from acls.options import from_plain
from acls.predictions import Columns, Predictions, open_batches
from acls.recipes import Recipe, load_recipe
from acls.report.page import pictures
from acls.report.page.measuring import (
    Map,
    blocks_of,
    calibrated,
    cross_fitted,
    evaluated,
    worst_mistakes,
)
from acls.report.page.subjects import AS_IS, Mistake, State, Subject
from acls.shapes import IGNORE_INDEX
from acls.study.runs import numbers, outputs, protocol
from acls.study.store import NAME as STUDY
from acls.study.store import Row, Store
from acls.train import RunFolder, open_run

REPLICATES = 1000
"""Resamples behind an interval."""
CROSS_FITTED = "each half of the rows is scaled by the temperature of the other half"
_OF_FILES = {"bins": BINS, "edges": "(lo, hi]", "pooled": True}
HELD_OUT = "fitted on the validation part"


class Unfinished(InputError):
    """A run or a study that has nothing to report yet."""


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run."""
    return (path / "recipe.yaml").is_file()


def is_study(path: Path) -> bool:
    """Whether a path is the folder of a study."""
    return (path / STUDY).is_file()


def holds_runs(path: str | Path) -> bool:
    """Whether a path is the folder of a run, of a study, or of folders of runs."""
    folder = Path(path)
    return is_study(folder) or is_run(folder) or bool(_runs_in(folder))


def _runs_in(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if is_run(child)) if folder.is_dir() else []


def of_path(
    path: str | Path,
    *,
    replicates: int = REPLICATES,
    images: str | Path | None = None,
    skipped: list[Unfinished] | None = None,
) -> list[Subject]:
    """The subjects of a run folder, a study folder, a folder of runs, or a file of predictions with standard names.

    What is not finished is raised or, where ``skipped`` is a list, put into it and left out.
    """
    folder, album = Path(path), Album()
    if not holds_runs(folder):
        return [of_file(path, replicates=replicates, images=images)]

    def opened(part: Path) -> list[Subject]:
        try:
            return of_study(part) if is_study(part) else [of_run(part, replicates=replicates, album=album)]
        except Unfinished as error:
            if skipped is None:
                raise
            skipped.append(error)
            return []

    parts = [folder] if is_study(folder) or is_run(folder) else _runs_in(folder)
    return [subject for part in parts for subject in opened(part)]


def of_file(
    path: str | Path,
    columns: Columns | None = None,
    *,
    title: str | None = None,
    ignore_index: int = IGNORE_INDEX,
    replicates: int = REPLICATES,
    images: str | Path | None = None,
) -> Subject:
    """The subject of one file of predictions; where it has scores, also after a cross-fitted temperature."""
    batches = open_batches(path, columns, ignore_index=ignore_index)

    def measured(name: str, after: Map | None = None, **more: Any) -> State:
        evaluation = evaluated(batches, after, ignore_index=ignore_index, resample=replicates > 0)
        worth = evaluation.worth(replicates)
        recount = partial(blocks_of, batches, after, ignore_index=ignore_index)
        more |= {"blocks": recount, "protocol": _OF_FILES, "labels": evaluation.labels}
        return State(name, numbers(worth), worth.n, evaluation.suite, **more)

    states = [measured(AS_IS)]
    if states[0].suite is not None and states[0].suite.n_classes is not None:
        after, t = cross_fitted(batches, ignore_index)
        states.append(measured("Temperature", after, temperature=t, note=CROSS_FITTED))
    mistakes = worst_mistakes(batches, ignore_index)
    picture = None if images is None else pictures.of_files(images)
    first = next(iter(batches))
    return Subject(
        method=title or Path(path).name,
        seed=None,
        source=str(path),
        states=tuple(states),
        names=_names(first.meta),
        by_image=first.image is not None,
        mistakes=mistakes,
        pictures=pictures.addresses(picture, map(_unit, mistakes)),
        settings="\n".join(f"{name}: {value}" for name, value in first.meta.items()),
    )


def of_run(path: str | Path, *, replicates: int = REPLICATES, album: Album | None = None) -> Subject:
    """The subject of a finished run: its test part, as it is and after a temperature fitted on the validation part."""
    folder, recipe = open_run(Path(path))
    if not folder.predictions("test").is_file():
        raise Unfinished(f"{path} is not finished: continue it with acls train --resume {path}")
    test, val = (Predictions.load(folder.predictions(part)) for part in ("test", "val"))
    calibrator = Temperature().fit(val.logits(), val.labels)

    def measured(name: str, after: Map | None = None, **more: Any) -> State:
        evaluation = evaluated([test], after, resample=replicates > 0)
        worth = evaluation.worth(replicates)
        recount = partial(blocks_of, [test], after)
        more |= {"blocks": recount, "protocol": protocol(recipe), "labels": evaluation.labels}
        return State(name, numbers(worth), worth.n, evaluation.suite, **more)

    t = float(calibrator.temperature)
    states = measured(AS_IS), measured("Temperature", calibrated(calibrator), temperature=t, note=HELD_OUT)
    loss = test.meta.get("loss", recipe.loss.name).removesuffix("()")
    return _of_folder(folder, recipe, test, Subject(loss, recipe.seed, str(path), states), album or Album())


def of_study(path: str | Path) -> list[Subject]:
    """A subject a trained network of a study: the stored numbers, and diagrams from the runs where they are there."""
    store = Store(path)
    cells: dict[tuple[str, str, int], list[Row]] = {}
    for row in store.rows():
        cells.setdefault((row.recipe, row.method, row.seed), []).append(row)
    if not cells:
        raise Unfinished(f"{path} is the folder of a study that has no finished run yet")
    several, album = len({recipe for recipe, _, _ in cells}) > 1, Album()
    return [
        _of_cell(store.folder, f"{method} · {recipe}" if several else method, rows, album)
        for (recipe, method, _), rows in cells.items()
    ]


def _of_cell(folder: Path, method: str, rows: Sequence[Row], album: Album) -> Subject:
    rows = sorted(rows, key=lambda row: row.posthoc != AS_IS)
    seed, run = rows[0].seed, RunFolder(folder / rows[0].run)
    if not rows[0].run or not run.predictions("test").is_file():
        states = [State(row.posthoc, row.metrics, row.n, protocol=row.protocol) for row in rows]
        settings = rows[0].settings
        return Subject(
            method,
            seed,
            str(folder),
            tuple(states),
            settings=json.dumps(settings, indent=2),
            recipe=from_plain(Recipe, settings["recipe"]) if "recipe" in settings else None,
            study=str(folder),
        )
    states = [_of_row(folder, run, row) for row in rows]
    subject = Subject(method, seed, rows[0].run, tuple(states), study=str(folder))
    return _of_folder(run, load_recipe(run.recipe), outputs(folder, rows[0]), subject, album)


def _of_row(folder: Path, run: RunFolder, row: Row) -> State:
    evaluation = evaluated([outputs(folder, row)], resample=False)
    return State(
        name=row.posthoc,
        numbers=row.metrics,
        n=row.n,
        suite=evaluation.suite,
        temperature=_temperature(run, row.posthoc),
        note="" if row.posthoc == AS_IS else HELD_OUT,
        protocol=row.protocol,
        blocks=partial(_recounted, folder, row),
        labels=evaluation.labels,
    )


def _of_folder(folder: RunFolder, recipe: Recipe, test: Predictions, subject: Subject, album: Album) -> Subject:
    """The subject with what a run's folder tells beside its outputs."""
    mistakes = worst_mistakes([test])
    return replace(
        subject,
        names=_names(test.meta),
        by_image=test.image is not None,
        mistakes=mistakes,
        pictures=pictures.addresses(album.of(recipe), map(_unit, mistakes)),
        history=_history(folder),
        settings=folder.recipe.read_text(encoding="utf-8"),
        environment=_environment(folder),
        recipe=recipe,
    )


def _recounted(folder: Path, row: Row) -> Blocks:
    return blocks_of([outputs(folder, row)])


def _temperature(run: RunFolder, posthoc: str) -> float | None:
    file = run.path / "calibrators" / f"{posthoc}.safetensors"
    if posthoc != "Temperature" or not file.is_file():
        return None
    return float(Temperature.load(file).get_buffer("temperature"))


def _unit(mistake: Mistake) -> int:
    return mistake.row if mistake.image is None else mistake.image


def _names(meta: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return tuple(str(name) for name in json.loads(meta.get("classes", "[]")))
    except (ValueError, TypeError):
        return ()


class Album:
    """The pictures of recipes' data, each loaded once for all the runs on it."""

    def __init__(self) -> None:
        self._loaded: dict[str, pictures.Picture | None] = {}

    def of(self, recipe: Recipe) -> pictures.Picture | None:
        """The pictures of a recipe's test part, or None."""
        key = repr(recipe.data)
        if key not in self._loaded:
            self._loaded[key] = pictures.of_recipe(recipe)
        return self._loaded[key]


def _history(folder: RunFolder) -> tuple[Mapping[str, float], ...]:
    if not folder.metrics.is_file():
        return ()
    with open(folder.metrics, encoding="utf-8", newline="") as file:
        return tuple({name: float(value) for name, value in row.items()} for row in csv.DictReader(file))


def _environment(folder: RunFolder) -> Mapping[str, Any]:
    file = folder.path / "environment.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
