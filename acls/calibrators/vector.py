"""Vector scaling: a factor and an offset for each class."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor

from acls.calibrators.affine import Diagonal, Fitted, fit_affine
from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.rows import Rows
from acls.errors import InputError
from acls.modules import choose


class Affine(Calibrator):
    """What the affine maps have in common: weight, bias, and a ridge that pulls them towards temperature scaling.

    ``strength`` is the ridge in units of values a row, so it fades as data grows; None lets 10-fold cross-validation
    on the fitting data choose it, which then is held in memory.
    """

    strength: float | None = None

    weight: Tensor = field(init=False)
    bias: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength is not None and self.strength < 0:
            raise InputError(f"strength is {self.strength}, but a ridge is 0 or more")
        self.streams = self.strength is not None

    def _learn_map(self, rows: Rows, fitted: Fitted) -> Outcome:
        self._learn(rows.first()[0], weight=fitted.weight, bias=fitted.bias)
        warnings: tuple[str, ...] = ()
        if fitted.at_boundary:
            warnings = ("the data is separable, or no better than chance: the ridge alone keeps the fit finite",)
        return Outcome(gap=fitted.gap, at_boundary=fitted.at_boundary, warnings=warnings)

    def _n_classes(self) -> int:
        return len(self.bias)


class Vector(Affine):
    """Scale and shift each class's logit: ``softmax(w * z + b)``. (Guo et al., ICML 2017)

    ``space="log_probs"`` scales log-probabilities in place of logits, as libraries that take probabilities do:
    ``softmax(w * log p + b)``. A constant added to a row's logits then changes nothing, but no layer can hold the map.
    """

    paper = "Guo et al., ICML 2017"

    space: str = "logits"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("space", self.space, ("logits", "log_probs"))

    def _fit(self, rows: Rows) -> Outcome:
        return self._learn_map(rows, fit_affine(rows, lambda x: Diagonal(x.shape[1]), self._features, self.strength))

    def _features(self, logits: Tensor) -> Tensor:
        return logits if self.space == "logits" else logits.log_softmax(1)

    def _transform(self, rows: Tensor) -> Tensor:
        return (self._features(rows) * self.weight + self.bias).log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        self._learn(like, weight=torch.ones(like.shape[1]), bias=torch.zeros(like.shape[1]))

    def affine(self) -> tuple[Tensor, Tensor]:
        if self.space != "logits":
            raise InputError(
                "this Vector scales log-probabilities, so no layer can hold it: fit Vector(space='logits') to fold it, "
                "or put it behind the model by export(model, calibrator, ...)"
            )
        return self.weight.diag(), self.bias
