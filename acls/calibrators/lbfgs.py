"""L-BFGS with a line search that always terminates, for smooth objectives of one flat vector.

We do not use torch.optim.LBFGS, because torch.optim imports the compiler. That takes seconds, a fit milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

HISTORY = 20
ENOUGH_DECREASE, ENOUGH_CURVATURE = 1e-4, 0.9
ROUNDING = 1e-15

Objective = Callable[[Tensor], tuple[float, Tensor]]
"""A function that returns the value and the gradient at a point."""


Place = tuple[Tensor, float, Tensor]
"""A point with the value and the gradient there."""


def lbfgs(objective: Objective, start: Tensor, *, small_gradient: float, steps: int) -> Place:
    """Minimise an objective until all gradient entries are at most ``small_gradient``.

    It also stops if no step lowers the value, or after ``steps`` steps. Each step satisfies the weak Wolfe conditions,
    by doubling and bisection (Lewis and Overton, 2013), so the approximate Hessian stays positive definite.
    (Liu and Nocedal, Mathematical Programming 1989)
    """
    point = start
    value, gradient = objective(point)
    past: deque[tuple[Tensor, Tensor]] = deque(maxlen=HISTORY)
    for _ in range(steps):
        if float(gradient.abs().max()) <= small_gradient:
            break
        direction = -_times_inverse_hessian(gradient, past)
        if not past:
            direction = direction / max(1.0, float(gradient.norm()))
        found = _search(objective, point, value, gradient, direction)
        if found is None:
            if not past:
                break
            past.clear()  # try again along the gradient itself
            continue
        moved, change = found[0] - point, found[2] - gradient
        if float(moved @ change) > 0:
            past.append((moved, change))
        point, value, gradient = found
    return point, value, gradient


def _times_inverse_hessian(vector: Tensor, past: deque[tuple[Tensor, Tensor]]) -> Tensor:
    shares = []
    for moved, change in reversed(past):
        share = float(moved @ vector) / float(moved @ change)
        vector = vector - share * change
        shares.append(share)
    if past:
        moved, change = past[-1]
        vector = vector * (float(moved @ change) / float(change @ change))
    for (moved, change), share in zip(past, reversed(shares), strict=True):
        vector = vector + (share - float(change @ vector) / float(moved @ change)) * moved
    return vector


def _search(objective: Objective, point: Tensor, value: float, gradient: Tensor, direction: Tensor) -> Place | None:
    """Return a point along the direction that satisfies the weak Wolfe conditions; None if rounding prevents it."""
    slope = float(gradient @ direction)
    low, high, length = 0.0, torch.inf, 1.0
    best: Place | None = None
    for _ in range(50):
        new = point + length * direction
        new_value, new_gradient = objective(new)
        # We do not write "if above", because a NaN from a step that is far too long must shorten the step.
        if not new_value <= value + ENOUGH_DECREASE * length * slope + ROUNDING * abs(value):
            high = length
        else:
            best = new, new_value, new_gradient
            if float(new_gradient @ direction) >= ENOUGH_CURVATURE * slope:
                return best
            low = length
        length = 2 * low if high == torch.inf else (low + high) / 2
    return best if best is not None and best[1] < value else None


def descend(
    objective: Callable[[list[Tensor]], Tensor], weights: list[Tensor], steps: int, *, small_gradient: float = 1e-8
) -> list[Tensor]:
    """Minimise an objective of several tensors with gradients from autograd, and return the final tensors."""
    shapes = [weight.shape for weight in weights]

    def unpack(point: Tensor) -> list[Tensor]:
        parts = torch.split(point, [shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def value_and_gradient(point: Tensor) -> tuple[float, Tensor]:
        with torch.enable_grad():
            leaf = point.detach().requires_grad_(True)
            value = objective(unpack(leaf))
            (gradient,) = torch.autograd.grad(value, leaf)
        return float(value), gradient

    start = torch.cat([weight.flatten() for weight in weights])
    return unpack(lbfgs(value_and_gradient, start, small_gradient=small_gradient, steps=steps)[0])
