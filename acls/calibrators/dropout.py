"""Monte Carlo dropout: the mean of several predictions with dropout switched on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from acls.errors import InputError


class MCDropout(nn.Module):
    """Average a model's probabilities over passes with dropout active and everything else in eval mode.

    Returns ``log mean_t softmax(z_t)``. Where dropout acts only on the input of the last layer, what comes before runs
    once and only that layer ``passes`` times. ``seed`` makes the result repeatable and leaves torch's own random state
    alone; None draws anew in each call. (Gal and Ghahramani, ICML 2016)
    """

    def __init__(self, model: nn.Module, passes: int = 20, seed: int | None = 0) -> None:
        super().__init__()
        if passes < 1:
            raise InputError(f"passes is {passes}, but at least 1 is called for")
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
        with _dropout_on(self.model), torch.random.fork_rng(enabled=self.seed is not None):
            if self.seed is not None:
                torch.manual_seed(self.seed)
            tail = _Tail(self.model)
            total = tail.first(x).log_softmax(1)
            for _ in range(self.passes - 1):
                total = torch.logaddexp(total, tail.again(x).log_softmax(1))
        return total - math.log(self.passes)


class _Tail:
    """Runs the model again; from its only dropout on, if that feeds the layer whose output the model returns."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._features: Tensor | None = None
        self._dropout: nn.Module | None = None
        self._layer: nn.Module | None = None

    def first(self, x: Tensor) -> Tensor:
        """Run the model, and see whether its end can be run alone."""
        seen: list[tuple[nn.Module, Tensor, Tensor]] = []

        def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen.append((module, inputs[0], output))

        handles = [
            module.register_forward_hook(note)
            for module in self._model.modules()
            if isinstance(module, _DropoutNd | nn.Linear | nn.Conv2d)
        ]
        try:
            logits: Tensor = self._model(x)
        finally:
            for handle in handles:
                handle.remove()
        dropouts = [call for call in seen if isinstance(call[0], _DropoutNd)]
        if len(dropouts) == 1 and len(seen) > 1 and seen[-2] is dropouts[0]:
            (dropout, features, dropped), (layer, received, output) = seen[-2:]
            if received is dropped and output is logits:
                self._dropout, self._features, self._layer = dropout, features, layer
        return logits

    def again(self, x: Tensor) -> Tensor:
        """Run what has to run again."""
        if self._layer is None or self._dropout is None:
            logits: Tensor = self._model(x)
        else:
            logits = self._layer(self._dropout(self._features))
        return logits


@contextmanager
def _dropout_on(model: nn.Module) -> Iterator[None]:
    """Put dropout in training and everything else in eval mode, and everything back in the end."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = isinstance(module, _DropoutNd)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
