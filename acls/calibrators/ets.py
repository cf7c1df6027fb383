"""Ensemble temperature scaling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field, replace
from itertools import combinations

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet, sum_over
from acls.calibrators.lbfgs import descend
from acls.calibrators.temperature import Solved, solve
from acls.options import option

STEPS = 200


class ETS(Calibrator):
    """Mix three forecasts: ``w1 softmax(z / T) + w2 softmax(z) + w3 / K``, weights >= 0 that sum to 1.

    T is fitted first, then the weights. Both minimise the NLL or, with ``objective="mse"`` as in the authors' code, the
    mean squared distance from the one-hot label. The problem for the weights is convex. It is solved separately on each
    face of the simplex. (Mix-n-Match: Zhang, Kailkhura and Han, ICML 2020)
    """

    keeps_ranking = True
    streams = True
    paper = "Zhang et al., ICML 2020"

    objective: str = option(default="nll", choices=("nll", "mse"))

    temperature: Tensor = field(init=False)
    weight: Tensor = field(init=False)

    def _fit(self, data: CalibrationSet) -> Outcome:
        if self.objective == "nll":
            solved = solve(data)
            weights = _nll_weights(data, solved.beta)
        else:
            solved = Solved(beta=1 / _mse_temperature(data))
            weights = _mse_weights(data, solved.beta)
        self._learn(data.first()[0], temperature=solved.temperature, weight=weights)
        return replace(solved, guarded=self.objective == "nll")

    def _transform(self, rows: Tensor) -> Tensor:
        tempered, plain = (rows / self.temperature).log_softmax(1), rows.log_softmax(1)
        uniform = torch.full_like(plain, -math.log(rows.shape[1]))
        return torch.stack([tempered, plain, uniform], dim=2).add(self.weight.log()).logsumexp(2)

    def _reset(self, like: Tensor) -> None:
        self._learn(like, temperature=1.0, weight=torch.tensor([0.0, 1.0, 0.0]))


def _nll_weights(data: CalibrationSet, beta: float) -> Tensor:
    parts = []  # per row: the true class's probability in each of three forecasts, and the weight
    for logits, labels, weight in data:
        index, z = labels[:, None], logits.double()
        tempered, plain = (z * beta).softmax(1).gather(1, index), z.softmax(1).gather(1, index)
        parts.append(torch.cat([tempered, plain, torch.full_like(plain, 1 / z.shape[1]), weight[:, None]], dim=1))
    table = torch.cat(parts)
    given, share = table[:, :3], table[:, 3] / table[:, 3].sum()
    return simplex_minimum(lambda w: -share @ (given @ w).log(), given.device)


def _mse_weights(data: CalibrationSet, beta: float) -> Tensor:
    """Minimise ``w^T A w - 2 b^T w``, where A and b are sums over the rows."""

    def moments(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        z, counts = logits.double(), weight.double()
        forecasts = torch.stack([(z * beta).softmax(1), z.softmax(1), torch.full_like(z, 1 / z.shape[1])])
        products = torch.einsum("imk,jmk,m->ij", forecasts, forecasts, counts)
        hits = forecasts.gather(2, labels[None, :, None].expand(3, -1, 1))[:, :, 0] @ counts
        return torch.cat([products, hits[None], counts.sum().expand(1, 3)])

    total = sum_over(data, moments)
    a, b = total[:3] / total[4], total[3] / total[4]
    return simplex_minimum(lambda w: w @ a @ w - 2 * b @ w, total.device)


def _mse_temperature(data: CalibrationSet) -> float:
    """Return the T in [0.05, 20] with the least squared distance. Scan first, as there may be several minima."""

    def distances(logs: list[float]) -> Tensor:
        def of_chunk(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
            z, index = logits.double(), labels[:, None]
            probs = (torch.softmax(z * math.exp(-log), 1) for log in logs)
            return torch.stack([weight.double() @ (p.square().sum(1) - 2 * p.gather(1, index)[:, 0]) for p in probs])

        return sum_over(data, of_chunk)

    low, high = math.log(0.05), math.log(20.0)
    while high - low > 1e-9:
        logs = torch.linspace(low, high, 33, dtype=torch.float64).tolist()
        best = int(distances(logs).argmin())
        low, high = logs[max(best - 1, 0)], logs[min(best + 1, 32)]
    return math.exp((low + high) / 2)


def simplex_minimum(value: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    """Minimise a convex function of three weights that are >= 0 and sum to 1.

    The minimum lies inside one of the seven faces of the simplex, where the weights are a softmax of free numbers.
    """
    corners = torch.eye(3, dtype=torch.float64, device=device)

    def minimum(face: Tensor) -> Tensor:
        start = torch.zeros(len(face), dtype=torch.float64, device=device)
        found = descend(lambda point: value(point[0].softmax(0) @ face), [start], STEPS, small_gradient=1e-14)
        return found[0].softmax(0) @ face

    best, least = corners[0], math.inf
    for w in (minimum(corners[list(chosen)]) for size in (1, 2, 3) for chosen in combinations(range(3), size)):
        # A larger face must be better by more than rounding error. Otherwise a weight stays exactly 0.
        if float(value(w)) < least - 1e-13:
            best, least = w, float(value(w))
    return best
