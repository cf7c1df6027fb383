"""Ranking: the best is marked where samples and seeds both say that it is no chance."""

import math

import pytest
import torch
from scipy import stats

from acls.metrics import Blocks
from acls.metrics.intervals import paired
from acls.study.ranking import difference, rank, swap_test, t_test
from acls.study.store import Row
from tests.study.test_store import NUMBER, ROW


def blocks(scale, seed, n=400):
    """A model whose logits are right in direction; the scale makes it over- or underconfident."""
    random = torch.Generator().manual_seed(seed)
    target = torch.randint(5, (n,), generator=random)
    logits = torch.nn.functional.one_hot(target, 5) + torch.randn(n, 5, generator=random)
    return Blocks.of(scale * logits, target)


def row(method, seed, ece, accuracy=0.9, n=540):
    metrics = {"ece": {**NUMBER, "value": ece}, "accuracy": {**NUMBER, "value": accuracy}}
    return Row(**{**vars(ROW), "method": method, "seed": seed, "n": n, "metrics": metrics})


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


def test_equal_differences_are_no_proof():
    assert t_test([0.5, 0.5]) == 1.0
    assert t_test([0.0, 0.0]) == 1.0
    assert t_test([0.3 - 0.1, 0.2]) == 1.0  # the same but for the last bit


def test_one_seed_leaves_the_verdict_to_the_samples():
    assert t_test([0.3]) == 0.0


def test_counts_deviate_by_their_rounding_at_least():
    """The t of equal differences is their number of steps by the deviation of rounding two counts, 1 / √6 steps."""
    t = 7 * math.sqrt(6) * math.sqrt(2)
    assert t_test([7 / 539, 7 / 539], resolution=1 / 539) == pytest.approx(2 * stats.t.sf(t, 1), rel=1e-9)
    assert t_test([7 / 539, 2 / 539], resolution=1 / 539) == t_test([7 / 539, 2 / 539])
    assert t_test([0.0, 0.0], resolution=1 / 539) == 1.0


def test_the_interval_of_equal_counts_has_a_width():
    plain = {"low": None, "high": None}  # nothing of the samples, so that all is of the seeds
    rows = {m: [row(m, s, 0.1, (hits + s) / 539, 539) for s in (0, 3)] for m, hits in (("CE", 527), ("ACLS", 534))}
    for one in (*rows["CE"], *rows["ACLS"]):
        one.metrics["accuracy"].update(plain)
    found = difference(rows["ACLS"], rows["CE"], "accuracy")
    width = stats.t.ppf(0.975, 1) / (539 * math.sqrt(6)) / math.sqrt(2)
    assert found.high - found.value == pytest.approx(width, rel=1e-6)


@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_rounding_to_counts_makes_no_false_alarms(seeds, spread):
    random = torch.Generator().manual_seed(seeds)
    counts = (500 + spread * torch.randn(2, 2000, seeds, generator=random)).round()
    alarms = [t_test(one, resolution=1.0) < 0.05 for one in (counts[0] - counts[1]).tolist()]
    assert sum(alarms) / len(alarms) < 0.06


@pytest.mark.parametrize(("n", "significant"), [(539, False), (5390, True)])
def test_accuracies_are_ranked_as_counts_of_the_samples(n, significant):
    """The hits differ by 2 or 20 in both seeds: one sample's rounding counts the less, the more samples there are."""
    values = {"CE": (0.97, 0.98), "ACLS": (0.97 + 2 / 539, 0.98 + 2 / 539)}
    rows = [row(m, s, 0.1, accuracy, n) for m, both in values.items() for s, accuracy in enumerate(both)]
    logits, target = torch.tensor([[0.0, 1.0]]).expand(n, 2), torch.ones(n, dtype=torch.long)
    # All right against all wrong: the samples leave no doubt, so that the seeds decide.
    counted = {"CE": Blocks.of(-logits, target), "ACLS": Blocks.of(logits, target)}
    (found,) = rank(rows, ["accuracy"], lambda one: counted[one.method])
    assert found.best == "ACLS"
    assert found.significant == significant


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
