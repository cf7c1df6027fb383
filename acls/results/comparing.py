"""Compare models on the same samples, with intervals and p-values corrected for multiple comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acls.metrics.decision import Decision
from acls.metrics.distributions import for_many, p_of_many
from acls.metrics.protocols import Protocol
from acls.metrics.significance import Difference, compare
from acls.results.result import Result
from acls.shown import Shown, frame


@dataclass(frozen=True, repr=False)
class Differences(Shown):
    """The difference of each other model to the first model, for every metric."""

    baseline: str
    comparisons: Mapping[str, Mapping[str, Difference]]
    """By model and metric; with several comparisons, intervals and p-values are corrected for their number."""
    left_out: Mapping[str, str]
    """Models that could not be compared, each with the reason."""

    def as_json(self) -> dict[str, dict[str, Any]]:
        """Return the difference, interval and p-value by model and metric, as plain values."""
        return {name: {metric: vars(one) for metric, one in found.items()} for name, found in self.comparisons.items()}


@dataclass(frozen=True, repr=False)
class ModelResults(Shown):
    """The results of one or several models on the same samples, and the differences to the first model.

    ``max_error`` is the share of errors that `decisions` allows. ``notes`` say what was left out, and why.
    """

    results: Mapping[str, Result]
    differences: Differences
    bins: int
    max_error: float | None = None
    notes: tuple[str, ...] = ()

    def decisions(self, name: str) -> dict[str, Decision]:
        """Return the decision of one model for all samples, with the key "", and for each group."""
        assert self.max_error is not None
        result = self.results[name]
        return {group: one.decide(self.max_error) for group, one in {"": result, **result.groups}.items()}

    def to_frame(self) -> Any:
        """Return a pandas DataFrame: a row per model, with every metric; `Result.to_frame` has their intervals."""
        return frame({"model": name, "n": one.n, **one.values} for name, one in self.results.items())

    def as_json(self) -> dict[str, Any]:
        """Return what `acls evaluate --json` prints: one object per model and, for several models, the comparisons."""
        objects = []
        for name, result in self.results.items():
            plain = {"file": name, "kind": result.kind, "bins": self.bins, **result.as_json()}
            objects.append(plain)
            if self.max_error is not None:
                whole, *groups = (one.as_json() for one in self.decisions(name).values())
                plain["decision"] = {**whole, "groups": dict(zip(result.groups, groups, strict=True))}
        against, found = self.differences.baseline, self.differences.as_json()
        comparisons = [{"file": name, "against": against, "differences": one} for name, one in found.items()]
        return {"files": objects, "comparisons": comparisons} if len(objects) > 1 else objects[0]


@dataclass(frozen=True, repr=False)
class ProtocolResults(Shown):
    """Metrics computed by the protocols of papers, by model, protocol and metric."""

    numbers: Mapping[str, Mapping[str, Mapping[str, float]]]
    protocols: Sequence[Protocol]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame: a row per model and protocol, with every metric."""
        found = ((model, *one) for model, numbers in self.numbers.items() for one in numbers.items())
        return frame({"model": model, "protocol": name, **numbers} for model, name, numbers in found)

    def as_json(self) -> dict[str, Any]:
        """Return what `acls evaluate --protocol NAME --json` prints."""
        why = {one.name: one.why for one in self.protocols}
        objects = [{"file": name, "protocols": numbers, "why": why} for name, numbers in self.numbers.items()]
        return {"files": objects} if len(objects) > 1 else objects[0]


def differences(results: Mapping[str, Result]) -> Differences:
    """Compare every model with the first, on the same samples; results need ``evaluate(..., compare=True)``.

    Each p-value tests the metric that it is shown with: the p-value of the ECE tests for equal ECE, and that of RMSCE
    tests for equal root mean squared gaps, which detects smaller differences. Metrics without a valid test have no
    p-value.
    """
    baseline, *others = results
    first = results[baseline]
    left_out: dict[str, str] = {}
    pairs = {}
    for name in others:
        other = results[name]
        if (other.labels, other.rows) != (first.labels, first.rows):
            left_out[name] = "it has different labels"
        elif first.blocks is None or other.blocks is None or first.suite is None or other.suite is None:
            left_out[name] = "the counts that a comparison needs were not saved"
        elif first.blocks.used < 2:
            left_out[name] = f"all rows belong to one {first.unit}"
        else:
            pairs[name] = (other.suite, other.blocks), (first.suite, first.blocks)
    many = len(pairs)
    found = {
        name: {
            key: replace(one, p=None if one.p is None else p_of_many(one.p, many))
            for key, one in compare(*pair, level=for_many(many)).items()
        }
        for name, pair in pairs.items()
    }
    return Differences(baseline, found, left_out)
