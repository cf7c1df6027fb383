"""Which method is best, and whether that is more than chance.

Two things make a difference of two methods uncertain: which samples the test set happens to hold, and which networks
the seeds happen to give. Both are in every interval and p-value here: see `acls.metrics.significance.over_seeds`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from acls.errors import InputError
from acls.metrics.catalogue import metric as metric_of
from acls.metrics.distributions import holm, normal_quantile
from acls.metrics.significance import SeedDifference, compare, over_seeds, ranking
from acls.results import LEVEL, Record
from acls.results.details import Resampled

Resamples = Callable[[Record], Resampled | None]
Values = dict[str, dict[int, float]]
"""By method and seed."""


@dataclass(frozen=True)
class Difference(SeedDifference):
    """A metric of one method minus the other's, on average over the seeds that both have, with its 95 % interval."""

    @property
    def sign(self) -> int:
        """-1 or 1 where the interval leaves no doubt, else 0."""
        return (self.low > 0) - (self.high < 0)


@dataclass(frozen=True)
class Ranked:
    """The best method by a metric, among those after the same post-hoc method, against all others."""

    metric: str
    posthoc: str
    best: str
    p: float
    """Of some other method being as good, corrected by Holm for all that were ranked together."""
    against: Mapping[str, SeedDifference]
    """The best minus each other method, the closest first."""
    baseline: str
    """The first method."""
    to_baseline: Mapping[str, SeedDifference]
    """Each other method minus the baseline; p-values corrected by Holm for their number."""

    @property
    def significant(self) -> bool:
        return self.p < LEVEL

    @property
    def next(self) -> str:
        return next(iter(self.against))

    @property
    def difference(self) -> float:
        """The best minus the next."""
        return self.against[self.next].value

    @property
    def seeds(self) -> int:
        return min(found.seeds for found in self.against.values())

    @property
    def needed(self) -> int | None:
        """Seeds at which the difference to the next, if it is as it looks, would be more than chance."""
        return self.against[self.next].needed


def rank(
    records: Sequence[Record], metrics: Sequence[str], resampled: Resamples = lambda one: resamples_of(one)
) -> list[Ranked]:
    """Find the best by each metric and test it against all others, seed by seed and on the same samples.

    Files of predictions, which have no seeds, are tested on their samples alone. A metric that some method lacks is
    left out, and so is one that cannot be tested.
    """
    found = []
    for posthoc in dict.fromkeys(one.posthoc for one in records):
        group: dict[str, dict[int, Record]] = {}
        for one in records:
            if one.posthoc == posthoc:
                group.setdefault(one.method, {})[one.seed or 0] = one
        files = all(one.seed is None for seeds in group.values() for one in seeds.values())
        pairs: dict[tuple[str, str], dict[str, SeedDifference]] = {}
        for metric in metrics:
            if len(group) < 2 or not all(
                any(metric in one.result.estimates for one in s.values()) for s in group.values()
            ):
                continue
            ranked = _of_files(group, metric, pairs) if files else _of_seeds(group, metric, resampled)
            if ranked is not None:
                found.append(replace(ranked, posthoc=posthoc))
    corrected = holm([one.p for one in found])
    return [replace(one, p=p) for one, p in zip(found, corrected, strict=True)]


def difference(
    first: Sequence[Record], second: Sequence[Record], metric: str, resampled: Resamples | None = None
) -> Difference | None:
    """Compare the records of two methods, seed by seed and on the same samples; None where they have no common seed.

    Without ``resampled``, which resamples the predictions behind a record, the records' own intervals tell how far the
    samples may lead astray, as if each method had been tested on samples of its own: wider. With one seed nothing is
    known of others, so the interval is without end.
    """
    group = {name: {one.seed or 0: one for one in some} for name, some in (("one", first), ("other", second))}
    values = values_of(group, metric)
    seeds = sorted(values["one"].keys() & values["other"].keys())
    if not seeds:
        return None
    mine, theirs = ([values[name][seed] for seed in seeds] for name in group)
    step = _resolution(metric, group["one"][seeds[0]])
    deviation = _deviation(group, metric, resampled or (lambda _: None), "one", "other", seeds)
    return Difference(**vars(over_seeds(mine, theirs, deviation, resolution=step)))


def values_of(group: Mapping[str, Mapping[int, Record]], metric: str) -> Values:
    """The values of a metric by method and seed: debiased where all have such an estimate, else the plain ones."""
    found = {
        method: {seed: one.result.estimates[metric] for seed, one in seeds.items() if metric in one.result.estimates}
        for method, seeds in group.items()
    }
    every = [one for seeds in found.values() for one in seeds.values()]
    if every and all(one.debiased is not None for one in every):
        return {m: {seed: one.debiased or 0.0 for seed, one in seeds.items()} for m, seeds in found.items()}
    return {
        m: {seed: one.value for seed, one in seeds.items() if math.isfinite(one.value)} for m, seeds in found.items()
    }


def resamples_of(record: Record) -> Resampled | None:
    """The resamples that a record carries."""
    return None if record.result.details is None else record.result.details.resamples


def _of_seeds(group: Mapping[str, Mapping[int, Record]], metric: str, resampled: Resamples) -> Ranked | None:
    values = values_of(group, metric)
    if not all(values.values()):
        return None
    shown = metric_of(metric)
    step = _resolution(metric, next(iter(next(iter(group.values())).values())))

    def deviation(one: str, other: str, seeds: Sequence[int]) -> float:
        return _deviation(group, metric, resampled, one, other, seeds)

    found = ranking(values, deviation, higher_is_better=shown.sign < 0, resolution=step)
    if found is None:
        return None
    order = sorted(found.against, key=lambda name: shown.sign * statistics.fmean(values[name].values()))
    against = {name: found.against[name] for name in order}
    return Ranked(metric, "", found.best, found.p, against, next(iter(group)), found.to_baseline)


def _of_files(
    group: Mapping[str, Mapping[int, Record]], metric: str, pairs: dict[tuple[str, str], dict[str, SeedDifference]]
) -> Ranked | None:
    results = {name: next(iter(records.values())).result for name, records in group.items()}
    sign = metric_of(metric).sign
    order = sorted(results, key=lambda name: sign * results[name][metric])
    best, *others = order
    baseline = next(iter(group))

    def pair(one: str, other: str) -> SeedDifference | None:
        if (one, other) not in pairs:
            mine, theirs = results[one], results[other]
            if mine.suite is None or theirs.suite is None or mine.blocks is None or theirs.blocks is None:
                return None
            compared = compare((mine.suite, mine.blocks), (theirs.suite, theirs.blocks), by_unit=mine.unit != "row")
            pairs[one, other] = {
                name: SeedDifference(found.difference, found.low, found.high, found.p, 1, None)
                for name, found in compared.items()
                if found.low is not None and found.high is not None and found.p is not None
            }
        return pairs[one, other].get(metric)

    against = {name: pair(best, name) for name in others}
    known = {name: found for name, found in against.items() if found is not None}
    if len(known) < len(against):
        return None
    to_baseline = {name: found for name in results if name != baseline and (found := pair(name, baseline)) is not None}
    corrected = holm([found.p for found in to_baseline.values()])
    to_baseline = {name: replace(to_baseline[name], p=p) for name, p in zip(to_baseline, corrected, strict=True)}
    return Ranked(metric, "", best, max(found.p for found in known.values()), known, baseline, to_baseline)


def _resolution(metric: str, record: Record) -> float:
    """The step from one value that a metric can have to the next; 0 where it can have any."""
    return 1 / record.n if metric_of(metric).kind == "share" else 0.0


def _deviation(
    group: Mapping[str, Mapping[int, Record]],
    metric: str,
    resampled: Resamples,
    one: str,
    other: str,
    seeds: Sequence[int],
) -> float:
    """The standard deviation, over test samples, of the mean difference of two methods."""
    pairs = [(group[one][seed], group[other][seed]) for seed in seeds]
    total = torch.zeros(())
    for pair in pairs:
        mine, theirs = (resampled(record) for record in pair)
        if mine is None or theirs is None or metric not in mine.metrics or metric not in theirs.metrics:
            return _own_deviation(pairs, metric)
        if not torch.equal(mine.units, theirs.units):
            raise InputError(f"{pair[0].method} and {pair[1].method} were not tested on the same samples")
        total = total + mine.metrics[metric] - theirs.metrics[metric]
    return float(total.std()) / len(pairs)


def _own_deviation(pairs: Sequence[tuple[Record, Record]], metric: str) -> float:
    ends = [record.result.intervals.get(metric) for pair in pairs for record in pair]
    widths = [(low_high[1] - low_high[0]) / (2 * normal_quantile()) for low_high in ends if low_high is not None]
    return math.sqrt(2 * statistics.fmean(width**2 for width in widths)) if widths else 0.0
