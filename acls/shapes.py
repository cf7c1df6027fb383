"""Shapes: logits are ``(N, K, *D)`` and targets are ``(N, *D)``, with classes on axis 1 as in torch's cross_entropy.

All losses, metrics and calibrators use this module. It checks shapes, flattens dense maps and handles
``ignore_index`` in one place.
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

START_AT_0 = "class ids start at 0, so subtract 1 from labels that start at 1"


@dataclass(frozen=True)
class Positions:
    """Logits and target as a list of positions: samples, or the pixels of dense maps in row-major order."""

    logits: Tensor
    """``(M, K)``, float32 or wider."""
    target: Tensor
    """``(M,)`` int64 classes, 0 where the position is ignored; or ``(M, K)`` soft labels."""
    valid: Tensor | None
    """``(M,)`` bool, False where the position is ignored. None: no position is ignored."""
    shape: torch.Size
    """``(N, *D)``, the shape of one value per position."""
    index: Tensor | None = None
    """``(N,)``, the index of each sample in the training set, for losses that keep a history per sample."""

    def with_logits(self, logits: Tensor) -> Positions:
        """Return the same positions with other logits; `dataclasses.replace` would cause a graph break in torch 2.6."""
        return Positions(logits, self.target, self.valid, self.shape, self.index)

    @property
    def soft(self) -> bool:
        """Whether the target is a distribution over the classes."""
        return self.target.ndim == 2

    @property
    def n_classes(self) -> int:
        return self.logits.shape[1]

    def count(self) -> Tensor | int:
        """Return the number of positions that are not ignored: a tensor if it depends on the data, else an int."""
        return self.logits.shape[0] if self.valid is None else self.valid.sum()

    def sample_numbers(self) -> Tensor:
        """Return the indices of the samples in the training set; raise an error if the caller did not pass them."""
        if self.index is None or self.index.shape != self.shape[:1]:
            given = "nothing" if self.index is None else f"shape {tuple(self.index.shape)}"
            raise InputError(f"expected index= of shape ({self.shape[0]},), one number per sample, got {given}")
        return self.index

    def compact(self) -> Positions:
        """Drop the ignored positions. This reads the data and so synchronizes a GPU; losses do not use it."""
        if self.valid is None:
            return self
        logits, target = self.logits[self.valid], self.target[self.valid]
        return Positions(logits, target, None, torch.Size([logits.shape[0]]))


def flatten(
    logits: Tensor, target: Tensor, *, ignore_index: int = IGNORE_INDEX, index: Tensor | None = None
) -> Positions:
    """Check logits and target against each other and flatten them to positions.

    Half precision is converted to float32. Labels are checked only where reading the data is cheap: on a CPU and
    outside of ``torch.compile``. Only there, ``valid`` is None if no position is ignored. Binary scores ``(N,)`` or
    ``(N, 1, *D)`` become logits of two classes, 0 and the score (see `two_classes`).
    """
    check_tensor(logits)
    check_tensor(target, "target")
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
    labels = target if target.ndim == 1 else target.reshape(-1)  # a new view makes a compiled loss slower
    if labels.dtype != torch.int64:
        labels = labels.long()
    if looks and not some_ignored(labels, n_classes, ignore_index):
        return Positions(rows, labels, None, expected, index)
    valid = labels != ignore_index
    return Positions(rows, torch.where(valid, labels, 0), valid, expected, index)


def check_tensor(array: object, name: str = "logits") -> None:
    """Raise an error unless the array is a tensor."""
    if not isinstance(array, Tensor):
        raise InputError(f"expected {name} as a tensor, got {type(array).__name__}: pass torch.as_tensor({name})")


def check_logits(logits: Tensor) -> None:
    """Raise an error unless the logits are floating point and have a class axis: ``(N, K, *D)``."""
    check_tensor(logits)
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
    """Invert `flatten_logits`: reshape rows ``(M, K)`` to logits of shape ``(N, K, *D)``, given as ``shape``."""
    if len(shape) == 2:
        return rows
    return rows.reshape(shape[:1] + shape[2:] + rows.shape[1:]).movedim(-1, 1)


def labelled_mean(values: Tensor, valid: Tensor | None) -> Tensor:
    """Average one value per position over the positions that are not ignored; 0, with zero gradient, if all are."""
    if valid is None:
        return values.mean() if values.numel() else values.sum()
    # Replace ignored values instead of multiplying them by 0: an infinite value must not become NaN.
    return torch.where(valid, values, 0.0).sum() / valid.sum().clamp(min=1)


def some_ignored(labels: Tensor, n_classes: int, ignore_index: int) -> bool:
    """Return whether some labels may be ``ignore_index``; raise an error if a label is neither that nor a class id.

    This reads the data.
    """
    if labels.numel() == 0:
        return False
    low, high = torch.aminmax(labels)
    if low.item() >= 0 and high.item() < n_classes:
        return 0 <= ignore_index < n_classes
    wrong = labels[((labels < 0) | (labels >= n_classes)) & (labels != ignore_index)]
    if wrong.numel():
        value = int(wrong[0])
        way = f"pass ignore_index={value} to skip those positions"
        raise InputError(
            f"target contains {value}, but classes are 0..{n_classes - 1}: "
            + (START_AT_0 if start_at_0(labels, n_classes, ignore_index) else way)
        )
    return True


def start_at_0(labels: Tensor, n_classes: int, ignore_index: int) -> bool:
    """Return whether labels are 1..K: at least the last class is there, and 0 is not."""
    given = labels[labels != ignore_index]
    return bool((given == n_classes).any() & (given > 0).all() & (given <= n_classes).all())


def two_class_logits(logits: Tensor) -> Tensor:
    """Convert binary scores ``(N,)`` or ``(N, 1, *D)`` to two-class logits [0, score]; other logits are unchanged."""
    check_tensor(logits)
    if not logits.is_floating_point() or not (logits.ndim == 1 or (logits.ndim > 1 and logits.shape[1] == 1)):
        return logits
    scores = logits.unsqueeze(1) if logits.ndim == 1 else logits
    return torch.cat([torch.zeros_like(scores), scores], 1)


def two_classes(logits: Tensor, target: Tensor, ignore_index: int = IGNORE_INDEX) -> tuple[Tensor, Tensor]:
    """Convert binary scores ``(N,)`` or ``(N, 1, *D)`` and their labels to two-class logits [0, score] and a target.

    Labels have the shape of the scores, with or without axis 1. Floating point labels are probabilities of class 1. On
    a CPU, where reading the data is cheap, labels that are all 0, 1 or ``ignore_index`` are class ids instead.
    """
    scores, logits = logits, two_class_logits(logits)
    if logits is scores:
        return logits, target
    if target.ndim == logits.ndim and target.shape[1] == 1:
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
    """Raise an error unless soft labels are finite, not negative and sum to 1, up to rounding in half precision."""
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
