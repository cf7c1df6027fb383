"""Monte Carlo dropout: the mean of several predictions with active dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from acls.errors import InputError
from acls.modules import evaluating


class MCDropout(nn.Module):
    """Average a model's probabilities over passes with dropout active and everything else in eval mode.

    The output is ``log mean_t softmax(z_t)``. If dropout acts only on the input of the last layer, that layer runs
    ``passes`` times and the rest of the model runs once. ``seed`` makes the result reproducible and does not change
    the random state of torch. With None, each call draws different masks. (Gal and Ghahramani, ICML 2016)
    """

    def __init__(self, model: nn.Module, passes: int = 20, seed: int | None = 0) -> None:
        super().__init__()
        if passes < 1:
            raise InputError(f"expected passes to be 1 or more, got {passes}")
        if not any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules()):
            raise InputError("the model has no dropout layer: put one before its last layer, or train with one")
        self.model = model
        self.passes = passes
        self.seed = seed

    def fit(self, *data: Any, **options: Any) -> MCDropout:
        """Return self: there is nothing to fit."""
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return the log of the mean probabilities."""
        with (
            evaluating(self.model, training=lambda module: isinstance(module, _DropoutNd)),
            torch.random.fork_rng(enabled=self.seed is not None),
        ):
            if self.seed is not None:
                torch.manual_seed(self.seed)
            logits, again = _start(self.model, x)
            total = logits.log_softmax(1)
            for _ in range(self.passes - 1):
                total = torch.logaddexp(total, again().log_softmax(1))
        return total - math.log(self.passes)


def _start(model: nn.Module, x: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """Run the model, and return its logits and a function that returns the logits of another pass.

    The function runs only the last layer if the only dropout is at its input and the model returns its output.
    """
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []
    handles = [
        module.register_forward_hook(lambda module, inputs, output: seen.append((module, inputs[0], output)))
        for module in model.modules()
        if isinstance(module, _DropoutNd | nn.Linear | nn.Conv2d)
    ]
    try:
        logits: Tensor = model(x)
    finally:
        for handle in handles:
            handle.remove()
    if sum(isinstance(module, _DropoutNd) for module, _, _ in seen) == 1 and len(seen) > 1:
        (dropout, features, dropped), (layer, received, output) = seen[-2:]
        if isinstance(dropout, _DropoutNd) and received is dropped and output is logits:
            return logits, lambda: layer(dropout(features))
    return logits, lambda: model(x)
