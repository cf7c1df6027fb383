"""Logits with a known truth."""

import torch


def sample(probs, generator):
    return torch.multinomial(probs, 1, generator=generator)[:, 0]


def well_calibrated(n=1000, k=5, seed=0, spread=2.0):
    """Logits whose softmax is the chance of each class."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n, k, generator=generator)
    return logits, sample(logits.softmax(1), generator)


def overconfident(n=1000, k=5, seed=0, temperature=2.5):
    """Logits that are too large by a factor: temperature scaling is the truth."""
    logits, target = well_calibrated(n, k, seed)
    return logits * temperature, target
