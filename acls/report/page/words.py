"""The verdict of a page, in sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from acls.evaluation import show_p
from acls.report.page.subjects import AS_IS, Numbers, State, Subject, by_protocol, lines, same_samples
from acls.study.ranking import Ranked

Part = Literal["value", "low", "high", "floor", "floor_high"]

BOTH = 0.25
"""Share of the ECE from which on the lesser of over- and underconfidence is named too."""


def verdict(subjects: Sequence[Subject], ranked: Sequence[Ranked] = ()) -> list[str]:
    """What a reader needs to know first: of several methods, which is best and how they stand; then each."""
    methods = by_method(subjects)
    sentences = [about(name, group) for name, group in methods.items()]
    return [*_overall(methods, ranked), *sentences] if len(methods) > 1 else sentences


def about(method: str, group: Sequence[Subject]) -> str:
    """One sentence on a method: its ECE, what that is worth, which way it errs, what a temperature does about it."""
    ece, floor = _mean(group, "ece"), _mean(group, "ece", "floor")
    if ece is None:
        return f"{method}: no ECE is known."
    noise = "" if floor is None else f", noise floor {_percent(floor)} %"
    return f"{method}: ECE {_percent(ece)} %{_worth(group)}{noise}: {_way(group)}{_remedy(group)}."


def by_method(subjects: Sequence[Subject]) -> dict[str, list[Subject]]:
    """The subjects of each method, its seeds; `acls.report.page.naming` sees to it that they are."""
    methods: dict[str, list[Subject]] = {}
    for subject in subjects:
        methods.setdefault(subject.method, []).append(subject)
    return methods


def beyond_chance(subject: Subject, numbers: Numbers) -> bool:
    """Whether the ECE is more than a calibrated model would show at this n.

    Pixels of an image are not independent, so there the interval over images decides, not the noise floor.
    """
    ece = numbers["ece"]
    value, low, high = ece["value"], ece["low"], ece["floor_high"]
    if subject.by_image and low is not None:
        return low > 0
    return value is not None and (high is None or value > high)


def _overall(methods: dict[str, list[Subject]], ranked: Sequence[Ranked]) -> list[str]:
    known = {name: ece for name, group in methods.items() if (ece := _mean(group, "ece")) is not None}
    if len(known) < 2:
        return []
    subjects = [subject for group in methods.values() for subject in group]
    if len(by_protocol(lines(subjects))) > 1:
        return ["The networks were measured by different protocols, so they are not compared."]
    if not same_samples(subjects):
        return ["The networks were tested on different samples, so they are not compared."]
    (best, least), (next_best, second) = sorted(known.items(), key=lambda item: item[1])[:2]
    tested = next((one for one in ranked if (one.metric, one.posthoc, one.best) == ("ece", AS_IS, best)), None)
    worth = ""
    if tested is not None:
        worth = f"; that {'is more than' if tested.significant else 'may be'} chance (p {show_p(tested.p)})"
    sentences = [
        f"Lowest ECE of {len(known)}: {best} with {_percent(least)} %, then {next_best}, {_percent(second)} %{worth}."
    ]
    off = [subject for subject in subjects if _off(subject)]
    total = len(subjects)
    sentences.append(
        f"{len(off)} of {total} networks are miscalibrated by more than chance."
        if off
        else f"None of the {total} networks is miscalibrated by more than chance at this n."
    )
    return sentences


def _off(subject: Subject) -> bool:
    return "ece" in subject.as_is.numbers and beyond_chance(subject, subject.as_is.numbers)


def _worth(group: Sequence[Subject]) -> str:
    """The interval of one network, the spread of several."""
    if len(group) > 1:
        values = [value for one in group if (value := _value(one.as_is, "ece")) is not None]
        if len(values) < 2:
            return ""
        return f" ± {_percent(statistics.stdev(values), like=statistics.fmean(values))} over {len(values)} seeds"
    low, high = _value(group[0].as_is, "ece", "low"), _value(group[0].as_is, "ece", "high")
    return "" if low is None or high is None else f" ({_percent(low)}-{_percent(high)})"


def _way(group: Sequence[Subject]) -> str:
    off = [one for one in group if _off(one)]
    if not off:
        return "no miscalibration beyond chance at this n"
    over, under = _mean(off, "overconfidence"), _mean(off, "underconfidence")
    if over is None or under is None:
        return "miscalibrated"
    way = "overconfident" if over >= under else "underconfident"
    if min(over, under) > BOTH * (over + under):
        way = f"mostly {way}, in part the opposite"
    return way if len(off) == len(group) else f"{way} ({len(off)} of {len(group)} seeds)"


def _remedy(group: Sequence[Subject]) -> str:
    scaled = [state for one in group if (state := one.after("Temperature")) is not None]
    eces = [ece for state in scaled if (ece := _value(state, "ece")) is not None]
    before = _mean(group, "ece")
    if not eces or before is None:
        return ""
    ts = sorted(state.temperature for state in scaled if state.temperature is not None)
    t = "" if not ts else f" {ts[0]:.2g}" if f"{ts[0]:.2g}" == f"{ts[-1]:.2g}" else f" {ts[0]:.2g} to {ts[-1]:.2g}"
    after = statistics.fmean(eces)
    does = "brings it to" if after < before else "does not help, with"
    return f"; temperature{t} {does} {_percent(after)} %"


def _mean(group: Sequence[Subject], name: str, part: Part = "value") -> float | None:
    values = [value for one in group if (value := _value(one.as_is, name, part)) is not None]
    return statistics.fmean(values) if values else None


def _value(state: State, name: str, part: Part = "value") -> float | None:
    found = state.numbers.get(name)
    value = None if found is None else found[part]
    return None if value is None or not math.isfinite(value) else value


def _percent(fraction: float, like: float | None = None) -> str:
    """Percent with one decimal, below 1 with two; ``like`` is the number it stands beside."""
    return f"{100 * fraction:.{1 if (fraction if like is None else like) >= 0.0095 else 2}f}"
