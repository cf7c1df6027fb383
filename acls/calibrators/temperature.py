"""Temperature scaling: one number divides the logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import add

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CHUNK, CalibrationSet, Chunks, ScoreTally, sum_over
from acls.metrics.protocols import GRID
from acls.options import option

COLDEST, HOTTEST = 1e-6, 1e4
"""The range of T in units of the spread of the logits. At one end the NLL of separable data is within 1e-10 of its
limit. At the other, single precision still separates the classes, so the temperature never changes the prediction."""
CLOSE_ENOUGH = 1e-13
"""The fit stops when the NLL is within this distance of its minimum, according to Newton's model."""
MOST_STEPS = 200
"""The maximum number of steps. Bisection alone would take fewer, and about six are typical."""
LARGEST_FACTOR = 3.0
"""The largest log ratio between the temperature of a row or position and the common one."""
START_ROWS = 1000
"""The number of rows on which the search starts before it reads all data."""


class Temperature(Calibrator):
    """Divide the logits by one number: ``softmax(z / T)``, T > 0.

    ``objective="nll"`` finds the T that minimises the NLL, which is convex in 1/T. It uses Newton's method within a
    bracket and sums in float64, so it always converges. If there is no minimum (all samples right, or worse than
    chance), T is the end of its range and the report contains a warning. ``objective="ece"`` searches for the T with
    the least ECE, which is a step function of T. ``grid=True`` chooses among 0.1, 0.2, ..., 10.0 like the authors of
    focal loss, MbLS and ACLS: if several are best, it takes the first. (Guo et al., ICML 2017)

    >>> z = torch.tensor([[2.0, 0.0]] * 4); y = torch.tensor([0, 0, 0, 1])
    >>> round(float(Temperature().fit(z, y).temperature), 4)  # 2 / log(3): right in 3 of 4 cases
    1.8205
    """

    keeps_ranking = True
    streams = True
    takes_impossible = True
    paper = "Guo et al., ICML 2017"

    objective: str = option(default="nll", choices=("nll", "ece"))
    grid: bool = False

    temperature: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.temperature = torch.ones(())

    def _fit(self, data: CalibrationSet) -> Outcome:
        if self.grid:
            found, outcome = _best_of(data, GRID, self.objective), Outcome()
        elif self.objective == "nll":
            outcome = solve(data)
            found = outcome.temperature
        else:
            center = solve(data).temperature
            around = center * torch.logspace(-1, 1, 201, dtype=torch.float64)
            found, outcome = _best_of(data, [1.0, center, *around.tolist()], self.objective), Outcome()
        self._learn(data.first()[0], temperature=found)
        outcome.guarded = self.objective == "nll"
        outcome.before, outcome.after = _scores(data, [1.0, 1 / float(self.temperature)])
        return outcome

    def _transform(self, rows: Tensor) -> Tensor:
        return (rows / self.temperature).log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        self._learn(like, temperature=torch.ones(()))

    def affine(self) -> tuple[Tensor, Tensor]:
        return 1 / self.temperature, torch.zeros_like(self.temperature)


def scale_each(logits: Tensor, temperature: Tensor | float, log_factor: Tensor) -> Tensor:
    """Return log-probabilities at ``temperature exp(log_factor)``, with one bounded factor per row or position."""
    factor = LARGEST_FACTOR * torch.tanh(log_factor / LARGEST_FACTOR)
    return (logits / temperature * (-factor).exp()[:, None]).log_softmax(1)


@dataclass(kw_only=True)
class Solved(Outcome):
    """The inverse temperature that minimises the NLL, with its certificate."""

    beta: float

    @property
    def temperature(self) -> float:
        return 1 / self.beta


def solve(data: Chunks) -> Solved:
    """Minimise the NLL of ``softmax(beta z)`` over beta > 0.

    The search starts on the first rows, in float64. Two or three passes over all data are then enough.
    """
    logits, labels, weight = next(iter(data)) if not isinstance(data, CalibrationSet) else data.first()
    stride = max(1, len(labels) // START_ROWS)
    sample = [(logits[::stride].double(), labels[::stride], weight[::stride])]
    spread = float((sample[0][0].amax(1) - sample[0][0].mean(1)).mean())
    if spread == 0:
        return Solved(beta=1.0, warnings=("all logits of each row are equal: a temperature has no effect",))
    start = _minimize(sample, 1 / spread, spread)
    if stride == 1 and isinstance(data, CalibrationSet) and data.held and logits.numel() <= CHUNK:
        return start
    return _minimize(data, start.beta, spread)


def _minimize(data: Chunks, beta: float, spread: float) -> Solved:
    low, high = 1 / (HOTTEST * spread), 1 / (COLDEST * spread)
    gap = math.inf
    below = above = None  # the closest known points on each side of the minimum
    beta = min(max(beta, low), high)
    for _ in range(MOST_STEPS):
        nll, slope, curvature = _derivatives(data, beta)
        gap = slope * slope / (2 * curvature) if curvature > 0 else 0.0
        # On separable data the NLL falls exponentially, and this gap is half of it.
        if nll < 10 * CLOSE_ENOUGH or (beta == high and slope < 0):
            return Solved(beta=beta, gap=nll, at_boundary=True, warnings=(SEPARABLE.format(1 / beta),))
        if beta == low and slope > 0:
            return Solved(beta=beta, at_boundary=True, warnings=(NO_BETTER_THAN_CHANCE.format(1 / beta),))
        if gap <= CLOSE_ENOUGH and curvature > 0:
            return Solved(beta=beta - slope / curvature, gap=gap)
        if slope < 0:
            below = beta
        else:
            above = beta
        step = beta - slope / curvature if curvature > 0 else math.copysign(math.inf, -slope)
        # If the curve is flat, Newton's step can have any length.
        step = min(max(step, beta / 10), beta * 10)
        if below is not None and above is not None:
            if not below < step < above:
                step = math.sqrt(below * above)
            if above - below <= 4e-16 * above or step == beta:
                break
        beta = min(max(step, low), high)
    return Solved(beta=beta, gap=gap)


SEPARABLE = (
    "every sample is right, so the NLL keeps falling as T goes to 0: T = {:.3g} is the end of the range; "
    "calibrate on data the model was not trained on"
)
NO_BETTER_THAN_CHANCE = (
    "the true class scores no higher than the average one, so the NLL keeps falling as T grows: T = {:.3g} is the end "
    "of the range; check that labels and logits belong together"
)


def _derivatives(data: Chunks, beta: float) -> tuple[float, float, float]:
    """Return the mean NLL at beta, with its first and second derivative: ``E_p[z] - z_y`` and ``Var_p[z]``."""

    def sums(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        # Logits relative to that of the true class avoid cancellation, even if the model is very confident.
        above = logits - logits.gather(1, labels[:, None])
        top = above.amax(1, keepdim=True)
        odds = (above - top).mul_(beta).exp_()
        total = odds.sum(1)
        first = odds.mul_(above).sum(1) / total
        second = odds.mul_(above).sum(1) / total - first.square()
        nll = total.log() + beta * top[:, 0]
        terms = (weight, nll * weight, first * weight, second * weight)
        return torch.stack([term.sum(dtype=torch.float64) for term in terms])

    n, nll, slope, curvature = sum_over(data, sums).tolist()
    return nll / n, slope / n, curvature / n


def _best_of(data: CalibrationSet, temperatures: list[float], objective: str) -> float:
    """Return the first temperature with the least NLL or ECE, in one pass over the rows."""
    scores = [getattr(tally.score(), objective) for tally in _scores(data, [1 / t for t in temperatures])]
    return temperatures[scores.index(min(scores))]


def _scores(data: CalibrationSet, betas: list[float]) -> list[ScoreTally]:
    """Measure ``softmax(beta z)`` for several beta in one pass."""
    tallies: list[ScoreTally] = []
    for logits, labels, weight in data:
        top, predicted = logits.max(1)
        below, hit = logits - top[:, None], predicted == labels
        label = below.gather(1, labels[:, None])[:, 0]
        totals = ((beta, (below * beta).exp_().sum(1)) for beta in betas)
        rows = ((total.log() - beta * label, total.reciprocal()) for beta, total in totals)
        own = [ScoreTally.of_rows(*row, hit, labels, weight, logits.shape[1]) for row in rows]
        tallies = list(map(add, tallies, own)) if tallies else own
    return tallies
