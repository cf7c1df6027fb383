"""Predictions in memory: scores with labels, or triples of confidence, predicted class and label."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from acls.arrays import Fault, as_tensor, column, refuse, sum_faults, two_scores, weight_faults, widened
from acls.errors import InputError, suggest
from acls.shapes import IGNORE_INDEX, START_AT_0, check_logits, flatten_logits, start_at_0
from acls.shown import Shown

Kind = Literal["logits", "probs", "log_probs", "triples"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_COLUMNS = ("scores", "labels", "confidence", "predicted", "group", "image", "weight")

MULTILABEL = (
    "multilabel predictions, with any number of true classes per row, are not supported; "
    "evaluate each label on its own, as in --probs p0 --label y0"
)


@dataclass(frozen=True, eq=False, repr=False)
class Predictions(Shown):
    """The predictions of a model for n samples (or pixels), with the true labels.

    >>> p = Predictions(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]), kind="logits")
    >>> len(p), p.n_classes, p.correct().tolist()
    (2, 2, [True, False])
    """

    scores: Tensor | None
    """``(n, K)`` logits, probabilities or log-probabilities, depending on ``kind``; None for triples."""
    labels: Tensor
    """``(n,)`` int64 class ids."""
    kind: Kind
    """The kind of the scores. There is no default, because the values do not determine it."""
    confidence: Tensor | None = None
    """``(n,)``, for triples only: the probability of the predicted class."""
    predicted: Tensor | None = None
    """``(n,)`` int64, for triples only: the predicted class."""
    group: Tensor | None = None
    """``(n,)`` int64: the part of the data that each row belongs to."""
    group_names: tuple[str, ...] = ()
    """The names of the groups 0, 1, ...; empty if the numbers are the names."""
    image: Tensor | None = None
    """``(n,)`` int64: the image that each pixel belongs to; rows of one image are not independent."""
    weight: Tensor | None = None
    """``(n,)``, floating point: the weight of each row; None means weight 1. Files do not store it."""
    meta: dict[str, str] = field(default_factory=dict)
    """Additional text that is kept with the predictions: model, data set, commit."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"unknown kind {self.kind!r}{suggest(str(self.kind), KINDS)}")
        for name in _COLUMNS:
            array = getattr(self, name)
            if array is not None and not isinstance(array, Tensor):  # of NumPy or another library
                found = as_tensor(array, name)
                object.__setattr__(self, name, found if found.is_floating_point() else found.long())
        if self.kind != "triples":
            if self.scores is None or self.confidence is not None or self.predicted is not None:
                raise InputError(f"kind {self.kind!r}: expected scores, and no confidence= or predicted=")
            _check_scores(self.scores, self.labels)
        elif self.scores is not None or self.confidence is None or self.predicted is None:
            raise InputError("for triples, pass confidence=, predicted= and labels, with scores=None")
        for name in _COLUMNS[1:]:
            array = getattr(self, name)
            if array is not None:
                _check_column(name, array, len(self), floating=name in ("confidence", "weight"))

    @classmethod
    def dense(
        cls, scores: Tensor, labels: Tensor, kind: Kind, *, ignore_index: int = IGNORE_INDEX, first_image: int = 0
    ) -> Predictions:
        """Convert maps ``(N, K, *D)`` and labels ``(N, *D)``: one row per labelled pixel, one image per map."""
        check_logits(scores)
        columns = flatten_maps({"scores": scores, "labels": labels.long()}, first_image)
        return cls(kind=kind, **columns).labelled(ignore_index)

    @classmethod
    def of_stated(cls, confidence: Tensor, correct: Tensor, *, group: Tensor | None = None) -> Predictions:
        """Make predictions from confidences that a model, such as a language model, stated; ``correct`` is 1 or 0.

        >>> p = Predictions.of_stated(torch.tensor([0.9, 0.8]), torch.tensor([1, 0]))
        >>> p.correct().tolist(), p.stated
        ([True, False], True)
        """
        right = correct.long()
        return cls(None, right, "triples", confidence=confidence, predicted=torch.ones_like(right), group=group)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, ignore_index: int | None = None, **columns: str) -> Predictions:
        """Read a whole file, folder or glob; ``columns`` are the fields of `Columns`.

        Example: ``Predictions.load("nets.npz", logits="resnet20")``. Rows with the label ``ignore_index`` are dropped.
        By default, rows with the label -100 are kept, and `labelled` drops them. For data larger than memory, see
        `open_batches`.
        """
        from acls.predictions.columns import Columns
        from acls.predictions.readers import open_batches

        void = IGNORE_INDEX if ignore_index is None else ignore_index
        parts = list(open_batches(path, Columns.of(**columns), ignore_index=void))
        if not parts:
            raise InputError(f"{path} has no rows")
        whole = cls.concat(parts)
        return whole if ignore_index is None else whole.labelled(ignore_index)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``.npz``, ``.safetensors``, ``.parquet``, ``.csv`` or ``.tsv`` file, atomically."""
        from acls.predictions.writers import save_batches

        save_batches(path, [self])

    def __len__(self) -> int:
        return self.labels.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> Predictions:
        """Return the predictions of some rows, given by a slice (which returns a view), a mask or row numbers."""
        given: dict[str, Any] = {name: one for name in _COLUMNS if (one := getattr(self, name)) is not None}
        return replace(self, **{name: column[rows] for name, column in given.items()})

    @staticmethod
    def concat(parts: Sequence[Predictions]) -> Predictions:
        """Concatenate predictions of one kind; the names and ``meta`` are those of the last part."""
        if not parts:
            raise InputError("nothing to concatenate: no predictions were given")
        kinds = list(dict.fromkeys(f"{part.kind} of {part.n_classes} classes" for part in parts))
        if len(kinds) > 1:
            raise InputError(f"cannot concatenate {kinds[0]} and {kinds[1]}")
        if len(parts) == 1:
            return parts[0]
        joined: dict[str, Any] = {}
        for name in _COLUMNS:
            columns = [getattr(part, name) for part in parts]
            if any((column is None) != (columns[0] is None) for column in columns):
                raise InputError(f"some parts have {name}, others do not")
            joined[name] = None if columns[0] is None else torch.cat(columns)
        return replace(parts[-1], **joined)

    @property
    def n_classes(self) -> int | None:
        """The number of classes K; None for triples, where it is unknown."""
        return None if self.scores is None else self.scores.shape[1]

    @property
    def stated(self) -> bool:
        """Whether these are stated confidences: every predicted class is 1, "correct", and the labels are 1 or 0."""
        return self.predicted is not None and bool((self.predicted == 1).all()) and bool((self.labels <= 1).all())

    def __str__(self) -> str:
        classes = f" of {self.n_classes} classes" if self.n_classes else ""
        return f"{len(self):,} rows{classes}, accuracy {100 * self.as_json()['accuracy']:.2f} %"

    def as_json(self) -> dict[str, Any]:
        """Return the number of rows and classes, and the accuracy, as `acls predict --json` prints them."""
        return {"n": len(self), "classes": self.n_classes, "accuracy": float(self.correct().float().mean())}

    def log_probs(self) -> Tensor:
        """Return log-probabilities ``(n, K)`` in float32 or wider; -inf where a probability is 0."""
        if self.scores is None:
            raise InputError("expected rows of K scores: triples hold the probability of the predicted class only")
        scores = widened(self.scores)
        if self.kind == "logits":
            return scores.log_softmax(1)
        return scores.log() if self.kind == "probs" else scores

    def logits(self) -> Tensor:
        """Return logits ``(n, K)`` in float32 or wider, the input of a calibrator; their softmax is the probabilities.

        See `to_logits` for probabilities that are 0. Triples have two classes, wrong and right.
        """
        if self.scores is not None:
            return to_logits(self.scores, self.kind)
        return to_logits(two_scores(self.top()[0], "probs"), "probs")

    def target(self, ignore_index: int = IGNORE_INDEX) -> Tensor:
        """Return the target for `logits`: the labels, or for triples 1 where the prediction is right, else 0."""
        if self.scores is not None:
            return self.labels
        return torch.where(self.labels == ignore_index, ignore_index, self.correct().long())

    def calibrated(self, calibrator: Callable[[Tensor], Tensor]) -> Predictions:
        """Return calibrated predictions; ``calibrator`` maps `logits` to log-probabilities, or triples' confidences."""
        log_probs = calibrator(self.logits())
        if self.scores is not None:
            return replace(self, scores=log_probs, kind="log_probs")
        return replace(self, confidence=log_probs[:, 1].exp())

    def top(self) -> tuple[Tensor, Tensor]:
        """Return the confidence and the predicted class of each row; of equal scores, the first class is predicted."""
        if self.confidence is not None and self.predicted is not None:
            confidence = widened(self.confidence)
            rounded = (confidence > 1) & (confidence <= 1 + 1e-6)
            return confidence.masked_fill(rounded, 1.0), self.predicted
        assert self.scores is not None
        best, predicted = widened(self.scores).max(1)
        if self.kind == "probs":
            return best, predicted
        if self.kind == "logits":
            best = best - widened(self.scores).logsumexp(1)
        return best.exp(), predicted

    def correct(self) -> Tensor:
        """Return whether each prediction is right."""
        return self.top()[1] == self.labels

    def labelled(self, ignore_index: int = IGNORE_INDEX) -> Predictions:
        """Return the rows whose label is not ``ignore_index``."""
        keep = self.labels != ignore_index
        return self if bool(keep.all()) else self[keep]

    def check(self, *, ignore_index: int = IGNORE_INDEX, where: str = "predictions", first_row: int = 0) -> None:
        """Raise an error for the first row with NaN, invalid probabilities or an invalid label.

        Valid labels are ``0..K-1`` and ``ignore_index``. The message contains the file name ``where`` and the row
        number, which counts from 0, or from ``first_row`` for a slice of a file.
        """
        refuse(_faults(self, ignore_index), where, first_row)


def _faults(p: Predictions, ignore_index: int) -> Iterator[Fault]:
    """Yield, for each possible fault, the rows that have it, a message about one row, and the values in the message."""
    if p.scores is None:
        assert p.confidence is not None
        confidence, predicted = widened(p.confidence), p.top()[1]
        yield confidence.isnan(), "confidence is NaN"
        outside = (confidence < 0) | (confidence > 1 + 1e-6)
        yield outside, "confidence is {:g}, outside 0..1: divide percent by 100", confidence
        yield predicted < 0, "the predicted class is {}, but classes start at 0", predicted
        unknown, classes = p.labels < 0, "but classes start at 0"
    else:
        # The maximum of each row is enough to find NaN (it propagates), +inf, and rows that contain only -inf.
        scores = widened(p.scores)
        best = scores.amax(1)
        yield best.isnan(), f"the {p.kind} contain NaN"
        yield best.isinf(), f"the largest of the {p.kind} is {{:g}}", best
        yield from sum_faults(scores, p.kind)
        unknown, classes = (p.labels < 0) | (p.labels >= scores.shape[1]), f"outside 0..{scores.shape[1] - 1}"
    if p.weight is not None:
        yield from weight_faults(p.weight)
    way = "--ignore-index {0} (in Python ignore_index={0}) leaves such rows out"
    if p.n_classes in (None, 2) and bool((p.labels == -1).any()) and bool((p.labels.abs() == 1).all()):
        way = "labels of two classes are 0 and 1; convert -1 and 1 by (y + 1) // 2"
    if start_at_0(p.labels, p.n_classes or 0, ignore_index):
        way = START_AT_0
    yield unknown & (p.labels != ignore_index), f"the label is {{0}}, {classes}: {way}", p.labels


ZERO = 1e-7
"""The value that replaces a probability of 0 where its logarithm must be finite."""


def to_logits(scores: Tensor, kind: Kind) -> Tensor:
    """Convert rows of scores to logits; logarithms of probabilities are logits.

    A probability of 0 is a rounded value. It is replaced by 1e-7, or by half of the smallest positive probability in
    its row if that is smaller. So the logits of a row do not depend on other rows. For the outputs of two CIFAR-10
    networks (temperature 2.32 and 2.45, n = 10,000), rounded to three decimals, the fitted temperatures are then 2.48
    and 2.56. With 5e-4 they would be 1.36 and 1.35, and with the smallest float32 12.8 and 13.4. The value 1e-7 was
    chosen on these two networks, so this comparison is optimistic. Rounded to two decimals, they give 2.78 and 2.76.
    """
    scores = widened(scores)
    if kind != "probs":
        return scores
    zero = scores <= 0  # of rounding, it may be slightly below 0
    if not bool(zero.any()):
        return scores.log()
    smallest = scores.masked_fill(zero, math.inf).amin(1, keepdim=True)
    least = torch.finfo(scores.dtype).tiny * torch.finfo(scores.dtype).eps
    return torch.where(zero, (smallest / 2).clamp(least, ZERO), scores).log()


def flatten_maps(columns: Mapping[str, Any], first_image: int) -> dict[str, Any]:
    """Convert maps ``(N, K, *D)`` with labels ``(N, *D)`` to rows of K scores; each map is an image by default."""
    if (scores := columns["scores"]) is None or scores.ndim == 2:
        columns = {name: one if one is None or one is scores else column(one, name) for name, one in columns.items()}
    labels = columns["labels"]
    maps = labels.shape[1:]
    if scores is not None and scores.shape[2:] != maps:
        if labels.shape == scores.shape and bool((labels.sum(1) != 1).any()):
            raise InputError(f"labels have the shape of the scores, {tuple(labels.shape)}: {MULTILABEL}")
        raise InputError(_shape_trouble(tuple(scores.shape[1:]), tuple(maps)))
    if not maps:
        return dict(columns)
    flat = {"image": torch.arange(first_image, first_image + len(labels)), **columns}
    for name, one in flat.items():
        if name == "scores":
            flat[name] = None if one is None else flatten_logits(one)
        else:
            flat[name] = (one if one.ndim > 1 else one.repeat_interleave(maps.numel())).reshape(-1)
    return flat


def _shape_trouble(scores: tuple[int, ...], labels: tuple[int, ...]) -> str:
    own, expected, got = (str(("n", *shape)).replace("'", "") for shape in (scores, scores[1:], labels))
    got = f"labels have shape {got}, scores {own}"
    if labels == scores:
        return f"{got}: expected one class id per row; for one-hot labels, save the argmax over the classes"
    if labels and scores[:-1] == labels:
        return f"{got}: the classes belong on axis 1; save the scores with their last axis moved there"
    return f"{got}: expected labels {expected}, the same without axis 1, which holds the classes"


def _check_scores(scores: Tensor, labels: Tensor) -> None:
    if scores.ndim != 2:
        raise InputError(f"expected scores of shape (n, K), got {tuple(scores.shape)}: use Predictions.dense for maps")
    if not scores.is_floating_point():
        raise InputError(f"expected scores of a floating point type, got {scores.dtype}")
    if scores.shape[1] < 2:
        raise InputError(f"expected scores of at least 2 classes, got shape {tuple(scores.shape)}")
    if labels.ndim == 1 and labels.shape[0] != scores.shape[0]:
        raise InputError(
            f"there are {labels.shape[0]} labels for scores of shape {tuple(scores.shape)}: axis 0 holds the samples"
            + (", so pass scores.T" if labels.shape[0] == scores.shape[1] else "")
        )


def _check_column(name: str, column: Tensor, n: int, *, floating: bool = False) -> None:
    if tuple(column.shape) != (n,):
        raise InputError(f"expected {name} of shape ({n},), one value per row, got {tuple(column.shape)}")
    if not (column.is_floating_point() if floating else column.dtype == torch.int64):
        wanted = "floating point" if floating else "torch.int64"
        raise InputError(f"expected {name} of dtype {wanted}, got {column.dtype}")
