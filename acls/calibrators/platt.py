"""Platt scaling: logistic regression on log-odds."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet
from acls.calibrators.logistic import fit_logistic, log_odds, one_vs_rest, with_top
from acls.options import option


class Platt(Calibrator):
    """Fit ``sigmoid(a s + b)`` to the log-odds s of a class against the rest.

    ``kind="one-vs-rest"`` has an (a, b) for each class and divides the results by their sum; ``kind="top-label"`` has
    one for the class with the highest score, and the others share what is left as before. ``platt_targets`` replaces
    1 and 0 by ``(N+ + 1) / (N+ + 2)`` and ``1 / (N- + 2)``, which keeps the fit finite on separable data.
    (Platt, 1999; multi-class as Zadrozny and Elkan, KDD 2002)
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
