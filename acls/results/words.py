"""Describe results in words: whether a model is miscalibrated, and whether one model is better than another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from acls.metrics.catalogue import in_percent, metric
from acls.metrics.significance import Difference
from acls.results.result import LEVEL, Result

BOTH = 0.25
"""If the smaller of over- and underconfidence is more than this share of the ECE, both are mentioned."""


@dataclass(frozen=True)
class Verdict:
    """The meaning of the numbers in words."""

    miscalibrated: bool | None
    """Whether a model is miscalibrated, or two ECEs differ, by more than chance; None if this is unknown."""
    p: float | None
    text: str


def verdict(found: Result | Difference) -> Verdict:
    """Return the verdict on a result, or on a comparison of two ECEs, based on one p-value.

    The p-value of a result combines several tests of calibration. It says whether the model is miscalibrated; the ECE
    says by how much.
    """
    return _of_result(found) if isinstance(found, Result) else _of_comparison(found)


def effect(change: Difference | None) -> str:
    """Return what a change of the ECE, after minus before, says of a calibrator: "helps", "hurts", or "maybe"."""
    told = change is not None and verdict(change).miscalibrated
    return "maybe" if change is None or not told else "helps" if change.difference < 0 else "hurts"


def verdict_on_seeds(results: Sequence[Result]) -> str:
    """Return the verdict on the networks of several seeds in a few words."""
    off = [one for one in results if verdict(one).miscalibrated]
    if not off:
        return "no miscalibration beyond chance"
    some = "" if len(off) == len(results) else f" ({len(off)} of {len(results)} seeds)"
    return f"miscalibrated, {direction(off[0])}{some}"


def show_p(p: float | None) -> str:
    """Format a p-value: ``= 0.012`` or ``< 0.001``; return an empty text for None."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"= {p:.3f}"


def direction(result: Result) -> str:
    """Say whether a model is overconfident, underconfident, or partly both."""
    over, under = (result.get(name) or 0.0 for name in ("overconfidence", "underconfidence"))
    ways = ("overconfident", "underconfident") if over >= under else ("underconfident", "overconfident")
    return f"mostly {ways[0]}, partly {ways[1]}" if min(over, under) > BOTH * (over + under) else ways[0]


def _of_result(result: Result) -> Verdict:
    means = "".join(
        f"{title} {in_percent(result[name])}, "
        for name, title in (("confidence", "mean confidence"), ("accuracy", "accuracy"))
        if name in result.estimates
    )
    ece = result.estimates["ece"]
    size = f"ECE {in_percent(ece.value)}"
    if ece.debiased is not None:
        size += f", without the bias of noise {in_percent(ece.debiased)}"
    if result.p is None and "ece" not in result.floors:
        return Verdict(None, None, f"No verdict: too few independent {result.unit}s to test ({means}{size}).")
    if result.p is None:  # stored by 0.1.0, or a part of a result
        off = ece.value > result.floors["ece"].high
        how = f"the ECE is {'above' if off else 'within'} its noise floor"
    else:
        off = result.p < LEVEL
        how = f"p {show_p(result.p)}"
    n = f"this many {result.unit}s" if result.unit == "image" else f"n = {result.n:,}"
    if off:
        return Verdict(True, result.p, f"Miscalibrated, {direction(result)} ({how}): {means}{size}.")
    return Verdict(False, result.p, f"No miscalibration beyond chance at {n} ({how}): {means}{size}.")


def _of_comparison(found: Difference) -> Verdict:
    if found.p is None or found.low is None or found.high is None:
        return Verdict(None, None, "No verdict: too few independent samples to compare.")
    ece = metric("ece")
    ends = f"95 % interval {ece.show(found.low, sign=True)} to {ece.show(found.high, sign=True)}"
    worth = f"{ece.show(found.difference, sign=True)} points ({ends}; p {show_p(found.p)})"
    if found.p >= LEVEL or math.isnan(found.difference):
        return Verdict(False, found.p, f"No difference in ECE beyond chance: {worth}.")
    way = "lower" if found.difference < 0 else "higher"
    return Verdict(True, found.p, f"The ECE is {way} by more than chance: {worth}.")


def remarks(result: Result) -> list[str]:
    """Return remarks that help to interpret the numbers."""
    found = []
    if result.bounds:
        off = ", ".join(f"{metric(name).label} {in_percent(bound, 4)}" for name, bound in result.bounds.items())
        found.append(f"Computed from a fine histogram of confidences. Largest difference from the exact value: {off}.")
    if any(one.debiased is not None and one.debiased != one.value for one in result.estimates.values()):
        found.append(
            "debiased: the estimate without the bias of noise, which makes errors too large; the "
            "interval belongs to this estimate."
        )
    found += [f"{metric(name).label}: {one.note}." for name, one in result.estimates.items() if one.note]
    if result.unit == "image":
        found.append(
            "Images are assumed to be independent, their rows are not; there are no noise floors in this case."
        )
    elif result.unit == "weighted row":
        found.append("Rows are weighted: intervals use their observed variance, and there are no noise floors.")
    elif result.has_images:
        found.append("All of this assumes that rows are independent, although rows of one image are not.")
    return found
