"""Convert arrays of any library to tensors, and determine the kind of scores that they hold.

The input can be a tensor, a NumPy or JAX array, a pandas or polars data frame or series, or a list.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from acls.errors import InputError, suggest

ScoreKind = Literal["logits", "probs", "log_probs"]
SCORE_KINDS: tuple[ScoreKind, ...] = get_args(ScoreKind)
ONE_TOLERANCE = 1e-3
"""Largest allowed distance of one probability from the range 0..1, which rounding can cause."""
SUM_TOLERANCE = 0.02
"""Largest allowed distance of a row's sum of probabilities from 1: half precision with many classes can reach it."""


def as_tensor(array: Any, name: str = "scores") -> Tensor:
    """Convert an array to a tensor, without a copy where possible; error messages call the argument ``name``."""
    if isinstance(array, Tensor):
        return array.detach()
    if np.ma.is_masked(array):
        raise InputError(f"{name}: expected no masked values: drop those rows, or ignore them by the label -100")
    found = np.atleast_1d(np.asarray(array))
    boxed = found.dtype.kind == "O" and found.size and isinstance(found.flat[0], bool | int | float | np.number)
    if not boxed and found.dtype.kind not in "biuf":
        way = "class ids" if name == "labels" else "an array of numbers"
        way = "the result of its .collect()" if hasattr(array, "collect") else way  # a lazy data frame
        raise InputError(f"{name}: expected numbers, got {type(array).__name__} of {found.dtype}: pass {way}")
    if boxed or found.dtype.itemsize > 8:
        found = found.astype(np.float64)
    # Convert to the byte order of this machine. Copy read-only arrays, because a tensor could write into them.
    return torch.from_numpy(np.require(found, found.dtype.newbyteorder("="), ["C", "W"]))


def column(array: Any, name: str) -> Tensor:
    """Convert an array with one value per row, ``(N,)`` or ``(N, 1)``, to a tensor ``(N,)``; keep other shapes."""
    found = as_tensor(array, name)
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found


def widened(scores: Tensor) -> Tensor:
    """Return the scores in float32 or wider, for computing."""
    return scores if scores.dtype == torch.float64 else scores.float()


Fault = tuple[Any, ...]
"""Which rows have a fault, a message about one row, and the values in the message."""


def refuse(faults: Iterable[Fault], where: str, first_row: int = 0) -> None:
    """Raise an error for the first row with a fault; the message starts with ``where`` and the row's number."""
    for bad, sentence, *values in faults:
        if bool(bad.any()):
            row, *rest = bad.nonzero()[0].tolist()
            said = sentence.format(*(value[(row, *rest)].item() for value in values))
            raise InputError(f"{where}: row {first_row + row}: {said}")


def sum_faults(scores: Tensor, kind: str) -> Iterator[Fault]:
    """Yield the faults of probabilities ``(N, K, *D)`` that are outside 0..1, or do not add up to 1."""
    if kind not in ("probs", "log_probs") or not scores.numel():
        return
    scores = widened(scores)
    total = (scores if kind == "probs" else scores.exp()).sum(1)
    if kind == "probs":
        least, best = torch.aminmax(scores, dim=1)
        outside = (least < -1e-6) | (best > 1 + ONE_TOLERANCE)
        way = "divide percent by 100, and pass logits or log_probs as what they are"
        yield outside, f"probs range from {{:g}} to {{:g}}, outside 0..1: {way}", least, best
        way = "divide each row by its sum, or pass their logarithms as logits, which are normalised"
        yield (total - 1).abs() > SUM_TOLERANCE, f"probs add up to {{:g}}, not 1: {way}", total
    else:
        text = "log_probs belong to probabilities that add up to {:g}, not 1: pass them as logits, which are normalised"
        yield (total - 1).abs() > SUM_TOLERANCE, text, total


def weight_faults(weight: Tensor) -> Iterator[Fault]:
    """Yield the faults of weights: negative, not finite, or so large or small that sums of squares are not exact."""
    yield ~(weight.isfinite() & (weight >= 0)), "expected a weight of 0 or more, got {:g}", weight
    top = weight.amax() if weight.numel() else 1.0
    far = (weight == top) & (weight > 0) & ~((weight >= 1e-100) & (weight <= 1e15))
    yield far, "the largest weight is {:g}, outside 1e-100..1e15: divide the weights by their mean", weight


def known_kind(scores: Tensor, kind: str | None) -> ScoreKind:
    """Return the kind of the scores: ``kind`` if it is given, else "logits"; raise if they may be something else.

    Scores that all lie in 0..1 may be probabilities, whatever their sums. Scores ``(N,)`` of class 1 of which none is
    above 0 may be log-probabilities; rows of log-probabilities of all classes are logits.

    >>> known_kind(torch.tensor([[2.0, -1.0]]), None)
    'logits'
    """
    if kind in SCORE_KINDS:
        return kind
    if kind is not None:
        raise InputError(f"unknown kind {kind!r}{suggest(str(kind), SCORE_KINDS)}")
    low, high = (float(end) for end in torch.aminmax(scores)) if scores.numel() else (-1.0, 2.0)
    near = high > 50 if scores.ndim == 1 else bool(((scores.sum(1) - 100).abs() < 100 * SUM_TOLERANCE).all())
    if low >= 0 and 1 < high <= 100 * (1 + ONE_TOLERANCE) and near:
        got = f"kind= is missing, and scores from {low:g} to {high:g} may be percent"
        raise InputError(f'{got}: divide them by 100 and pass kind="probs", or pass kind="logits"')
    other = "log_probs" if scores.ndim == 1 and high <= 0 else None
    if other := "probs" if low >= -ONE_TOLERANCE and high <= 1 + ONE_TOLERANCE else other:
        got = f"kind= is missing, and scores from {low:g} to {high:g} may be {other} or logits"
        raise InputError(f'{got}: pass kind="{other}" or kind="logits"')
    return "logits"


def scored(scores: Any, labels: Any, kind: str | None = None) -> tuple[Tensor, Tensor, ScoreKind]:
    """Return scores ``(N, K, *D)``, labels ``(N, *D)`` and the kind of the scores, from arrays of any library.

    Binary scores ``(N,)`` or ``(N, 1)`` with labels 0 and 1 are scores of class 1. They become scores of two classes.
    """
    found = column(scores, "scores")
    target = (column if found.ndim <= 2 else as_tensor)(labels, "labels")
    if not found.is_floating_point():
        found = found.float()
    if target.ndim == max(found.ndim, 2) and target.shape[1] != 1:
        raise InputError(
            f"labels: expected one class id per row, got shape {tuple(target.shape)} for scores of shape "
            f"{tuple(found.shape)}. Convert one-hot or soft labels to ids with labels.argmax(1). For several labels "
            "per row (multilabel), pass one label at a time: the binary scores[:, k] with labels[:, k]"
        )
    known = known_kind(found, kind)
    if target.dtype == torch.bool and found.ndim > 1 and found.shape[1] > 2:
        raise InputError(
            f"labels: expected class ids, got true and false for {found.shape[1]} classes: if they say whether each "
            "prediction is right, pass confidence=, the largest probability of each row, and correct= to acls.evaluate"
        )
    if target.is_floating_point():
        if bool((target != target.round()).any()):
            raise InputError(f"labels: expected class ids, got {float(target[target != target.round()][0]):g}")
        target = target.long()
    if found.ndim == 1:
        wrong = (target != 0) & (target != 1) & (target >= 0)
        if bool(wrong.any()):
            raise InputError(
                f"labels: expected 0 or 1 with one score per row, got {int(target[wrong][0])}: "
                "subtract 1 from labels 1 and 2; for more classes, pass scores of shape (N, K)"
            )
        found = two_scores(found, known)
    refuse(sum_faults(found, known), "scores")
    return found, target.long() if target.dtype == torch.bool else target, known


def two_scores(second: Tensor, kind: str) -> Tensor:
    """Return scores ``(N, 2, *D)`` of classes 0 and 1, given the scores ``(N, *D)`` of class 1 from a binary model."""
    if kind == "logits":
        first = torch.zeros_like(second)
    else:
        first = (1 - second).clamp(min=0) if kind == "probs" else torch.log(-torch.expm1(second))
    return torch.stack([first, second], 1)
