"""The contract on shapes: logits ``(N, K, *D)``, target ``(N, *D)``; classes on axis 1, as in torch's cross_entropy.

Everything that takes logits and a target (losses, metrics, calibrators) comes through here, so that shapes are
checked, dense maps flattened and ``ignore_index`` handled in one place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acls.errors import InputError

IGNORE_INDEX = -100
ONE_CLASS = (
    "expected two classes or more on axis 1 of the logits, got {}: "
    "pass a binary score s as torch.stack([torch.zeros_like(s), s], dim=1)"
)


@dataclass(frozen=True)
class Positions:
    """Logits and target as a list of positions: samples, or the pixels of dense maps in row-major order."""

    logits: Tensor
    """``(M, K)``, float32 or wider."""
    target: Tensor
    """``(M,)`` int64 classes, 0 where the position is ignored; or ``(M, K)`` soft labels."""
    valid: Tensor | None
    """``(M,)`` bool, False where the position is ignored. None: all count."""
    shape: torch.Size
    """``(N, *D)``, the shape of one value per position."""
    index: Tensor | None = None
    """``(N,)``, the samples' numbers in the training set, for losses that keep a history of samples."""

    def with_logits(self, logits: Tensor) -> Positions:
        """The same positions with other logits; `dataclasses.replace` would break the graph of torch 2.6."""
        return Positions(logits, self.target, self.valid, self.shape, self.index)

    @property
    def soft(self) -> bool:
        """Whether the target is a distribution over classes."""
        return self.target.ndim == 2

    @property
    def n_classes(self) -> int:
        return self.logits.shape[1]

    def count(self) -> Tensor | int:
        """The number of positions that count: a tensor where it is not known without a look at the data."""
        return self.logits.shape[0] if self.valid is None else self.valid.sum()

    def sample_numbers(self) -> Tensor:
        """The samples' numbers in the training set, which the caller has to have passed."""
        if self.index is None or self.index.shape != self.shape[:1]:
            given = "nothing" if self.index is None else f"shape {tuple(self.index.shape)}"
            raise InputError(f"expected index= of shape ({self.shape[0]},), a number per sample, got {given}")
        return self.index

    def compact(self) -> Positions:
        """Drop the ignored positions. Looks at the data: on a GPU this waits for it, so losses do without."""
        if self.valid is None:
            return self
        logits, target = self.logits[self.valid], self.target[self.valid]
        return Positions(logits, target, None, torch.Size([logits.shape[0]]))


def flatten(
    logits: Tensor, target: Tensor, *, ignore_index: int = IGNORE_INDEX, index: Tensor | None = None
) -> Positions:
    """Check logits and target against each other and flatten them to positions.

    Half precision is widened to float32. Labels are checked where a look at the data is free, that is on a CPU outside
    of ``torch.compile``; there, too, ``valid`` is None when nothing is ignored. Binary scores ``(N,)`` or
    ``(N, 1, *D)`` become logits of two classes, 0 and the score (see `two_classes`).
    """
    looks = target.device.type == "cpu" and not torch.compiler.is_compiling()
    logits, target = two_classes(logits, target, ignore_index)
    check_logits(logits)
    n_classes = logits.shape[1]
    expected = logits.shape[:1] + logits.shape[2:]
    rows = flatten_logits(logits)
    if target.shape == logits.shape and target.is_floating_point():
        if looks:
            _check_soft(target)
        return Positions(rows, flatten_logits(target).to(rows.dtype), None, expected, index)
    if target.shape != expected:
        raise InputError(
            f"expected target of shape {tuple(expected)} for logits of shape {tuple(logits.shape)}, "
            f"got {tuple(target.shape)}: {_shape_hint(logits, target)}"
        )
    if target.is_floating_point() or target.dtype == torch.bool:
        raise InputError(
            f"expected class ids as integers, got {target.dtype}: pass target.long(), "
            f"or soft labels of the logits' shape {tuple(logits.shape)}"
        )
    labels = target if target.ndim == 1 else target.reshape(-1)  # a new view costs a compiled loss its shortcuts
    if labels.dtype != torch.int64:
        labels = labels.long()
    if looks and not some_ignored(labels, n_classes, ignore_index):
        return Positions(rows, labels, None, expected, index)
    valid = labels != ignore_index
    return Positions(rows, torch.where(valid, labels, 0), valid, expected, index)


def check_logits(logits: Tensor) -> None:
    """Raise unless logits are floating point with a class axis: ``(N, K, *D)``."""
    if logits.ndim < 2:
        raise InputError(
            f"expected logits of shape (N, K) or (N, K, *D), got {tuple(logits.shape)}: "
            "axis 0 holds the samples, axis 1 the classes"
        )
    if not logits.is_floating_point():
        raise InputError(f"expected logits of a floating point type, got {logits.dtype}")


def flatten_logits(logits: Tensor) -> Tensor:
    """Return logits ``(N, K, *D)`` as rows ``(M, K)`` in float32 or wider."""
    if logits.ndim > 2:
        logits = logits.movedim(1, -1).reshape(-1, logits.shape[1])
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def unflatten_logits(rows: Tensor, shape: torch.Size) -> Tensor:
    """Undo `flatten_logits`: rows ``(M, K)`` back to the ``(N, K, *D)`` of ``shape``."""
    if len(shape) == 2:
        return rows
    return rows.reshape(shape[:1] + shape[2:] + rows.shape[1:]).movedim(-1, 1)


def labelled_mean(values: Tensor, valid: Tensor | None) -> Tensor:
    """Average one value per position over the positions that count; 0, with zero gradient, when none does."""
    if valid is None:
        return values.mean() if values.numel() else values.sum()
    # The ignored are replaced, not multiplied by 0: an infinite value there must not become NaN.
    return torch.where(valid, values, 0.0).sum() / valid.sum().clamp(min=1)


def some_ignored(labels: Tensor, n_classes: int, ignore_index: int) -> bool:
    """Return whether some labels may be ``ignore_index``, and raise for those that are neither that nor a class.

    Looks at the data.
    """
    if labels.numel() == 0:
        return False
    low, high = torch.aminmax(labels)
    if low.item() >= 0 and high.item() < n_classes:
        return 0 <= ignore_index < n_classes
    wrong = labels[((labels < 0) | (labels >= n_classes)) & (labels != ignore_index)]
    if wrong.numel():
        value = int(wrong[0])
        raise InputError(
            f"target contains {value}, but classes are 0..{n_classes - 1}: "
            f"pass ignore_index={value} to skip those positions"
        )
    return True


def two_class_logits(logits: Tensor) -> Tensor:
    """Turn binary scores ``(N,)`` or ``(N, 1, *D)`` into two-class logits [0, score]; others stay as they are."""
    if not logits.is_floating_point() or not (logits.ndim == 1 or (logits.ndim > 1 and logits.shape[1] == 1)):
        return logits
    scores = logits.unsqueeze(1) if logits.ndim == 1 else logits
    return torch.cat([torch.zeros_like(scores), scores], 1)


def two_classes(logits: Tensor, target: Tensor, ignore_index: int = IGNORE_INDEX) -> tuple[Tensor, Tensor]:
    """Turn binary scores ``(N,)`` or ``(N, 1, *D)`` and their labels into two-class logits [0, score] and a target.

    Labels may have the shape of the scores or lack axis 1. Floating point labels are the probability of class 1; on a
    CPU, where the data can be looked at, those that are all 0 or 1 (or ``ignore_index``) are class ids.
    """
    scores, logits = logits, two_class_logits(logits)
    if logits is scores:
        return logits, target
    if target.shape == scores.shape and target.ndim > 1:
        target = target.squeeze(1)
    if target.dtype == torch.bool:
        return logits, target.long()
    if not target.is_floating_point() or target.shape != logits.shape[:1] + logits.shape[2:]:
        return logits, target
    looks = target.device.type == "cpu" and not torch.compiler.is_compiling()
    if looks and bool(((target == 0) | (target == 1) | (target == ignore_index)).all()):
        return logits, target.long()
    return logits, torch.stack([1 - target, target], 1)


def _check_soft(target: Tensor) -> None:
    """Raise unless soft labels are finite, not negative and sum to 1 per position, up to half precision's rounding."""
    if target.numel() == 0:
        return
    total = target.sum(1, dtype=torch.float64)
    wrong = total.flatten()[~((total - 1).abs() < 0.01).flatten()]
    if wrong.numel():
        raise InputError(
            f"expected soft labels that sum to 1 per position, got a sum of {float(wrong[0]):g}: a target of the "
            "logits' shape is a distribution over classes, and several true classes per sample (multilabel) are not "
            "supported"
        )
    least = float(target.min())
    if least < 0:
        raise InputError(f"expected soft labels of 0 or more, got {least:g}")


def _shape_hint(logits: Tensor, target: Tensor) -> str:
    if target.shape == logits.shape:
        return (
            "pass one-hot labels as floating point soft labels; several true classes per sample (multilabel) are "
            "not supported"
        )
    if target.ndim == logits.ndim and target.shape[1] == 1:
        return "drop axis 1"
    if target.ndim == logits.ndim and target.is_floating_point():
        return f"soft labels have the logits' shape {tuple(logits.shape)}"
    return "the same without axis 1, which holds the classes"
