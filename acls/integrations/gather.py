"""Collect the predictions of a validation pass in bounded memory: sums for every metric, and a sample of rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acls import distributed
from acls.data.keyed_random import uniform
from acls.metrics import Suite
from acls.metrics.bins import BINS
from acls.metrics.catalogue import names
from acls.metrics.significance import noise_floor
from acls.predictions import Predictions
from acls.shapes import IGNORE_INDEX, flatten

KEEP = 2**26
"""Number of scores kept for the file and the report: 256 MB of float32, all of ImageNet's validation part."""
_REPLICATES = 100  # the relative error of the mean is about 3 %, which is enough for a log


class Gathered:
    """Counts logits and targets batch by batch, and keeps a sample of rows with at most ``keep`` scores."""

    def __init__(self, *, bins: int = BINS, ignore_index: int = IGNORE_INDEX, keep: int = 0) -> None:
        self.bins, self.ignore_index, self.keep = bins, ignore_index, keep
        self.suite: Suite | None = None
        self.positions = self._seen = 0
        self.dense = False
        self._rows: list[tuple[Tensor, Tensor, Tensor]] = []
        self._held = 0

    def add(self, logits: Tensor, target: Tensor, *, unit: Tensor | None = None) -> None:
        """Count a batch; ``unit`` holds the sample numbers in the data set, which set the order of the kept rows."""
        if len(target) == 0:
            return
        counted = Suite.of(logits, target, kind="logits", ignore_index=self.ignore_index, bins=self.bins)
        self.suite = counted if self.suite is None else self.suite + counted
        if unit is None:
            unit = torch.arange(self.positions, self.positions + len(target))
        self.positions += len(target)
        self.dense = logits.ndim > 2
        if self.keep:
            self._hold(logits, target, unit.cpu())

    def add_shared(self, logits: Tensor, target: Tensor, sampler: Any) -> None:
        """Count a batch of this process's share of the data, without the samples that its sampler repeats.

        A distributed sampler gives process r the samples r, r + world, ...; after the last, it repeats the first.
        """
        here = torch.arange(self._seen, self._seen + len(target))
        self._seen += len(target)
        if hasattr(sampler, "num_replicas"):
            number = sampler.rank + sampler.num_replicas * here
            fresh = number < len(sampler.dataset)
            self.add(logits[fresh], target[fresh], unit=number[fresh])
        else:
            self.add(logits, target, unit=distributed.rank() + distributed.world() * here)

    def all_reduce(self, device: torch.device | str = "cpu") -> Gathered:
        """Merge the results of all processes; they communicate over ``device``. A process may have no samples."""
        if distributed.world() == 1:
            return self
        own = 0 if self.suite is None else self.suite.n_classes or 0
        facts = distributed.all_gather(torch.tensor([[own, self.positions, int(self.dense)]], device=device))
        whole = Gathered(bins=self.bins, ignore_index=self.ignore_index, keep=self.keep)
        whole.positions, whole.dense = int(facts[:, 1].sum()), bool(facts[:, 2].any())
        n_classes = int(facts[:, 0].max())
        if n_classes == 0:
            return whole
        empty = torch.zeros(0, n_classes, device=device)
        suite = self.suite or Suite.of(empty, empty[:, 0].long(), bins=self.bins)
        whole.suite = suite.to(device).all_reduce()
        if self.keep:
            logits, target, number = (distributed.all_gather(part.to(device)).cpu() for part in self._kept(n_classes))
            whole._rows = [(logits, target, number)]
            whole._thin()
        return whole

    def summary(self) -> dict[str, float]:
        """Return the logged metrics, and ``ece_floor``: the ECE of a calibrated model with these confidences."""
        if self.suite is None or self.suite.n == 0:
            return {}
        found = self.suite.summary()
        floor = noise_floor(self.suite, replicates=_REPLICATES)["ece"].mean
        return {**{name: found[name] for name in names(2) if name in found}, "ece_floor": floor}

    def predictions(self, *, meta: dict[str, str] | None = None) -> Predictions:
        """Return the kept rows in sample order; pixels carry the number of their image."""
        logits, target, number = self._kept()
        order = number[:, 0].argsort(stable=True)
        image = number[order, 0] if self.dense else None
        return Predictions(logits[order], target[order], "logits", image=image, meta=meta or {})

    def save(self, path: str | os.PathLike[str] | None, *, meta: dict[str, str] | None = None) -> None:
        """Write the kept rows, if there is a path."""
        if path is not None:
            self.predictions(meta=meta).save(path)

    def report(self, path: str | os.PathLike[str] | None, *, meta: dict[str, str] | None = None) -> None:
        """Write the report of the kept rows as one HTML file, if there is a path."""
        from acls.front import write_report

        if path is not None:
            write_report(Path(path), self.predictions(meta=meta), title=(meta or {}).get("loss", "model"))

    def _hold(self, logits: Tensor, target: Tensor, unit: Tensor) -> None:
        at = flatten(logits, target, ignore_index=self.ignore_index)
        per_unit = at.logits.shape[0] // max(len(unit), 1)
        place = torch.arange(per_unit).repeat(len(unit))
        number = torch.stack([unit.repeat_interleave(per_unit), place], 1)
        if at.valid is not None:
            number = number[at.valid.cpu()]
        rows = at.compact()
        self._rows.append((rows.logits.cpu(), rows.target.cpu(), number))
        self._held += rows.logits.numel()
        if self._held > 1.25 * self.keep:  # not each time, because thinning processes all kept rows
            self._thin()

    def _thin(self) -> None:
        """Keep the rows with the smallest hashes: a random sample that does not depend on batches or processes."""
        logits, target, number = self._kept()
        most = max(1, self.keep // logits.shape[1])
        if len(target) > most:
            chance = uniform(0, 0, number[:, 0] * 1_000_003 + number[:, 1], 1)[:, 0]
            chosen = chance.argsort(stable=True)[:most].sort().values
            logits, target, number = logits[chosen], target[chosen], number[chosen]
        self._rows, self._held = [(logits, target, number)], logits.numel()

    def _kept(self, n_classes: int = 2) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows that are held; an empty result has ``n_classes`` columns."""
        nothing = (torch.zeros(0, n_classes), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2, dtype=torch.int64))
        logits, target, number = (torch.cat(parts) for parts in zip(*(self._rows or [nothing]), strict=True))
        return logits, target, number
