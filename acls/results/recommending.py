"""Which calibrator to use on a model, if any: the rule of `acls calibrate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from acls.calibrators import Calibrator, Judgement, judge, make_calibrators
from acls.calibrators.base import TOO_FEW
from acls.errors import InputError
from acls.predictions import Predictions
from acls.results.comparing import Differences, differences
from acls.results.counting import Counts
from acls.results.result import Result
from acls.shapes import IGNORE_INDEX
from acls.spec import written

AS_IT_IS = "as it is"
"""The name of the model without any calibrator."""
_SHOWN = 1000
"""Learned values of one name that are listed; larger tables are in the saved file only."""


@dataclass(frozen=True)
class Candidate:
    """A calibrator fitted to all of the data, and judged on folds of it that it had not seen."""

    name: str
    calibrator: Calibrator
    judgement: Judgement

    @property
    def doubts(self) -> list[str]:
        """What speaks against the fit, such as too few samples: with such a doubt it is never recommended."""
        return [warning for warning in self.calibrator.report.warnings if warning.startswith(TOO_FEW)]

    @property
    def use(self) -> bool:
        return self.judgement.use and not self.doubts

    @property
    def why(self) -> str:
        return f"unfit: {self.doubts[0]}" if self.doubts else self.judgement.why

    @property
    def size(self) -> int:
        """How many values were learned."""
        return sum(value.numel() for value in self.calibrator.state_dict().values())

    @property
    def parameters(self) -> dict[str, Any]:
        """The learned values by name: a number, or a list."""
        learned = self.calibrator.state_dict()
        return {name: value.tolist() for name, value in learned.items() if value.numel() <= _SHOWN}


@dataclass(frozen=True)
class Advice:
    """What was tried, and what to do."""

    candidates: tuple[Candidate, ...]
    chosen: Candidate | None
    """None: keep the model as it is."""
    text: str

    @property
    def best(self) -> Candidate:
        """The one of the lowest held-out NLL, recommended or not."""
        return min(self.candidates, key=lambda one: one.judgement.after.nll)

    def as_json(self) -> dict[str, Any]:
        """What `acls calibrate --json` prints of it, as plain values."""
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
        return {"recommended": self.chosen and self.chosen.name, "text": self.text, "methods": methods}


def recommend(
    predictions: Predictions, calibrators: str | Sequence[Calibrator] = "temperature", *, folds: int = 5
) -> Advice:
    """Fit calibrators to predictions, judge each by cross-validation over rows or images, and recommend one or none.

    Chosen is the simplest of those whose held-out NLL is within a standard error of the best; one that has too few
    samples for the values that it learns is never chosen. Rows of one image stay in one fold.
    """
    tried = make_calibrators(calibrators) if isinstance(calibrators, str) else calibrators
    for calibrator in tried:
        check_pointwise(calibrator)
    logits, labels = predictions.logits(), predictions.target()
    image, weight = predictions.image, predictions.weight
    candidates = []
    for calibrator in tried:
        name = written(calibrator)  # as the user would write it: stated confidences are seen from the data
        calibrator.stated = predictions.scores is None
        judgement = judge(calibrator, logits, labels, weight, folds=folds, group=image)
        candidates.append(Candidate(name, calibrator.fit(logits, labels, weight, group=image), judgement))
    chosen = _chosen(candidates)
    if chosen is None:
        return Advice(tuple(candidates), None, "Recommended: keep the model as it is.")
    scalars = [f"{name} = {value:.4g}" for name, value in chosen.parameters.items() if isinstance(value, float)]
    reason = chosen.judgement.why.removeprefix("use it: ")
    if len(candidates) > 1:
        reason += "; none of those within a standard error of the best is simpler"
    told = chosen.name + "()" * ("(" not in chosen.name) + (f" with {', '.join(scalars)}" if scalars else "")
    return Advice(tuple(candidates), chosen, f"Recommended: {told}: {reason}.")


def before_and_after(
    batches: Iterable[Predictions],
    candidates: Iterable[Candidate],
    *,
    replicates: int,
    ignore_index: int = IGNORE_INDEX,
) -> tuple[Mapping[str, Result], Differences]:
    """The results of a model as it is and after each calibrator, on other predictions, and what changed."""
    candidates, counts = tuple(candidates), dict[str, Counts]()
    for batch in batches:
        after = {one.name: batch.calibrated(one.calibrator) for one in candidates}
        for name, p in {AS_IT_IS: batch, **after}.items():
            by_image = batch.image is not None
            counts.setdefault(name, Counts(by_image=by_image, compare=True, ignore_index=ignore_index)).add(p)
    results = {name: one.result(replicates=replicates) for name, one in counts.items()}
    if not results:
        raise InputError("there are no labelled rows to evaluate")
    return results, differences(results)


def check_pointwise(calibrator: Calibrator) -> None:
    """Raise for a calibrator of whole maps, which the rows of a file do not make."""
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
