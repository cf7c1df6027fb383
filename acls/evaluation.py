"""Evaluating data sets of predictions: every metric with what it is worth, from one pass in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from acls.errors import InputError
from acls.hashing import STEP, mix64
from acls.metrics import Suite
from acls.metrics.batch import Batch
from acls.metrics.bins import BINS
from acls.metrics.blocks import BLOCKS, Blocks
from acls.metrics.catalogue import metric, names
from acls.metrics.intervals import (
    REPLICATES,
    Comparison,
    Floor,
    Interval,
    Test,
    bootstrap,
    calibration_tests,
    noise_floor,
    paired,
)
from acls.metrics.protocols import Meter, Protocol
from acls.metrics.tally import Tally
from acls.predictions import Predictions
from acls.shapes import IGNORE_INDEX
from acls.storage import finite

S = TypeVar("S", bound=Tally)

METRICS = tuple(name for name in names(3) if metric(name).needs != "maps")
"""What is reported, in this order; what triples cannot tell is left out."""

FEW_GROUPS = 8
"""So many groups have intervals and floors as costly as those of the whole."""
MANY_REPLICATES = 200
"""Resamples at most of each group where there are more."""
_GROUP_BLOCKS = 16 * BLOCKS  # blocks that all groups share out, 100 MB
_FEWEST_BLOCKS = 16  # resampling fewer tells too little of how far a number varies

Counted = tuple[Suite, Blocks | None]
"""What was counted of some rows."""

_TESTS = {"spiegelhalter": "Spiegelhalter", "ks": "Kolmogorov-Smirnov"}


@dataclass(frozen=True)
class Worth:
    """The values of a set of predictions, and what each is worth."""

    summary: dict[str, float]
    """Every metric by name, as `Suite.summary` gives it."""
    intervals: dict[str, Interval]
    floors: dict[str, Floor]
    tests: dict[str, Test]

    @property
    def n(self) -> int:
        return int(self.summary["n"])

    def as_json(self) -> dict[str, Any]:
        """A plain object: the metrics by name, then their intervals, floors and error bounds; null where not known."""
        names = [name for name in self.summary if name != "n" and not name.endswith("_bound")]
        bounds = {name: self.summary[f"{name}_bound"] for name in names if self.summary.get(f"{name}_bound")}
        plain: dict[str, Any] = finite(
            {
                "n": self.n,
                **{name: self.summary.get(name) for name in dict.fromkeys([*METRICS, *names])},
                "intervals": {name: [x.low, x.high] for name, x in self.intervals.items()},
                "floors": {name: {"mean": x.mean, "low": x.low, "high": x.high} for name, x in self.floors.items()},
                "bounds": bounds,
                "tests": {name: {"statistic": x.statistic, "p": x.p} for name, x in self.tests.items()},
            }
        )
        return plain


@dataclass
class Evaluation:
    """What was counted of one data set, overall and by group."""

    bins: int = BINS
    resample: bool = True
    """Whether to keep what intervals and comparisons need, at most about 25 MB."""
    by_image: bool = False
    """Whether the rows of an image stay together when resampling."""
    ignore_index: int = IGNORE_INDEX
    kind: str = ""
    first: int = 0
    """The number of the first row, where this is a part of a larger data set."""
    rows: int = 0
    n_classes: int | None = None
    has_images: bool = False
    suite: Suite | None = None
    blocks: Blocks | None = None
    groups: dict[int, Counted] = field(default_factory=dict)
    group_names: tuple[str, ...] = ()
    labels: int = 0
    """A sum of hashes of every label with its row's number: the same for the same labels, however counted."""

    def add(self, p: Predictions, *, by_group: bool = False) -> None:
        """Count a slice."""
        self.kind, self.n_classes, self.group_names = p.kind, p.n_classes, p.group_names
        self.has_images = p.image is not None
        self.labels = (self.labels + _hash(p.labels, self.first + self.rows)) % 2**64
        unit = self._units(p)
        self.rows += len(p)
        counted = self._count(p, unit)
        self.suite = counted[0] if self.suite is None else self.suite + counted[0]
        self.blocks = counted[1] if self.blocks is None or counted[1] is None else self.blocks + counted[1]
        if not by_group:
            return
        if p.group is None:
            raise InputError("there is no group to go by: name its column, as in --group NAME")
        codes = p.group.unique().tolist()  # type: ignore[no-untyped-call]
        number = len(self.groups.keys() | set(codes))
        by_code = (
            (code, self._count(p[inside], unit[inside], number)) for code in codes for inside in [p.group == code]
        )
        _take_in(self.groups, by_code, number)

    def __add__(self, other: Evaluation) -> Evaluation:
        """What was counted of two parts, as of one; groups are the same where their names are."""
        if (self.kind, self.n_classes) != (other.kind, other.n_classes):
            raise InputError(
                f"a part has {other.kind} of {other.n_classes} classes, but {self.kind} of {self.n_classes} came before"
            )
        names = tuple(dict.fromkeys((*self.group_names, *other.group_names)))
        theirs = {
            names.index(other.group_names[code]) if other.group_names else code: counted
            for code, counted in other.groups.items()
        }
        groups = dict(self.groups)
        _take_in(groups, theirs.items(), len(groups.keys() | theirs.keys()))
        return replace(
            self,
            rows=self.rows + other.rows,
            has_images=self.has_images or other.has_images,
            suite=_sum(self.suite, other.suite),
            blocks=_sum(self.blocks, other.blocks),
            groups=groups,
            group_names=names,
            labels=(self.labels + other.labels) % 2**64,
        )

    def worth(self, replicates: int) -> Worth:
        """The numbers of the whole; no intervals for 0 replicates."""
        return _worth(self._counted(), self.blocks, replicates)

    def worth_by_group(self, replicates: int) -> dict[str, Worth]:
        """The numbers of each group by its name, but of those without a labelled row, which `empty_groups` names.

        Beyond `FEW_GROUPS` there are at most `MANY_REPLICATES` resamples of each, and SmoothECE, which takes longer
        than all else, has neither interval nor floor.
        """
        many = len(self.groups) > FEW_GROUPS
        return {
            self._group_name(code): _worth(*self.groups[code], replicates, briefly=many)
            for code in sorted(self.groups)
            if self.groups[code][0].n
        }

    def empty_groups(self) -> list[str]:
        """The names of the groups whose rows are all ignored."""
        return [self._group_name(code) for code in sorted(self.groups) if not self.groups[code][0].n]

    def same_samples(self, other: Evaluation) -> bool:
        """Whether both saw the same labels in the same order."""
        return self.labels == other.labels and self.rows == other.rows

    def compare(self, other: Evaluation, replicates: int) -> dict[str, Comparison]:
        """Each metric of this one minus the other's, on the same samples."""
        if self.blocks is None or other.blocks is None:
            raise InputError("comparing needs resampling, which was switched off")
        return paired(self.blocks, other.blocks, replicates=replicates)

    def _group_name(self, code: int) -> str:
        return self.group_names[code] if self.group_names else str(code)

    def _counted(self) -> Suite:
        if self.suite is None or self.suite.n == 0:
            raise InputError("there are no labelled rows to evaluate")
        return self.suite

    def _units(self, p: Predictions) -> Tensor:
        if not self.by_image:
            return torch.arange(self.first + self.rows, self.first + self.rows + len(p))
        if p.image is None:
            raise InputError("there is no image to go by: name its column, as in --image NAME")
        return p.image

    def _count(self, p: Predictions, unit: Tensor, groups: int = 1) -> Counted:
        """Count some rows, those of one of so many groups, or all."""
        keep = p.labels != self.ignore_index
        if not bool(keep.all()):
            p, unit = p[keep], unit[keep]
        batch, classwise = _batch(p), p.scores is not None
        suite = Suite.count(batch, self.bins, classwise=classwise)
        if not self.resample:
            return suite, None
        if self.blocks is not None and self.blocks.classwise is not None:
            # What would be thinned out at once need not be counted, which takes longer than all else.
            classwise = _share(self.blocks.classwise.shape[0], groups) > 0
        return suite, Blocks.count(batch, self.bins, unit=unit, classwise=classwise)


def evaluate(batches: Iterable[Predictions], *, by_group: bool = False, **settings: Any) -> Evaluation:
    """Count a whole data set; ``settings`` are the fields of `Evaluation`."""
    evaluation = Evaluation(**settings)
    for batch in batches:
        evaluation.add(batch, by_group=by_group)
    return evaluation


def measure(
    batches: Iterable[Predictions], protocols: Sequence[Protocol], *, ignore_index: int, skip_unfit: bool = False
) -> dict[str, dict[str, float]]:
    """The numbers of each protocol by its name, from one pass.

    A protocol that needs images or all scores, where there are none, raises an InputError or is skipped.
    """
    meters: dict[str, Meter] | None = None
    for batch in batches:
        p = batch.labelled(ignore_index)
        if meters is None:
            fit = [one for one in protocols if _fits(one, p)]
            if len(fit) < len(protocols) and not skip_unfit:
                missing = (
                    "the image of each row, as in --image NAME" if p.image is None else "the scores of all classes"
                )
                raise InputError(f"protocol {protocols[0].name!r} needs {missing}")
            meters = {one.name: one.meter() for one in fit}
        for meter in meters.values():
            meter.add(_batch(p), p.image)
    if not meters:
        raise InputError("there are no rows to evaluate")
    return {name: meter.result() for name, meter in meters.items()}


def verdict(worth: Worth, *, by_image: bool = False) -> str:
    """One sentence on whether the confidences can be believed.

    Rows that are independent are judged by the noise floor and the tests; those of images, by the interval alone, so
    not at all where there is none.
    """
    confidence, accuracy, ece = (worth.summary[name] for name in ("confidence", "accuracy", "ece"))
    means = f"mean confidence {confidence:.2%}, accuracy {accuracy:.2%}"
    way = "overconfident" if confidence > accuracy else "underconfident"
    if by_image:
        interval = worth.intervals.get("ece")
        if interval is None or math.isnan(interval.low):
            return f"No verdict, as there is no interval over images, and pixels are not independent ({means})."
        if interval.low == 0:
            return f"No miscalibration beyond chance with so many images: the interval of the ECE reaches 0 ({means})."
        return f"Miscalibrated, {way}: {means}; the interval of the ECE over images does not reach 0."
    floor = worth.floors["ece"]
    if ece <= floor.high:
        name, test = min(worth.tests.items(), key=lambda item: item[1].p)
        if test.p > 0.05:
            return f"No miscalibration beyond chance at this n: the ECE is within its noise floor ({means})."
        return (
            f"Slightly miscalibrated, {way}: {means}; the {_TESTS[name]} test, which needs no bins, finds it "
            f"(p {show_p(test.p)}), while the ECE is within its noise floor."
        )
    times = f"{ece / floor.mean:.1f} times" if floor.mean > 0 else "above"
    p = show_p(worth.tests["spiegelhalter"].p)
    return f"Miscalibrated, {way}: {means}; the ECE is {times} its noise floor (Spiegelhalter p {p})."


def show_p(p: float) -> str:
    """A p-value as a reader wants it: ``= 0.012`` or ``< 0.001``."""
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _worth(suite: Suite, blocks: Blocks | None, replicates: int, *, briefly: bool = False) -> Worth:
    summary = suite.summary()
    most = MANY_REPLICATES if briefly else REPLICATES
    intervals: dict[str, Interval] = {}
    if blocks is not None and replicates > 0 and blocks.used > 1:
        resamples = min(replicates, most) if briefly else replicates
        intervals = bootstrap(blocks, around=summary, replicates=resamples, smooth=not briefly)
    return Worth(
        summary=summary,
        intervals=intervals,
        floors=noise_floor(suite, replicates=most, smooth=not briefly),
        tests=calibration_tests(suite),
    )


def _take_in(groups: dict[int, Counted], added: Iterable[tuple[int, Counted]], number: int) -> None:
    """Add to the groups, which are ``number`` in the end, what else was counted of them, one by one for the memory."""
    for code, (suite, blocks) in groups.items():
        groups[code] = (suite, _thinned(blocks, number))
    for code, (suite, found) in added:
        blocks = _thinned(found, number)
        if code in groups:
            before = groups[code]
            suite, blocks = before[0] + suite, _sum(before[1], blocks)
        groups[code] = (suite, blocks)


def _thinned(blocks: Blocks | None, groups: int) -> Blocks | None:
    """The blocks of one of so many groups: fewer and larger ones, that all may hold no more than 16 groups would.

    Unit u is in block u modulo their number, so halves added up are what counting half as many blocks would have given,
    and the order of counting does not matter. Where too few would be left, there are none.
    """
    if blocks is None or not _share(BLOCKS, groups):
        return None
    times = blocks.cells.shape[0] // _share(BLOCKS, groups)
    if times <= 1:
        return blocks
    proper, classwise = blocks.proper, blocks.classwise
    if classwise is not None:  # there may be fewer of these
        enough = classwise.shape[0] // times >= _FEWEST_BLOCKS
        classwise = _folded(classwise, times) if enough else None
    proper = None if proper is None else _folded(proper, times)
    return replace(blocks, cells=_folded(blocks.cells, times), proper=proper, classwise=classwise)


def _share(blocks: int, groups: int) -> int:
    """How many of so many blocks are left to each of so many groups; 0 where they would be too few."""
    while BLOCKS * groups > _GROUP_BLOCKS:
        blocks, groups = blocks // 2, (groups + 1) // 2
    return blocks if blocks >= _FEWEST_BLOCKS else 0


def _folded(part: Tensor, times: int) -> Tensor:
    return part.view(times, -1, *part.shape[1:]).sum(0)


def _sum(one: S | None, other: S | None) -> S | None:
    return None if one is None or other is None else one + other


def _hash(labels: Tensor, first: int) -> int:
    """A sum over rows of a hash of the label and the row's number."""
    place = torch.arange(first, first + len(labels))
    return int(mix64(place * STEP + labels).sum())


def _batch(p: Predictions) -> Batch:
    if p.scores is None:
        return Batch.of_triples(*p.top(), p.labels)
    assert p.kind != "triples"
    return Batch.of(p.scores, p.labels, kind=p.kind)


def _fits(protocol: Protocol, p: Predictions) -> bool:
    return (p.image is not None or not protocol.images) and (p.scores is not None or protocol.temperature == "none")
