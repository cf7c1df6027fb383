"""Predictions made for tests."""

import numpy as np
import torch


def logits_and_labels(n, k, seed=0, dtype=torch.float64, spread=3.0, share_right=0.6):
    """Logits of an overconfident model; some rows saturate in float32."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=random, dtype=torch.float64) * spread
    labels = torch.randint(0, k, (n,), generator=random)
    right = torch.rand(n, generator=random) < share_right
    logits[torch.arange(n)[right], labels[right]] += 4
    logits[::17] *= 20
    return logits.to(dtype), labels


def confidences(n, seed=0, ties=False, gap=0.1):
    """(confidence, hit) arrays, hits rarer than the confidence says by ``gap``."""
    random = np.random.default_rng(seed)
    confidence = 1 - 0.9 * random.random(n) ** 3
    if ties:
        confidence = np.round(confidence, 2)
    right = (random.random(n) < confidence - gap * confidence).astype(float)
    return confidence, right


def as_triples(confidence, right):
    """Tensors that `of_triples` takes: class 1 is right, class 0 is not."""
    predicted = torch.ones(len(confidence), dtype=torch.long)
    return torch.as_tensor(confidence), predicted, torch.as_tensor(right).long()
