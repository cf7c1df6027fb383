"""Recommend a calibrator for a model, or none: the rule of `acls calibrate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from acls.calibrators import Calibrator, Judgement, judge, make_calibrators
from acls.calibrators.base import TOO_FEW
from acls.errors import InputError
from acls.metrics.significance import REPLICATES
from acls.predictions import ZERO, Batches, Columns, Predictions, Source, slices
from acls.results.comparing import Differences, differences
from acls.results.counting import Counts
from acls.results.result import Result
from acls.shapes import IGNORE_INDEX
from acls.shown import Shown, frame
from acls.spec import written

AS_IT_IS = "as it is"
"""The name of the model without any calibrator."""
_SHOWN = 1000
"""Largest number of learned values per name that is listed; larger tables are only in the saved file."""


@dataclass(frozen=True)
class Candidate:
    """A calibrator that is fitted to all of the data, with its cross-validated scores on held-out folds."""

    name: str
    calibrator: Calibrator
    judgement: Judgement

    @property
    def doubts(self) -> list[str]:
        """The reasons against the fit, such as too few samples; a calibrator with a doubt is never recommended."""
        return [warning for warning in self.calibrator.report.warnings if warning.startswith(TOO_FEW)]

    @property
    def use(self) -> bool:
        return self.judgement.use and not self.doubts

    @property
    def why(self) -> str:
        return f"unfit: {self.doubts[0]}" if self.doubts else self.judgement.why

    @property
    def size(self) -> int:
        """The number of learned values."""
        return sum(value.numel() for value in self.calibrator.state_dict().values())

    @property
    def parameters(self) -> dict[str, Any]:
        """The learned values by name, each a number or a list."""
        learned = self.calibrator.state_dict()
        return {name: value.tolist() for name, value in learned.items() if value.numel() <= _SHOWN}


@dataclass(frozen=True, repr=False)
class Advice(Shown):
    """The calibrators that were tried, and the recommendation; ``chosen`` is None if no calibrator is recommended.

    If there are test predictions, ``test`` has the results on them, without a calibrator and after each calibrator, and
    ``changes`` has their differences. ``saved`` is the calibrator that `save` wrote to ``out``.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate | None
    text: str
    notes: tuple[str, ...] = ()
    test_name: str = ""
    test: Mapping[str, Result] = field(default_factory=dict)
    changes: Differences | None = None
    out: str = ""
    saved: Candidate | None = None

    @property
    def best(self) -> Candidate:
        """The calibrator with the lowest held-out NLL, even if it is not recommended."""
        return min(self.candidates, key=lambda one: one.judgement.after.nll)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame: a row per calibrator, with its NLL and ECE on held-out folds."""
        judged = ((one, one.judgement.after) for one in self.candidates)
        return frame({"method": one.name, "nll": after.nll, "ece": after.ece, "use": one.use} for one, after in judged)

    def as_json(self) -> dict[str, Any]:
        """Return what `acls calibrate --json` prints, as plain values."""
        methods = [
            {
                "method": one.name,
                "settings": one.calibrator.settings(),
                "parameters": one.parameters,
                "use": one.use,
                "why": one.why,
                "held_out": asdict(one.judgement),
                "fit": asdict(one.calibrator.report),
            }
            for one in self.candidates
        ]
        plain: dict[str, Any] = {"recommended": self.chosen and self.chosen.name, "text": self.text, "methods": methods}
        if self.changes is not None:
            plain["test"] = {name: result.as_json() for name, result in self.test.items()}
            plain["changes"] = self.changes.as_json()
        return {**plain, "saved": self.out if self.saved else None}

    def save(self, path: str | Path, *, force: bool = False) -> Advice:
        """Save the recommended calibrator; if there is none, ``force`` saves the best one."""
        saved = self.chosen or (self.best if force else None)
        if saved is not None:
            saved.calibrator.save(path)
        return replace(self, out=str(path), saved=saved)


def recommend(
    source: Source,
    calibrators: str | Sequence[Calibrator] = "temperature",
    columns: Columns | None = None,
    *,
    folds: int = 5,
    test: Source | None = None,
    replicates: int = REPLICATES,
    ignore_index: int = IGNORE_INDEX,
) -> Advice:
    """Fit calibrators to predictions, judge each by cross-validation over rows or images, and recommend one or none.

    ``source`` is a file, `Predictions`, or slices of them, as in `acls.results.evaluate`. The recommended calibrator is
    the simplest of those whose held-out NLL is within one standard error of the best. A calibrator with too few samples
    for the number of values that it learns is never recommended. Rows of one image stay in one fold. ``test`` are other
    predictions of the same model; the advice then also has the results on them before and after each calibrator.
    """
    tried = make_calibrators(calibrators) if isinstance(calibrators, str) else calibrators
    for calibrator in tried:
        check_pointwise(calibrator)
    predictions = Predictions.concat(list(slices(source, columns, ignore_index=ignore_index))).labelled(ignore_index)
    scores = predictions.scores if predictions.kind == "probs" else None
    zeros = 0 if scores is None else int((scores == 0).sum())
    rounded = f"{zeros:,} probabilities are 0, so they were rounded; each is replaced by {ZERO:g}"
    logits, labels = predictions.logits(), predictions.target()
    image, weight = predictions.image, predictions.weight
    candidates = []
    for calibrator in tried:
        name = written(calibrator)  # as the user would write it: the data show whether confidences are stated
        calibrator.stated = predictions.scores is None
        judgement = judge(calibrator, logits, labels, weight, folds=folds, group=image)
        candidates.append(Candidate(name, calibrator.fit(logits, labels, weight, group=image), judgement))
    chosen = _chosen(candidates)
    advice = Advice(tuple(candidates), chosen, _text(chosen, len(candidates)), (rounded,) if zeros else ())
    if test is None:
        return advice
    other = slices(test, columns, ignore_index=ignore_index)
    results, changes = before_and_after(other, candidates, replicates=replicates, ignore_index=ignore_index)
    name = other.name if isinstance(other, Batches) else "the test predictions"
    return replace(advice, test=results, changes=changes, test_name=name)


def _text(chosen: Candidate | None, tried: int) -> str:
    if chosen is None:
        return "Recommended: keep the model as it is."
    scalars = [f"{name} = {value:.4g}" for name, value in chosen.parameters.items() if isinstance(value, float)]
    reason = chosen.judgement.why.removeprefix("use it: ")
    if tried > 1:
        reason += "; no simpler method is within a standard error of the best"
    shown = chosen.name + "()" * ("(" not in chosen.name) + (f" with {', '.join(scalars)}" if scalars else "")
    return f"Recommended: {shown}: {reason}."


def before_and_after(
    batches: Iterable[Predictions],
    candidates: Iterable[Candidate],
    *,
    replicates: int,
    ignore_index: int = IGNORE_INDEX,
) -> tuple[Mapping[str, Result], Differences]:
    """Evaluate other predictions without a calibrator and after each one; return the results and their differences."""
    candidates, counts = tuple(candidates), dict[str, Counts]()
    for batch in batches:
        after = {one.name: batch.calibrated(one.calibrator) for one in candidates}
        for name, p in {AS_IT_IS: batch, **after}.items():
            counts.setdefault(name, Counts(compare=True, ignore_index=ignore_index)).add(p)
    results = {name: one.result(replicates=replicates) for name, one in counts.items()}
    if not results:
        raise InputError("there are no labelled rows to evaluate")
    return results, differences(results)


def check_pointwise(calibrator: Calibrator) -> None:
    """Raise an error for a calibrator of whole maps, because a file contains separate rows."""
    if not calibrator.pointwise:
        raise InputError(
            f"{type(calibrator).__name__} needs a position's neighbours, but a file holds positions one by one: "
            "use it in Python, on maps (N, K, H, W)"
        )


def _chosen(candidates: Sequence[Candidate]) -> Candidate | None:
    useful = [one for one in candidates if one.use]
    if not useful:
        return None
    best = min(useful, key=lambda one: one.judgement.after.nll).judgement
    close = [one for one in useful if one.judgement.after.nll <= best.after.nll + best.nll_change_se]
    return min(close, key=lambda one: one.size)
