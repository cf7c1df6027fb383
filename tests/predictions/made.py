"""Predictions to write and read."""

import numpy as np
import torch

from acls.predictions import Predictions


def make(n=37, k=5, kind="logits", *, seed=0, dtype=torch.float32, group=False, image=False):
    """Random predictions whose labels are drawn from their own probabilities."""
    generator = torch.Generator().manual_seed(seed)
    logits = (2 * torch.randn(n, k, generator=generator)).to(dtype)
    cumulative = logits.float().softmax(1).cumsum(1)
    labels = (torch.rand(n, 1, generator=generator) > cumulative).sum(1).clamp(max=k - 1)
    extra = {}
    if group:
        extra |= {"group": torch.randint(0, 3, (n,), generator=generator), "meta": {"net": "ä", "n": str(n)}}
    if image:
        extra["image"] = torch.arange(n) // 4
    if kind == "triples":
        confidence, predicted = logits.float().softmax(1).max(1)
        return Predictions(None, labels, kind, confidence=confidence, predicted=predicted, **extra)
    scores = {"logits": logits, "probs": logits.softmax(1), "log_probs": logits.log_softmax(1)}[kind]
    return Predictions(scores, labels, kind, **extra)


def columns_of(p):
    return {
        name: getattr(p, name)
        for name in ("scores", "labels", "confidence", "predicted", "group", "image")
        if getattr(p, name) is not None
    }


def assert_same(a, b):
    """Equal to the last bit."""
    assert a.kind == b.kind
    left, right = columns_of(a), columns_of(b)
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def write_csv(path, p, *, separator=","):
    """What pandas would write: p0, p1, ..., label."""
    columns = [f"p{at}" for at in range(p.n_classes)] + ["y"]
    table = np.column_stack([p.scores.double().numpy(), p.labels.numpy()])
    lines = [separator.join(columns), *(separator.join(map(repr, row)) for row in table.tolist())]
    path.write_text("\n".join(lines) + "\n")
    return path
