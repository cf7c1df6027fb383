"""Vector scaling: a factor and an offset for each class."""

from __future__ import annotations

from dataclasses import field
from functools import partial

import torch
from torch import Tensor

from acls.calibrators.affine import Diagonal, Fitted, fit_affine
from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.rows import Rows
from acls.errors import InputError
from acls.modules import choose

ROUNDING = 1e-6
"""A difference of NLL that says nothing."""


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
    ``"auto"`` takes the one of the two that cross-validation prefers.
    """

    paper = "Guo et al., ICML 2017"

    space: str = "logits"

    shift: Tensor = field(init=False)
    """1 where the log of each row's sum of exponentials is taken from its logits first, else 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("space", self.space, ("logits", "log_probs", "auto"))
        if self.space == "auto" and self.strength is not None:
            raise InputError(
                "space='auto' is chosen by the cross-validation that chooses the strength: leave strength out"
            )

    def _fit(self, rows: Rows) -> Outcome:
        fits = []
        for shift in {"logits": (0.0,), "log_probs": (1.0,), "auto": (0.0, 1.0)}[self.space]:
            features = partial(_shifted, shift=shift)
            fits.append((fit_affine(rows, lambda x: Diagonal(x.shape[1]), features, self.strength), shift))
        # Of equals, as with logits that are log-probabilities, and where too few rows tell (NaN), the logits are taken.
        fitted, shift = fits[-1] if fits[-1][0].held_out < fits[0][0].held_out - ROUNDING else fits[0]
        self._learn(rows.first()[0], shift=torch.tensor(shift))
        return self._learn_map(rows, fitted)

    def _transform(self, rows: Tensor) -> Tensor:
        return (_shifted(rows, self.shift) * self.weight + self.bias).log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        n_classes = like.shape[1]
        self._learn(like, weight=torch.ones(n_classes), bias=torch.zeros(n_classes), shift=torch.zeros(()))

    def affine(self) -> tuple[Tensor, Tensor]:
        if self.shift != 0:
            raise InputError(
                "this Vector scales log-probabilities, so no layer can hold it: fit Vector(space='logits') to fold it, "
                "or put it behind the model by export(model, calibrator, ...)"
            )
        return self.weight.diag(), self.bias


def _shifted(logits: Tensor, shift: Tensor | float) -> Tensor:
    return logits - shift * logits.logsumexp(1, keepdim=True)
