"""Meta-calibration: bounds on what is given up."""

from __future__ import annotations

import math
from dataclasses import field

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet
from acls.calibrators.isotonic_tables import interpolate, pool_adjacent_violators
from acls.calibrators.temperature import solve
from acls.errors import InputError
from acls.options import option

MOST_HELD_OUT = 500
BINS = 20


class MetaCal(Calibrator):
    """Give the uniform distribution to rows whose entropy is above a threshold, temperature scaling to the others.

    ``constraint="miscoverage"`` sets the threshold so that a share ``alpha`` of right predictions is given up;
    ``constraint="coverage-accuracy"`` so that what is kept has the given ``accuracy``. The threshold comes from a
    random part of the fitting data (``seed``), the temperature from the rest. Rejected rows lose their prediction, so
    this is for those who act on the kept ones alone; set ``guard=False`` to hold the bound even where the NLL rises.
    (Ma and Blaschko, ICML 2021)
    """

    no_weights = "it draws a random part of the rows, each as one; repeat rows instead, or fit Temperature"
    paper = "Ma and Blaschko, ICML 2021"

    constraint: str = option(default="miscoverage", choices=("miscoverage", "coverage-accuracy"))
    alpha: float = option(default=0.05, within="(0, 1)")
    accuracy: float = option(default=0.97, within="(0, 1)")
    seed: int = 0

    temperature: Tensor = field(init=False)
    threshold: Tensor = field(init=False)

    def _fit(self, data: CalibrationSet) -> Outcome:
        logits, labels, weight = data.all()
        entropy, right = _entropy(logits.double()), logits.argmax(1) == labels
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(self.seed)).to(labels.device)
        if self.constraint == "miscoverage":
            candidates = order[right[order]]
            held_out = candidates[: max(1, min(MOST_HELD_OUT, len(candidates) // 10))]
            if len(held_out) == 0:
                raise InputError("no prediction is right, so there is no coverage to keep: check labels and logits")
            threshold = torch.quantile(entropy[held_out], 1 - self.alpha, interpolation="higher")
        else:
            held_out = order[: max(1, min(MOST_HELD_OUT, len(order) // 10))]
            threshold = _threshold_for(self.accuracy, entropy[held_out], right[held_out])
        rest = torch.ones_like(right)
        rest[held_out] = False
        kept = rest & (entropy < threshold)
        if not kept.any():
            kept = torch.ones_like(right)
        solved = solve([(logits[kept], labels[kept], weight[kept])])
        self._learn(logits, temperature=solved.temperature, threshold=threshold)
        return solved

    def keeps(self, logits: Tensor) -> Tensor:
        """Return for each row of logits whether its prediction is kept."""
        return _entropy(logits) < self.threshold

    def _transform(self, rows: Tensor) -> Tensor:
        scaled = (rows / self.temperature).log_softmax(1)
        return torch.where(self.keeps(rows)[:, None], scaled, -math.log(rows.shape[1]))

    def _reset(self, like: Tensor) -> None:
        self._learn(like, temperature=1.0, threshold=torch.inf)


def _entropy(logits: Tensor) -> Tensor:
    log_probs = logits.log_softmax(1)
    return -(log_probs.exp() * log_probs).sum(1)


def _threshold_for(accuracy: float, entropy: Tensor, right: Tensor) -> Tensor:
    """Return the entropy below which the accuracy is as asked: accuracy as a non-increasing function of coverage."""
    order = entropy.argsort()
    bins = torch.tensor_split(torch.arange(len(order), device=order.device), min(BINS, len(order)))
    edge = torch.stack([entropy[order[own[-1]]] for own in bins])
    running = torch.stack([right[order[: own[-1] + 1]].double().mean() for own in bins])
    at = torch.arange(len(bins), dtype=torch.float64, device=order.device)
    # Accuracy cannot rise with entropy but by chance: pool where it does.
    x, y = pool_adjacent_violators(at, -running)
    smooth = -interpolate(at[:, None], x[None], y[None])[:, 0]
    good = (smooth >= accuracy).nonzero().flatten()
    if len(good) == len(bins):
        return torch.tensor(torch.inf, dtype=torch.float64, device=order.device)
    if len(good) == 0:
        raise InputError(
            f"accuracy={accuracy} is out of reach: the most certain rows are right in {float(smooth[0]):.3f} of cases; "
            "ask for less"
        )
    return edge[good[-1]]
