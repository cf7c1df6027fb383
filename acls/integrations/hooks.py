"""Call the four hooks of a loss with memory from the training loop of another library.

A loss is an `nn.Module`, so a forward hook on it gets the logits, target and index of each step. Adapters do not need
to know the training step of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from acls import distributed
from acls.errors import InputError
from acls.losses import CE, Epoch, Loss
from acls.losses.base import Regularized
from acls.modules import evaluating

Seen = tuple[Tensor, Tensor, Tensor | None]
"""Logits, target and index of one call of the loss."""
Forward = Callable[[Any], tuple[Tensor, Tensor]]
"""A function that returns the logits and target of a batch."""
Loaders = Callable[[str], Any]
"""A function from "train" or "val" to a data loader, in any order, or to None if there is none."""


def find_loss(module: nn.Module) -> Loss | None:
    """Return the acls loss in a module, or None if there is none; raise an InputError if there are several."""
    found = [part for part in module.modules() if isinstance(part, Loss)]
    inner = {id(below) for part in found for below in part.stack()[1:]}
    outer = [part for part in found if id(part) not in inner]
    if len(outer) > 1:
        raise InputError(f"the module contains {len(outer)} losses, {outer[0]!r} and {outer[1]!r}: pass loss=")
    return outer[0] if outer else None


class LossHooks:
    """Records the calls of a loss, and calls its hooks in the right order.

    ``way_out`` names the argument for the validation set, for the error message if there is none. If there is no acls
    loss, the methods do nothing.
    """

    def __init__(self, loss: Loss | None, way_out: str) -> None:
        self._found, self._way_out = loss, way_out
        self.loss: Loss = CE() if loss is None else loss
        plain = (Loss.keep_mask, Regularized.keep_mask)
        self.numbered = self.loss.needs_index or any(type(part).keep_mask not in plain for part in self.loss.stack())
        """Whether the loss stores values per sample, by the index in the training set."""
        self.seen: list[Seen] = []
        self._prepared = False
        self._handles: list[Any] = []

    def meta(self, **more: object) -> dict[str, str]:
        """Return the metadata stored with the predictions of a validation pass."""
        loss = {} if self._found is None else {"loss": repr(self._found)}
        return {**loss, **{name: str(value) for name, value in more.items()}, "part": "val"}

    def attach(self, model: nn.Module, forward: Forward, loaders: Loaders) -> None:
        """Record the calls of the loss, and whether a saved state is loaded: then `prepare` keeps its memory.

        ``forward`` and ``loaders`` are for losses that use a whole split between epochs.
        """
        self._model, self._forward, self._loaders = model, forward, loaders
        if not self._handles:
            self._handles = [
                self.loss.register_forward_hook(self._note, with_kwargs=True),
                self.loss.register_load_state_dict_pre_hook(self._note_state),  # type: ignore[no-untyped-call]
            ]

    def detach(self) -> None:
        """Stop recording."""
        for handle in self._handles:
            handle.remove()
        self._handles, self.seen = [], []

    def take(self) -> list[Seen]:
        """Return the calls since the last `take`."""
        seen, self.seen = self.seen, []
        return seen

    def prepare(self) -> None:
        """Set up the memory of the training set, once."""
        if not self._prepared and self.numbered:
            dataset: Any = getattr(self._loaders("train"), "dataset", None)
            if not hasattr(dataset, "__len__"):
                raise InputError(
                    f"{self.loss!r} stores values per training sample: expected one DataLoader with a data set of "
                    f"known length, got {type(self._loaders('train')).__name__}"
                )
            device = next((buffer.device for buffer in self.loss.buffers()), None)
            self.loss.prepare(n_train=len(dataset), n_classes=next(iter(self.predict("train")))[0].shape[1])
            self.loss.to(device)
        self._prepared = True

    def predict(self, split: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield logits, target and index of this process's share of a split, in eval mode and in order, each once."""
        loader = self._loaders(split)
        if loader is None:
            raise InputError(f"{self.loss!r} uses a validation set between epochs: pass {self._way_out}")
        numbers = range(distributed.rank(), len(loader.dataset), distributed.world())
        same = {name: getattr(loader, name) for name in ("collate_fn", "num_workers")}
        own: Any = DataLoader(loader.dataset, loader.batch_size or 64, sampler=numbers, **same)
        start = 0
        with evaluating(self._model):
            for batch in own:
                with torch.no_grad():
                    logits, target = self._forward(batch)
                self.take()  # a forward that calls the loss is not a training step
                index = torch.tensor(numbers[start : start + len(target)], device=target.device)
                start += len(target)
                yield logits.float(), target, index

    def start_epoch(self, number: int, total: int) -> None:
        """Call the hook before the first step of an epoch."""
        self.loss.start_epoch(Epoch(number, total, self.predict))
        self.seen = []

    def observe(self) -> None:
        """Pass the recorded calls to the loss, after a step."""
        for logits, target, index in self.take():
            if not self.numbered:
                continue
            if index is None:
                raise InputError(
                    f"{self.loss!r} stores values per training sample: call it as loss(logits, target, index=index) "
                    "with the indices of the samples in the training set; acls.data.indexed.Indexed(dataset) adds "
                    "them to its items"
                )
            self.loss.observe(logits, target, index)

    def end_epoch(self, number: int, total: int) -> None:
        """Call the hook after the last step of an epoch."""
        self.loss.end_epoch(Epoch(number, total, self.predict))
        self.seen = []

    def _note(self, loss: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        names = ("logits", "target", "index")
        given = dict(zip(names, args, strict=False)) | kwargs
        logits, target, index = (given.get(name) for name in names)
        if isinstance(logits, Tensor) and isinstance(target, Tensor):
            self.seen.append((logits.detach(), target.detach(), index))

    def _note_state(self, loss: nn.Module, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        self._prepared = any(key.startswith(prefix) for key in state)
