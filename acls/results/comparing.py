"""Comparing models on the same samples, with intervals and p-values corrected for being many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from acls.metrics.distributions import for_many
from acls.metrics.significance import Comparison, compare
from acls.results.result import Result


@dataclass(frozen=True)
class Differences:
    """Every other model minus the first, metric by metric."""

    baseline: str
    comparisons: Mapping[str, Mapping[str, Comparison]]
    """By model and metric; where several models are compared, intervals and p-values are corrected for their number."""
    left_out: Mapping[str, str]
    """Models that could not be compared, and why."""

    def as_json(self) -> dict[str, dict[str, Any]]:
        """Difference, interval and p by model and metric, as plain values."""
        return {name: {metric: vars(one) for metric, one in found.items()} for name, found in self.comparisons.items()}


def differences(results: Mapping[str, Result]) -> Differences:
    """Compare every model with the first, on the same samples; results need ``evaluate(..., compare=True)``.

    A comparison is named after what it tests: the p beside the ECE is that of equal ECE, the one beside RMSCE that of
    equal root mean squared gaps, which finds smaller differences. Metrics without a test that holds have no p.
    """
    baseline, *others = results
    first = results[baseline]
    left_out: dict[str, str] = {}
    pairs = {}
    for name in others:
        other = results[name]
        if (other.labels, other.rows) != (first.labels, first.rows):
            left_out[name] = "its labels are others"
        elif first.blocks is None or other.blocks is None or first.suite is None or other.suite is None:
            left_out[name] = "what comparing needs was not kept"
        elif first.blocks.used < 2:
            left_out[name] = f"the rows form one {first.unit}"
        else:
            pairs[name] = (other.suite, other.blocks), (first.suite, first.blocks)
    level = for_many(len(pairs))

    def corrected(one: Comparison) -> Comparison:
        return replace(one, p=None if one.p is None else min(1.0, len(pairs) * one.p))

    found = {
        name: {metric: corrected(one) for metric, one in compare(*pair, level=level).items()}
        for name, pair in pairs.items()
    }
    return Differences(baseline, found, left_out)
