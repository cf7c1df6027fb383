"""What a page says first, in sentences: which method is best and how sure that is, then each method."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from acls.metrics.catalogue import metric
from acls.report.page.subjects import AS_IS, Subject, by_method, by_protocol, records, same_samples
from acls.report.results import about_ranking
from acls.results import verdict as verdict_of
from acls.results.words import direction
from acls.study.ranking import Ranked


def verdict(subjects: Sequence[Subject], ranked: Sequence[Ranked] = ()) -> list[str]:
    """What a reader needs to know first: of several methods, which is best and how they stand; then each."""
    methods = by_method(subjects)
    sentences = [about(name, group) for name, group in methods.items()]
    return [*_overall(methods, ranked), *sentences] if len(methods) > 1 else sentences


def about(method: str, group: Sequence[Subject]) -> str:
    """One sentence on a method: the verdict on its network, or on those of all seeds, and what a temperature does."""
    if not any("ece" in one.as_is.result.estimates for one in group):
        return f"{method}: no ECE is known."
    if len(group) == 1:
        return f"{method}: {verdict_of(group[0].as_is.result).text.removesuffix('.')}{_remedy(group)}."
    values = [value for one in group if (value := one.as_is.result.get("ece")) is not None]
    spread = f" ± {_percent(statistics.stdev(values))}" if len(values) > 1 else ""
    off = [one for one in group if verdict_of(one.as_is.result).miscalibrated]
    way = "no miscalibration beyond chance"
    if off:
        way = f"miscalibrated, {direction(off[0].as_is.result)}"
        way += "" if len(off) == len(group) else f" ({len(off)} of {len(group)} seeds)"
    return (
        f"{method}: ECE {_percent(statistics.fmean(values))} %{spread} over {len(group)} seeds: {way}{_remedy(group)}."
    )


def _overall(methods: dict[str, list[Subject]], ranked: Sequence[Ranked]) -> list[str]:
    subjects = [subject for group in methods.values() for subject in group]
    known = [one for one in subjects if "ece" in one.as_is.result.estimates]
    if len({one.method for one in known}) < 2:
        return []
    if len(by_protocol(records(subjects))) > 1:
        return ["The networks were measured by different protocols, so they are not compared."]
    if not same_samples(subjects):
        return ["The networks were tested on different samples, so they are not compared."]
    sentences = [about_ranking(one) for one in ranked if (one.metric, one.posthoc) == ("ece", AS_IS)]
    off = sum(bool(verdict_of(one.as_is.result).miscalibrated) for one in known)
    sentences.append(
        f"{off} of {len(known)} networks are miscalibrated by more than chance."
        if off
        else f"None of the {len(known)} networks is miscalibrated by more than chance at this n."
    )
    return sentences


def _remedy(group: Sequence[Subject]) -> str:
    scaled = [(one, state) for one in group if (state := one.after("Temperature")) is not None]
    after = [value for _, state in scaled if (value := state.result.get("ece")) is not None]
    before = [value for one in group if (value := one.as_is.result.get("ece")) is not None]
    if not after or not before:
        return ""
    ts = sorted(one.temperature for one, _ in scaled if one.temperature is not None)
    t = "" if not ts else f" {ts[0]:.2g}" if f"{ts[0]:.2g}" == f"{ts[-1]:.2g}" else f" {ts[0]:.2g} to {ts[-1]:.2g}"
    does = "brings the ECE to" if statistics.fmean(after) < statistics.fmean(before) else "does not help, with"
    return f"; temperature{t} {does} {_percent(statistics.fmean(after))} %"


def _percent(fraction: float) -> str:
    return metric("ece").show(fraction)
