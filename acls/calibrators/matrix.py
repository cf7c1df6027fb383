"""Matrix scaling: an affine map of the logits, held back where there are too many values for the data."""

from __future__ import annotations

from torch import Tensor

from acls.calibrators.affine import Diagonal, Full, LowRank, main_directions
from acls.calibrators.vector import Affine
from acls.options import option

MANY_CLASSES = 100


class Matrix(Affine):
    """Map the logits by a matrix: ``softmax(W z + b)``. (Guo et al., ICML 2017)

    A ridge on what is off the diagonal and on the bias (ODIR; Kull et al., NeurIPS 2019) keeps it from overfitting.
    ``structure="low-rank"``, the default from 100 classes on, learns a diagonal and a small matrix between the
    ``rank`` directions in which the logits vary most, instead of K^2 values.
    """

    paper = "Guo et al., ICML 2017"

    structure: str = option(default="auto", choices=("auto", "full", "low-rank"))
    rank: int = option(default=16, within="[1, inf)")

    def _design(self, features: Tensor) -> Diagonal:
        n_classes = features.shape[1]
        if self.structure == "full" or (self.structure == "auto" and n_classes < MANY_CLASSES):
            return Full(n_classes)
        return LowRank(main_directions(features, min(self.rank, n_classes - 1)))
