"""After deployment: `doctor` examines a file of predictions, `drift` new data, `shift` corrupted test images."""

from __future__ import annotations

from dataclasses import dataclass

from acls.options import option


@dataclass(frozen=True)
class Limits:
    """From where on `acls.watch.drift` raises an alarm: a difference must be beyond chance, and large."""

    alpha: float = option(0.01, "how often data that has not drifted may raise an alarm", within="(0, 1)")
    psi: float = option(0.1, "population stability index from which on a difference matters", within="[0, inf)")
    drop: float = option(0.02, "fall of the accuracy from which on it matters", within="[0, 1]")
    label_shift: float = option(0.1, "share of samples with another class from which on it matters", within="[0, 1]")
