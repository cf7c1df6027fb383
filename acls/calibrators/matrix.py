"""Matrix scaling: an affine map of the logits, held back where there are too many values for the data."""

from __future__ import annotations

import torch
from torch import Tensor

from acls.calibrators.affine import Design, Full, LowRank, fit_affine, main_directions
from acls.calibrators.base import Outcome
from acls.calibrators.rows import Rows
from acls.calibrators.vector import Affine
from acls.modules import choose

MANY_CLASSES = 100


class Matrix(Affine):
    """Map the logits by a matrix: ``softmax(W z + b)``. (Guo et al., ICML 2017)

    A ridge on what is off the diagonal and on the bias (ODIR; Kull et al., NeurIPS 2019) keeps it from overfitting.
    ``structure="low-rank"``, the default from 100 classes on, learns a diagonal and a small matrix between the
    ``rank`` directions in which the logits vary most, instead of K^2 values.
    """

    paper = "Guo et al., ICML 2017"

    structure: str = "auto"
    rank: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("structure", self.structure, ("auto", "full", "low-rank"))

    def _fit(self, rows: Rows) -> Outcome:
        return self._learn_map(rows, fit_affine(rows, self._design, self._features, self.strength))

    def _design(self, x: Tensor) -> Design:
        n_classes = x.shape[1]
        if self.structure == "full" or (self.structure == "auto" and n_classes < MANY_CLASSES):
            return Full(n_classes)
        return LowRank(main_directions(x, min(self.rank, n_classes - 1)))

    @staticmethod
    def _features(logits: Tensor) -> Tensor:
        return logits

    def _transform(self, rows: Tensor) -> Tensor:
        return torch.nn.functional.linear(self._features(rows), self.weight, self.bias).log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        self._learn(like, weight=torch.eye(like.shape[1]), bias=torch.zeros(like.shape[1]))

    def _values(self, n_classes: int) -> int:
        return self._design(torch.zeros(1, n_classes, dtype=torch.float64)).size

    def affine(self) -> tuple[Tensor, Tensor] | None:
        return self.weight, self.bias
