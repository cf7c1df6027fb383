"""Find the best method, and test whether it is better by more than chance.

The difference between two methods is uncertain for two reasons: the test set is a random sample, and the networks
depend on random seeds. Every interval and p-value here includes both: see `acls.metrics.significance.over_seeds`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch

from acls.errors import InputError
from acls.metrics.catalogue import metric as metric_of
from acls.metrics.distributions import LEVEL as CONFIDENCE
from acls.metrics.distributions import holm, normal_quantile
from acls.metrics.significance import Ranking, SeedDifference, all_against, compare, over_seeds, ranking
from acls.results import LEVEL, Record

Methods = Mapping[str, Mapping[int, Record]]
"""Records by method and seed."""
PRIMARY = "ece"
"""The metric of the primary question: which networks, without a post-hoc method, have the lowest value?"""


@dataclass(frozen=True)
class Ranked(Ranking):
    """The best method by a metric, among results after the same post-hoc method, compared with all others.

    Its ``p`` is corrected for the number of rankings, unless it answers the primary question.
    """

    metric: str
    posthoc: str
    baseline: str
    """The first method."""
    scaled: Mapping[str, SeedDifference]
    """Without a post-hoc method only: the baseline after each one minus the baseline, corrected for their number."""
    debiased: bool
    """Whether means and differences are of debiased estimates, which all records must have; else of plain values."""

    @property
    def significant(self) -> bool:
        return self.p < LEVEL

    @property
    def next(self) -> str:
        return next(iter(self.against))

    @property
    def difference(self) -> float:
        """The value of the best method minus that of the second best."""
        return self.against[self.next].value


def rank(records: Sequence[Record], metrics: Sequence[str]) -> list[Ranked]:
    """Find the best method by each metric and test it against all others, paired by seed and on the same samples.

    Files of predictions have no seeds and are tested on their samples only. A metric that some method lacks, or that
    cannot be tested, is left out. There is one primary question: the ECE of the networks without a post-hoc method. All
    other rankings are secondary, and their p-values are corrected for their number by Holm's method.
    """
    groups: dict[str, dict[str, dict[int, Record]]] = {}
    for one in records:
        groups.setdefault(one.posthoc, {}).setdefault(one.method, {})[one.seed or 0] = one
    if not groups:
        return []
    (as_is, methods), *others = groups.items()
    first = next(iter(methods))
    after = {f"{first} after {posthoc}": group[first] for posthoc, group in others if first in group}
    found = [*_ranked(as_is, methods, metrics, after)]
    found += [one for posthoc, group in others for one in _ranked(posthoc, group, metrics, {})]
    besides = [one for one in found if (one.metric, one.posthoc) != (PRIMARY, as_is)]
    corrected = iter(holm([one.p for one in besides]))
    return [replace(one, p=next(corrected)) if one in besides else one for one in found]


def _ranked(posthoc: str, methods: Methods, metrics: Sequence[str], after: Methods) -> Iterator[Ranked]:
    """Find the best method by each metric after one post-hoc method; the p-values are not yet corrected."""
    group, baseline = {**methods, **after}, next(iter(methods))
    files = all(one.seed is None for seeds in group.values() for one in seeds.values())

    @cache
    def on_samples(one: str, other: str, level: float) -> dict[str, SeedDifference]:
        """Compare two files of predictions on their samples; return nothing if the needed sums were not kept."""
        mine, theirs = (next(iter(group[name].values())).result for name in (one, other))
        if mine.suite is None or theirs.suite is None or mine.blocks is None or theirs.blocks is None:
            return {}
        compared = compare((mine.suite, mine.blocks), (theirs.suite, theirs.blocks), level=level)
        return {
            name: SeedDifference(found.difference, found.low, found.high, found.p, 1, None)
            for name, found in compared.items()
            if found.low is not None and found.high is not None and found.p is not None
        }

    def pair(metric: str, debiased: bool, one: str, other: str, level: float) -> SeedDifference | None:
        if files:
            return on_samples(one, other, level).get(metric)
        first, second = (list(group[name].values()) for name in (one, other))
        return difference(first, second, metric, level=level, debiased=debiased)

    for metric in metrics:
        debiased = all_debiased((one for seeds in group.values() for one in seeds.values()), metric)
        values = {name: _values(seeds.values(), metric, debiased) for name, seeds in methods.items()}
        of_pair = partial(pair, metric, debiased)
        if len(methods) > 1 and all(values.values()):
            best = ranking(values, of_pair, higher_is_better=metric_of(metric).sign < 0)
            if best is not None:
                known = vars(best) | {"scaled": all_against(baseline, list(after), of_pair), "debiased": debiased}
                yield Ranked(**known, metric=metric, posthoc=posthoc, baseline=baseline)


def difference(
    one: Sequence[Record], other: Sequence[Record], metric: str, *, level: float = CONFIDENCE, debiased: bool = True
) -> SeedDifference | None:
    """Compare the records of two methods, paired by seed and on the same samples; None if they have no common seed.

    Records without resamples are compared by their own intervals, as if each method had been tested on different
    samples; this gives a wider interval. With one seed, the variation between seeds is unknown, and the interval is
    infinite. Debiased estimates are compared if ``debiased`` is True and all records have them, else plain values.
    """
    debiased = debiased and all_debiased([*one, *other], metric)
    values = [_values(some, metric, debiased) for some in (one, other)]
    seeds = sorted(values[0].keys() & values[1].keys())
    if not seeds:
        return None
    mine, theirs = ([some[seed] for seed in seeds] for some in values)
    by_seed = [{record.seed or 0: record for record in some} for some in (one, other)]
    pairs = [(by_seed[0][seed], by_seed[1][seed]) for seed in seeds]
    # A share changes in steps of one sample.
    step = 1 / pairs[0][0].n if metric_of(metric).kind == "share" else 0.0
    return over_seeds(mine, theirs, _deviation(pairs, metric), resolution=step, level=level)


def all_debiased(records: Iterable[Record], metric: str) -> bool:
    """Return whether all records that have a metric have a debiased estimate of it; those of 0.1.0 have none."""
    return all(metric in one.result.debiased for one in records if metric in one.result.estimates)


def _values(records: Iterable[Record], metric: str, debiased: bool) -> dict[int, float]:
    """Return the finite values of a metric by seed."""
    known = {one.seed or 0: one.result.debiased if debiased else one.result.values for one in records}
    return {seed: some[metric] for seed, some in known.items() if math.isfinite(some.get(metric, math.nan))}


def _deviation(pairs: Sequence[tuple[Record, Record]], metric: str) -> float:
    """Return the standard deviation over test samples of the mean difference of two methods, paired by seed."""
    total = torch.zeros(())
    for pair in pairs:
        mine, theirs = (record.result.details.resamples for record in pair)
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
