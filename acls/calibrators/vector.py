"""Vector scaling: a factor and an offset for each class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import torch
from torch import Tensor

from acls.calibrators.affine import Diagonal, Fitted, fit_affine
from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.rows import Rows
from acls.errors import InputError
from acls.modules import choose

FEATURES: dict[str, Callable[[Tensor], Tensor]] = {"logits": lambda z: z, "log_probs": lambda z: z.log_softmax(1)}
SPACES = tuple(FEATURES)
"""Logits first: they are taken unless log-probabilities are clearly better."""


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

    ``space="log_probs"`` scales log-probabilities in place of logits: ``softmax(w * log p + b)``. A constant added to a
    row's logits then changes nothing, but no layer can hold the map. The default, ``"auto"``, takes them only where
    the held-out NLL is clearly less for it, by two standard errors over the folds; with a ``strength`` given nothing
    is cross-validated, and it is ``"logits"``.
    """

    paper = "Guo et al., ICML 2017"

    space: str = "auto"

    normalised: Tensor = field(init=False)
    """1 where log-probabilities are scaled, 0 where logits are: the share of a row's logsumexp that is taken off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("space", self.space, ("auto", *SPACES))

    def _fit(self, rows: Rows) -> Outcome:
        auto = SPACES if self.strength is None else SPACES[:1]
        spaces = auto if self.space == "auto" else (self.space,)
        fitted = fit_affine(rows, lambda x: Diagonal(x.shape[1]), [FEATURES[name] for name in spaces], self.strength)
        self._learn(rows.first()[0], normalised=torch.tensor(float(spaces[fitted.features] == "log_probs")))
        return self._learn_map(rows, fitted)

    def _transform(self, rows: Tensor) -> Tensor:
        # A factor in place of a branch, which an exported program could not take by its values.
        features = rows - self.normalised * rows.logsumexp(1, keepdim=True)
        return (features * self.weight + self.bias).log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        classes = like.shape[1]
        self._learn(like, weight=torch.ones(classes), bias=torch.zeros(classes), normalised=torch.zeros(()))

    def affine(self) -> tuple[Tensor, Tensor]:
        if self.normalised:
            raise InputError(
                "this Vector scales log-probabilities, so no layer can hold it: fit Vector(space='logits') to fold it, "
                "or put it behind the model by export(model, calibrator, ...)"
            )
        return self.weight.diag(), self.bias
