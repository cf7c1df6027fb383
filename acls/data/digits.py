"""Handwritten digits, 8x8, from scikit-learn: 1,797 images that need no download.

E. Alpaydin and C. Kaynak, 1998 (UCI Machine Learning Repository).
"""

import torch

from acls.data import DataOptions
from acls.data.augment import Augment
from acls.data.dataset import Data, InMemory
from acls.data.splits import divide
from acls.errors import require


def load(options: DataOptions, seed: int) -> Data:
    """Load images ``(1, 8, 8)`` in 0..1; the test part (30 %) does not depend on the validation share."""
    bunch = require("sklearn.datasets", extra="train").load_digits()
    y = torch.from_numpy(bunch.target).long()
    x = torch.from_numpy(bunch.images).float()[:, None] / 16
    names = tuple(str(digit) for digit in range(10))
    return divide(InMemory(x, y, Augment(options)), y, options, seed, names, test_share=0.3)
