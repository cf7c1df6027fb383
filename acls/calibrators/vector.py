"""Vector scaling: a factor and an offset for each class."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import field
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from acls.calibrators.affine import Diagonal, fit_affine
from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet
from acls.options import option


class Affine(Calibrator):
    """What the affine maps have in common: weight, bias, and a ridge that pulls them towards temperature scaling.

    They map logits, or the logs of q: the probabilities after temperature scaling, mixed with as much of the uniform
    distribution as one row among those fitted to, so that no log is far below the smallest frequency that the rows can
    show.

    ``strength`` is the ridge in units of values per row, so it fades as data grows; None lets 10-fold cross-validation
    on the fitting data choose it, which then is held in memory.
    """

    strength: float | None = option(default=None, within="[0, inf)")

    weight: Tensor = field(init=False)
    """``(K, K)``, or the diagonal ``(K,)``."""
    bias: Tensor = field(init=False)
    scale: Tensor = field(init=False)
    """The inverse temperature of q."""
    uniform: Tensor = field(init=False)
    """The share of the uniform distribution in q."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.streams = self.strength is not None

    @property
    def learned(self) -> tuple[str, ...]:
        return ("weight", "bias") if self._of_logits else ("weight", "bias", "scale", "uniform")

    @property
    def _of_logits(self) -> bool:
        """Whether logits are mapped, which a layer can hold, rather than log-probabilities."""
        return True

    @abstractmethod
    def _design(self, features: Tensor) -> Diagonal:
        """The values to fit to features such as these."""

    def _fit(self, data: CalibrationSet) -> Outcome:
        like = data.first()[0]
        if self._of_logits:
            scale, weight, bias, outcome = fit_affine(data, self._design, torch.mul, self.strength)
            self._learn(like, weight=weight * scale, bias=bias)
        else:
            uniform = 1 / (1 + data.total())
            features = partial(_mixed_log_probs, uniform=uniform)
            scale, weight, bias, outcome = fit_affine(data, self._design, features, self.strength)
            self._learn(like, weight=weight, bias=bias, scale=scale, uniform=uniform)
        return outcome

    def _transform(self, rows: Tensor) -> Tensor:
        features = rows if self._of_logits else _mixed_log_probs(rows, self.scale, self.uniform)
        if self.weight.ndim == 1:
            return (features * self.weight + self.bias).log_softmax(1)
        return linear(features, self.weight, self.bias).log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        n_classes = like.shape[1]
        weight = torch.ones(n_classes) if self.weight.ndim == 1 else torch.eye(n_classes)
        self._learn(like, weight=weight, bias=torch.zeros(n_classes))
        if not self._of_logits:
            self._learn(like, scale=1.0, uniform=0.0)

    def _values(self, n_classes: int) -> int:
        return self._design(torch.zeros(1, n_classes, dtype=torch.float64)).size

    def _n_classes(self) -> int:
        return len(self.bias)

    def affine(self) -> tuple[Tensor, Tensor] | None:
        if not self._of_logits:
            return None
        return self.weight.diag() if self.weight.ndim == 1 else self.weight, self.bias


class Vector(Affine):
    """Scale and shift each class's logit: ``softmax(w * z + b)``. (Guo et al., ICML 2017)

    ``space="log_probs"`` scales log-probabilities in place of logits: ``softmax(w * log q + b)``, with q as in
    `Dirichlet`. A constant added to a row's logits then changes nothing, and on real networks the NLL is a little
    lower, but no layer can hold the map.
    """

    paper = "Guo et al., ICML 2017"

    space: str = option(default="logits", choices=("logits", "log_probs"))

    @property
    def _of_logits(self) -> bool:
        return self.space == "logits"

    def _design(self, features: Tensor) -> Diagonal:
        return Diagonal(features.shape[1])


def _mixed_log_probs(logits: Tensor, scale: Tensor | float, uniform: Tensor | float) -> Tensor:
    """Return the logs of ``(1 - uniform) softmax(scale z) + uniform / K``."""
    share = torch.as_tensor(uniform, dtype=logits.dtype, device=logits.device)
    return torch.logaddexp((logits * scale).log_softmax(1) + (-share).log1p(), (share / logits.shape[1]).log())
