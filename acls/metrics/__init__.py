"""Calibration metrics from sums that can be merged over batches, with estimates, intervals and tests."""

from acls.metrics.bins import Bins, Reliability
from acls.metrics.classwise import ClassProbabilities, ClasswiseBins, Confusion
from acls.metrics.confidences import Confidences
from acls.metrics.proper import Proper
from acls.metrics.resampling import Blocks
from acls.metrics.suite import Suite
from acls.metrics.tally import TALLIES, Tally

__all__ = [
    "TALLIES", "Bins", "Blocks", "ClassProbabilities", "ClasswiseBins", "Confidences", "Confusion", "Proper",
    "Reliability", "Suite", "Tally",
]  # fmt: skip
