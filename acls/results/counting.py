"""Count a data set of predictions, of any size and in any number of parts, and evaluate the counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from acls.errors import InputError
from acls.hashing import STEP, mix64
from acls.metrics import Blocks, Suite
from acls.metrics.batch import Batch
from acls.metrics.bins import BINS
from acls.metrics.estimates import Estimate, estimates
from acls.metrics.protocols import Meter, Protocol
from acls.metrics.significance import REPLICATES, calibration
from acls.predictions import Columns, Predictions, Source, slices
from acls.results.details import Details, Mistake, resample, worst_mistakes
from acls.results.result import Result
from acls.shapes import IGNORE_INDEX

FEW_GROUPS = 8
"""Up to this number of groups, noise floors use all draws per group; with more groups, they use `FEW_DRAWS`."""
FEW_DRAWS = 200
GROUPED_IMAGES = 16
"""Largest number of groups with sums per image, 7 MB each; with more groups there are no intervals over images."""

Counted = tuple[Suite, Blocks | None]


@dataclass
class Counts:
    """The counts of one data set, overall and by group; counts of two parts of a data set can be added."""

    bins: int = BINS
    compare: bool = False
    """Whether to keep the sums for comparing two models, at most about 25 MB."""
    by_image: bool | None = None
    """Whether images, rather than rows, are the independent units; None: if the predictions have images."""
    detailed: bool = False
    """Whether to keep the worst mistakes, and the resamples for a ranking: see `Details`."""
    ignore_index: int = IGNORE_INDEX
    kind: str = ""
    first: int = 0
    """The number of the first row, if this is a part of a larger data set."""
    rows: int = 0
    n_classes: int | None = None
    has_images: bool = False
    weighted: bool = False
    whole: Counted | None = None
    groups: dict[int, Counted] = field(default_factory=dict)
    group_names: tuple[str, ...] = ()
    labels: int = 0
    """The sum of hashes of each label with its row number; it depends only on the labels, not on the slices."""
    mistakes: tuple[Mistake, ...] = ()
    meta: dict[str, str] = field(default_factory=dict)

    def add(self, p: Predictions, *, by_group: bool = False) -> None:
        """Add a slice to the counts."""
        self.kind, self.n_classes, self.group_names = p.kind, p.n_classes, p.group_names
        self.has_images, self.weighted = p.image is not None, p.weight is not None
        if self.by_image is None:
            self.by_image = self.has_images
        first = self.first + self.rows
        self.labels = (self.labels + _hash(p.labels, first)) % 2**64
        if self.by_image and p.image is None:
            raise InputError(
                "expected the image of each row, got none: pass the name of its column, as in --image NAME"
            )
        unit = p.image if self.by_image and p.image is not None else torch.arange(first, first + len(p))
        units = self.unit != "row"
        if self.detailed:
            self.mistakes = worst_mistakes(self.mistakes, p, first, self.ignore_index)
            self.meta = p.meta
        found = self._count(p, unit, first=first, keep=self.compare or units or self.detailed, redraw=not units)
        self.whole = _joined(self.whole, found)
        self.rows += len(p)
        if not by_group:
            return
        if p.group is None:
            raise InputError("there are no groups: pass the name of their column, as in --group NAME")
        codes = p.group.unique().tolist()  # type: ignore[no-untyped-call]
        many = len(self.groups.keys() | set(codes)) > GROUPED_IMAGES
        for code in codes:
            inside = p.group == code
            found = self._count(p[inside], unit[inside], first=0, keep=units and not many, redraw=False)
            self.groups[code] = _joined(self.groups.get(code), found)
        if many:
            self.groups = {code: (suite, None) for code, (suite, _) in self.groups.items()}

    def __add__(self, other: Counts) -> Counts:
        """Return the counts of two parts of a data set together; groups with the same name are merged."""
        if (self.kind, self.n_classes) != (other.kind, other.n_classes):
            raise InputError(f"expected {self.kind} of {self.n_classes} classes, got {other.kind} of {other.n_classes}")
        named = tuple(dict.fromkeys((*self.group_names, *other.group_names)))
        groups = dict(self.groups)
        for code, counted in other.groups.items():
            own = named.index(other.group_names[code]) if other.group_names else code
            groups[own] = _joined(groups.get(own), counted)
        return replace(
            self,
            rows=self.rows + other.rows,
            has_images=self.has_images or other.has_images,
            weighted=self.weighted or other.weighted,
            whole=self.whole if other.whole is None else _joined(self.whole, other.whole),
            groups=groups,
            group_names=named,
            labels=(self.labels + other.labels) % 2**64,
        )

    def result(self, *, replicates: int = REPLICATES) -> Result:
        """Compute the result; ``replicates``: draws for floors and tests, at least 200; 0 means no intervals."""
        if self.whole is None or self.whole[0].n == 0:
            raise InputError("there are no labelled rows to evaluate")
        draws = FEW_DRAWS if len(self.groups) > FEW_GROUPS else REPLICATES
        groups = {
            self._group_name(code): self._result(suite, blocks, draws, intervals=replicates > 0)
            for code, (suite, blocks) in sorted(self.groups.items())
            if suite.n
        }
        whole = self._result(*self.whole, max(replicates, FEW_DRAWS), intervals=replicates > 0)
        resamples = resample(whole.blocks) if self.detailed and whole.blocks is not None else None
        details = Details(self.mistakes, resamples, self.meta)
        return replace(whole, groups=groups, rows=self.rows, has_images=self.has_images, details=details)

    @property
    def unit(self) -> str:
        """The independent unit: "row", "image" if rows are the pixels of images, or "weighted row"."""
        return "image" if self.by_image else "weighted row" if self.weighted else "row"

    def empty_groups(self) -> list[str]:
        """Return the names of the groups whose rows are all ignored."""
        return [self._group_name(code) for code in sorted(self.groups) if not self.groups[code][0].n]

    def _result(self, suite: Suite, blocks: Blocks | None, draws: int, *, intervals: bool) -> Result:
        summary = suite.summary()
        rows, known, tested = self.unit == "row", dict[str, Estimate](), None
        units = None if rows else blocks
        if intervals and (rows or (units is not None and units.used > 1)):
            known = estimates(suite, units)
        if rows or (units is not None and units.used > 3):
            tested = calibration(suite, units, replicates=draws, smooth=draws > FEW_DRAWS or not self.groups)
        return Result(
            n=suite.confidences.rows,
            estimates={
                name: known.get(name) or Estimate(value)
                for name, value in summary.items()
                if name != "n" and not name.endswith("_bound")
            },
            floors=tested.floors if tested else {},
            tests=tested.tests if tested else {},
            p=tested.p if tested else None,
            bounds={name: bound for name in summary if (bound := summary.get(f"{name}_bound", 0.0)) > 0},
            unit=self.unit,
            suite=suite,
            blocks=blocks,
            labels=self.labels,
            kind=self.kind,
            rows=suite.confidences.rows,
        )

    def _group_name(self, code: int) -> str:
        return self.group_names[code] if self.group_names else str(code)

    def _count(self, p: Predictions, unit: Tensor, *, first: int, keep: bool, redraw: bool) -> Counted:
        kept = p.labels != self.ignore_index
        if not bool(kept.all()):
            p, unit = p[kept], unit[kept]
        batch, whole = _batch(p), p.scores is not None
        suite = Suite.count(batch, self.bins, classwise=whole, redraw=redraw and whole, first=first)
        if not keep:
            return suite, None
        shared, classwise = bool(self.by_image), whole and self.detailed
        return suite, Blocks.count(batch, self.bins, unit=unit, shared=shared, classwise=classwise)


def count(batches: Iterable[Predictions], *, by_group: bool = False, **settings: Any) -> Counts:
    """Count a whole data set; ``settings`` are the fields of `Counts`."""
    counts = Counts(**settings)
    for batch in batches:
        counts.add(batch, by_group=by_group)
    return counts


def evaluate(
    source: Source,
    columns: Columns | None = None,
    *,
    replicates: int = REPLICATES,
    ignore_index: int = IGNORE_INDEX,
    **settings: Any,
) -> Result:
    """Evaluate predictions in memory, slices of predictions, or a file of any size.

    The result has every metric with its debiased estimate, interval and noise floor, and one p-value for the hypothesis
    "this model is calibrated". ``by_group=True`` adds a result per group, ``by_image=False`` treats rows as independent
    even if they have images, and ``compare=True`` keeps the sums that `differences` needs; see `Counts`. With weights,
    variances are estimated from the variation between rows, and there are no floors.

    >>> p = Predictions(torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0, 1]), kind="logits")
    >>> round(evaluate(p)["accuracy"], 3)
    0.667
    """
    batches = slices(source, columns, ignore_index=ignore_index)
    return count(batches, ignore_index=ignore_index, **settings).result(replicates=replicates)


def measure(
    batches: Iterable[Predictions], protocols: Sequence[Protocol], *, ignore_index: int, skip_unfit: bool = False
) -> dict[str, dict[str, float]]:
    """Compute the metrics of each protocol in one pass, and return them by the name of the protocol.

    A protocol that needs images or all scores raises an InputError, or is skipped, if the predictions have none.
    """
    meters: dict[str, Meter] | None = None
    for batch in batches:
        p = batch.labelled(ignore_index)
        if p.weight is not None:
            raise InputError(
                "protocols do not support weights, because published numbers have none: leave the weights out"
            )
        if meters is None:
            images, scores = p.image is not None, p.scores is not None
            fit = [one for one in protocols if (images or not one.images) and (scores or one.temperature == "none")]
            if len(fit) < len(protocols) and not skip_unfit:
                missing = "the scores of all classes" if images else "the image of each row, as in --image NAME"
                raise InputError(f"protocol {protocols[0].name!r} needs {missing}")
            meters = {one.name: one.meter() for one in fit}
        for meter in meters.values():
            meter.add(_batch(p), p.image)
    if not meters:
        raise InputError("there are no rows to evaluate")
    return {name: meter.result() for name, meter in meters.items()}


def _joined(before: Counted | None, more: Counted) -> Counted:
    if before is None:
        return more
    return before[0] + more[0], None if before[1] is None or more[1] is None else before[1] + more[1]


def _hash(labels: Tensor, first: int) -> int:
    """Return the sum over rows of a hash of the label and the row number."""
    place = torch.arange(first, first + len(labels))
    return int(mix64(place * STEP + labels).sum())


def _batch(p: Predictions) -> Batch:
    if p.scores is None:
        return Batch.of_triples(*p.top(), p.labels, sample_weight=p.weight)
    assert p.kind != "triples"
    return Batch.of(p.scores, p.labels, kind=p.kind, sample_weight=p.weight)
