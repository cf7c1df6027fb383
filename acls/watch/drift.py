"""Drift: check whether confidences, classes or accuracy of new data differ from those of the calibration set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acls.calibrators import Vector
from acls.errors import InputError
from acls.metrics import Confidences
from acls.metrics.batch import Batch
from acls.metrics.catalogue import in_percent
from acls.metrics.distributions import chi_squared_tail, holm, normal_tail
from acls.predictions import Columns, Predictions, Source, slices
from acls.shapes import IGNORE_INDEX
from acls.shown import Shown
from acls.watch import Limits

GROUPS = 10
MOST_CLASSES = 1000
_EM_STEPS = 1000


@dataclass
class Profile:
    """The counts of a set of predictions that a check needs, from one pass in bounded memory."""

    ignore_index: int = IGNORE_INDEX
    n: int = 0
    labelled: int = 0
    stated: bool = True
    """Whether all rows are stated confidences, which have no classes."""
    hits: int = 0
    confidence: Confidences | None = None
    """The confidences as a fine histogram; if there are labels, its events are correct predictions."""
    classes: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """How often each class was predicted."""
    confusion: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    """How often each class (row) was predicted for each label (column), for the rows that have labels."""
    images: set[int] = field(default_factory=set)

    def add(self, p: Predictions) -> None:
        """Count a slice. If some rows have labels, rows without labels do not count; if none has, all rows count."""
        self.stated &= p.stated
        known = p.labels != self.ignore_index
        if bool(known.any()):
            p = p[known]
            self.labelled += len(p)
            self.hits += int(p.correct().sum())
            predicted, labels = (part.clamp(max=MOST_CLASSES - 1) for part in (p.top()[1], p.labels))
            size = max(int(predicted.max()) + 1, int(labels.max()) + 1, min(p.n_classes or 0, MOST_CLASSES))
            counts = torch.bincount(predicted * size + labels, minlength=size * size).view(size, size)
            self.confusion = added(self.confusion, counts.double())
        if len(p) == 0:
            return
        sure, predicted = p.top()
        counted = Confidences.count(Batch.of_triples(sure, predicted, p.labels))
        self.confidence = counted if self.confidence is None else self.confidence + counted
        self.classes = added(self.classes, torch.bincount(predicted.clamp(max=MOST_CLASSES - 1)))
        self.n += len(p)
        if p.image is not None:
            self.images.update(p.image.unique().tolist())  # type: ignore[no-untyped-call]

    @property
    def independent(self) -> int:
        """The number of independent samples: images if the rows are pixels, otherwise rows."""
        return len(self.images) or self.n

    def table(self) -> Tensor:
        """``(3, cells)``: rows, confidence and hits in each cell of the histogram."""
        assert self.confidence is not None
        return self.confidence.histogram()[:, 0]


@dataclass(frozen=True)
class Check:
    """One test: the distance, and the probability of such a distance without drift (corrected for multiple tests)."""

    distance: float
    p: float


@dataclass(frozen=True, repr=False)
class Drift(Shown):
    """The result of a drift check."""

    n_calibration: int
    n_new: int
    confidence_calibration: float
    confidence_new: float
    accuracy_calibration: float
    accuracy_by_confidence: float
    """Accuracy of the new confidences on the calibration set; right if new inputs are harder but of the same kind."""
    accuracy_by_threshold: float
    """ATC (Garg et al., ICLR 2022): the share of new confidences above a threshold. On the calibration set, the share
    above this threshold equals the accuracy. More cautious about confidences on inputs of another kind."""
    accuracy_margin: float
    """Half the width of a 95 % interval of a predicted accuracy, computed only from the two sample sizes."""
    accuracy_new: float | None
    """The true accuracy, if the new data has labels."""
    psi: float
    checks: dict[str, Check]
    """``ks``: Kolmogorov-Smirnov on the confidences; ``psi``: stability index over deciles of the calibration set's
    confidences; ``classes``: how often each class is predicted; if the new data has labels, ``labels``: how often
    each class is the label, and ``accuracy``."""
    shares_calibration: tuple[float, ...]
    """How often each class is the label."""
    shares_new: tuple[float, ...]
    """The same for the new data: counted if it has labels, otherwise estimated by maximum likelihood, assuming that
    each class is predicted as on the calibration set (Saerens et al., Neural Computation 2002; Lipton et al., ICML
    2018)."""
    label_noise: float
    """The mean of `label_shift` that chance alone would cause."""
    by_image: bool  # whether images, not rows, were counted as independent
    limits: Limits
    out: str | None = None
    saved: str | None = None

    @property
    def label_shift(self) -> float:
        """The share of samples whose class would have to change: half the sum of the shares' differences."""
        pairs = zip(self.shares_calibration, self.shares_new, strict=True)
        return math.fsum(abs(one - other) for one, other in pairs) / 2

    @property
    def labels_alarm(self) -> bool:
        """Whether the class frequencies have changed, beyond chance and by enough to matter."""
        name = "labels" if "labels" in self.checks else "classes"
        return self._beyond_chance(name) and self.label_shift - self.label_noise >= self.limits.label_shift

    @property
    def accuracy_alarm(self) -> bool:
        """Whether accuracy fell according to the new labels, beyond chance and by enough to matter."""
        fell = self.accuracy_calibration - (1.0 if self.accuracy_new is None else self.accuracy_new)
        return fell > self.limits.drop and self._beyond_chance("accuracy")

    def _beyond_chance(self, name: str) -> bool:
        return name in self.checks and self.checks[name].p < self.limits.alpha

    def calibrator(self) -> Vector:
        """Return a calibrator for the new class frequencies: each logit is shifted by log (new / old share).

        Apply it before or after a temperature fitted on the calibration set. It is correct if only the shares have
        changed. The logit of a class that is not in the calibration set does not change.
        """
        if not 0 < len(self.shares_new) < MOST_CLASSES:
            got = len(self.shares_new) or "stated confidences, which have none: fit them again with acls calibrate"
            raise InputError(f"expected 2 to {MOST_CLASSES - 1} classes to correct for their shares, got {got}")
        old, new = (torch.tensor(part, dtype=torch.float64) for part in (self.shares_calibration, self.shares_new))
        ratio = torch.where(old > 0, new.clamp(min=0.5 / self.n_new) / old.clamp(min=1e-300), 1.0)
        result = Vector()
        result._learn(torch.zeros(()), weight=torch.ones(len(old)), bias=ratio.log())
        return result

    def save(self, path: str | Path, *, force: bool = False) -> Drift:
        """Save the `calibrator` if the classes have shifted, or with ``force``; return the drift with ``saved``."""
        calibrator, saved = self.calibrator(), str(path) if self.labels_alarm or force else None
        if saved is not None:
            calibrator.save(saved)
        return replace(self, out=str(path), saved=saved)

    @property
    def significant(self) -> bool:
        """Whether the difference of the data is larger than chance explains."""
        return any(map(self._beyond_chance, self.checks))

    @property
    def drop(self) -> float:
        """The predicted drop in accuracy: the larger of the two predictions."""
        return self.accuracy_calibration - min(self.accuracy_by_confidence, self.accuracy_by_threshold)

    @property
    def alarm(self) -> bool:
        """Whether confidences, classes or known accuracy differ beyond chance and by enough to matter."""
        return self.confidence_alarm or self.labels_alarm or self.accuracy_alarm

    @property
    def confidence_alarm(self) -> bool:
        """Whether the confidences, or the accuracy that they predict, raise an alarm."""
        sinks = self.drop > max(self.limits.drop, self.accuracy_margin)
        return self.significant and (self.psi >= self.limits.psi or sinks)

    def verdict(self) -> str:
        """Return what was found and what to do, in one sentence per alarm."""
        if not self.significant:
            return "No drift beyond chance: the confidences look like those of the calibration set."
        low, high = sorted((self.accuracy_by_confidence, self.accuracy_by_threshold))
        moved = f"PSI {self.psi:.3f}; accuracy was {in_percent(self.accuracy_calibration)} and is predicted to be "
        moved += f"{in_percent(low)} to {in_percent(high)}, ± {in_percent(self.accuracy_margin)}"
        if not self.alarm:
            return f"Drift beyond chance, but small ({moved}): nothing to do yet."
        said = []
        if self.accuracy_alarm and self.accuracy_new is not None:
            said.append(
                f"Accuracy fell from {in_percent(self.accuracy_calibration)} to {in_percent(self.accuracy_new)} "
                "according to the new labels: calibrate again on them, or train again."
            )
        if self.labels_alarm:
            changes = zip(self.shares_calibration, self.shares_new, strict=True)
            ratios = sorted(enumerate(changes), key=lambda pair: -abs(pair[1][1] - pair[1][0]))[:3]
            most = ", ".join(f"class {k} {in_percent(old, 1)} to {in_percent(new, 1)}" for k, (old, new) in ratios)
            how = "according to the new labels" if "labels" in self.checks else "as estimated from the predictions"
            said.append(
                f"Label shift: {in_percent(self.label_shift, 1)} of the samples have different classes than before, "
                f"{how} ({most}); --out saves a calibrator that corrects for it."
            )
        if self.confidence_alarm:
            said.append(f"Drift ({moved}): check the new data, and calibrate again on labelled samples of it.")
        return " ".join(said)

    def as_json(self) -> dict[str, Any]:
        """Return the alarms, the numbers and the limits as a dictionary for JSON."""
        alarms = {"confidence": self.confidence_alarm, "labels": self.labels_alarm, "accuracy": self.accuracy_alarm}
        derived = {name: getattr(self, name) for name in ("alarm", "label_shift", "significant", "drop")}
        limits = {
            name if name == "alpha" else f"{name.partition('_')[0]}_alarm": x for name, x in vars(self.limits).items()
        }
        plain = {name: value for name, value in asdict(self).items() if name not in ("limits", "out")}
        return {**derived, "alarms": alarms, **plain, **limits, "verdict": self.verdict()}


def profile(source: Source, columns: Columns | None = None, *, ignore_index: int = IGNORE_INDEX) -> Profile:
    """Compute the profile of a file, of predictions in memory, or of slices of them."""
    found = Profile(ignore_index)
    for batch in slices(source, columns, ignore_index=ignore_index):
        found.add(batch)
    return found


def compare(
    calibration: Profile | Source,
    new: Profile | Source,
    limits: Limits = Limits(),  # noqa: B008
    columns: Columns | None = None,
    *,
    ignore_index: int = IGNORE_INDEX,
) -> Drift:
    """Check new data, with or without labels, against the calibration set: `acls drift`.

    Each argument is a file, `Predictions`, slices of them, or their `profile`. Rows of one image are not independent;
    in this case the sample size is the number of images.
    """
    if not isinstance(calibration, Profile):
        calibration = profile(calibration, columns, ignore_index=ignore_index)
    if not isinstance(new, Profile):
        new = profile(new, replace(columns or Columns(), unlabelled=True), ignore_index=ignore_index)
    if calibration.labelled == 0:
        raise InputError("the calibration set has no labels, which are needed to predict the accuracy")
    if new.n == 0:
        raise InputError("there are no new rows to check")
    before, after = calibration.table(), new.table()
    sizes = calibration.independent, new.independent
    found = {"ks": _kolmogorov_smirnov(before[0], after[0], sizes), "psi": _stability(before[0], after[0], sizes)}
    accuracy = calibration.hits / calibration.labelled
    checks, old, shares, noise = _class_shares(calibration, new, sizes)
    found |= checks
    if new.labelled:
        found["accuracy"] = _same_accuracy(accuracy, new.hits / new.labelled, sizes)
    corrected = holm([p for _, p in found.values()])
    by_confidence = _by_confidence(before, after)
    spread = accuracy * (1 - accuracy) / sizes[0] + max(0.0, by_confidence * (1 - by_confidence)) / sizes[1]
    return Drift(
        n_calibration=calibration.n,
        n_new=new.n,
        confidence_calibration=float(before[1].sum() / before[0].sum()),
        confidence_new=float(after[1].sum() / after[0].sum()),
        accuracy_calibration=accuracy,
        accuracy_by_confidence=by_confidence,
        accuracy_by_threshold=_by_threshold(before, after),
        accuracy_margin=1.96 * math.sqrt(spread),
        accuracy_new=new.hits / new.labelled if new.labelled else None,
        psi=found["psi"][0],
        checks={name: Check(distance, p) for (name, (distance, _)), p in zip(found.items(), corrected, strict=True)},
        label_noise=noise,
        shares_calibration=tuple(old.tolist()),
        shares_new=tuple(shares.tolist()),
        by_image=bool(calibration.images or new.images),
        limits=limits,
    )


def _kolmogorov_smirnov(before: Tensor, after: Tensor, sizes: Sequence[int]) -> tuple[float, float]:
    """Return the largest distance between two distribution functions, and its asymptotic p (Stephens 1970)."""
    distance = float((before.cumsum(0) / before.sum() - after.cumsum(0) / after.sum()).abs().max())
    root = math.sqrt(sizes[0] * sizes[1] / (sizes[0] + sizes[1]))
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.2:  # the series below converges slowly there, to 1 within 1e-12
        return distance, 1.0
    terms = (2 * (-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return distance, min(1.0, max(0.0, math.fsum(terms)))


def _stability(before: Tensor, after: Tensor, sizes: Sequence[int]) -> tuple[float, float]:
    """Return the population stability index, sum of (q - p) log(q / p) over calibration set deciles, and its p.

    Without drift and for many samples, it follows 1/m + 1/n times a chi-squared distribution, with one degree of
    freedom less than the number of deciles. An empty decile of one set counts as half a sample, so that
    the index is finite.
    """
    held = torch.stack([_in_tenths(before, part) for part in (before, after)])
    held = held[:, held.sum(0) > 0]
    total = held.sum(1, keepdim=True)
    share = held.clamp(min=0.5) / total
    psi = float(((share[1] - share[0]) * (share[1] / share[0]).log()).sum())
    return psi, chi_squared_tail(psi / (1 / sizes[0] + 1 / sizes[1]), held.shape[1] - 1)


def _same_classes(before: Tensor, after: Tensor, sizes: Sequence[int]) -> tuple[float, float]:
    """Return half the sum of differences of the predicted class shares, and the p of a chi-squared test."""
    counts = torch.nn.utils.rnn.pad_sequence([before.double(), after.double()], batch_first=True)
    share = counts / counts.sum(1, keepdim=True)
    distance = float((share[0] - share[1]).abs().sum() / 2)
    weight = torch.tensor(sizes, dtype=torch.float64)[:, None]
    pooled = (share * weight).sum(0) / weight.sum()
    # Rare classes are merged, because the test assumes about five expected samples per class.
    rare = pooled * min(sizes) < 5
    if bool(rare.any()):
        share = torch.cat([share[:, ~rare], share[:, rare].sum(1, keepdim=True)], 1)
        pooled = (share * weight).sum(0) / weight.sum()
    kept = pooled > 0
    statistic = float((weight * (share - pooled).square() / pooled.clamp(min=1e-300))[:, kept].sum())
    return distance, chi_squared_tail(statistic, int(kept.sum()) - 1)


def _in_tenths(before: Tensor, part: Tensor) -> Tensor:
    """Sum the cells of ``part`` over deciles of the calibration set's confidences, ``before``."""
    reached = before.cumsum(0) / before.sum()
    group = (reached * GROUPS - 1e-9).floor().clamp(0, GROUPS - 1).long()
    return torch.zeros(GROUPS, dtype=part.dtype).index_add_(0, group, part)


def _by_confidence(before: Tensor, after: Tensor) -> float:
    """Return the mean new confidence, minus the overconfidence of the calibration set in the same decile."""
    count, confidence, right = (_in_tenths(before[0], part) for part in before)
    excess = (confidence - right) / count.clamp(min=1)
    share = _in_tenths(before[0], after[0]) / after[0].sum()
    return min(1.0, max(0.0, float(after[1].sum() / after[0].sum() - (share * excess).sum())))


def _by_threshold(before: Tensor, after: Tensor) -> float:
    """Return the share of new confidences above a threshold: known confidences exceed it as often as they are right.

    If the threshold is inside a cell, a part of the cell counts.
    """
    right = float(before[2].sum())
    above = before[0].flip(0).cumsum(0)
    cell = int(torch.searchsorted(above, torch.tensor(right, dtype=above.dtype)).clamp(max=len(above) - 1))
    inside = before[0].flip(0)[cell]
    part = float((right - (above[cell] - inside)) / inside) if float(inside) > 0 else 0.0
    new = after[0].flip(0)
    return float((new[:cell].sum() + part * new[cell]) / new.sum())


def added(one: Tensor, other: Tensor) -> Tensor:
    """Return the sum of two tables of counts, whose numbers of classes may differ on every axis."""
    size = [max(sizes) for sizes in zip(one.shape, other.shape, strict=True)]
    total = torch.zeros(size, dtype=one.dtype)
    for part in (one, other):
        total[tuple(map(slice, part.shape))] += part
    return total


def _same_accuracy(before: float, after: float, sizes: Sequence[int]) -> tuple[float, float]:
    """Return the difference of two accuracies, and the p of a two-proportion test."""
    pooled = (before * sizes[0] + after * sizes[1]) / sum(sizes)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / sizes[0] + 1 / sizes[1]))
    return after - before, normal_tail(abs(after - before) / spread) if spread else 1.0


def _class_shares(
    known: Profile, new: Profile, sizes: Sequence[int]
) -> tuple[dict[str, tuple[float, float]], Tensor, Tensor, float]:
    """Return the checks of the classes, their old and new shares, and the shift expected by chance alone."""
    if known.stated and new.stated:
        return {}, torch.zeros(0), torch.zeros(0), 0.0
    width = max(len(known.confusion), len(new.confusion), len(new.classes))
    nothing = torch.zeros(width, width, dtype=torch.float64)
    confusion = added(nothing, known.confusion)
    labels = confusion.sum(0)
    old = labels / labels.sum()
    noise = float((old * (1 - old)).sqrt().sum()) * math.sqrt((1 / sizes[0] + 1 / sizes[1]) / (2 * math.pi))
    checks = {"classes": _same_classes(known.classes, new.classes, sizes)}
    if new.labelled:
        counted = added(nothing, new.confusion).sum(0)
        return {**checks, "labels": _same_classes(labels, counted, sizes)}, old, counted / counted.sum(), noise
    shares = _shares(confusion, added(nothing[0], new.classes))
    distance = checks["classes"][0]
    if distance > 0:  # confusion between classes increases the difference
        noise *= max(1.0, float((shares - old).abs().sum()) / 2 / distance)
    return checks, old, shares, noise


def _shares(confusion: Tensor, predicted: Tensor) -> Tensor:
    """Estimate the class shares that make the predicted counts most likely, by expectation maximisation."""
    labels = confusion.sum(0)
    by_label = confusion / labels.clamp(min=1)
    shares, seen = labels / labels.sum(), predicted / predicted.sum()
    for _ in range(_EM_STEPS):
        expected = by_label @ shares
        ratio = torch.where(expected > 0, seen / expected.clamp(min=1e-300), 0.0)
        following = shares * (by_label.T @ ratio)
        following /= following.sum()
        if float((following - shares).abs().max()) < 1e-8:
            break
        shares = following
    return shares
