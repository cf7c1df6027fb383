"""Base classes of all losses: a data term, regularisers on top of it, and hooks for methods that keep a memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from acls.errors import InputError
from acls.losses.numerics import FAR
from acls.losses.rule import Rule
from acls.modules import Configured
from acls.options import option
from acls.shapes import IGNORE_INDEX, ONE_CLASS, Positions, flatten, labelled_mean


@dataclass(frozen=True)
class About:
    """The source of a method, and its type in the paper's terms: AR is adaptive, CR is conditional, ACR is both."""

    title: str
    authors: str
    venue: str
    year: int
    kind: str = "-"


@dataclass(frozen=True)
class Epoch:
    """The information that a loss with memory receives between epochs."""

    number: int
    """The number of the epoch; the first epoch is 0."""
    total: int
    predict: Callable[[str], Iterable[tuple[Tensor, Tensor, Tensor]]]
    """``predict("train")`` or ``predict("val")`` runs the model in eval mode, without augmentation, over that split and
    yields batches of (logits, target, index). If several processes train, each one yields its own part of the split."""


class Loss(Configured):
    """A training loss: ``loss(logits, target)`` is a scalar, as with `torch.nn.CrossEntropyLoss`.

    Logits have shape ``(N, K)`` or ``(N, K, *D)``. The target holds class ids ``(N, *D)`` or, if the method supports
    them, soft labels of the same shape as the logits. Binary scores ``(N,)`` or ``(N, 1, *D)`` with labels 0 and 1 are
    treated as the logits [0, score] of two classes. A class with logit -inf is masked: it gets no gradient, and the
    regularisers skip it. Positions with the label ``ignore_index`` are ignored. If all positions are ignored, the loss
    and its gradient are 0. ``class_weight`` ``(K,)`` weights the data term in the same way as ``weight`` in torch. It
    does not change the regularisers. ``reduction="none"`` returns one value per position, if the method has one. In
    eval mode (``loss.eval()``) the loss omits the terms that use a memory, needs no index, and updates no memory.

    A subclass implements `data_term` (one value per position) and, if needed, `rule`, `about` and the hooks.
    """

    ignore_index: int = IGNORE_INDEX
    reduction: str = option(default="mean", choices=("mean", "sum", "none"))
    class_weight: Tensor | None = field(default_factory=lambda: None)

    about: ClassVar[About]
    data_name: ClassVar[str] = "ce"
    """The name of the data term in `terms`."""
    couples_samples: ClassVar[bool] = False
    """Whether the regulariser is a statistic of the whole batch, so that it has no value per position."""
    refuses_soft_targets: ClassVar[bool] = False
    memory: ClassVar[tuple[str, ...]] = ()
    """The names of the buffers that `prepare` creates."""
    index_reason: ClassVar[str] = ""
    """The reason why the method needs ``index=``, used in the error message if it is missing."""

    def __post_init__(self) -> None:
        weight: Tensor | Sequence[float] | None = self.class_weight
        if weight is not None:
            weight = torch.as_tensor(weight, dtype=torch.get_default_dtype())
            if not bool((weight.isfinite() & (weight >= 0)).all()):
                raise InputError(f"class_weight={weight.tolist()}: expected finite numbers of 0 or more")
        self.__dict__.pop("class_weight", None)
        self.register_buffer("class_weight", weight, persistent=False)
        if self.reduction == "none" and any(part.couples_samples for part in self.stack()):
            raise InputError(f'{self!r} has one term per batch, not per position: pass reduction="mean" or "sum"')

    def forward(self, logits: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        return self._value(self._positions(logits, target, index))

    def terms(self, logits: Tensor, target: Tensor, index: Tensor | None = None) -> dict[str, Tensor]:
        """Return the weighted terms of the loss by name. Their sum is the loss."""
        return self._terms(self._positions(logits, target, index))

    def stack(self) -> list[Loss]:
        """Return a list of this loss, its base, the base of that base, and so on."""
        return [self]

    # -- methods to implement in a subclass --------------------------------------------------------------------------

    def data_term(self, at: Positions, weight: Tensor | None) -> Tensor:
        """Return the term that fits the labels, one value per position ``(M,)``. ``weight`` holds the class weights."""
        raise NotImplementedError

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        """Return the weighted regularisers of this method by name, as one value per position ``(M,)`` or a scalar."""
        return {}

    def excess(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the loss minus cross-entropy, one value per row of logits ``(M, K)``. `gradient_rule` uses it."""
        return self.data_term(Positions(z, y, None, y.shape), None) - F.cross_entropy(z, y, reduction="none")

    def rule(self, n_classes: int) -> Rule | None:
        """Return the method's row of the paper's Table 2, or None if its gradient depends on more than one position."""
        return None

    # -- hooks of methods with memory: the training loop calls them, and they do nothing by default ------------------

    @property
    def needs_index(self) -> bool:
        """Whether training mode needs ``index=``, the positions of the samples in the training set.

        In eval mode the loss does not use the memory of the training samples and does not change it.
        """
        return any(part.remembers_samples() for part in self.stack())

    def remembers_samples(self) -> bool:
        """Return whether this method needs ``index=``, regardless of its base."""
        return False

    def prepare(self, *, n_train: int, n_classes: int) -> None:
        """Create the buffers for the method's memory. Call it once before training, unless you load a saved state."""

    def start_epoch(self, now: Epoch) -> None:
        """Update the memory before an epoch."""

    def observe(self, logits: Tensor, target: Tensor, index: Tensor) -> None:
        """Update the memory after an optimiser step, with the logits of that step."""

    def end_epoch(self, now: Epoch) -> None:
        """Update the memory after an epoch."""

    def keep_mask(self) -> Tensor | None:
        """Return a bool mask ``(n_train,)`` of the samples that stay in training, or None if all of them do."""
        return None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a saved state. If `prepare` has not been called, this creates the memory with the saved shapes.

        Code that loads a checkpoint into a module therefore does not need to know that its loss has a memory.
        """
        for name in self._missing_memory():
            if (saved := state_dict.get(prefix + name)) is not None:
                owner, _, own = name.rpartition(".")
                device = next((buffer.device for buffer in self.buffers()), saved.device)
                self.get_submodule(owner).register_buffer(own, torch.empty_like(saved, device=device))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def check_prepared(self) -> None:
        """Raise an error if `prepare` has not created the memory."""
        if self._missing_memory():
            raise InputError(f"{type(self).__name__} has no memory yet: call loss.prepare(n_train=..., n_classes=...)")

    def _missing_memory(self) -> list[str]:
        made = dict(self.named_buffers())
        return [name for name in self.memory if name not in made]

    # -- shapes, ignored positions, weights and reductions are handled only here -------------------------------------

    def _positions(self, logits: Tensor, target: Tensor, index: Tensor | None) -> Positions:
        at = flatten(logits, target, ignore_index=self.ignore_index, index=index)
        if at.n_classes < 2:
            raise InputError(ONE_CLASS.format(at.n_classes))
        if at.soft and any(part.refuses_soft_targets for part in self.stack()):
            raise InputError(
                f"{self!r} needs class ids, but the target of shape {tuple(target.shape)} holds "
                "soft labels: pass class ids, or train without CutMix and Mixup"
            )
        if index is None and self.needs_index and self.training:
            reason = next(part.index_reason for part in self.stack() if part.remembers_samples())
            raise InputError(
                f"{reason}: pass index=, the indices of the samples in the training set, or call loss.eval()"
            )
        return at

    def _value(self, at: Positions) -> Tensor:
        parts = iter(self._terms(at).values())
        return sum(parts, next(parts))

    def _terms(self, at: Positions) -> dict[str, Tensor]:
        if at.valid is not None:
            # Values at ignored positions, including NaN, must not reach any term or gradient.
            at = at.with_logits(torch.where(at.valid.unsqueeze(1), at.logits, 0.0))
        at = unmasked(at)
        weight = self.class_weight
        if weight is not None:
            if weight.shape != (at.n_classes,):
                raise InputError(f"expected class_weight of shape ({at.n_classes},), got {tuple(weight.shape)}")
            weight = weight.to(at.logits.dtype)
        *regularisers, base = self.stack()
        parts = {base.data_name: reduced(base.data_term(at, weight), at, self.reduction, weight)}
        for part in reversed(regularisers):
            if part.remembers_samples() and not part.training:  # there is no history of new samples
                continue
            for name, value in part.penalty(at).items():
                # The same method may be stacked twice. The terms of the outer one then get a number.
                taken = sum(other == name or other.startswith(f"{name}_") for other in parts)
                parts[f"{name}_{taken + 1}" if taken else name] = reduced(value, at, self.reduction)
        return parts


def unmasked(at: Positions) -> Positions:
    """Replace logits of -inf by finite numbers with probability 0, so that 0 log 0 is 0 instead of NaN.

    No gradient flows to them. The logit of the label is not replaced: cross-entropy is infinite if the label is masked.
    On a CPU outside of ``torch.compile``, the function first checks whether any class is masked and returns early if
    none is.
    """
    z = at.logits
    looks = z.device.type == "cpu" and not torch.compiler.is_compiling()
    if looks and (z.numel() == 0 or z.detach().amin().item() != -math.inf):
        return at
    masked = z.isneginf()
    masked &= (at.target == 0) if at.soft else torch.ones_like(masked).scatter_(1, at.target.unsqueeze(1), False)
    floor = -2 * (FAR + z.detach().amax(1, keepdim=True).abs())
    return at.with_logits(torch.where(masked, floor, z))


def reduced(values: Tensor, at: Positions, reduction: str, weight: Tensor | None = None) -> Tensor:
    """Reduce one value per position, or one value per batch, over the positions that are not ignored."""
    if values.ndim == 0:
        return values * at.count() if reduction == "sum" else values
    if reduction == "none":
        return (values if at.valid is None else torch.where(at.valid, values, 0.0)).reshape(at.shape)
    if reduction == "mean" and (weight is None or at.soft):
        return labelled_mean(values, at.valid)
    total = (values if at.valid is None else torch.where(at.valid, values, 0.0)).sum()
    if reduction == "sum" or weight is None:
        return total
    # Like torch, the mean weights each position by the weight of its class. It is 0 if all positions are ignored.
    share = weight[at.target] if at.valid is None else torch.where(at.valid, weight[at.target], 0.0)
    return total / share.sum().clamp(min=torch.finfo(share.dtype).tiny)


class CE(Loss):
    """Cross-entropy: -log p_y, where p is the softmax of the logits. It equals `torch.nn.CrossEntropyLoss`."""

    about = About("Cross-entropy", "Good", "J. R. Stat. Soc. B", 1952)

    def data_term(self, at: Positions, weight: Tensor | None) -> Tensor:
        return F.cross_entropy(at.logits, at.target, weight=weight, reduction="none")

    def rule(self, n_classes: int) -> Rule:
        return Rule()


class Regularized(Loss):
    """A loss that adds a regulariser to ``base``, which can be any other loss (cross-entropy by default)."""

    base: Loss = field(default_factory=CE)

    def __post_init__(self) -> None:
        if not isinstance(self.base, Loss):
            raise InputError(f"base={self.base!r} is not a loss of acls: pass one, such as base=CE() or base=Focal()")
        own = self.base
        if own.ignore_index != IGNORE_INDEX or own.reduction != "mean" or own.class_weight is not None:
            raise InputError(
                f"the base {own!r} has settings of its own: set ignore_index, reduction and class_weight on "
                f"{type(self).__name__}, which handles them for both"
            )
        super().__post_init__()

    def stack(self) -> list[Loss]:
        return [self, *self.base.stack()]

    def excess(self, z: Tensor, y: Tensor) -> Tensor:
        parts = iter(self.penalty(Positions(z, y, None, y.shape)).values())
        return sum(parts, next(parts))

    def rule_on_cross_entropy(self, rule: Rule) -> Rule | None:
        """Return ``rule`` if the base is plain cross-entropy, as a row of the table requires; otherwise None."""
        return rule if type(self.base) is CE else None

    def prepare(self, *, n_train: int, n_classes: int) -> None:
        self.base.prepare(n_train=n_train, n_classes=n_classes)

    def start_epoch(self, now: Epoch) -> None:
        self.base.start_epoch(self._for_base(now))

    def observe(self, logits: Tensor, target: Tensor, index: Tensor) -> None:
        self.base.observe(logits, self._as_base_ignores(target), index)

    def end_epoch(self, now: Epoch) -> None:
        self.base.end_epoch(self._for_base(now))

    def _for_base(self, now: Epoch) -> Epoch:
        def predict(split: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            return ((logits, self._as_base_ignores(target), index) for logits, target, index in now.predict(split))

        return replace(now, predict=predict)

    def _as_base_ignores(self, target: Tensor) -> Tensor:
        """Return the target with the ignored labels of this loss replaced by those that the base ignores."""
        if self.ignore_index == IGNORE_INDEX or target.is_floating_point():
            return target
        return torch.where(target == self.ignore_index, IGNORE_INDEX, target.long())

    def keep_mask(self) -> Tensor | None:
        return self.base.keep_mask()
