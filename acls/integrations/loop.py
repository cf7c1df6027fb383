"""A plain training loop, or timm's, with a loss that remembers: two words more than without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from acls.errors import InputError
from acls.integrations.hooks import LossHooks, predictions_of
from acls.losses import Epoch, Loss


def epochs(
    loss: Loss,
    model: nn.Module,
    total: int,
    *,
    train_set: Any,
    val_set: Any = None,
    forward: Callable[[Any], tuple[Tensor, Tensor]] | None = None,
    batch: int = 64,
    start: int = 0,
) -> Iterator[int]:
    """The numbers of the epochs, ``start`` to ``total - 1``; around each, the loss's hooks are called.

        for epoch in epochs(loss, model, 10, train_set=train_set, val_set=val_set):
            for x, y, index in loader:
                loss(model(x), y, index=index).backward()
                ...

    ``index`` comes from ``acls.data.indexed.Indexed(train_set)``. ``forward(batch)`` returns logits and target for the
    losses that look at a whole split (CaPE, AdaFocal); by default a batch is ``(x, y, ...)`` on the CPU, moved to where
    the model is. To go on after ``start`` epochs, load the loss's state beside the model's: its memory is then kept.
    """
    hooks = _Observing(loss)
    through = forward or _Plain(model)

    def predict(split: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        chosen = train_set if split == "train" else val_set
        if chosen is None:
            raise InputError(f"{loss!r} looks at a validation set after each epoch: pass val_set=")
        yield from predictions_of(model, chosen, through, batch=batch)

    hooks.attach()
    try:
        if start == 0:
            hooks.prepare(n_train=len(train_set), n_classes=lambda: next(iter(predict("train")))[0].shape[1])
        device = next((weight.device for weight in model.parameters()), None)
        loss.to(device)
        for number in range(start, total):
            now = Epoch(number, total, predict)
            hooks.start_epoch(now)
            yield number
            hooks.end_epoch(now)
    finally:
        hooks.detach()


class _Observing(LossHooks):
    """Hands the loss each training step as soon as it was computed; eval mode and no gradients mean none."""

    def _note(self, loss: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if loss.training and isinstance(output, Tensor) and output.requires_grad:
            super()._note(loss, args, kwargs, output)
            self.observe()


class _Plain:
    """Moves ``(x, y, ...)`` to the model's device and predicts."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, batch: Any) -> tuple[Tensor, Tensor]:
        weight = next(self.model.parameters())
        return self.model(batch[0].to(weight.device)), batch[1].to(weight.device)
