"""Open the sources of a report: run folders, study folders and files of predictions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acls.calibrators import Temperature
from acls.calibrators.calibration_set import Passes
from acls.errors import InputError
from acls.metrics.significance import REPLICATES
from acls.options import from_plain
from acls.predictions import Batches, Columns, Predictions, slices
from acls.recipes import Recipe
from acls.report.page import pictures
from acls.report.page.subjects import Subject
from acls.report.results import grouped
from acls.results import Record, evaluate
from acls.shapes import IGNORE_INDEX
from acls.study.methods import restated
from acls.study.runs import BINNED, NONE, detailed, protocol
from acls.study.store import STORE, Row, RunFiles, Store
from acls.train.folder import ENVIRONMENT, RECIPE, open_run

CROSS_FITTED = "each half of the rows is scaled by the temperature of the other half"
HELD_OUT = "fitted on the validation part"
Album = dict[str, "pictures.Picture | None"]
"""The pictures of test parts, by the settings of the data."""
KEPT = 1 << 24
"""Largest number of scores kept in memory to fit temperatures."""


class Unfinished(InputError):
    """A run or a study has no results yet."""


def _folders(path: Path) -> list[Path]:
    """Return the run and study folders at a path: the path itself, or the folders of runs in it."""
    if (path / STORE).is_file() or (path / RECIPE).is_file():
        return [path]
    return sorted(child for child in path.iterdir() if (child / RECIPE).is_file()) if path.is_dir() else []


def holds_runs(path: str | Path) -> bool:
    """Return whether a path is the folder of a run or a study, or a folder that contains runs."""
    return bool(_folders(Path(path)))


def of_path(path: str | Path, *, replicates: int = REPLICATES, missed: list[Unfinished] | None = None) -> list[Subject]:
    """Return the subjects of a run folder, a study folder or a folder of runs.

    Unfinished runs and studies raise an error or, if ``missed`` is a list, are appended to it and left out.
    """
    found, album = list[Subject](), Album()
    for part in _folders(Path(path)):
        try:
            study = (part / STORE).is_file()
            found += of_study(part) if study else [of_run(part, replicates=replicates, album=album)]
        except Unfinished as error:
            if missed is None:
                raise
            missed.append(error)
    return found


def of_file(
    source: str | Path | Batches | Predictions,
    columns: Columns | None = None,
    *,
    title: str | None = None,
    ignore_index: int = IGNORE_INDEX,
    replicates: int = REPLICATES,
    images: str | Path | None = None,
) -> Subject:
    """Return the subject of predictions in a file or memory; scores also get a cross-fitted temperature."""
    batches = slices(source, columns, ignore_index=ignore_index)
    place = batches.name if isinstance(batches, Batches) else title or "model"
    method = title or Path(place).name

    def measured(posthoc: str, p: Iterable[Predictions]) -> Record:
        result = evaluate(p, replicates=replicates, ignore_index=ignore_index, detailed=True, compare=True)
        return Record(method, None, posthoc, result, BINNED)

    states, t = [measured(NONE, batches)], None
    if states[0].result.kind != "triples":
        after, t = cross_fitted(batches, ignore_index)
        states.append(measured("Temperature", after))
    picture = None if images is None else pictures.of_files(images)
    details = states[0].result.details
    return Subject(
        source=place,
        states=tuple(states),
        temperature=t,
        note=CROSS_FITTED,
        names=_names(details.meta),
        pictures=pictures.addresses(picture, (one.unit for one in details.mistakes)),
        settings="\n".join(f"{name}: {value}" for name, value in details.meta.items()),
    )


def of_run(path: str | Path, *, replicates: int = REPLICATES, album: Album | None = None) -> Subject:
    """Return the subject of a finished run: its test part, before and after a temperature from the validation part."""
    folder, recipe = open_run(Path(path))
    if not folder.predictions("test").is_file():
        raise Unfinished(f"{path} is not finished: continue it with acls train --resume {path}")
    test, val = (Predictions.load(folder.predictions(part)) for part in ("test", "val"))
    calibrator = Temperature().fit(val.logits(), val.labels, group=val.image)
    loss = restated(test.meta.get("loss", recipe.loss.name).removesuffix("()"), recipe.loss.fields)

    def measured(posthoc: str, p: Predictions) -> Record:
        result = evaluate(p, detailed=True, replicates=replicates)
        return Record(loss, recipe.seed, posthoc, result, protocol(recipe))

    states = measured(NONE, test), measured("Temperature", test.calibrated(calibrator))
    subject = Subject(str(path), states, float(calibrator.temperature), HELD_OUT)
    return _of_folder(RunFiles(folder.path, "."), recipe, subject, album if album is not None else {})


def of_study(path: str | Path, rows: Sequence[Row] | None = None) -> list[Subject]:
    """Return a subject per trained network of a study: the stored metrics, and diagrams if the runs are available.

    ``rows`` are the rows of the study with their details, if these are already known.
    """
    folder = Path(path)
    known = detailed(folder, Store(folder).rows()) if rows is None else rows
    cells = grouped(known, lambda row: (row.recipe, row.method, row.seed))
    if not cells:
        raise Unfinished(f"{path} is the folder of a study that has no finished run yet")
    several, album, subjects = len({recipe for recipe, _, _ in cells}) > 1, Album(), []
    for (recipe_name, name, _), cell in cells.items():
        method = f"{name} · {recipe_name}" if several else name
        states = tuple(replace(row, method=method) for row in sorted(cell, key=lambda row: row.posthoc != NONE))
        run, plain = RunFiles(folder, states[0].run), cell[0].settings.get("recipe")
        recipe = run.recipe() or (None if plain is None else from_plain(Recipe, plain))
        where, settings = states[0].run or str(folder), json.dumps(cell[0].settings, indent=2)
        subject = Subject(where, states, note=HELD_OUT, settings=settings, study=str(folder))
        fitted = None if subject.scaled is None else run.calibrator(subject.scaled.posthoc)
        t = float(fitted.temperature) if isinstance(fitted, Temperature) else None
        subjects.append(_of_folder(run, recipe, replace(subject, temperature=t), album))
    return subjects


def _of_folder(run: RunFiles, recipe: Recipe | None, subject: Subject, album: Album) -> Subject:
    """The subject with what a run's folder tells beside its outputs."""
    units = [one.unit for one in subject.mistakes]
    data = "" if recipe is None else repr(recipe.data)
    if units and data not in album:  # once for all the runs on the same data
        album[data] = None if recipe is None else pictures.of_recipe(recipe)
    return replace(
        subject,
        names=_names(subject.as_is.result.details.meta),
        pictures=pictures.addresses(album[data], units) if units else {},
        history=tuple(run.history()),
        settings=run.text(RECIPE) or subject.settings,
        environment=_parsed(run.text(ENVIRONMENT), dict),
        recipe=recipe,
    )


def _names(meta: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(map(str, _parsed(meta.get("classes", ""), list)))


def _parsed(text: str, kind: type) -> Any:
    """What a text says in JSON; empty where it is none, or of another kind."""
    with suppress(ValueError):
        if isinstance(found := json.loads(text), kind):
            return found
    return kind()


# -- temperature scaling of a file where no other data is at hand, in bounded memory -----------------------------------


def cross_fitted(
    batches: Iterable[Predictions], ignore_index: int = IGNORE_INDEX
) -> tuple[Iterator[Predictions], float]:
    """Return the slices with each half scaled by the temperature of the other half, and the temperature of all rows.

    The halves are the rows, or the images, with even and odd numbers, so no row influences its own temperature. With
    more than `KEPT` scores, a half's temperature is fitted to an even subsample. The temperature of all rows is always
    fitted to all of them, and is the one that `acls calibrate` finds; ``batches`` are then read once per pass.
    """
    logits, labels, half, stride = _held(batches, ignore_index)

    def fitted(*data: Any) -> float:
        return float(Temperature(ignore_index=ignore_index).fit(*data).temperature)

    of_the_other = torch.tensor([fitted(logits[half == one], labels[half == one]) for one in (1, 0)])
    streamed = Passes(lambda: ((p.logits(), p.labels, torch.ones(len(p))) for p in batches))

    def after() -> Iterator[Predictions]:
        first = 0
        for p in batches:
            t = of_the_other[_halves(p, first)]
            yield replace(p, scores=(p.logits() / t[:, None]).log_softmax(1), kind="log_probs")
            first += len(p)

    return after(), fitted(logits, labels) if stride == 1 else fitted(streamed)


def _held(batches: Iterable[Predictions], ignore_index: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the logits, labels and halves of the labelled rows, or of every ``stride``-th if there are too many."""
    kept: list[tuple[Tensor, ...]] = []
    first, stride = 0, 1
    for p in batches:
        number, half = torch.arange(first, first + len(p)), _halves(p, first)
        chosen = (number % stride == 0) & (p.labels != ignore_index)
        # Indexing by a mask copies, so a slice that is a view does not keep a whole file in memory.
        kept.append((p[chosen].logits(), p.labels[chosen], half[chosen], number[chosen]))
        first += len(p)
        while sum(part[0].numel() for part in kept) > KEPT:
            stride *= 3  # odd, so that both halves are kept
            kept = [tuple(column[part[3] % stride == 0] for column in part) for part in kept]
    logits, labels, half, _ = (torch.cat(parts) for parts in zip(*kept, strict=True))
    return logits, labels, half, stride


def _halves(p: Predictions, first: int) -> Tensor:
    """Return the half of each row, 0 or 1."""
    return (torch.arange(first, first + len(p)) if p.image is None else p.image) % 2
