"""Synthetic data: labels are drawn from known probabilities, so the true calibration error can be measured."""

import torch
import torch.nn.functional as F
from torch import Tensor

from acls.data import DataOptions
from acls.data.augment import Augment
from acls.data.dataset import Data, InMemory
from acls.data.keyed_random import generator
from acls.data.splits import divide

_DIMS = 8


def points(n: int, *, n_classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw normal points ``(N, 8)``, their probabilities ``softmax(2 (W x + sin(2 V x)))``, and labels from these."""
    random = generator(seed)
    weight, wave = torch.randn(2, _DIMS, n_classes, generator=random) / _DIMS**0.5
    x = torch.randn(n, _DIMS, generator=random)
    truth = (2 * (x @ weight + (2 * x @ wave).sin())).softmax(1)
    return x, torch.multinomial(truth, 1, generator=random)[:, 0], truth


def scenes(n: int, *, n_classes: int = 4, size: int = 16, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw images of smooth coloured regions, their label maps, and the probabilities per pixel ``(N, K, H, W)``.

    The colour of a pixel is the mean of the class colours, weighted by the probabilities, plus noise. Its label is
    drawn from the same probabilities.
    """
    random = generator(seed)
    fields = torch.randn(n, n_classes, max(size // 4, 2), max(size // 4, 2), generator=random)
    truth = (6 * F.interpolate(fields, (size, size), mode="bilinear", align_corners=True)).softmax(1)
    colours = torch.rand(n_classes, 3, generator=random)
    x = torch.einsum("nkhw,kc->nchw", truth, colours) + 0.05 * torch.randn(n, 3, size, size, generator=random)
    flat = truth.movedim(1, -1).reshape(-1, n_classes)
    y = torch.multinomial(flat, 1, generator=random).reshape(n, size, size)
    return x.clamp(0, 1), y, truth


def load(options: DataOptions, seed: int) -> Data:
    """Load points or scenes; 40 % are the test part, and ``truth`` of each part holds the probabilities."""
    dense = options.name == "synthetic_segmentation"
    x, y, truth = scenes(options.n_samples, size=options.size or 16) if dense else points(options.n_samples)
    source = InMemory(x, y, Augment(options), truth=truth)
    names = tuple(f"class {number}" for number in range(truth.shape[1]))
    return divide(source, None if dense else y, options, seed, names, test_share=0.4)
