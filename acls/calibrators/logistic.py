"""Platt scaling and beta calibration: logistic regression of each class against the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet, sum_over
from acls.options import option


class Platt(Calibrator):
    """Fit ``sigmoid(a s + b)`` to the log-odds s of a class against the rest.

    ``kind="one-vs-rest"`` learns (a, b) for each class and divides the results by their sum. ``kind="top-label"``
    learns one (a, b) for the class with the highest score; the proportions among the other classes do not change.
    ``platt_targets`` replaces the targets 1 and 0 by ``(N+ + 1) / (N+ + 2)`` and ``1 / (N- + 2)``, which keeps the fit
    finite on separable data. (Platt, 1999; multi-class as Zadrozny and Elkan, KDD 2002)
    """

    streams = True
    paper = "Platt, 1999"

    kind: str = option(default="one-vs-rest", choices=("one-vs-rest", "top-label"))
    platt_targets: bool = True

    weight: Tensor = field(init=False)
    bias: Tensor = field(init=False)

    def _fit(self, data: CalibrationSet) -> Outcome:
        def problems(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            log_probs = logits.double().log_softmax(1)
            odds, hits = log_odds(log_probs), one_vs_rest(labels, logits.shape[1])
            if self.kind == "top-label":
                top = log_probs.argmax(1, keepdim=True)
                odds, hits = odds.gather(1, top), hits.gather(1, top)
            return torch.stack([odds, torch.ones_like(odds)], dim=2), hits

        values, gap = fit_logistic(data, problems, soft_targets=self.platt_targets)
        self._learn(data.first()[0], weight=values[:, 0], bias=values[:, 1])
        return Outcome(gap=gap)

    def _transform(self, rows: Tensor) -> Tensor:
        log_probs = rows.log_softmax(1)
        odds = log_odds(log_probs)
        if self.kind == "one-vs-rest":
            return logsigmoid(odds * self.weight + self.bias).log_softmax(1)
        return with_top(log_probs, odds.amax(1) * self.weight + self.bias)

    def _reset(self, like: Tensor) -> None:
        n = like.shape[1] if self.kind == "one-vs-rest" else 1
        self._learn(like, weight=torch.ones(n), bias=torch.zeros(n))

    def _n_classes(self) -> int | None:
        return len(self.bias) if self.kind == "one-vs-rest" else None


class Beta(Calibrator):
    """Fit ``sigmoid(a log p - b log(1 - p) + c)`` with a, b >= 0 for each class against the rest, then normalise.

    a = b = 1, c = 0 is the identity, and a = b is Platt scaling of the log-odds. If a or b would be negative, it is set
    to 0 and the other values are fitted again, as the authors do. (Kull, Silva Filho and Flach, AISTATS 2017)
    """

    streams = True
    per_class = "c"
    paper = "Kull et al., AISTATS 2017"

    a: Tensor = field(init=False)
    b: Tensor = field(init=False)
    c: Tensor = field(init=False)

    def _fit(self, data: CalibrationSet) -> Outcome:
        def problems(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            log_probs = logits.double().log_softmax(1)
            features = torch.stack([log_probs, -log_complement(log_probs), torch.ones_like(log_probs)], dim=2)
            return features, one_vs_rest(labels, logits.shape[1])

        like = data.first()[0]
        free = torch.ones((like.shape[1], 3), dtype=torch.bool, device=like.device)
        while True:
            values, gap = fit_logistic(data, problems, free=free)
            negative = values[:, :2] < 0
            # We fix one value at a time, because the other often becomes positive after the first is fixed.
            worst = values[:, :2].argmin(1, keepdim=True)
            negative &= torch.zeros_like(negative).scatter_(1, worst, True)
            if not negative.any():
                break
            free[:, :2] &= ~negative
        self._learn(like, a=values[:, 0], b=values[:, 1], c=values[:, 2])
        return Outcome(gap=gap)

    def _transform(self, rows: Tensor) -> Tensor:
        log_probs = rows.log_softmax(1)
        return logsigmoid(self.a * log_probs - self.b * log_complement(log_probs) + self.c).log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        self._learn(like, a=torch.ones(like.shape[1]), b=torch.ones(like.shape[1]), c=torch.zeros(like.shape[1]))


STEPS = 200
CLOSE_ENOUGH = 1e-12


def log_complement(log_probs: Tensor) -> Tensor:
    """Return ``log(1 - p)``. For the top class it sums the other classes, because ``1 - p`` could round to 0."""
    top = log_probs.argmax(1, keepdim=True)
    rest = log_probs.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    others = torch.log1p(-log_probs.exp().clamp(max=0.5))
    return others.scatter(1, top, rest)


def log_odds(log_probs: Tensor) -> Tensor:
    """Return ``log(p / (1 - p))`` of each class."""
    return log_probs - log_complement(log_probs)


def one_vs_rest(labels: Tensor, n_classes: int) -> Tensor:
    """Return a bool tensor ``(M, K)`` that is True where the class is the label."""
    return labels[:, None] == torch.arange(n_classes, device=labels.device)


def with_top(log_probs: Tensor, logit: Tensor) -> Tensor:
    """Set the log-odds of the top class to ``logit`` (M,) and keep the proportions among the other classes."""
    top = log_probs.argmax(1, keepdim=True)
    rest = log_probs.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    shared = log_probs - rest + logsigmoid(-logit)[:, None]
    return shared.scatter(1, top, logsigmoid(logit)[:, None]).log_softmax(1)


Problems = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function of logits and labels that returns features (m, P, F) and hits (m, P) of P problems, in float64."""


def fit_logistic(
    data: CalibrationSet, problems: Problems, *, soft_targets: bool = False, free: Tensor | None = None
) -> tuple[Tensor, float]:
    """Solve P logistic regressions in parallel. Return coefficients (P, F) and the largest distance to a minimum.

    The method is Newton's. The step of each problem is halved until its loss falls. ``soft_targets`` replaces the
    targets 1 and 0 by Platt's ``(N+ + 1) / (N+ + 2)`` and ``1 / (N- + 2)``, so that the minimum is finite even on
    separable data. Coefficients stay 0 where ``free`` (P, F) is False. A ridge of 1e-9 keeps degenerate problems
    solvable.
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
        # Coefficients that are fixed at 0 are not part of the step.
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
