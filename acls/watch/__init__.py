"""Checks for deployment: `doctor` examines a file of predictions, `drift` new data, `shift` corrupted test images."""

from __future__ import annotations

from dataclasses import dataclass

from acls.options import option


@dataclass(frozen=True)
class Limits:
    """Thresholds for an alarm of `acls.watch.drift`: a difference must be beyond chance, and large."""

    alpha: float = option(0.01, "probability of an alarm for data without drift", within="(0, 1)")
    psi: float = option(0.1, "smallest population stability index that matters", within="[0, inf)")
    drop: float = option(0.02, "smallest drop in accuracy that matters", within="[0, 1]")
    label_shift: float = option(0.1, "smallest share of samples with a changed class that matters", within="[0, 1]")
