"""The margin terms of MbLS and ACLS, and the pass that computes such a loss and its gradient at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from acls.losses.base import Regularized, reduced
from acls.losses.ce import CE
from acls.losses.numerics import first_equal, top
from acls.shapes import Positions, flatten, flatten_logits, some_ignored, unflatten_logits

# Logits looked at in one go, so that what is made of them stays in the processor's cache.
_LOGITS_AT_ONCE = 1 << 18
# Up to here blocks are turned so that sums over classes run along the samples, which the processor does many at a time.
_FEW_CLASSES = 128
_VECTORISED_FROM = 1 << 14
_SKIP_GLOBALS = getattr(torch.compiler, "skip_guard_on_globals_unsafe", None)  # of newer versions of torch


@dataclass(frozen=True)
class MarginTerm:
    """down max(0, z_ŷ - min z - margin)^power + up sum_{j≠ŷ} max(0, z_ŷ - z_j - margin)^power, with its variants.

    ŷ is the predicted class, the first where several tie; power 2 smooths adaptively, power 1 by a constant.
    """

    margin: float
    down: float
    """The weight of the predicted class's term."""
    up: float
    """The weight of each other class's term."""
    power: int
    from_zero: bool = False
    """Measure the predicted class's logit from 0, not from the smallest logit; classes that tie count it once each."""
    stopped: bool = False
    """Let no gradient through the smallest logit, nor through the largest in the other classes' term."""
    clipped: bool = True
    """Leave out what is within the margin; else the terms pull towards the margin from both sides."""

    def parts(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predicted class's and the other classes' term, one value a position each."""
        largest, predicted = top(z)
        low = 0.0 if self.from_zero else z.gather(1, first_equal(z, z.detach().amin(1, keepdim=True)))
        if self.stopped and isinstance(low, Tensor):
            low = low.detach()
        excess = largest - low - self.margin
        excesses = (largest.detach() if self.stopped else largest) - z - self.margin
        if self.clipped:
            excess, excesses = excess.relu(), excesses.relu()
        else:
            excesses = excesses.scatter(1, predicted, 0.0)
        if self.power == 2:
            excess, excesses = excess.square(), excesses.square()
        if self.from_zero:
            excess = excess * (z == largest).sum(1, keepdim=True)
        return self.down * excess.squeeze(1), self.up * excesses.sum(1)

    def with_cross_entropy(self, z: Tensor, y: Tensor, scale: float | None) -> Tensor:
        """Return cross-entropy plus this term, one value a position, from one pass that keeps only the gradient.

        With ``scale``, return their sum times it. For terms that are clipped.
        """
        one_pass = _elementwise_pass if torch.compiler.is_compiling() else _eager_pass
        value: Tensor = _Kept.apply(z, y, one_pass, self, scale)  # type: ignore[no-untyped-call]
        return value


class OnePass(Regularized):
    """A regulariser by a `MarginTerm`, computed with cross-entropy and the gradient of both in one pass."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._compiled: Callable[[Tensor, Tensor, OnePass, bool], tuple[Tensor, Tensor]] | None = None

    def fused_term(self, n_classes: int) -> MarginTerm | None:
        """Return the term that one pass computes on cross-entropy; None where the settings call for more."""
        raise NotImplementedError

    def fused(self, at: Positions, scale: float | None) -> Tensor | None:
        term = None if at.soft or type(self.base) is not CE else self.fused_term(at.n_classes)
        if term is None:
            return None
        return term.with_cross_entropy(at.logits, at.target, scale)

    def forward(self, logits: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        whole = self._compiled
        if whole is None or torch.compiler.is_compiling() or not _well_formed(logits, target):
            return super().forward(logits, target, index)
        # What a look at the data costs a CPU less than a mask in the pass, it would make a GPU wait for.
        all_count = target.is_cpu and not some_ignored(target, logits.shape[1], self.ignore_index)
        value: Tensor = _Kept.apply(logits, target, whole, self, all_count)  # type: ignore[no-untyped-call]
        return value

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile in place, with the options of `torch.compile`: of a loss in one pass, that pass alone.

        Its gradient is at hand after the pass, so nothing has to be compiled for the way back: with a small batch this
        takes little more than half the time of ``torch.compile(loss)``. A copy is not compiled, as with any module.
        """
        if self.class_weight is None and type(self.base) is CE and self.fused_term(n_classes=2) is not None:
            settings = {"fullgraph": True, **options}
            if _SKIP_GLOBALS is not None and "mode" not in options:
                # What the pass reads beside its inputs are functions and constants of this package: to look in each
                # call whether they are still the same takes a tenth of the time of a small batch.
                settings["options"] = {"guard_filter_fn": _SKIP_GLOBALS, **options.get("options", {})}
            self._compiled = torch.compile(_with_own_code(_whole_pass), *args, **settings)
        else:
            super().compile(*args, **options)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_compiled": None}  # type: ignore[no-untyped-call]


class _Kept(torch.autograd.Function):
    """A value of logits whose gradient is made on the way and kept: ``make`` returns both from the other inputs."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, z: Tensor, y: Tensor, make: Callable[..., tuple[Tensor, Tensor]], of: object, how: object
    ) -> Tensor:
        value, gradient = make(z, y, of, how)
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None, None]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "this loss keeps only its gradient and cannot be differentiated twice: "
                "for second derivatives use sum(loss.terms(logits, target).values())"
            )
        (gradient,) = ctx.saved_tensors
        if grad_output.ndim:
            gradient = gradient * grad_output.unsqueeze(1)
        elif not grad_output.is_cpu or torch.compiler.is_compiling() or grad_output.item() != 1.0:
            gradient = gradient * grad_output
        return gradient, None, None, None, None


def _well_formed(logits: Tensor, target: Tensor) -> bool:
    """Whether target is of class ids and has the shape that the logits call for; if not, others say what is wrong."""
    if logits.ndim == 2:
        fits = target.ndim == 1 and len(target) == len(logits)
    else:
        fits = logits.ndim > 2 and target.shape == logits.shape[:1] + logits.shape[2:]
    return fits and target.dtype == torch.int64 and logits.is_floating_point()


def _with_own_code(function: Any) -> FunctionType:
    """Return a copy of a function: compilers keep what they made with the code, and make but so much for one."""
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def _whole_pass(logits: Tensor, target: Tensor, loss: OnePass, all_count: bool) -> tuple[Tensor, Tensor]:
    """Return a loss as it is reduced and its gradient in the logits, for a compiler.

    The gradient of half-precision logits stays in float32: what autograd rounds it to comes after the loss's scaling.
    """
    if all_count:
        at = Positions(flatten_logits(logits), target.reshape(-1), None, target.shape)
    else:
        at = flatten(logits, target, ignore_index=loss.ignore_index)
    term = loss.fused_term(at.n_classes)
    assert term is not None  # as `OnePass.compile` found
    scale = loss.scale(at)
    value, gradient = _elementwise_pass(at.logits, at.target, term, scale)
    if scale is None:
        value = reduced(value, at, loss.reduction)
    if at.valid is not None:
        share = 1 / at.valid.sum().clamp(min=1) if loss.reduction == "mean" else 1.0
        gradient = torch.where(at.valid.unsqueeze(1), gradient * share, 0.0)
    return value, unflatten_logits(gradient, logits.shape)


def _eager_pass(z: Tensor, y: Tensor, term: MarginTerm, scale: float | None) -> tuple[Tensor, Tensor]:
    """Return the loss ``(M,)`` and its gradient, or both times ``scale`` and the first added up."""
    n, k = z.shape
    factor = 1.0 if scale is None else scale
    step = max(1, _LOGITS_AT_ONCE // k)
    if n <= step:
        values, gradient = _value_and_gradient(z, y, term, factor, axis=1)
    else:
        values, gradient = z.new_empty(n), torch.empty_like(z)
        for start in range(0, n, step):
            rows = slice(start, start + step)
            if k <= _FEW_CLASSES:
                # With a third axis the turning is shared among threads, which it is not for a matrix.
                turned = z[rows].t().unsqueeze(0).contiguous().squeeze(0)
                values[rows], part = _value_and_gradient(turned, y[rows], term, factor, axis=0)
                gradient[rows].unsqueeze(0).copy_(part.t().unsqueeze(0))
            else:
                values[rows], gradient[rows] = _value_and_gradient(z[rows], y[rows], term, factor, axis=1)
    return (values if scale is None else values.sum() * scale), gradient


def _value_and_gradient(z: Tensor, y: Tensor, term: MarginTerm, factor: float, axis: int) -> tuple[Tensor, Tensor]:
    """Return the loss ``(M,)`` and ``factor`` times its gradient, shaped as ``z``, whose classes are on ``axis``."""
    true = y.unsqueeze(axis)
    # torch's own argmax is not vectorised and costs ten times the largest value itself: for few logits only.
    few = z.numel() < _VECTORISED_FROM
    if few:
        largest, predicted = z.max(axis, keepdim=True)
        below = z - largest
    else:
        largest = z.amax(axis, keepdim=True)
        below = z - largest
        predicted = _first_zero(below, axis)
    over = F.softshrink(below, term.margin)  # minus what each class's gap exceeds the margin by
    of_true = below.gather(axis, true)
    p = below.exp_()
    total = p.sum(axis, keepdim=True)
    value = total.log().sub_(of_true)
    gradient = p.div_(total if factor == 1.0 else total.div_(factor))
    # The other classes' term; `pull` gathers what is to be added to the gradient of the predicted class.
    up, down = factor * term.up, factor * term.down
    if term.power == 2:
        value.add_(_sum_of_squares(over, axis), alpha=term.up)
        gradient.add_(over, alpha=2 * up)
        pull = over.sum(axis, keepdim=True).mul_(-2 * up)
    else:
        acts = over.sign()
        value.sub_(over.sum(axis, keepdim=True), alpha=term.up)
        gradient.add_(acts, alpha=up)
        pull = acts.sum(axis, keepdim=True).mul_(-up)
    if term.stopped:
        pull.zero_()
    # The predicted class's own term.
    if term.down:
        if term.from_zero:
            lead = (largest - term.margin).relu_().neg_()
        elif few:
            lead, lowest = over.min(axis, keepdim=True)
        else:
            lead = over.amin(axis, keepdim=True)
            lowest = _first_zero(lead - over, axis)
        push = lead * (2 * down) if term.power == 2 else lead.sign().mul_(down)  # 0 or less
        if term.from_zero:
            push *= (z == largest).sum(axis, keepdim=True)
        value.addcmul_(push, lead, value=1 / (factor * term.power))
        pull -= push
        if not (term.stopped or term.from_zero):
            # Where nothing exceeds the margin the first class is found, and moved by 0.
            gradient.scatter_add_(axis, lowest, push)
    gradient.scatter_add_(axis, predicted, pull)
    gradient.scatter_add_(axis, true, torch.full_like(value, -factor))
    return value.squeeze(axis), gradient


def _elementwise_pass(z: Tensor, y: Tensor, term: MarginTerm, scale: float | None) -> tuple[Tensor, Tensor]:
    """Do as `_eager_pass` by elementwise operations and sums alone, which a compiler melts into two loops.

    Classes that tie share what is added to the gradient of the predicted class.
    """
    largest = z.amax(1, keepdim=True)
    below = z - largest
    p = below.exp()
    total = p.sum(1, keepdim=True)
    true = y.unsqueeze(1)
    is_true = torch.arange(z.shape[1], device=z.device) == true
    is_top = (below == 0).to(z.dtype)  # whole numbers would not be added up many at a time
    n_top = is_top.sum(1, keepdim=True)
    over = (-below - term.margin).relu()
    slope = 2 * over if term.power == 2 else (over > 0).to(z.dtype)
    # A search by index keeps the loop over few classes from being vectorised, and saves a sum over many.
    few = z.shape[1] <= _FEW_CLASSES
    of_true = torch.where(is_true, below, 0.0).sum(1, keepdim=True) if few else below.gather(1, true)
    value = total.log() - of_true + term.up * (over**term.power).sum(1, keepdim=True)
    gradient = p / total - is_true.to(z.dtype) - term.up * slope
    pull = 0.0 if term.stopped else term.up * slope.sum(1, keepdim=True)
    if term.down:
        lowest = 0.0 if term.from_zero else z.amin(1, keepdim=True)
        lead = (largest - lowest - term.margin).relu()
        weight = term.down * (n_top if term.from_zero else 1.0)
        value = value + weight * lead**term.power
        push = weight * (2 * lead if term.power == 2 else (lead > 0).to(z.dtype))
        pull = pull + push
        if not (term.stopped or term.from_zero):
            is_low = (z == lowest).to(z.dtype)
            gradient = gradient - is_low * (push / is_low.sum(1, keepdim=True))
    gradient = gradient + is_top * (pull / n_top)
    if scale is None:
        return value.squeeze(1), gradient
    return value.sum() * scale, gradient * scale


def _first_zero(x: Tensor, axis: int) -> Tensor:
    """Return the first index along ``axis`` where ``x``, which is 0 or less, is 0.

    Found as the largest rank from the end that nothing is taken from: sums and maxima are vectorised.
    """
    k = x.shape[axis]
    rank = torch.arange(k - 1, -1, -1, dtype=x.dtype, device=x.device).unsqueeze(1 - axis)
    found = (x * (torch.finfo(x.dtype).max / 4)).add_(rank).amax(axis, keepdim=True)
    # Of logits that are not finite any index will do, as the loss is not either.
    return found.neg_().add_(k - 1).nan_to_num_().clamp_(0, k - 1).long()


def _sum_of_squares(x: Tensor, axis: int) -> Tensor:
    # A norm along rows is one pass; across them it is not vectorised.
    return torch.linalg.vector_norm(x, dim=1, keepdim=True).square_() if axis else x.square().sum(0, keepdim=True)
