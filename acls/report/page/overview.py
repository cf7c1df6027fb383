"""The first screen of the page: sentences on the best method and its certainty, and a picture of every method."""

from __future__ import annotations

import html
import statistics
from collections.abc import Sequence

from acls.errors import InputError
from acls.metrics.catalogue import metric
from acls.metrics.estimates import Estimate
from acls.report.page.subjects import Subject, by_method, by_protocol, records, same_samples
from acls.report.results import about_ranking, mean_text, metric_values
from acls.results import Record, verdict
from acls.results.words import verdict_on_seeds
from acls.study.ranking import Ranked
from acls.study.runs import NONE


def overview(subjects: Sequence[Subject]) -> str:
    """Return a table with a row and a picture per method, the lowest ECE first; empty if there is no ECE."""
    methods = {name: ([one.as_is for one in group], _scaled(group)) for name, group in by_method(subjects).items()}
    known = [(name, before, after) for name, (before, after) in methods.items() if _eces(before)]
    if not known:
        return ""
    known.sort(key=lambda line: statistics.fmean(metric_values(line[1], "ece")))
    eces = [one for _, before, after in known for one in _eces([*before, *after])]
    most = 1.05 * max(max(one.value, one.high or 0.0) for one in eces) or 1.0
    scaled = any(after for _, _, after in known)
    titles = ["method", f"ECE, 0 to {100 * most:.3g} %", "ECE %", *["after T %"] * scaled, "accuracy %"]
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "\n".join(_row(*line, most, scaled=scaled) for line in known)
    return (
        f'<table class="overview"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n'
        '<p class="hint legend"><i class="dot before"></i> as trained'
        + (' <i class="dot after"></i> after temperature scaling' if scaled else "")
        + ' <i class="floor"></i> noise floor: the ECE that a calibrated model would show at this n. '
        "Small dots: seeds. Lines: 95 % intervals, averaged over seeds.</p>"
    )


def _row(method: str, before: Sequence[Record], after: Sequence[Record], most: float, *, scaled: bool) -> str:
    floors = metric_values(before, "ece_floor")
    marks = [f'<i class="floor" style="width:{_share(statistics.fmean(floors), most)}"></i>'] if floors else []
    marks += _marks("before", _eces(before), most) + _marks("after", _eces(after), most)
    numbers = [_mean("ece", before), *[_mean("ece", after)] * scaled, _mean("accuracy", before)]
    cells = "".join(f"<td>{number}</td>" for number in numbers)
    name = html.escape(method).replace("(", "<wbr>(")
    return f'<tr><th scope="row">{name}</th><td class="track">{"".join(marks)}</td>{cells}</tr>'


def _marks(kind: str, eces: Sequence[Estimate], most: float) -> list[str]:
    """Draw the mean over seeds, the value of each seed, and the mean interval."""
    if not eces:
        return []
    ends = [(one.low, one.high) for one in eces if one.low is not None and one.high is not None]
    found = []
    if ends:
        low, high = (statistics.fmean(side) for side in zip(*ends, strict=True))
        width = _share(high - low, most)
        found.append(f'<i class="range {kind}" style="left:{_share(low, most)};width:{width}"></i>')
    if len(eces) > 1:
        found += [f'<i class="seed {kind}" style="left:{_share(one.value, most)}"></i>' for one in eces]
    mean = statistics.fmean(one.value for one in eces)
    return [*found, f'<i class="dot {kind}" style="left:{_share(mean, most)}"></i>']


def _eces(records: Sequence[Record]) -> list[Estimate]:
    return [one.result.estimates["ece"] for one in records if "ece" in one.result.estimates]


def _scaled(group: Sequence[Subject]) -> list[Record]:
    return [state for one in group if (state := one.scaled) is not None]


def _share(value: float, most: float) -> str:
    return f"{100 * min(max(value / most, 0.0), 1.0):.2f}%"


def _mean(name: str, records: Sequence[Record]) -> str:
    values = metric_values(records, name)
    return metric(name).show(statistics.fmean(values)) if values else ""


def conclusions(subjects: Sequence[Subject], ranked: Sequence[Ranked] = ()) -> list[str]:
    """Return the most important sentences: the best of several methods and the comparison, then each method."""
    methods = by_method(subjects)
    sentences = [about(name, group) for name, group in methods.items()]
    return [*_overall(subjects, ranked), *sentences] if len(methods) > 1 else sentences


def decisions(subjects: Sequence[Subject], max_error: float) -> list[str]:
    """Return a sentence per network on the confidence above which predictions have a bounded error."""
    found = []
    for one in subjects:
        try:
            decision = str(one.as_is.result.decide(max_error))
        except InputError as error:
            decision = f"no threshold was chosen: {error}."
        found.append(f"{one.title}: {decision}" if len(subjects) > 1 else decision)
    return found


def about(method: str, group: Sequence[Subject]) -> str:
    """Return one sentence on a method: the verdict on its networks of all seeds, and the ECE at a temperature.

    Whether to use the temperature is the question of `acls calibrate`, which the page does not answer.
    """
    if not any("ece" in one.as_is.result.estimates for one in group):
        return f"{method}: no ECE is known."
    if len(group) == 1:
        return f"{method}: {verdict(group[0].as_is.result).text.removesuffix('.')}{_at_temperature(group)}."
    mean, *spread = mean_text([one.as_is for one in group], "ece").partition(" ± ")
    way = verdict_on_seeds([one.as_is.result for one in group])
    return f"{method}: ECE {mean} %{''.join(spread)} over {len(group)} seeds: {way}{_at_temperature(group)}."


def _overall(subjects: Sequence[Subject], ranked: Sequence[Ranked]) -> list[str]:
    known = [one for one in subjects if "ece" in one.as_is.result.estimates]
    if len({one.method for one in known}) < 2:
        return []
    if len(by_protocol(records(subjects))) > 1:
        return ["The networks were measured by different protocols, so they are not compared."]
    if not same_samples(subjects):
        return ["The networks were tested on different samples, so they are not compared."]
    sentences = [about_ranking(one) for one in ranked if (one.metric, one.posthoc) == ("ece", NONE)]
    off = sum(bool(verdict(one.as_is.result).miscalibrated) for one in known)
    many = f"{off} of {len(known)} networks are" if off else f"None of the {len(known)} networks is"
    return [*sentences, f"{many} miscalibrated by more than chance."]


def _at_temperature(group: Sequence[Subject]) -> str:
    after = _mean("ece", _scaled(group))
    if not after:
        return ""
    ts = sorted(one.temperature for one in group if one.temperature is not None)
    t = "" if not ts else f" {ts[0]:.2g}" if f"{ts[0]:.2g}" == f"{ts[-1]:.2g}" else f" {ts[0]:.2g} to {ts[-1]:.2g}"
    return f"; at temperature{t}, the ECE is {after} %"
