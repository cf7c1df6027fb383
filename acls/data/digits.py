"""Handwritten digits, 8x8, of scikit-learn: 1,797 images, always at hand.

E. Alpaydin and C. Kaynak, 1998 (UCI Machine Learning Repository).
"""

from __future__ import annotations

import torch

from acls.data import DataOptions
from acls.data.augment import Augment
from acls.data.parts import Data, InMemory, Part
from acls.data.splits import hold_out, subset
from acls.errors import require

TEST_SHARE = 0.3


def load(options: DataOptions, seed: int) -> Data:
    """Images ``(1, 8, 8)`` in 0..1; the test part, 30 %, is the same for every validation share."""
    bunch = require("sklearn.datasets", extra="train").load_digits()
    y = torch.from_numpy(bunch.target).long()
    x = torch.from_numpy(bunch.images).float()[:, None] / 16
    source = InMemory(x, y, Augment.of(options))
    rest, test = hold_out(y, TEST_SHARE, seed=0)
    kept, val = hold_out(y[rest], options.val, rule=options.split, seed=options.split_seed)
    train = subset(y, rest[kept], options.n_train, seed=options.split_seed)
    names = tuple(str(digit) for digit in range(10))
    return Data(Part(source, train, seed=seed), Part(source, rest[val]), Part(source, test), names)
