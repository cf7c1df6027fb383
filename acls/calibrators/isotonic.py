"""Isotonic regression of the probabilities."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet
from acls.calibrators.isotonic_tables import interpolate, keep_top, pool_adjacent_violators, stack_tables
from acls.calibrators.logistic import one_vs_rest
from acls.options import option

TIE_BREAK = 1e-3
"""The share of the probability itself in the map, so that what falls on a flat part keeps its order."""


class Isotonic(Calibrator):
    """Replace probabilities by a non-decreasing function of them, found by pool-adjacent-violators, then normalise.

    ``kind="one-vs-rest"`` has a function for each class (Zadrozny and Elkan, KDD 2002); ``kind="pooled"`` has one for
    all, fitted to the pairs (p_k, y = k) of all classes, which keeps the order of the classes and so the accuracy (IRM
    of Zhang et al., ICML 2020). A function fitted to n pairs has values of at least 1 / (n + 2): a class that was
    never right at some probability does not become impossible.
    """

    paper = "Zadrozny and Elkan, KDD 2002"

    kind: str = option(default="one-vs-rest", choices=("one-vs-rest", "pooled"))

    x: Tensor = field(init=False)
    y: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.keeps_ranking = self.kind == "pooled"

    def _fit(self, data: CalibrationSet) -> Outcome:
        logits, labels, weight = data.all()
        probs, hits = logits.softmax(1), one_vs_rest(labels, logits.shape[1])
        if self.kind == "pooled":
            weight = weight.repeat_interleave(logits.shape[1])
            probs, hits = probs.reshape(-1, 1), hits.reshape(-1, 1)
        floor = 1 / (float(weight.sum(dtype=torch.float64)) + 2)
        tables = []
        for values, right in zip(probs.T, hits.T, strict=True):
            x, y = pool_adjacent_violators(values, right, weight)
            tables.append((x, y.clamp(floor, 1 - floor)))
        x, y = stack_tables(tables)
        self._learn(logits, x=x, y=y)
        return Outcome()

    def _transform(self, rows: Tensor) -> Tensor:
        probs = rows.softmax(1)
        values = probs if self.kind == "one-vs-rest" else probs.reshape(-1, 1)
        mapped = interpolate(values, self.x, self.y).reshape(probs.shape)
        log_probs = torch.lerp(mapped, probs, TIE_BREAK).clamp(min=torch.finfo(probs.dtype).tiny).log().log_softmax(1)
        return keep_top(log_probs, rows) if self.kind == "pooled" else log_probs

    def _reset(self, like: Tensor) -> None:
        line = torch.tensor([0.0, 1.0]).expand(like.shape[1] if self.kind == "one-vs-rest" else 1, 2)
        self._learn(like, x=line, y=line)

    def _values(self, n_classes: int) -> int:
        return self.x.shape[0]

    def _n_classes(self) -> int | None:
        return len(self.x) if self.kind == "one-vs-rest" else None
