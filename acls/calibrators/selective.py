"""Selective scaling: positions that look wrong get a temperature of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet, Chunk
from acls.calibrators.logistic import fit_logistic
from acls.calibrators.temperature import solve

TOP = 5
"""Log-probabilities that the detector of mistakes looks at, from the largest down."""


class Selective(Calibrator):
    """Tell positions that look wrong from the others, and scale either kind by its own temperature.

    Miscalibration of segmentation networks lies in their mistakes: a logistic regression on the largest
    log-probabilities detects them (where it says ``> threshold``), and each side gets the temperature that minimises
    its NLL. With a single temperature for both this is temperature scaling, so it never does worse on its fitting
    data. (After Wang, Gong and Wang, CVPR 2023, who train the detector as a small network)
    """

    keeps_ranking = True
    streams = True
    paper = "Wang et al., CVPR 2023"

    threshold: float = 0.5

    temperature: Tensor = field(init=False)
    """Of what looks right, and of what looks wrong."""
    weight: Tensor = field(init=False)
    bias: Tensor = field(init=False)

    def _fit(self, data: CalibrationSet) -> Outcome:
        def problems(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            features = _features(logits.double())
            ones = torch.ones_like(features[:, :1])
            return torch.cat([features, ones], dim=1)[:, None], (logits.argmax(1) != labels)[:, None]

        values, gap = fit_logistic(data, problems, soft_targets=True)
        like = data.first()[0]
        self._learn(like, weight=values[0, :-1], bias=values[0, -1])
        sides = {name: _Side(data, self, name == "wrong") for name in ("right", "wrong")}
        solved = {name: solve(side) for name, side in sides.items() if next(iter(side), None)}
        common = next(iter(solved.values()))
        betas = torch.tensor([solved.get(name, common).beta for name in sides], dtype=torch.float64)
        self._learn(like, temperature=1 / betas)
        warnings = tuple(
            f"among what looks {name}: {warning}" for name, side in solved.items() for warning in side.warnings
        )
        if "wrong" not in solved:
            warnings += (f"nothing looks wrong at threshold {self.threshold}: this is temperature scaling",)
        return Outcome(gap=gap, at_boundary=any(side.at_boundary for side in solved.values()), warnings=warnings)

    def looks_wrong(self, rows: Tensor) -> Tensor:
        """Return for each row of logits whether the detector takes its top class for a mistake."""
        chance = (_features(rows) @ self.weight.to(rows.dtype) + self.bias).sigmoid()
        return chance > self.threshold

    def _transform(self, rows: Tensor) -> Tensor:
        temperature = torch.where(self.looks_wrong(rows), self.temperature[1], self.temperature[0])
        return (rows / temperature[:, None]).log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        self._learn(like, temperature=torch.ones(2))


class _Side:
    """The rows that look right, or those that look wrong."""

    def __init__(self, data: CalibrationSet, detector: Selective, wrong: bool) -> None:
        self._rows, self._detector, self._wrong = data, detector, wrong

    def __iter__(self) -> Iterator[Chunk]:
        for logits, labels, weight in self._rows:
            own = self._detector.looks_wrong(logits) == self._wrong
            if own.any():
                yield logits[own], labels[own], weight[own]


def _features(logits: Tensor) -> Tensor:
    return logits.log_softmax(1).topk(min(TOP, logits.shape[1]), dim=1).values
