"""Use a loss with memory in a plain training loop, or in timm's, with two more words of code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from acls.integrations.hooks import LossHooks
from acls.losses import Loss


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
    """Yield the epoch numbers ``start`` to ``total - 1``, and call the hooks of the loss around each epoch.

        for epoch in epochs(loss, model, 10, train_set=train_set, val_set=val_set):
            for x, y, index in loader:
                loss(model(x), y, index=index).backward()
                ...

    ``index`` comes from ``acls.data.indexed.Indexed(train_set)``. ``forward(batch)`` returns logits and target for the
    losses that use a whole split (CaPE, AdaFocal). By default, a batch is ``(x, y, ...)`` on the CPU and is moved to
    the device of the model. To continue after ``start`` epochs, load the state of the loss and of the model: the loss
    then keeps its memory.
    """

    def through(items: Any) -> tuple[Tensor, Tensor]:
        device = next(model.parameters()).device
        return model(items[0].to(device)), items[1].to(device)

    sets = {"train": train_set, "val": val_set}
    loaders = {name: DataLoader(chosen, batch_size=batch) for name, chosen in sets.items() if chosen is not None}
    hooks = _Observing(loss, "val_set=")
    hooks.attach(model, forward or through, loaders.get)
    try:
        if start == 0:
            hooks.prepare()
        loss.to(next((weight.device for weight in model.parameters()), None))
        for number in range(start, total):
            hooks.start_epoch(number, total)
            yield number
            hooks.end_epoch(number, total)
    finally:
        hooks.detach()


class _Observing(LossHooks):
    """Passes each training step to the loss directly after the call; eval mode or no gradients: not a step."""

    def _note(self, loss: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if loss.training and isinstance(output, Tensor) and output.requires_grad:
            super()._note(loss, args, kwargs, output)
            self.observe()
