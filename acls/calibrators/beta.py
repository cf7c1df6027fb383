"""Beta calibration: logistic regression on the logs of p and 1 - p."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet
from acls.calibrators.logistic import fit_logistic, log_complement, one_vs_rest


class Beta(Calibrator):
    """Fit ``sigmoid(a log p - b log(1 - p) + c)`` with a, b >= 0 for each class against the rest, then normalise.

    a = b = 1, c = 0 changes nothing; a = b is Platt scaling of the log-odds. Where a or b would be negative it is
    held at 0 and the others are fitted again, as the authors do. (Kull, Silva Filho and Flach, AISTATS 2017)
    """

    streams = True
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
            # One at a time: the other often turns positive once the first is held.
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

    def _n_classes(self) -> int:
        return len(self.c)
