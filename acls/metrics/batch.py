"""Batch: checked scores and labels, reduced in one pass over the scores to the values that tallies count."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from acls.arrays import ONE_TOLERANCE, ScoreKind, known_kind, refuse, weight_faults, widened
from acls.errors import InputError
from acls.shapes import IGNORE_INDEX, flatten

# The number of scores that one thread processes at a time. What one pass writes is still in the cache for the next
# pass (2^17 was the fastest of 2^14..2^20).
_CACHED = 1 << 17
# On other devices one kernel processes many rows. Only the memory for intermediate results limits their number.
_ON_DEVICE = 1 << 26
_FEW_CLASSES = 32
_LANES = 64


@dataclass(frozen=True, eq=False)
class TopLabel:
    """Values per sample: the confidence in the predicted class, and how good the prediction was."""

    confidence: Tensor
    """The largest probability, in the precision of the scores."""
    right: Tensor
    """Whether the first class with the largest score is the true class."""
    label_in_five: Tensor | None = None
    """Whether fewer than five other classes have a score at least as high as the true class; true if `right` is."""
    nll: Tensor | None = None
    """Minus the log-probability of the true class."""
    brier: Tensor | None = None
    """The squared distance between the probabilities and the one-hot label, summed over the classes."""


def sums(index: Tensor, size: int, values: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """Return Σ weight · value per index, by default counts; int64 if all terms are whole numbers, else float64.

    >>> sums(torch.tensor([0, 2, 2]), 3).tolist(), sums(torch.tensor([0, 2, 2]), 3, torch.tensor([0.5, 1, 1])).tolist()
    ([1, 0, 2], [0.5, 0.0, 2.0])
    """
    terms = [part for part in (values, weight) if part is not None]
    if not terms:
        return torch.bincount(index, minlength=size)
    found = torch.bincount(index, weights=math.prod(part.double() for part in terms), minlength=size)  # type: ignore
    return found if any(part.is_floating_point() for part in terms) else found.long()


def pieces(n: int, like: Tensor) -> Iterator[slice]:
    """Yield slices of n values that fit in the cache, or one slice on other devices. There is at least one slice."""
    step = _CACHED if like.device.type == "cpu" else max(1, n)
    return (slice(start, start + step) for start in range(0, max(1, n), step))


@dataclass(eq=False, repr=False)
class Batch:
    """Scores of M samples or pixels with their labels, without the ignored positions."""

    _scores: Tensor | None
    target: Tensor
    kind: ScoreKind
    weight: Tensor | None = None
    """``(M,)``: how often each sample counts; int64 if all are whole numbers, else float64. None means once."""
    _predicted: Tensor | None = None
    _top: TopLabel | None = None
    _given: torch.Size | None = None
    """The shape of the original target. None means the shape of ``target``."""
    _valid: Tensor | None = None

    @classmethod
    def of(
        cls,
        scores: Tensor,
        target: Tensor,
        *,
        kind: ScoreKind,
        ignore_index: int = IGNORE_INDEX,
        sample_weight: Tensor | None = None,
    ) -> Batch:
        """Check and flatten scores ``(N, K, *D)`` and target ``(N, *D)``. NaN raises an error that names its row.

        ``sample_weight`` is ``(N,)`` or ``(N, *D)``: a sample of weight 2 counts as two samples.
        """
        kind = known_kind(scores, kind)
        positions = flatten(scores.detach(), target, ignore_index=ignore_index)
        if positions.soft:
            raise InputError("the target holds soft labels, but metrics compare with true classes: pass class ids")
        rows = positions.compact()
        batch = cls(rows.logits, rows.target, kind, _given=positions.shape, _valid=positions.valid)
        return batch._checked(sample_weight)

    @classmethod
    def of_triples(
        cls, confidence: Tensor, predicted: Tensor, labels: Tensor, *, sample_weight: Tensor | None = None
    ) -> Batch:
        """Check triples: three vectors of the same length, with the confidence within 0..1."""
        shapes = [tuple(part.shape) for part in (confidence, predicted, labels)]
        if len(shapes[0]) != 1 or len(set(shapes)) > 1:
            raise InputError(
                f"expected confidence, predicted and labels of one shape (n,), got {', '.join(map(str, shapes))}"
            )
        if not confidence.is_floating_point():
            raise InputError(f"expected confidence of a floating point type, got {confidence.dtype}")
        wide = widened(confidence.detach()).clone()  # `_refuse_nonsense` may change it
        batch = cls(None, labels, "probs", _predicted=predicted, _top=TopLabel(wide, predicted == labels))
        return batch._checked(sample_weight)

    def __len__(self) -> int:
        return self.target.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Batch:
        """Return the batch of some positions, given by a slice or a mask."""
        top: TopLabel | None = self.__dict__.get("top", self._top)
        if top is not None:
            top = TopLabel(**{name: value[rows] for name, value in vars(top).items() if value is not None})
        parts = (self._scores, self.weight, self._predicted)
        scores, weight, predicted = (None if part is None else part[rows] for part in parts)
        return Batch(scores, self.target[rows], self.kind, weight, predicted, top)

    @property
    def _shape(self) -> torch.Size:
        return self.target.shape if self._given is None else self._given

    @property
    def dense(self) -> bool:
        """Whether the batch was given as maps, ``(N, K, *D)``."""
        return len(self._shape) > 1

    @property
    def scores(self) -> Tensor:
        """``(M, K)``, float32 or wider."""
        if self._scores is None:
            raise InputError("this metric needs the scores of every class, but only triples were given")
        return self._scores

    @property
    def n_classes(self) -> int | None:
        """K, or None when only triples are known."""
        return None if self._scores is None else self._scores.shape[1]

    @cached_property
    def predicted(self) -> Tensor:
        """The first class with the largest score."""
        return self.scores.argmax(1) if self._predicted is None else self._predicted

    @cached_property
    def top(self) -> TopLabel:
        """One value per sample, from one pass over the scores."""
        return _top_label(self) if self._top is None else self._top

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows of scores in parts that fit in the cache."""
        scores = self.scores
        on_cpu = scores.device.type == "cpu"
        at_once = _CACHED * torch.get_num_threads() if on_cpu else _ON_DEVICE
        step = max(_LANES, at_once // max(1, scores.shape[1]) // _LANES * _LANES)
        for start in range(0, scores.shape[0], step):
            rows = slice(start, start + step)
            yield rows, scores[rows]

    def probabilities(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows of probabilities in parts that fit in the cache."""
        for rows, scores in self.chunks():
            if self.kind == "logits":
                yield rows, torch.softmax(scores, 1)
            else:  # rounding may put some just outside 0..1
                yield rows, (scores if self.kind == "probs" else scores.exp()).clamp(0, 1)

    def sum(self, values: Tensor) -> Tensor:
        """Return the weighted sum over the samples, which are on the last axis."""
        return values.sum(-1) if self.weight is None else (values * self.weight).sum(-1)

    def places(self, first: int = 0) -> Tensor:
        """Return the numbers of the N samples or maps, counted from ``first``."""
        return torch.arange(first, first + self._shape[0], device=self.target.device)

    def spread(self, values: Tensor) -> Tensor:
        """Expand one value per sample or pixel, ``(N,)`` or ``(N, *D)``, to one per position that is not ignored."""
        if values.shape not in (self._shape[:1], self._shape):
            shapes = " or ".join(map(str, dict.fromkeys((tuple(self._shape[:1]), tuple(self._shape)))))
            raise InputError(f"expected one value per sample, shape {shapes}, got {tuple(values.shape)}")
        flat = values.reshape(values.shape + (1,) * (len(self._shape) - values.ndim)).expand(self._shape).reshape(-1)
        return flat if self._valid is None else flat[self._valid]

    def _checked(self, sample_weight: Tensor | None) -> Batch:
        """Return this batch with its weights; raise an error if the weights or the scores are invalid."""
        if sample_weight is not None:
            weight = self.spread(sample_weight).detach().double()
            refuse(weight_faults(weight), "sample_weight")
            whole = bool((weight == weight.round()).all()) and float(weight.sum()) < 2**53
            self.weight = weight.long() if whole else weight
        if len(self):
            self._refuse_nonsense()
        return self

    def _refuse_nonsense(self) -> None:
        confidence = self.top.confidence
        low, high = torch.aminmax(confidence)  # both are NaN if any value is NaN
        if bool((low >= 0) & (high <= 1)):
            return
        wrong = ~((confidence >= 0) & (confidence <= 1 + ONE_TOLERANCE))
        if not bool(wrong.any()):  # because of rounding, probabilities can be slightly above 1
            confidence.clamp_(max=1)
            return
        row = int(wrong.nonzero()[0])
        place = row if self._valid is None else int(self._valid.nonzero()[row])
        scores, named = (confidence[[row]], "confidences") if self._scores is None else (self._scores[row], self.kind)
        infinite = scores[~torch.isfinite(scores)]
        if infinite.numel():
            value = "NaN" if bool(infinite[0].isnan()) else str(float(infinite[0]))
            raise InputError(f"row {place} contains {value}: metrics need finite {named}")
        raise InputError(
            f"expected {named} within 0..1, got {float(confidence[row]):g} as the largest of row {place}: pass "
            "kind='logits' for logits"
        )


def _top_label(batch: Batch) -> TopLabel:
    """Reduce every row of scores to its `TopLabel` values, without storing all probabilities.

    log p_y = z_y - max z - log Σ exp(z - max z) is finite for all finite z. The confidence is 1 / Σ exp(z - max z).
    """
    scores, target = batch.scores, batch.target
    n, n_classes = scores.shape
    if n_classes == 0:
        raise InputError("the scores have no classes: axis 1, which holds the classes, has length 0")
    # A reduction over a short last axis leaves most of a vector unit idle, so few classes go on the first axis.
    axis = 0 if n_classes <= _FEW_CLASSES and scores.device.type == "cpu" else 1
    # The last lanes of a vector unit add in another order. Short parts are padded, so that a row gives the same values
    # at every position.
    filled = n + (-n % _LANES if axis == 0 else 0)
    target = pad(target, (0, filled - n))
    confidence, nll, brier, at_least = (scores.new_empty(filled) for _ in range(4))
    right = torch.empty(filled, dtype=torch.bool, device=scores.device)
    buffer: Tensor | None = None
    for rows, part in batch.chunks():
        if axis == 0:
            part = pad(part.T, (0, -part.shape[0] % _LANES)).contiguous()
            rows = slice(rows.start, rows.start + part.shape[1])
        if buffer is None or buffer.shape != part.shape:
            buffer = torch.empty_like(part)
        largest = part.amax(axis, keepdim=True)
        own = part.gather(axis, target[rows].unsqueeze(axis))
        torch.sum(torch.ge(part, own, out=buffer), axis, out=at_least[rows])
        if batch.kind == "logits":
            torch.sub(part, largest, out=buffer).exp_()
            total = buffer.sum(axis)
            lead = (largest - own).squeeze_(axis)
            torch.eq(lead, 0, out=right[rows])
            torch.reciprocal(total, out=confidence[rows])
            torch.add(lead, total.log(), out=nll[rows])
            squares = buffer.square_().sum(axis).div_(total.square())
            true_probability = lead.neg_().exp_().div_(total)
        else:
            largest, own = largest.squeeze_(axis), own.squeeze_(axis)
            torch.ge(own, largest, out=right[rows])
            nll[rows] = -own if batch.kind == "log_probs" else -own.log()
            if batch.kind == "log_probs":
                part, largest, own = torch.exp(part, out=buffer), largest.exp(), own.exp()
            squares = torch.square(part, out=buffer).sum(axis)
            confidence[rows], true_probability = largest, own
        torch.sub(squares, true_probability, alpha=2, out=brier[rows]).add_(1)
    confidence, nll, brier, at_least, right = (each[:n] for each in (confidence, nll, brier, at_least, right))
    tied = (right & (at_least > 1)).nonzero()[:, 0]
    if tied.numel():  # if the true class ties for the largest score, it is right only if it is the first of them
        right[tied] = batch.scores[tied].argmax(1) == batch.target[tied]
    return TopLabel(confidence, right, (at_least <= 5) | right, nll, brier.clamp_(min=0))
