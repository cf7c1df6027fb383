"""Telling whether two data sets of predictions share rows, without keeping them."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from acls.hashing import STEP, mix64


class Fingerprint:
    """Hashes of a sample of the rows, enough to find rows that two data sets share, in at most 16 MB.

    A row is in the sample if the leading bits of its hash are 0, so two files sample the same rows; when too many are,
    one more bit is asked for.
    """

    LIMIT = 1 << 20

    def __init__(self) -> None:
        self.bits = 0
        self.hashes: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.sorted_labels = True
        self._labels = hashlib.sha256()
        self._last = -(1 << 62)

    @property
    def labels(self) -> str:
        """A hash of all labels in their order."""
        return self._labels.hexdigest()

    def add(self, rows: Tensor, labels: Tensor, distinctive: Tensor) -> None:
        """Take in some rows; those that are not distinctive, as saturated ones are, tell nothing and are not hashed."""
        plain = labels.numpy()
        self._labels.update(plain.tobytes())
        if plain.size:
            self.sorted_labels &= bool((np.diff(plain) >= 0).all()) and int(plain[0]) >= self._last
            self._last = int(plain[-1])
        hashes = _hash_rows(rows[distinctive], labels[distinctive])
        self.hashes = np.concatenate([self.hashes, self._sampled(hashes)])
        while len(self.hashes) > self.LIMIT:
            self.bits += 1
            self.hashes = self._sampled(self.hashes)

    def duplicates(self) -> float:
        """The share of sampled rows that equal an earlier one."""
        return 1 - len(np.unique(self.hashes)) / len(self.hashes) if self.hashes.size else 0.0

    def share_in(self, other: Fingerprint) -> float:
        """The share of these rows that the other has too; 0 if nothing can be compared."""
        bits = max(self.bits, other.bits)
        mine, theirs = self._sampled(self.hashes, bits), other._sampled(other.hashes, bits)
        return float(np.isin(mine, theirs).mean()) if mine.size else 0.0

    def same_labels(self, other: Fingerprint) -> bool:
        """Whether the labels are the same, row for row; False for ascending ones, which often are by chance."""
        return not self.sorted_labels and self.labels == other.labels

    def _sampled(self, hashes: NDArray[np.uint64], bits: int | None = None) -> NDArray[np.uint64]:
        bits = self.bits if bits is None else bits
        return hashes[hashes >> np.uint64(64 - bits) == 0] if bits else hashes


def _hash_rows(rows: Tensor, labels: Tensor) -> NDArray[np.uint64]:
    """A 64-bit hash of each row with its label: a random linear form of their bits, mixed."""
    bits = torch.cat([labels[:, None], rows.float().contiguous().view(torch.int32).long()], 1)
    weights = mix64(torch.arange(1, bits.shape[1] + 1) * STEP) | 1
    hashes: NDArray[np.uint64] = mix64((bits * weights).sum(1)).numpy().view(np.uint64)
    return hashes
