"""Dirichlet calibration: an affine map of the log-probabilities."""

from __future__ import annotations

from acls.calibrators.matrix import Matrix


class Dirichlet(Matrix):
    """Map the log-probabilities by a matrix: ``softmax(W log q + b)``.

    The map between a Dirichlet distribution for each class and the class probabilities; unlike `Matrix` it does not
    change when a constant is added to the logits of a row. q are the probabilities after temperature scaling, mixed
    with as much of the uniform distribution as one row among those fitted to: a log of 0 would rule the fit.
    Regularised as `Matrix` is. (Kull et al., NeurIPS 2019)
    """

    paper = "Kull et al., NeurIPS 2019"

    @property
    def _of_logits(self) -> bool:
        return False
