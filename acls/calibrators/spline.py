"""Spline calibration of the top class."""

from __future__ import annotations

from dataclasses import field, replace

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet
from acls.calibrators.isotonic_tables import interpolate
from acls.calibrators.logistic import log_odds, with_top
from acls.calibrators.temperature import solve
from acls.options import option

TABLE = 257
"""Points at which the fitted curve is kept."""
WIDEST = 100.0
"""Log-odds are clamped to this range."""


class Spline(Calibrator):
    """Calibrate the confidence of the top class by the slope of a spline; the others share what is left.

    Sorted by confidence, the share of right answers among the first ``t n`` rows is a function h(t); its slope is the
    accuracy at that confidence. h is fitted by a natural cubic spline with a few knots, by least squares: no bins.
    Confidences, and the shares of the other classes, are those of the best temperature. (Gupta et al., ICLR 2021;
    there without temperature and with 6 knots)
    """

    paper = "Gupta et al., ICLR 2021"

    knots: int = option(default=12, within="[3, inf)")

    temperature: Tensor = field(init=False)
    x: Tensor = field(init=False)
    y: Tensor = field(init=False)

    def _fit(self, data: CalibrationSet) -> Outcome:
        logits, labels, weight = data.all()
        solved = solve(data)
        odds, predicted = log_odds((logits.double() * solved.beta).log_softmax(1)).max(1)
        odds, order = odds.sort()
        counts, hits = weight.double()[order], (predicted == labels)[order].double()
        end, n = counts.cumsum(0), float(counts.sum())
        # A row of weight w is a step of that length: its middle stands for it.
        share = ((hits * counts).cumsum(0) - hits * counts / 2) / n
        basis, _ = _natural_basis((end - counts / 2) / n, self.knots)
        root = counts.sqrt()[:, None].cpu()
        # gelsd: the smallest of the solutions where there are fewer rows than knots
        solution = torch.linalg.lstsq(root * basis.cpu(), root * share.cpu()[:, None], driver="gelsd").solution
        at = torch.linspace(0, 1, TABLE, dtype=torch.float64, device=odds.device)
        _, slopes = _natural_basis(at, self.knots)
        floor = 1 / (n + 2)
        accuracy = (slopes @ solution.to(odds.device))[:, 0].clamp(floor, 1 - floor)
        # A rounding above the end of a row is none.
        place = torch.searchsorted(end, at * n * (1 - 1e-12)).clamp(max=len(odds) - 1)
        x = odds[place].clamp(-WIDEST, WIDEST)
        self._learn(logits, temperature=solved.temperature, x=x[None], y=accuracy.logit()[None])
        return replace(solved, gap=None)

    def _transform(self, rows: Tensor) -> Tensor:
        log_probs = (rows / self.temperature).log_softmax(1)
        odds = log_odds(log_probs).amax(1, keepdim=True)
        return with_top(log_probs, interpolate(odds, self.x, self.y)[:, 0])

    def _reset(self, like: Tensor) -> None:
        line = torch.tensor([[-WIDEST, WIDEST]])
        self._learn(like, temperature=1.0, x=line, y=line)

    def _values(self, n_classes: int) -> int:
        return self.knots


def _natural_basis(t: Tensor, knots: int) -> tuple[Tensor, Tensor]:
    """Return the basis of natural cubic splines with equally spaced knots on [0, 1], and its derivative, at t."""
    at = torch.linspace(0, 1, knots, dtype=t.dtype, device=t.device)
    above = (t[:, None] - at).clamp(min=0)
    cubes = (above[:, :-1] ** 3 - above[:, -1:] ** 3) / (1 - at[:-1])
    squares = 3 * (above[:, :-1] ** 2 - above[:, -1:] ** 2) / (1 - at[:-1])
    one = torch.ones_like(t)[:, None]
    basis = torch.cat([one, t[:, None], cubes[:, :-1] - cubes[:, -1:]], dim=1)
    slope = torch.cat([torch.zeros_like(one), one, squares[:, :-1] - squares[:, -1:]], dim=1)
    return basis, slope
