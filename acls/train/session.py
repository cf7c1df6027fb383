"""The objects that a recipe describes (data, network, loss, optimiser), and the training and evaluation steps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from acls import distributed
from acls.calibrators import MCDropout
from acls.data.augment import mix
from acls.data.dataset import Draw, Part, SampleBatch, batches, in_order
from acls.data.keyed_random import generator
from acls.models import build_model
from acls.models.weights import sha256
from acls.recipes import Recipe
from acls.train.setup import Given, build_optimizer, check, make_fabric


class Session:
    """The data, network, loss and optimiser of a recipe on their devices. Uses the global generator of torch."""

    def __init__(self, recipe: Recipe, *, show: bool = False, given: Given | None = None) -> None:
        """Build all objects; with ``show``, print which tensors of a weights file were not loaded."""
        self.recipe = recipe
        self.fabric = make_fabric(recipe)
        self.fabric.launch()
        torch.manual_seed(recipe.seed)  # the same initial weights in all processes
        given = given or Given()
        self.data = given.data(options=recipe.data, seed=recipe.seed)
        check(recipe, self.data)
        shape, left_out = self.data.train[0][0].shape, list[str]()
        self.model = build_model(
            recipe.model, n_classes=self.data.n_classes, channels=shape[0], say=left_out.append, factory=given.model
        )
        if show and self.fabric.is_global_zero:
            print(*left_out, sep="\n", end="\n" if left_out else "")
        file = recipe.model.weights
        self.weights = None if file is None else {"sha256": sha256(file), "left_out": "".join(left_out)}
        if len(shape) == 3:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss = recipe.loss.build(ignore_index=self.data.void)
        self.loss.prepare(n_train=len(self.data.train), n_classes=self.data.n_classes)
        self.loss.to(self.fabric.device)
        self.optimizer = build_optimizer(recipe.optim, self.model)
        compiled = torch.compile(self.model) if recipe.compile else self.model
        # The wrapped modules are trained; self.model keeps the same weights under their original names.
        self.wrapped, self.stepper = self.fabric.setup(compiled, self.optimizer)
        average = get_ema_multi_avg_fn(recipe.ema)  # type: ignore[no-untyped-call]
        self.average = AveragedModel(self.model, multi_avg_fn=average, use_buffers=True) if recipe.ema else None
        torch.manual_seed(recipe.seed + distributed.rank())

    @property
    def judged(self) -> nn.Module:
        """The network that is evaluated and saved: the averaged network if there is one."""
        return self.model if self.average is None else self.average.module

    def draws(self, epoch: int) -> list[Draw]:
        """Return this process's share of each batch of an epoch, in random order, of samples that the loss keeps."""
        recipe, numbers = self.recipe, torch.arange(len(self.data.train))
        mask = self.loss.keep_mask()
        if mask is not None:
            numbers = numbers[mask.cpu()]
        order = numbers[torch.randperm(len(numbers), generator=generator(recipe.seed, epoch))]
        rank, world = distributed.rank(), distributed.world()
        whole = [order[start : start + recipe.batch] for start in range(0, len(order), recipe.batch)]
        # All processes skip a batch that is too small to give every process a sample.
        least = recipe.batch if recipe.drop_last and len(whole) > 1 else world
        kept = [batch for batch in whole if len(batch) >= least][: recipe.limit_batches]
        return [Draw(share := batch[rank::world], epoch, len(share) * world / len(batch)) for batch in kept]

    def step(self, batch: SampleBatch, epoch: int, number: int, weight: float = 1.0) -> Tensor:
        """Do one optimiser step; return batch sums: loss times samples, hits, labelled positions, samples."""
        recipe, options = self.recipe, self.recipe.data
        x, y, index = (part.to(self.fabric.device, non_blocking=True) for part in batch)
        target = y
        if options.mix != "none":
            random = generator(recipe.seed, epoch, number, distributed.rank())
            x, target = mix(x, y, options, self.data.n_classes, random)
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        count = len(x)
        size = -(-count // recipe.accumulate)
        total = x.new_zeros(())
        outputs = []
        for start in range(0, count, size):
            cut = slice(start, start + size)
            with self.fabric.no_backward_sync(self.wrapped, enabled=start + size < count):
                logits = self.wrapped(x[cut])
                value = self.loss(logits, target[cut], index=index[cut])
                share = len(x[cut]) / count
                self.fabric.backward(value * (share * weight))
            total = total + value.detach() * share
            outputs.append(logits.detach())
        if recipe.clip is not None:
            self.fabric.clip_gradients(self.wrapped, self.stepper, max_norm=recipe.clip, error_if_nonfinite=False)
        self.stepper.step()
        self.stepper.zero_grad()
        if self.average is not None:
            self.average.update_parameters(self.model)
        logits = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        self.loss.observe(logits, y, index)
        valid = y != self.data.void
        hits = (logits.argmax(1) == y) & valid
        return torch.stack([total.double() * count, hits.sum(), valid.sum(), total.new_tensor(count)])

    def outputs(self, part: Part, *, model: nn.Module | None = None, passes: int = 0) -> Iterator[SampleBatch]:
        """Yield float32 logits, target and index of this process's share of a part, in eval mode and in order.

        With ``passes``, yield log-probabilities averaged over this many passes with dropout instead of logits.
        """
        model = self.judged if model is None else model
        model.eval()
        draws = in_order(part, self.recipe.eval_batch, first=distributed.rank(), step=distributed.world())
        draws = draws[: self.recipe.limit_batches]
        pin = self.fabric.device.type == "cuda"
        for x, y, index in batches(part.plain(), draws, workers=self.recipe.data.workers, pin=pin):
            if x.ndim == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            with torch.no_grad(), self.fabric.autocast():
                x = x.to(self.fabric.device)
                # Seeded per batch, so that the same network gives the same predictions again.
                run = MCDropout(model, passes, seed=int(index[0])) if passes else model
                logits = run(x)
            yield logits.float(), y.to(self.fabric.device), index.to(self.fabric.device)

    def predict(self, split: str) -> Iterator[SampleBatch]:
        """Yield the outputs of a split, as `acls.losses.Epoch` offers them to losses with memory."""
        yield from self.outputs(self.data.parts()[split], model=self.model)
        self.model.train()

    def agree_on_buffers(self) -> None:
        """Copy the running statistics of the first process to all: each process has seen only its own samples."""
        for buffer in self.model.buffers():
            own = buffer if distributed.rank() == 0 else torch.zeros_like(buffer)
            buffer.copy_(distributed.all_reduce(own))
