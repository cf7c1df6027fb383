"""Platt scaling: logistic regression on log-odds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.odds import fit_logistic, log_odds, normalized, with_top
from acls.calibrators.rows import Rows
from acls.modules import choose


class Platt(Calibrator):
    """Fit ``sigmoid(a s + b)`` to the log-odds s of a class against the rest.

    ``kind="one-vs-rest"`` has an (a, b) for each class and divides the results by their sum; ``kind="top-label"`` has
    one for the class with the highest score, and the others share what is left as before. ``platt_targets`` replaces
    1 and 0 by ``(N+ + 1) / (N+ + 2)`` and ``1 / (N- + 2)``, which keeps the fit finite on separable data.
    (Platt, 1999; multi-class as Zadrozny and Elkan, KDD 2002)
    """

    streams = True
    paper = "Platt, 1999"

    kind: str = "one-vs-rest"
    platt_targets: bool = True

    weight: Tensor = field(init=False)
    bias: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("kind", self.kind, ("one-vs-rest", "top-label"))

    def _fit(self, rows: Rows) -> Outcome:
        def passes() -> Iterator[tuple[Tensor, Tensor]]:
            for logits, labels in rows:
                log_probs = logits.double().log_softmax(1)
                odds = log_odds(log_probs)
                classes = torch.arange(logits.shape[1], device=logits.device)
                if self.kind == "top-label":
                    classes = log_probs.argmax(1, keepdim=True)
                    odds = odds.gather(1, classes)
                yield torch.stack([odds, torch.ones_like(odds)], dim=2), labels[:, None] == classes

        values, gap = fit_logistic(passes, soft_targets=self.platt_targets)
        self._learn(rows.first()[0], weight=values[:, 0], bias=values[:, 1])
        return Outcome(gap=gap)

    def _transform(self, rows: Tensor) -> Tensor:
        log_probs = rows.log_softmax(1)
        odds = log_odds(log_probs)
        if self.kind == "one-vs-rest":
            return normalized(logsigmoid(odds * self.weight + self.bias))
        return with_top(log_probs, odds.amax(1) * self.weight + self.bias)

    def _reset(self, like: Tensor) -> None:
        n = like.shape[1] if self.kind == "one-vs-rest" else 1
        self._learn(like, weight=torch.ones(n), bias=torch.zeros(n))

    def _n_classes(self) -> int | None:
        return len(self.bias) if self.kind == "one-vs-rest" else None
