"""The Python interface: evaluate, calibrate and report arrays, compare methods on a model, train one network."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acls.arrays import column, scored
from acls.calibrators import Calibrator, make_calibrator
from acls.data import DataOptions
from acls.data.given import fingerprint, gathered
from acls.errors import InputError, check_names, suggest
from acls.metrics.bins import BINS
from acls.metrics.protocols import PROTOCOLS
from acls.metrics.protocols import protocol as find_protocol
from acls.metrics.significance import REPLICATES
from acls.models.own import resolved
from acls.options import override
from acls.predictions import Batches, Columns, Predictions, Source, open_batches, save_batches, slices
from acls.predictions.core import to_logits
from acls.recipes import METHODS, Recipe, find
from acls.report.gallery import write_figures
from acls.report.page.build import Report, write
from acls.report.page.build import results as tables_of
from acls.report.page.overview import conclusions, decisions
from acls.report.page.sources import Unfinished, holds_runs, of_file, of_path, of_study
from acls.report.page.subjects import Subject, rank_subjects, told_apart
from acls.report.results import RANKED, Comparison
from acls.results import ModelResults, ProtocolResults, Record, Result, count, differences, measure
from acls.results import evaluate as measured
from acls.results.recommending import check_pointwise
from acls.shapes import IGNORE_INDEX
from acls.shown import Shown
from acls.spec import Spec
from acls.storage import check_output
from acls.study.engine import Engine, Here, make_engine
from acls.study.parts import count_parts
from acls.study.ranking import rank
from acls.study.runs import chosen, detailed, plan, run_study
from acls.study.store import Store
from acls.train import Given, TrainedRun
from acls.train import fit as train_recipe

_OWN = ("confidence", "correct", "group", "image", "sample_weight")
"""Arguments of `predictions` besides scores, labels and kind."""
_SETTINGS = ("bins", "by_group", "by_image", "compare", "detailed", "ignore_index", "replicates")
"""Arguments of `acls.results.evaluate`."""


def compare(
    model: str | Callable[..., Any],
    train: Any,
    val: Any = None,
    test: Any = None,
    *,
    methods: str | Sequence[Any] = METHODS,
    seeds: int | Iterable[int] = 3,
    posthoc: str = "temperature",
    recipe: str | Recipe = "custom",
    settings: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    void: int = IGNORE_INDEX,
    out: str | Path | None = None,
    workers: int = 1,
    page: bool = True,
    show: bool = True,
    force: bool = False,
) -> Comparison:
    """Train a network with each method and seed, measure, and write the page: `acls compare` for data in Python.

    ``model`` is a name, as for ``--model``, or a class or function that makes a network. The class or function is
    called with ``n_classes=``, with ``channels=`` if it accepts it, and with the arguments in
    ``settings={"model.arguments": {...}}``. ``train``, ``val`` and ``test`` are arrays ``(x, y)``, torch data sets or
    Hugging Face data sets. Without ``val``, a part of ``train`` is held out for validation. Arrays of bytes are images
    with values in 0..255; arrays of floats are passed to the network as they are. ``settings`` are settings of the
    recipe by their dotted names, for example ``{"epochs": 10, "optim.lr": 0.01, "data.flip": True}``.

    The same call continues a study that was stopped. A folder that contains other files is used only with ``force``.
    With one worker, the networks are trained in this process. With more workers, the model and the data must be
    picklable, and the model must be importable from a module by its name.
    """
    recipe, given = _prepared(model, (train, val, test), recipe, settings, classes, void)
    engine = Here(1, torch.get_num_threads()) if workers == 1 else make_engine("local", workers=workers)
    study: dict[str, Any] = {"methods": methods, "seeds": seeds, "posthoc": posthoc, "out": out}
    return compare_recipe(recipe, **study, engine=engine, given=given, page=page, show=show, force=force)


def compare_recipe(
    recipe: str | Recipe,
    *,
    methods: str | Sequence[Any] = METHODS,
    seeds: int | Iterable[int] = 3,
    posthoc: str = "temperature",
    out: str | Path | None = None,
    engine: Engine | None = None,
    given: Given | None = None,
    wait: bool = False,
    page: bool = True,
    show: bool = True,
    force: bool = False,
) -> Comparison:
    """Run or continue the study of a recipe, rank its methods and write its page: `acls compare RECIPE`."""
    recipe = replace(find(recipe), log=()) if isinstance(recipe, str) else recipe
    folder = Path(out or Path("studies") / recipe.name)
    specs = methods if isinstance(methods, str) else [Spec.of(one) for one in methods]
    which = range(recipe.seed, recipe.seed + seeds) if isinstance(seeds, int) else seeds
    cells = [replace(cell, given=given) for cell in plan(folder, recipe, specs, which, posthoc)]
    engine, root = engine or make_engine("local"), recipe.data.root
    check_output(folder, "study", inputs=[root] if root else (), force=force)
    if page:
        check_output(folder / "report.html", "page", force=force)
    failed = run_study(cells, engine, wait=wait, show=show)
    torch.set_num_threads(engine.threads)
    rows = detailed(folder, chosen(cells, Store(folder).rows()))
    ranked = rank(rows, RANKED)
    written = folder / "report.html" if page and rows else None
    if written is not None:
        write(of_study(folder, rows), written, ranked=ranked)
    return Comparison(rows, ranked, failed, folder, written)


def evaluate_files(
    files: Mapping[str, Source] | Sequence[str | Path],
    columns: Columns | None = None,
    *,
    by: Sequence[str] = (),
    bins: int = BINS,
    max_error: float | None = None,
    replicates: int = REPLICATES,
    ignore_index: int = IGNORE_INDEX,
    engine: Engine | None = None,
) -> ModelResults:
    """Evaluate models from files of their predictions, and compare each with the first: `acls evaluate A B`.

    ``files`` are paths, or a dictionary from model names to sources. ``by`` may contain "group", "predicted" (the
    predicted class), and "row" to treat rows as independent even if they have images. With an
    ``engine``, its processes count the parts of a data set.
    """
    models = _named(files, columns, ignore_index)
    by_image = "image" in by or (False if "row" in by else None)
    settings: dict[str, Any] = {"by_group": any(name not in ("image", "row") for name in by), "by_image": by_image}
    settings |= {"bins": bins, "compare": len(models) > 1, "ignore_index": ignore_index}
    results, notes = {}, []
    if engine is not None and "predicted" in by:
        raise InputError("--by predicted needs one process, got --workers or --engine ray: leave them out")
    for name, batches in models.items():
        if engine is not None and isinstance(batches, Batches) and len(batches.files) > 1:
            counts = count_parts(batches, engine, **settings)
        else:
            by_class = (replace(p, group=p.top()[1], group_names=()) for p in batches)
            counts = count(by_class if "predicted" in by else batches, **settings)
        results[name] = counts.result(replicates=replicates)
        if empty := counts.empty_groups():
            named = ", ".join(empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
            notes.append(f"{name}: groups without a labelled row are left out: {named}")
    compared = differences(results if replicates else dict([next(iter(results.items()))]))
    notes += [f"{name} is not compared with {compared.baseline}: {why}" for name, why in compared.left_out.items()]
    return ModelResults(results, compared, bins, max_error, tuple(notes))


def measure_files(
    files: Mapping[str, Source] | Sequence[str | Path],
    protocol: str = "all",
    columns: Columns | None = None,
    *,
    ignore_index: int = IGNORE_INDEX,
) -> ProtocolResults:
    """Measure files of predictions by the protocol of one paper, or by all of them: `acls evaluate --protocol NAME`."""
    chosen = list(PROTOCOLS.values()) if protocol == "all" else [find_protocol(protocol)]
    settings: dict[str, Any] = {"ignore_index": ignore_index, "skip_unfit": len(chosen) > 1}
    models = _named(files, columns, ignore_index)
    return ProtocolResults({name: measure(one, chosen, **settings) for name, one in models.items()}, chosen)


def _named(
    files: Mapping[str, Source] | Sequence[str | Path], columns: Columns | None, ignore_index: int
) -> dict[str, Iterable[Predictions]]:
    sources = files if isinstance(files, Mapping) else dict(zip(short_names(files), files, strict=True))
    return {name: slices(one, columns, ignore_index=ignore_index) for name, one in sources.items()}


def short_names(paths: Sequence[str | Path]) -> list[str]:
    """Return the names of files without their folders, or the full paths if two files have the same name."""
    names = [Path(path).name or str(path) for path in paths]
    if twice := [path for path, number in Counter(map(str, paths)).items() if number > 1]:
        raise InputError(f"{twice[0]} is named twice: pass each file once")
    return names if len(set(names)) == len(set(map(str, paths))) else list(map(str, paths))


def compare_files(
    paths: Sequence[str | Path], columns: Columns | None = None, *, ignore_index: int = IGNORE_INDEX
) -> Comparison:
    """Compare models from files of their predictions for the same samples: `acls compare --predictions`."""
    if len(paths) < 2:
        raise InputError("--predictions: expected two files or more, got one: `acls evaluate` measures one")
    names = short_names(paths)
    records: list[Record] = []
    for name, path in zip(names, paths, strict=True):
        result = measured(path, columns, compare=True, ignore_index=ignore_index)
        records.append(Record(name, None, "none", result, {"unit": result.unit}))
        if result.labels != records[0].result.labels:
            raise InputError(f"{path} and {paths[0]} have different labels: both must contain the same samples")
        if result.unit != records[0].result.unit:
            raise InputError(f"{path} and {paths[0]}: expected the image of each row in both files or in neither")
    return Comparison(records, rank(records, RANKED))


def fit(
    model: str | Callable[..., Any],
    train: Any,
    val: Any = None,
    test: Any = None,
    *,
    loss: Any = "ACLS",
    recipe: str | Recipe = "custom",
    settings: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    void: int = IGNORE_INDEX,
    out: str | Path | None = None,
    show: bool = True,
    force: bool = False,
) -> TrainedRun:
    """Train one network on data in Python and write its run folder, as `acls train`; arguments are as in `compare`."""
    recipe, given = _prepared(model, (train, val, test), recipe, settings, classes, void)
    recipe = replace(recipe, loss=recipe.loss.with_spec(Spec.of(loss, "loss")))
    if out is not None:
        check_output(out, "run", force=force)
    return train_recipe(recipe, out, show=show, given=given)


def _prepared(
    model: str | Callable[..., Any],
    parts: tuple[Any, Any, Any],
    recipe: str | Recipe,
    settings: Mapping[str, Any] | None,
    classes: Sequence[str] | None,
    void: int,
) -> tuple[Recipe, Given]:
    base = find(recipe) if isinstance(recipe, str) else recipe
    data = DataOptions(name="given", root=fingerprint(*parts), val=base.data.val)
    base = override(replace(base, data=data, log=()), settings or {})
    if isinstance(model, torch.nn.Module) or not (isinstance(model, str) or hasattr(model, "__qualname__")):
        raise InputError(
            f"expected a class or function that makes a network for each run, got {type(model).__name__}: "
            "write def make(n_classes): return ..."
        )
    name, factory = (model, None) if isinstance(model, str) else (f"{model.__module__}:{model.__qualname__}", model)
    base = replace(base, model=resolved(replace(base.model, name=name), factory))
    return base, Given(functools.partial(gathered, *parts, classes=classes, void=void), factory)


def predictions(
    scores: Any = None,
    labels: Any = None,
    kind: str | None = None,
    *,
    confidence: Any = None,
    correct: Any = None,
    group: Any = None,
    image: Any = None,
    sample_weight: Any = None,
) -> Predictions:
    """Convert arrays of any library to `Predictions`: NumPy, torch, JAX, pandas, polars or lists.

    ``scores`` has shape ``(N, K)``, or ``(N, K, H, W)`` for maps; for two classes it can be ``(N,)``, the scores of
    class 1. ``labels`` are class ids. ``kind`` is "logits", "probs" or "log_probs". The default is logits; scores that
    may be something else, as all lie in 0..1, then raise an error. For stated confidences, for example of language
    models, pass ``confidence`` and ``correct`` instead of scores and labels. ``group`` is the part of the data that
    each row belongs to. ``image`` is the unit of each row: rows of the same unit are not independent.
    ``sample_weight`` is one number per row or map: a row with weight w counts as w equal rows.
    """
    weight = _weight(sample_weight, confidence if scores is None else scores)
    if isinstance(scores, Predictions):
        if any(one is not None for one in (labels, kind, confidence, correct, group, image)):
            raise InputError("Predictions have labels, kind, group and image of their own: pass none with them")
        return scores if weight is None else replace(scores, weight=weight)
    codes, names = (None, ()) if group is None else _codes(group)
    unit = None if image is None else _codes(image)[0]
    if confidence is not None or correct is not None:
        if any(one is not None for one in (scores, labels, kind)):
            raise InputError("pass stated confidences as confidence= and correct=, without scores, labels and kind")
        if confidence is None or correct is None:
            missing = "confidence" if confidence is None else "correct"
            raise InputError(f"{missing}= is missing: pass stated confidences as confidence= and correct=")
        right = column(correct, "correct")
        if bool(((right != 0) & (right != 1)).any()):
            raise InputError("correct: expected 1 where the answer was right and 0 where it was wrong")
        stated = Predictions.of_stated(column(confidence, "confidence").float(), right, group=codes)
        return replace(stated, group_names=names, image=unit, weight=weight)
    if labels is None:
        raise InputError("expected scores and labels, or confidence= and correct=: labels are missing")
    found, target, known = scored(scores, labels, kind)
    if found.ndim > 2:
        if group is not None or image is not None:
            raise InputError("the pixels of maps are already grouped by map: do not pass group= or image=")
        rows = Predictions.dense(found, target, known)
        return rows if weight is None or rows.image is None else replace(rows, weight=weight[rows.image])
    return Predictions(found, target.long(), known, group=codes, group_names=names, image=unit, weight=weight)


def _checked(*arrays: Any, ignore_index: int = IGNORE_INDEX, **own: Any) -> Predictions:
    found = predictions(*arrays, **own)
    found.check(ignore_index=ignore_index, where="scores and labels")
    return found


def evaluate(
    scores: Any = None, labels: Any = None, kind: str | None = None, *, sample_weight: Any = None, **settings: Any
) -> Result:
    """Measure calibration: every metric with its interval and noise floor, and a test against chance.

        result = acls.evaluate(probs, y, kind="probs")
        result["ece"], result.plot()

    The arguments are those of `predictions` and those of `acls.results.evaluate`: ``by_image``, ``compare``, ``bins``,
    ``replicates``, ``ignore_index``. With ``group=`` the result has ``.groups``. ``sample_weight`` is one number per
    row or map: intervals of weighted metrics come from the variance between rows, and there is no noise floor. A path
    is read as by ``acls evaluate``.
    """
    file, arrays = isinstance(scores, str | Path), {"labels": labels, "kind": kind, "sample_weight": sample_weight}
    known = {*_SETTINGS, *(("columns",) if file else ("confidence", "correct", "group", "image", *arrays))}
    for name in (*settings, *(name for name, one in arrays.items() if one is not None)):
        if name not in known:
            way = ": name the columns, as in columns=Columns(probs=NAME, labels=NAME)" if file else suggest(name, known)
            raise InputError(f"evaluate takes no {name}= with {'a file' if file else 'arrays'}{way}")
    if file:
        return measured(scores, **settings)
    own = {name: settings.pop(name, None) for name in ("confidence", "correct", "group", "image")}
    ignored = settings.get("ignore_index", IGNORE_INDEX)
    found = _checked(scores, labels, kind, sample_weight=sample_weight, ignore_index=ignored, **own)
    return measured(found, **({"by_group": found.group is not None} | settings))


def calibrate(
    scores: Any = None, labels: Any = None, kind: str | None = None, *, method: Any = "temperature", **own: Any
) -> Calibrator:
    """Fit a calibrator to held-out scores, and return it: ``acls.apply(calibrator, scores, kind)`` uses it.

    ``method`` is written as on the command line, ``"ETS"`` or ``"Histogram(bins=20)"``. The other arguments, including
    ``sample_weight``, are those of `predictions`. To find out whether a method helps, and which of several is best,
    pass the same `predictions` to `acls.results.recommend`.
    """
    check_names("calibrate", own, {"method", *_OWN})
    found = _checked(scores, labels, kind, **own)
    calibrator = make_calibrator(method, **({"stated": True} if found.stated else {}))
    return calibrator.fit(found.logits(), found.target(), found.weight, group=found.image)


def apply(calibrator: Calibrator, scores: Any, kind: str | None = None) -> Any:
    """Return calibrated probabilities as a NumPy array of shape ``(N, K)``, or ``(N,)`` if there is one score per row.

    A single score per row is the score of class 1, or a stated confidence. A stated confidence needs no ``kind``.
    """
    found = column(scores, "scores")
    target = found.new_zeros(found.shape[:1] + found.shape[2:]).long()
    if calibrator.stated and kind is None:
        Predictions.of_stated(found.float(), target).check(where="scores")
        kind = "probs"
    full, target, known = scored(found, target, kind)
    Predictions.dense(full, target, known).check(where="scores")
    after = calibrator(to_logits(full, known)).exp().numpy()
    return after[:, 1] if found.ndim == 1 else after


@dataclass(frozen=True, repr=False)
class Applied(Shown):
    """A file of calibrated predictions; ``kind`` is "log-probabilities", or "confidences" for stated confidences."""

    file: str
    calibrator: str
    kind: str

    def __str__(self) -> str:
        return f"{self.file}: {self.kind} calibrated by {self.calibrator}"


def apply_file(
    calibrator: Calibrator | str | Path,
    source: str | Path | Batches,
    out: str | Path,
    columns: Columns | None = None,
    *,
    ignore_index: int = IGNORE_INDEX,
    force: bool = False,
) -> Applied:
    """Apply a calibrator, or a calibrator file, to a file of predictions, and write a new file: `acls apply`.

        acls.apply_file("calibrator.safetensors", "test.npz", "calibrated.npz")

    The new file contains log-probabilities, or calibrated confidences if the source contains stated confidences. Labels
    may be missing. The source is read in slices, and ``.parquet`` and ``.csv`` files are written in slices, so these
    files may be larger than memory.
    """
    fitted = calibrator if isinstance(calibrator, Calibrator) else Calibrator.load(calibrator)
    check_pointwise(fitted)
    if not isinstance(source, Batches):
        unlabelled = replace(columns or Columns(), unlabelled=True)
        source = open_batches(source, unlabelled, ignore_index=ignore_index)
    inputs = [*source.files, *([] if isinstance(calibrator, Calibrator) else [calibrator])]
    check_output(out, "predictions", inputs=inputs, force=force)
    stated = any(p.kind == "triples" for p in itertools.islice(iter(source), 1))
    if stated != fitted.stated:
        kinds = ("rows of scores", "stated confidences")
        own, other = kinds[fitted.stated], kinds[stated]
        what = "the calibrator" if fitted is calibrator else calibrator
        raise InputError(f"{what} was fitted to {own}, but {source.name} holds {other}")
    about = {"calibrator": repr(fitted)}
    save_batches(out, (replace(p.calibrated(fitted), meta={**p.meta, **about}) for p in source))
    return Applied(str(out), repr(fitted), "confidences" if stated else "log-probabilities")


def report_files(
    sources: Sequence[str | Path | tuple[str, Batches | Predictions]],
    columns: Columns | None = None,
    *,
    out: str | Path | None = None,
    title: str | None = None,
    figures: str | Path | None = None,
    form: str = "png",
    table: str | None = None,
    images: str | Path | None = None,
    max_error: float | None = None,
    replicates: int = REPLICATES,
    ignore_index: int = IGNORE_INDEX,
    force: bool = False,
) -> Report:
    """Write the page about runs, studies or files of predictions: `acls report`.

    A file may have a title, for example ``("mine", open_batches("preds.npz"))``. ``figures`` is the folder for the
    figures, and ``form`` is their file format. ``table`` is the format of the tables: text, markdown, latex or csv.
    """
    paths = [getattr(one[1], "name", "") if isinstance(one, tuple) else one for one in sources]
    folder = paths[0] if len(paths) == 1 and Path(paths[0]).is_dir() else ""
    page = Path(out or Path(folder, "report.html"))
    check_output(page, "page", inputs=filter(None, [*paths, images]), force=force)
    skipped: list[Unfinished] = []
    subjects: list[Subject] = []
    for one in sources:
        if not isinstance(one, tuple) and holds_runs(one):
            subjects += of_path(one, replicates=replicates, missed=skipped)
            continue
        name, source = one if isinstance(one, tuple) else (None, one)
        settings: dict[str, Any] = {"ignore_index": ignore_index, "replicates": replicates, "images": images}
        subjects.append(of_file(source, columns, title=name, **settings))
    if not subjects:
        raise skipped[0]
    subjects = told_apart(subjects)
    ranked = rank_subjects(subjects) if replicates else []
    write(subjects, page, title=title, ranked=ranked, max_error=max_error)
    drawn = write_figures(subjects, figures, form, force=force) if figures else []
    tables = [one.show(table) for one in tables_of(subjects, ranked)] if table else []
    chosen = [] if max_error is None else decisions(subjects, max_error)
    notes = tuple(f"left out: {one}" for one in skipped)
    return Report(page, conclusions(subjects, ranked), chosen, subjects, ranked, drawn, tables, table, notes)


def write_report(
    path: str | Path,
    scores: Any = None,
    labels: Any = None,
    kind: str | None = None,
    *,
    title: str = "model",
    max_error: float | None = None,
    force: bool = False,
    **own: Any,
) -> Path:
    """Write the page of `acls report` for arrays, with verdict, tables and diagrams in one HTML file; return its path.

    ``scores`` may be a dictionary from model names to scores, for the same labels. With ``max_error`` the page gives
    the confidence above which at most that share of the predictions is wrong. An existing file that is not a page of
    acls is replaced only with ``force``.
    """
    check_names("write_report", own, {"title", "max_error", "force", *_OWN})
    if own.get("sample_weight") is not None:
        raise InputError(
            "write_report does not support sample_weight, because a page weights all rows equally: use acls.evaluate"
        )
    models = scores if isinstance(scores, Mapping) else {title: scores}
    sources = [(name, _checked(one, labels, kind, **own)) for name, one in models.items()]
    return report_files(sources, out=path, max_error=max_error, force=force).page


def _weight(given: Any, rows: Any) -> Tensor | None:
    if given is None or rows is None:
        return None
    weight, n = column(given, "sample_weight").double(), len(rows)
    if weight.shape != (n,):
        raise InputError(
            f"expected sample_weight of shape ({n},), one number per row or map, got {tuple(weight.shape)}"
        )
    return weight


def _codes(column: Any) -> tuple[Tensor, tuple[str, ...]]:
    names, codes = np.unique(np.asarray(column), return_inverse=True)
    return torch.from_numpy(codes.astype("int64")), tuple(map(str, names))
