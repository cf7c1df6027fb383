"""The difference of two methods: its interval knows of seeds and of samples, and that the samples are the same."""

import statistics
from dataclasses import replace

import pytest
import torch

from acls.metrics import Bins
from acls.predictions import Predictions
from acls.results import Record
from acls.results.details import Details
from acls.study.ranking import difference
from acls.study.runs import evaluated


def study(shifts, seeds=4, n=1500):
    """Rows of methods whose logits are those of one network, stretched, with a little noise per seed."""
    random = torch.Generator().manual_seed(5)
    labels = torch.randint(6, (n,), generator=random)
    base = 1.5 * torch.nn.functional.one_hot(labels, 6) + torch.randn(n, 6, generator=random)
    rows = {}
    for name, stretch in shifts.items():
        for seed in range(seeds):
            scores = stretch * base + 0.05 * torch.randn(n, 6, generator=random)
            found = evaluated(Predictions(scores, labels, "logits"))
            rows.setdefault(name, []).append(Record(name, seed, "none", found, {}))
    return rows


def test_pairing_narrows_the_interval_and_keeps_the_difference():
    rows = study({"a": 1.0, "b": 1.1})
    apart = {
        name: [replace(row, result=replace(row.result, details=Details())) for row in some]
        for name, some in rows.items()
    }
    loose, tight = (difference(some["a"], some["b"], "ece") for some in (apart, rows))
    means = [statistics.fmean(row.result.estimates["ece"].debiased for row in rows[name]) for name in ("a", "b")]
    assert tight.value == loose.value == pytest.approx(means[0] - means[1])
    assert tight.high - tight.low < 0.7 * (loose.high - loose.low)


def test_the_sign_is_that_of_a_clear_difference_only():
    rows = study({"a": 1.0, "same": 1.0, "shouts": 4.0})
    assert difference(rows["shouts"], rows["a"], "ece").sign == 1
    assert difference(rows["a"], rows["shouts"], "ece").sign == -1
    assert difference(rows["a"], rows["same"], "ece").sign == 0


def test_the_samples_share_is_that_of_drawing_new_test_sets():
    """Known truth: the spread of the difference over test sets that are really drawn anew."""
    drawn = []
    for seed in range(80):
        random = torch.Generator().manual_seed(seed)
        labels = torch.randint(6, (1500,), generator=random)
        base = 1.5 * torch.nn.functional.one_hot(labels, 6) + torch.randn(1500, 6, generator=random)
        both = [Bins.of(s * base, labels).summary()["ece"] for s in (4.0, 1.5)]
        drawn.append(both[0] - both[1])
    rows = study({"a": 4.0, "b": 1.5})
    found = difference(rows["a"], rows["b"], "ece")
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(statistics.stdev(drawn), rel=0.35)


def test_methods_without_a_seed_in_common_have_no_difference():
    rows = study({"a": 1.0, "b": 1.1}, seeds=2)
    assert difference(rows["a"][:1], rows["b"][1:], "ece") is None
    assert difference(rows["a"], rows["b"], "nothing") is None
