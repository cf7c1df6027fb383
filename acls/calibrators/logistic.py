"""One class against the rest: log-odds without cancellation, and many small logistic regressions at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from acls.calibrators.calibration_set import CalibrationSet, sum_over

STEPS = 200
CLOSE_ENOUGH = 1e-12


def log_complement(log_probs: Tensor) -> Tensor:
    """Return ``log(1 - p)``: for the top class the sum over the others, as ``1 - p`` itself would round to 0."""
    top = log_probs.argmax(1, keepdim=True)
    rest = log_probs.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    others = torch.log1p(-log_probs.exp().clamp(max=0.5))
    return others.scatter(1, top, rest)


def log_odds(log_probs: Tensor) -> Tensor:
    """Return ``log(p / (1 - p))`` of each class."""
    return log_probs - log_complement(log_probs)


def one_vs_rest(labels: Tensor, n_classes: int) -> Tensor:
    """Return ``(M, K)`` bool: whether the label is the class."""
    return labels[:, None] == torch.arange(n_classes, device=labels.device)


def with_top(log_probs: Tensor, logit: Tensor) -> Tensor:
    """Give the top class the log-odds ``logit`` (M,) and share out what is left as it was shared before."""
    top = log_probs.argmax(1, keepdim=True)
    rest = log_probs.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    shared = log_probs - rest + logsigmoid(-logit)[:, None]
    return shared.scatter(1, top, logsigmoid(logit)[:, None]).log_softmax(1)


Problems = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From logits and labels to ``(features (m, P, F), hits (m, P))``: P problems with F features each, in float64."""


def fit_logistic(
    data: CalibrationSet, problems: Problems, *, soft_targets: bool = False, free: Tensor | None = None
) -> tuple[Tensor, float]:
    """Solve P logistic regressions side by side: return coefficients (P, F) and the largest distance to a minimum.

    Newton's steps, each problem's halved until its loss falls. ``soft_targets`` takes Platt's
    ``(N+ + 1) / (N+ + 2)`` and ``1 / (N- + 2)`` for 1 and 0, with which the minimum is finite even on separable data.
    Coefficients where ``free`` (P, F) is False stay 0. A ridge of 1e-9 keeps degenerate problems solvable.
    """
    logits, labels, _ = data.first()
    features = problems(logits[:1], labels[:1])[0]
    shape = features.shape[1:]
    free = torch.ones(shape, dtype=torch.bool, device=features.device) if free is None else free
    n, right = data.total(), sum_over(data, lambda z, y, weight: weight.double() @ problems(z, y)[1].double())
    high = (right + 1) / (right + 2) if soft_targets else torch.ones_like(right)
    low = 1 / (n - right + 2) if soft_targets else torch.zeros_like(right)

    def evaluate(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss = torch.zeros_like(right)
        slope = torch.zeros(shape, dtype=torch.float64, device=loss.device)
        curvature = torch.zeros((*shape, shape[1]), dtype=torch.float64, device=loss.device)
        for logits, labels, weight in data:
            features, hits = problems(logits, labels)
            counts = weight.double()[:, None]
            score = torch.einsum("mpf,pf->mp", features, values)
            goal = torch.where(hits, high, low)
            loss -= (counts * (logsigmoid(score) - (1 - goal) * score)).sum(0)
            probability = score.sigmoid()
            slope += torch.einsum("mp,mpf->pf", counts * (probability - goal), features)
            spread = (counts * probability * (1 - probability))[:, :, None] * features
            curvature += torch.einsum("mpf,mpg->pfg", spread, features)
        ridge = 1e-9
        loss = loss / n + ridge * values.square().sum(1) / 2
        slope = (slope / n + ridge * values) * free
        curvature = curvature / n
        curvature.diagonal(dim1=1, dim2=2).add_(ridge)
        # A coefficient that is held at 0 has no part in the step.
        curvature = torch.where(free[:, :, None] & free[:, None, :], curvature, 0.0)
        curvature.diagonal(dim1=1, dim2=2).add_((~free).double())
        return loss, slope, curvature

    values = torch.zeros(shape, dtype=torch.float64, device=right.device)
    loss, slope, curvature = evaluate(values)
    gap = torch.inf
    for _ in range(STEPS):
        step = torch.linalg.solve(curvature, slope)
        decrease = (slope * step).sum(1)
        gap = float(decrease.max()) / 2
        if gap <= CLOSE_ENOUGH:
            break
        length = torch.ones_like(loss)
        for _ in range(40):
            new = values - length[:, None] * step
            new_loss, new_slope, new_curvature = evaluate(new)
            bad = new_loss > loss - 1e-4 * length * decrease + 1e-15
            if not bad.any():
                break
            length = torch.where(bad, length / 2, length)
        values = torch.where(bad[:, None], values, new)
        if bad.all():
            break
        loss, slope, curvature = (new_loss, new_slope, new_curvature) if not bad.any() else evaluate(values)
    return values, gap
