"""Parameterised temperature scaling: a small network gives each row its temperature."""

from __future__ import annotations

import itertools
import math
from dataclasses import field, replace

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet
from acls.calibrators.lbfgs import descend
from acls.calibrators.temperature import solve
from acls.options import option

LARGEST_FACTOR = 3.0
"""The log of how far a row's temperature may be from the common one."""
STEPS = 200


class PTS(Calibrator):
    """Divide each row's logits by its own temperature, a small network's function of its largest logits.

    ``T(z) = T0 exp(net(top_k(z) - mean(z)))`` with T0 the best common temperature and a net that starts at 0, so the
    fit starts at temperature scaling and only improves on it; ``objective="mse"`` is the authors'. Trained by L-BFGS on
    all rows at once; ``seed`` sets the first weights. (Tomani, Cremers and Buettner, ECCV 2022; they take |net| for T)
    """

    keeps_ranking = True
    paper = "Tomani et al., ECCV 2022"

    top: int = option(default=10, within="[1, inf)")
    hidden: int = option(default=5, within="[1, inf)")
    weight_decay: float = 1e-3
    objective: str = option(default="nll", choices=("nll", "mse"))
    seed: int = 0

    temperature: Tensor = field(init=False)
    mean: Tensor = field(init=False)
    scale: Tensor = field(init=False)
    weight1: Tensor = field(init=False)
    bias1: Tensor = field(init=False)
    weight2: Tensor = field(init=False)
    bias2: Tensor = field(init=False)
    weight3: Tensor = field(init=False)

    def _fit(self, data: CalibrationSet) -> Outcome:
        logits, labels, weight = data.all()
        solved = solve(data)
        share = weight.double() / weight.sum(dtype=torch.float64)
        features = _features(logits, self.top).double()
        mean = share @ features
        scale = (share @ (features - mean).square()).sqrt().clamp(min=1e-6 * float(features.abs().max()) + 1e-30)
        self._learn(logits, temperature=solved.temperature, mean=mean, scale=scale)
        z, x = logits.double() * solved.beta, (features - mean) / scale
        hits = torch.nn.functional.one_hot(labels, z.shape[1])

        def objective(weights: list[Tensor]) -> Tensor:
            log_probs = (z * (-_network(x, *weights)).exp()[:, None]).log_softmax(1)
            if self.objective == "nll":
                losses = torch.nn.functional.nll_loss(log_probs, labels, reduction="none")
            else:
                losses = (log_probs.exp() - hits).square().mean(1)
            return share @ losses + self.weight_decay * sum(w.square().sum() for w in weights[::2])

        names = ("weight1", "bias1", "weight2", "bias2", "weight3")
        self._learn(logits, **dict(zip(names, descend(objective, self._first_weights(x), STEPS), strict=True)))
        return replace(solved, gap=None)

    def _first_weights(self, x: Tensor) -> list[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        sizes = [x.shape[1], self.hidden, self.hidden]
        weights: list[Tensor] = []
        for before, after in itertools.pairwise(sizes):
            bound = math.sqrt(6 / (before + after))
            first = torch.rand((after, before), generator=generator, dtype=torch.float64) * 2 * bound - bound
            weights += [first.to(x.device), torch.zeros(after, dtype=torch.float64, device=x.device)]
        weights.append(torch.zeros(self.hidden, dtype=torch.float64, device=x.device))
        return weights

    def _transform(self, rows: Tensor) -> Tensor:
        x = (_features(rows, self.top) - self.mean) / self.scale
        factor = _network(x, self.weight1, self.bias1, self.weight2, self.bias2, self.weight3)
        return (rows / self.temperature * (-factor).exp()[:, None]).log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        self._learn(like, temperature=1.0, weight3=torch.zeros(self.hidden))


def _features(logits: Tensor, top: int) -> Tensor:
    return logits.topk(min(top, logits.shape[1]), dim=1).values - logits.mean(1, keepdim=True)


def _network(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, weight3: Tensor) -> Tensor:
    """Return the log of each row's temperature over the common one, within the largest factor."""
    hidden = torch.addmm(bias2, torch.addmm(bias1, x, weight1.T).relu(), weight2.T).relu()
    return LARGEST_FACTOR * torch.tanh(hidden @ weight3 / LARGEST_FACTOR)
