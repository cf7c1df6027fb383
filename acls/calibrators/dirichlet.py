"""Dirichlet calibration: an affine map of the log-probabilities."""

from __future__ import annotations

from torch import Tensor

from acls.calibrators.matrix import Matrix


class Dirichlet(Matrix):
    """Map the log-probabilities by a matrix: ``softmax(W log p + b)``.

    The map between a Dirichlet distribution for each class and the class probabilities; unlike `Matrix` it does not
    change when a constant is added to the logits of a row. Regularised in the same way. (Kull et al., NeurIPS 2019)
    """

    paper = "Kull et al., NeurIPS 2019"

    @staticmethod
    def _features(logits: Tensor) -> Tensor:
        return logits.log_softmax(1)

    def affine(self) -> None:
        return None
