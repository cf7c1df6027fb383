"""Opening what a report is about: run folders, study folders, files of predictions."""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from acls.calibrators import Calibrator, Temperature, make_calibrator
from acls.errors import InputError
from acls.predictions import Columns, Predictions, open_batches
from acls.recipes import Recipe
from acls.report.page import pictures
from acls.report.page.measuring import calibrated, cross_fitted, logits_of, measure
from acls.report.page.subjects import AS_IS, Mistake, State, Subject
from acls.shapes import IGNORE_INDEX
from acls.study.store import NAME as STUDY
from acls.study.store import Row, Store
from acls.train import RunFolder, open_run

REPLICATES = 1000
"""Resamples behind an interval."""
CROSS_FITTED = "each half of the rows is scaled by the temperature of the other half"
HELD_OUT = "fitted on the validation part"


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run."""
    return (path / "recipe.yaml").is_file()


def is_study(path: Path) -> bool:
    """Whether a path is the folder of a study."""
    return (path / STUDY).is_file()


def of_path(path: str | Path, *, replicates: int = REPLICATES, images: str | Path | None = None) -> list[Subject]:
    """The subjects of a run folder, a study folder, a folder of runs, or a file of predictions with standard names."""
    folder, album = Path(path), Album()
    if is_study(folder):
        return of_study(folder)
    if is_run(folder):
        return [of_run(folder, replicates=replicates)]
    runs = sorted(child for child in folder.iterdir() if is_run(child)) if folder.is_dir() else []
    if runs:
        return [of_run(run, replicates=replicates, album=album) for run in runs]
    return [of_file(path, replicates=replicates, images=images)]


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
    state, mistakes = measure(batches, replicates=replicates, ignore_index=ignore_index)
    states = [state]
    if state.suite is not None and state.suite.n_classes is not None:
        after, t = cross_fitted(batches, ignore_index)
        scaled, _ = measure(
            batches, "Temperature", replicates=replicates, ignore_index=ignore_index, after=after, temperature=t,
            note=CROSS_FITTED,
        )  # fmt: skip
        states.append(scaled)
    picture = None if images is None else pictures.of_files(images)
    meta = next(iter(batches)).meta
    return Subject(
        method=title or Path(path).name,
        seed=None,
        source=str(path),
        states=tuple(states),
        names=_names(meta),
        by_image=bool(mistakes) and mistakes[0].image is not None,
        mistakes=mistakes,
        pictures=pictures.addresses(picture, map(_unit, mistakes)),
        settings="\n".join(f"{name}: {value}" for name, value in meta.items()),
    )


def of_run(
    path: str | Path,
    *,
    replicates: int = REPLICATES,
    calibrators: Iterable[str] = ("Temperature",),
    album: Album | None = None,
) -> Subject:
    """The subject of a finished run: its test part, as it is and after calibrators fitted on the validation part."""
    folder, recipe = open_run(Path(path))
    if not folder.predictions("test").is_file():
        raise InputError(f"{path} is not finished: continue it with acls train --resume {path}")
    test, val = (Predictions.load(folder.predictions(part)) for part in ("test", "val"))
    state, mistakes = measure([test], replicates=replicates)
    states = [state]
    for text in calibrators:
        calibrator = _calibrator(text).fit(logits_of(val), val.labels)
        t = float(calibrator.temperature) if isinstance(calibrator, Temperature) else None
        after, _ = measure(
            [test], text, replicates=replicates, after=calibrated(calibrator), temperature=t, note=HELD_OUT
        )
        states.append(after)
    return Subject(
        method=test.meta.get("loss", recipe.loss.name),
        seed=recipe.seed,
        source=str(path),
        states=tuple(states),
        names=_names(test.meta),
        by_image=test.image is not None,
        mistakes=mistakes,
        pictures=pictures.addresses((album or Album()).of(recipe), map(_unit, mistakes)),
        history=_history(folder),
        settings=folder.recipe.read_text(encoding="utf-8"),
        environment=_environment(folder),
    )


def of_study(path: str | Path) -> list[Subject]:
    """A subject a trained network of a study: the stored numbers, and diagrams from the runs where they are there."""
    store = Store(path)
    cells: dict[tuple[str, str, int], list[Row]] = {}
    for row in store.rows():
        cells.setdefault((row.recipe, row.method, row.seed), []).append(row)
    if not cells:
        raise InputError(f"{path} is the folder of a study that has no finished run yet")
    several, album = len({recipe for recipe, _, _ in cells}) > 1, Album()
    return [
        _of_cell(store.folder, f"{method} · {recipe}" if several else method, seed, rows, album)
        for (recipe, method, seed), rows in cells.items()
    ]


def _of_cell(folder: Path, method: str, seed: int, rows: Sequence[Row], album: Album) -> Subject:
    rows = sorted(rows, key=lambda row: row.posthoc != AS_IS)
    states = [
        State(row.posthoc, {name: _number(value) for name, value in row.metrics.items()}, row.n, protocol=row.protocol)
        for row in rows
    ]
    run = folder / rows[0].run
    source = rows[0].run or str(folder)
    if not rows[0].run or not is_run(run) or not RunFolder(run).predictions("test").is_file():
        settings = json.dumps(rows[0].settings, indent=2)
        return Subject(method, seed, source, tuple(states), settings=settings)
    posthoc = [row.posthoc for row in rows if row.posthoc != AS_IS]
    found = of_run(run, replicates=0, calibrators=posthoc, album=album)
    drawn = {state.name: state for state in found.states}
    # The stored numbers stand, with their intervals; the run's outputs give what diagrams need.
    states = [replace(drawn[state.name], numbers=state.numbers, n=state.n, protocol=state.protocol) for state in states]
    return replace(found, method=method, seed=seed, source=source, states=tuple(states))


def _number(stored: Any) -> dict[str, float | None]:
    names = ("value", "low", "high", "floor", "floor_high")
    return {name: stored.get(name) for name in names}


def _calibrator(text: str) -> Calibrator:
    """The calibrator that prints itself so: ``Temperature`` or ``Temperature(objective='ece')``."""
    call = ast.parse(text, mode="eval").body
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
        return make_calibrator(call.func.id, **{str(one.arg): ast.literal_eval(one.value) for one in call.keywords})
    return make_calibrator(text)


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
