"""The reliability diagram shows what was counted."""

import numpy as np
import pytest

from acls.metrics import Bins, Confidences
from acls.metrics.distributions import wilson
from acls.report.figures.reliability import prepare
from tests.metrics.made import as_triples, confidences
from tests.reference import metrics as oracle


def test_rows_are_the_bins_that_hold_samples():
    confidence, right = confidences(200, seed=1)
    data = prepare(Bins.of_triples(*as_triples(confidence, right)).reliability())
    filled = [mask for mask in oracle.in_bins(confidence, 15) if mask.any()]
    assert len(data.rows) == len(filled) < 15
    for row, mask in zip(data.rows, filled, strict=True):
        assert (row.count, row.confidence) == (mask.sum(), pytest.approx(confidence[mask].mean()))
        assert row.accuracy == pytest.approx(right[mask].mean())
        assert row.low <= row.accuracy <= row.high
    assert data.ece == pytest.approx(oracle.ece(confidence, right, 15))
    assert (data.n, data.accuracy) == (200, pytest.approx(right.mean()))


def test_bins_of_equal_mass_hold_alike():
    confidence, right = confidences(300, seed=1)
    data = prepare(Confidences.of_triples(*as_triples(confidence, right)).reliability(10))
    assert [row.count for row in data.rows] == [30] * 10
    assert data.ece == pytest.approx(oracle.aece(confidence, right, 10))
    assert all(row.lower <= row.confidence <= row.upper for row in data.rows)


def test_wilson_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    for hits, n in ((0, 5), (3, 7), (50, 50), (420, 1000)):
        theirs = stats.binomtest(hits, n).proportion_ci(method="wilson")
        assert wilson(hits / n, n) == pytest.approx((theirs.low, theirs.high), abs=1e-6)
    assert np.isclose(wilson(0, 1)[0], 0)
