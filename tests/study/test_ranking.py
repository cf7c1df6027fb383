"""Ranking: the best is marked where samples and seeds both say that it is no chance."""

import math

import pytest
import torch
from scipy import stats

from acls.metrics import Blocks
from acls.metrics.intervals import paired
from acls.study.ranking import rank, swap_test, t_test
from acls.study.store import Row
from tests.study.test_store import NUMBER, ROW


def blocks(scale, seed, n=400):
    """A model whose logits are right in direction; the scale makes it over- or underconfident."""
    random = torch.Generator().manual_seed(seed)
    target = torch.randint(5, (n,), generator=random)
    logits = torch.nn.functional.one_hot(target, 5) + torch.randn(n, 5, generator=random)
    return Blocks.of(scale * logits, target)


def row(method, seed, ece, accuracy=0.9):
    metrics = {"ece": {**NUMBER, "value": ece}, "accuracy": {**NUMBER, "value": accuracy}}
    return Row(**{**vars(ROW), "method": method, "seed": seed, "metrics": metrics})


def of(counted):
    return [row(m, s, found.summary()["ece"], found.summary()["accuracy"]) for (m, s), found in counted.items()]


def test_with_one_seed_the_test_is_the_paired_one():
    one, other = blocks(1.0, 0), blocks(1.3, 0)
    mine, theirs = swap_test([one], [other]), paired(one, other)
    for name in mine.keys() - {"smece"}:  # which has fewer replicates
        assert mine[name] == theirs[name].p


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10])
def test_the_t_test_is_scipys(n):
    values = torch.randn(n, generator=torch.Generator().manual_seed(n)).add(0.5).tolist()
    assert t_test(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-9)


def test_equal_differences_leave_nothing_to_the_seeds():
    assert t_test([0.5, 0.5]) == 0.0
    assert t_test([0.0, 0.0]) == 1.0
    assert t_test([0.3]) == 0.0


def test_a_large_difference_in_all_seeds_is_significant():
    counted = {(m, s): blocks(scale, s) for m, scale in (("fits", 1.2), ("shouts", 8.0)) for s in (1, 2, 3)}
    (ece,) = rank(of(counted), ["ece"], lambda one: counted[one.method, one.seed])
    assert (ece.best, ece.next) == ("fits", "shouts")
    assert ece.significant
    assert ece.difference < 0


def test_methods_that_are_alike_are_not_told_apart():
    counted = {(m, s): blocks(1.2, 10 * i + s) for i, m in enumerate("AB") for s in (1, 2, 3)}
    found = rank(of(counted), ["ece", "accuracy"], lambda one: counted[one.method, one.seed])
    assert len(found) == 2
    assert not any(one.significant for one in found)


def test_what_differs_from_seed_to_seed_is_not_significant_however_many_samples():
    """Each pair differs clearly on its samples, but once one is better, once the other."""
    counted = {("A", 1): blocks(1.2, 1), ("B", 1): blocks(8.0, 1), ("A", 2): blocks(6.0, 2), ("B", 2): blocks(1.2, 2)}
    (ece,) = rank(of(counted), ["ece"], lambda one: counted[one.method, one.seed])
    assert not ece.significant


def test_higher_accuracy_is_better_and_lower_error():
    rows = [row("A", 1, 0.1, accuracy=0.9), row("B", 1, 0.2, accuracy=0.95)]
    found = {one.metric: one.best for one in rank(rows, ["ece", "accuracy"], lambda one: blocks(1.0, 0))}
    assert found == {"ece": "A", "accuracy": "B"}


def test_p_values_are_corrected_for_all_that_were_ranked():
    counted = {(m, 1): blocks(scale, 1) for m, scale in (("A", 1.0), ("B", 1.25))}
    found = rank(of(counted), ["ece", "nll", "accuracy"], lambda one: counted[one.method, one.seed])
    plain = swap_test([counted["A", 1]], [counted["B", 1]])
    assert min(one.p for one in found) >= min(1.0, 2 * min(plain["ece"], plain["accuracy"])) - 1e-12


def test_one_method_alone_is_not_ranked():
    assert rank([row("A", 1, 0.1)], ["ece"], lambda one: blocks(1.0, 0)) == []


def test_only_seeds_that_both_have_are_compared():
    rows = [row("A", 1, 0.1), row("A", 2, 0.1), row("B", 2, 0.3)]
    (ece,) = rank(rows, ["ece"], lambda one: blocks(1.0, one.seed))
    assert math.isclose(ece.difference, -0.2)
