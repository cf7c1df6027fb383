"""Calibrators with a temperature per row: from a small network, a detector of mistakes, or the entropy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field, replace
from functools import partial

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet, Chunk, Passes
from acls.calibrators.lbfgs import descend
from acls.calibrators.logistic import fit_logistic
from acls.calibrators.tables import interpolate, pool_adjacent_violators
from acls.calibrators.temperature import scale_each, solve
from acls.errors import InputError
from acls.options import option

STEPS = 200
WEIGHTS = ("weight1", "bias1", "weight2", "bias2", "weight3")
"""The names of the network's weights, from its input to its output."""


class PTS(Calibrator):
    """Divide each row's logits by its own temperature, which a small network computes from the largest logits.

    ``T(z) = T0 exp(net(top_k(z) - mean(z)))``, where T0 is the best common temperature and the output of the network
    starts at 0. The fit therefore starts at temperature scaling and can only improve on it. The authors use
    ``objective="mse"``. The network is trained by L-BFGS on all rows at once; ``seed`` sets the initial weights.
    (Tomani, Cremers and Buettner, ECCV 2022; they use |net| for T)
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
        features = _top_logits(logits, self.top).double()
        mean = share @ features
        scale = (share @ (features - mean).square()).sqrt().clamp(min=1e-6 * float(features.abs().max()) + 1e-30)
        self._learn(logits, temperature=solved.temperature, mean=mean, scale=scale)
        z, x = logits.double() * solved.beta, (features - mean) / scale
        hits = torch.nn.functional.one_hot(labels, z.shape[1])

        def objective(weights: list[Tensor]) -> Tensor:
            log_probs = scale_each(z, 1.0, _network(x, *weights))
            if self.objective == "nll":
                losses = torch.nn.functional.nll_loss(log_probs, labels, reduction="none")
            else:
                losses = (log_probs.exp() - hits).square().mean(1)
            return share @ losses + self.weight_decay * sum(w.square().sum() for w in weights[::2])

        found = descend(objective, self._first_weights(x), STEPS)
        self._learn(logits, **dict(zip(WEIGHTS, found, strict=True)))
        return replace(solved, gap=None)

    def _first_weights(self, x: Tensor) -> list[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        weights: list[Tensor] = []
        for size in (x.shape[1], self.hidden):
            bound = math.sqrt(6 / (size + self.hidden))
            first = torch.rand((self.hidden, size), generator=generator, dtype=torch.float64) * 2 * bound - bound
            weights += [first.to(x), x.new_zeros(self.hidden)]
        return [*weights, x.new_zeros(self.hidden)]

    def _transform(self, rows: Tensor) -> Tensor:
        x = (_top_logits(rows, self.top) - self.mean) / self.scale
        return scale_each(rows, self.temperature, _network(x, *(getattr(self, name) for name in WEIGHTS)))

    def _reset(self, like: Tensor) -> None:
        self._learn(like, temperature=1.0, weight3=torch.zeros(self.hidden))


def _top_logits(logits: Tensor, top: int) -> Tensor:
    return logits.topk(min(top, logits.shape[1]), dim=1).values - logits.mean(1, keepdim=True)


def _network(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, weight3: Tensor) -> Tensor:
    """Return the log of the ratio of each row's temperature to the common one."""
    return torch.addmm(bias2, torch.addmm(bias1, x, weight1.T).relu(), weight2.T).relu() @ weight3


TOP = 5
"""The number of largest log-probabilities that the detector of mistakes uses."""


class Selective(Calibrator):
    """Detect positions that look wrong, and use one temperature for them and another for the rest.

    Segmentation networks are miscalibrated mainly at their mistakes. A logistic regression on the largest
    log-probabilities detects mistakes (output ``> threshold``), and each side gets the temperature that minimises its
    NLL. With equal temperatures this is temperature scaling, so it is never worse on its fitting data. (After Wang,
    Gong and Wang, CVPR 2023, who train a small network as the detector)
    """

    keeps_ranking = True
    streams = True
    paper = "Wang et al., CVPR 2023"

    threshold: float = 0.5

    temperature: Tensor = field(init=False)
    """The temperatures of positions that look right and of positions that look wrong."""
    weight: Tensor = field(init=False)
    bias: Tensor = field(init=False)

    def _fit(self, data: CalibrationSet) -> Outcome:
        def problems(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            features = _top_log_probs(logits.double())
            ones = torch.ones_like(features[:, :1])
            return torch.cat([features, ones], dim=1)[:, None], (logits.argmax(1) != labels)[:, None]

        values, gap = fit_logistic(data, problems, soft_targets=True)
        like = data.first()[0]
        self._learn(like, weight=values[0, :-1], bias=values[0, -1])
        sides = {name: Passes(partial(self._side, data, name == "wrong")) for name in ("right", "wrong")}
        solved = {name: solve(side) for name, side in sides.items() if next(iter(side), None)}
        common = next(iter(solved.values()))
        betas = torch.tensor([solved.get(name, common).beta for name in sides], dtype=torch.float64)
        self._learn(like, temperature=1 / betas)
        warnings = tuple(
            f"among predictions that look {name}: {said}" for name, side in solved.items() for said in side.warnings
        )
        if "wrong" not in solved:
            warnings += (f"no prediction looks wrong at threshold {self.threshold}: this is plain temperature scaling",)
        return Outcome(gap=gap, at_boundary=any(side.at_boundary for side in solved.values()), warnings=warnings)

    def looks_wrong(self, rows: Tensor) -> Tensor:
        """Return for each row of logits whether the detector considers its top class a mistake."""
        chance = (_top_log_probs(rows) @ self.weight.to(rows.dtype) + self.bias).sigmoid()
        return chance > self.threshold

    def _side(self, data: CalibrationSet, wrong: bool) -> Iterator[Chunk]:
        """Yield the rows that look wrong, or those that look right."""
        for logits, labels, weight in data:
            own = self.looks_wrong(logits) == wrong
            if own.any():
                yield logits[own], labels[own], weight[own]

    def _transform(self, rows: Tensor) -> Tensor:
        temperature = torch.where(self.looks_wrong(rows), self.temperature[1], self.temperature[0])
        return (rows / temperature[:, None]).log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        self._learn(like, temperature=torch.ones(2))


def _top_log_probs(logits: Tensor) -> Tensor:
    return logits.log_softmax(1).topk(min(TOP, logits.shape[1]), dim=1).values


MOST_HELD_OUT = 500
BINS = 20


class MetaCal(Calibrator):
    """Reject rows whose entropy is above a threshold (uniform output), and apply temperature scaling to the others.

    ``constraint="miscoverage"`` sets the threshold so that a fraction ``alpha`` of the right predictions is rejected.
    ``constraint="coverage-accuracy"`` sets it so that the kept predictions have the given ``accuracy``. A random part
    of the fitting data (``seed``) determines the threshold, the rest the temperature. Rejected rows lose their
    prediction, so this method is useful only if you act on the kept rows alone. Set ``guard=False`` to keep the bound
    even if the NLL rises.
    (Ma and Blaschko, ICML 2021)
    """

    no_weights = "it draws a random part of the rows, with equal weight; repeat rows instead, or fit Temperature"
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
        candidates = order[right[order]] if self.constraint == "miscoverage" else order
        if len(candidates) == 0:
            raise InputError("no prediction is right, so there is no coverage to keep: check labels and logits")
        held_out = candidates[: max(1, min(MOST_HELD_OUT, len(candidates) // 10))]
        if self.constraint == "miscoverage":
            threshold = torch.quantile(entropy[held_out], 1 - self.alpha, interpolation="higher")
        else:
            threshold = _threshold_for(self.accuracy, entropy[held_out], right[held_out])
        kept = entropy < threshold
        kept[held_out] = False
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
    """Return the entropy threshold for the given accuracy, with accuracy as a non-increasing function of coverage."""
    order = entropy.argsort()
    bins = torch.tensor_split(torch.arange(len(order), device=order.device), min(BINS, len(order)))
    edge = torch.stack([entropy[order[own[-1]]] for own in bins])
    running = torch.stack([right[order[: own[-1] + 1]].double().mean() for own in bins])
    place = torch.arange(len(bins), dtype=torch.float64, device=order.device)
    # If accuracy rises with entropy, this is due to chance, so we pool these rows.
    x, y = pool_adjacent_violators(place, -running)
    smooth = -interpolate(place[:, None], x[None], y[None])[:, 0]
    good = (smooth >= accuracy).nonzero().flatten()
    if len(good) == len(bins):
        return torch.tensor(torch.inf, dtype=torch.float64, device=order.device)
    if len(good) == 0:
        raise InputError(
            f"expected accuracy= of at most {float(smooth[0]):.3f}, that of the most certain rows, got {accuracy}"
        )
    return edge[good[-1]]
