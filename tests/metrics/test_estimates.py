"""Estimates, tests and comparisons against Monte Carlo, closed forms and known truth; coverage is in benchmarks/."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acls.errors import InputError
from acls.metrics import Blocks, Suite
from acls.metrics.cells import Cells
from acls.metrics.distributions import chi_squared_tail, normal_quantile, normal_tail, student_quantile, student_tail
from acls.metrics.estimates import Gaps, Noise, estimates
from acls.metrics.significance import calibration, compare, over_seeds, ranking
from tests.metrics.made import logits_and_labels


def calibrated(n, k=5, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(k, size=n)
    x = random.standard_normal((n, k))
    x[np.arange(n), labels] += 2
    return torch.from_numpy(2 * x).float(), torch.from_numpy(labels)


def test_the_tails_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    assert normal_quantile() == pytest.approx(stats.norm.ppf(0.975))
    for freedom in (1, 2, 7, 30):
        assert student_tail(2.5, freedom) == pytest.approx(2 * stats.t.sf(2.5, freedom))
        assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom))
        assert chi_squared_tail(3.0, freedom) == pytest.approx(stats.chi2.sf(3.0, freedom))


def test_bias_and_spread_of_absolute_gaps_are_those_of_draws():
    gap, noise = torch.tensor([0.0, 0.5, -2.0]).double(), torch.tensor([1.0, 1.0, 0.5]).double()
    draws = (gap + noise * torch.randn(400_000, 3, generator=torch.Generator().manual_seed(0))).abs().sum(1)
    gaps = Gaps(gap, noise)
    assert gaps.bias(0) == pytest.approx(float(draws.mean() - gap.abs().sum()), abs=0.01)
    assert gaps.deviation() == pytest.approx(float(draws.std()), rel=0.01)


def test_the_ends_are_those_that_the_test_at_the_end_just_allows():
    gaps = Gaps(torch.full((9,), 4.0).double(), torch.ones(9).double())  # far above the noise: the usual interval
    assert gaps.lowest(36.0, 1.96) == pytest.approx((36 - 1.96 * 3, 3), abs=0.05)
    assert gaps.highest(36.0, 1.96) == pytest.approx((36 + 1.96 * 3, 3), abs=0.05)
    noise = Gaps(torch.full((9,), 0.5).double(), torch.ones(9).double())
    assert noise.lowest(4.5, 1.96)[0] == 0


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 60), k=st.sampled_from([2, 3, 12]), seed=st.integers(0, 99))
def test_a_value_is_never_outside_its_own_interval(n, k, seed):
    logits, labels = logits_and_labels(n, k, seed=seed)
    suite = Suite.of(logits, labels, classwise=True)
    for blocks in (None, Blocks.of(logits, labels, unit=torch.arange(n) // 2)):
        for name, one in estimates(suite, blocks).items():
            assert (one.low is None) == (one.high is None), name
            if one.low is not None:
                assert one.low <= one.value <= one.high, name
                assert one.low <= one.debiased <= one.high, name
            elif name in ("ece", "aece", "accuracy"):
                raise AssertionError(name)


@pytest.mark.parametrize("n", [400, 2000])
def test_intervals_of_a_calibrated_model_hold_0_and_those_of_another_do_not(n):
    logits, labels = calibrated(n)
    found = estimates(Suite.of(logits, labels, classwise=True))
    assert all(found[name].low == 0 for name in ("ece", "aece", "classwise_ece", "ks", "smece", "rmsce"))
    sure = estimates(Suite.of(4 * logits, labels, classwise=True))
    assert all(sure[name].low > 0 for name in ("ece", "aece", "ks", "smece", "rmsce"))


def test_few_errors_leave_room_above():
    confidence = torch.full((50,), 0.999)
    ones = torch.ones(50, dtype=torch.long)
    found = estimates(Suite.of_triples(confidence, ones, ones))
    assert found["accuracy"].low == pytest.approx(0.929, abs=1e-3)  # Wilson
    assert found["ece"].high > 0.07


def test_images_make_intervals_wider():
    logits, labels = calibrated(40)
    logits, labels, image = logits.repeat_interleave(25, 0), labels.repeat_interleave(25), torch.arange(1000) // 25
    suite = Suite.of(logits, labels)
    rows, images = estimates(suite), estimates(suite, Blocks.of(logits, labels, unit=image))
    for name in ("accuracy", "nll", "ece"):
        assert images[name].high - images[name].low > 2 * (rows[name].high - rows[name].low), name


def test_one_p_finds_overconfidence_and_spares_the_calibrated():
    logits, labels = calibrated(1000)
    fair, sure = (calibration(Suite.of(z, labels, redraw=True)) for z in (logits, 2 * logits))
    assert fair.p > 0.05
    assert sure.p < 1e-3
    assert fair.combined == ("log", "cox", "classes", "floor")
    assert calibration(Suite.of(logits, labels)).combined == ("spiegelhalter", "ks", "floor")
    blocks = Blocks.of(2 * logits, labels)
    assert calibration(Suite.of(2 * logits, labels), blocks).p < 1e-3


def test_redrawn_labels_do_not_depend_on_how_the_rows_are_cut():
    logits, labels = calibrated(300)
    whole = Suite.of(logits, labels, redraw=True)
    parts = [Suite.of(logits[a:b], labels[a:b], redraw=True, first=a) for a, b in ((0, 7), (7, 190), (190, 300))]
    assert sum(parts).redraws.draws == pytest.approx(whole.redraws.draws, abs=1e-4)
    assert calibration(sum(parts)).p == pytest.approx(calibration(whole).p, abs=1e-6)


def test_redrawn_labels_have_the_mean_and_variance_of_the_probabilities():
    logits, labels = calibrated(400)
    redraws = Suite.of(logits, labels, redraw=True).redraws
    z = redraws.draws / redraws.drawn_variance.sqrt()
    assert float(z.mean(0).abs().max()) < 4 / math.sqrt(len(z))
    assert float((z.var(0) - 1).abs().max()) < 0.5


def counted(logits, labels):
    return Suite.of(logits, labels), Blocks.of(logits, labels)


def test_a_model_does_not_differ_from_itself_and_does_from_a_worse_one():
    logits, labels = calibrated(3000)
    same = compare(counted(logits, labels), counted(logits, labels))
    assert all(same[name].p == 1 for name in ("accuracy", "nll", "ece", "aece", "rmsce"))
    worse = compare(counted(logits, labels), counted(3 * logits, labels))
    for name in ("nll", "brier", "ece", "aece", "rmsce"):
        assert worse[name].high < 0, name
        assert worse[name].low <= worse[name].difference <= worse[name].high
        assert worse[name].p < 1e-3
    assert worse["accuracy"].p == 1
    assert worse["mce"].p is None


def test_models_of_equal_ece_that_err_in_opposite_directions_do_not_differ():
    rejected = 0
    for seed in range(20):
        logits, labels = calibrated(1000, seed=seed)
        found = compare(counted(logits / 0.8, labels), counted(logits / 1.22, labels))
        rejected += found["ece"].p < 0.05
    assert rejected <= 4


def test_models_counted_on_other_samples_are_refused():
    with pytest.raises(InputError, match="same samples"):
        compare(counted(*calibrated(100)), counted(*calibrated(101)))


def test_seeds_are_compared_as_by_a_paired_t_test():
    stats = pytest.importorskip("scipy.stats")
    one, other = [1.0, 2.0, 3.5], [0.2, 0.1, 0.0]
    found = over_seeds(one, other)
    assert found.p == pytest.approx(stats.ttest_rel(one, other).pvalue, abs=1e-6)
    assert over_seeds(one, other, 0.5).p > found.p
    assert over_seeds([1.0], [2.0]).p == 1  # one seed says nothing about others
    assert over_seeds([1.0, 1.0], [0.0, 0.0]).p == 1
    assert over_seeds([1.0, 1.1], [0.0, 0.0], 10.0).needed is None  # more samples, not seeds
    needed = over_seeds([0.0, 1.0], [0.0, 0.0]).needed
    assert over_seeds([0.0, 1.0] * needed, [0.0, 0.0] * needed).p < 0.05


def test_the_best_is_marked_against_all_others_only():
    values = {
        "ce": {0: 5.0, 1: 5.1, 2: 4.9},
        "good": {0: 2.0, 1: 2.0, 2: 1.9},
        "as good": {0: 2.1, 1: 1.9, 2: 2.05},
    }

    def pair(one, other, level):
        return over_seeds(*(list(values[name].values()) for name in (one, other)), level=level)

    found = ranking(values, pair)
    assert found.best == "good"
    assert found.p > 0.05
    assert found.to_baseline["good"].p < 0.05
    del values["as good"]
    assert ranking(values, pair).p < 0.05


def test_too_many_bins_are_refused():
    with pytest.raises(InputError, match="expected 1 to 10000 bins"):
        Suite.of(*calibrated(10), bins=10**9)


def test_weights_that_are_all_the_same_change_neither_interval_nor_test():
    logits, labels = calibrated(600)
    logits, weight = logits / 0.8, torch.full((600,), 1.5)
    suite = Suite.of(logits, labels, sample_weight=weight)
    blocks = Blocks.of(logits, labels, sample_weight=weight)
    plain, weighted = estimates(Suite.of(logits, labels))["ece"], estimates(suite, blocks)["ece"]
    assert (weighted.low, weighted.high) == pytest.approx((plain.low, plain.high), rel=0.02)
    one, other = calibration(Suite.of(logits, labels)).tests, calibration(suite, blocks).tests
    for name in ("spiegelhalter", "cox"):
        assert other[name].statistic == pytest.approx(one[name].statistic, rel=0.02), name


def test_the_interval_of_two_classes_is_that_of_either():
    logits, labels = calibrated(1000, 2)
    probs = (logits / 0.5).softmax(1)
    both = estimates(Suite.of(probs, labels, kind="probs", classwise=True))["classwise_ece"]
    one = estimates(Suite.of_triples(probs[:, 1], torch.ones_like(labels), labels))["ece"]
    assert both.value == pytest.approx(one.value, rel=1e-5)
    assert (both.high - both.low) / (one.high - one.low) == pytest.approx(1, abs=0.2)


def test_the_spread_of_large_gaps_is_that_of_their_mean_over_samples():
    count = torch.tensor([30.0, 70.0]).double()
    noise = Noise(Cells(count, 0.9 * count, 0.5 * count), count, 0.09 * count)
    by_sample = torch.tensor([0.4] * 30 + [0.1] * 70).double()
    size = torch.tensor([0.4 * 0.3, 0.1 * 0.7]).double()
    assert float(noise.drawn(size)) == pytest.approx(float(by_sample.var(correction=0)) / 100)


def test_gaps_of_one_sign_are_told_from_0_by_their_sum():
    size, count = torch.full((15,), 0.04).double(), torch.full((15,), 100.0).double()

    def low(sign):
        held = Cells(count, 0.7 * count, (0.7 - sign * size) * count)
        gaps = Gaps(held.residual / 1500, (0.21 * count).sqrt() / 1500, by_end=Noise(held, count, 0.21 * count))
        value = float(gaps.gap.abs().sum())
        return gaps.lowest(value, 1.645)[0], gaps.lowest(value, 1.645, by_sum=True)[0]

    one_sign, both_signs = low(torch.ones(15)), low((-1.0) ** torch.arange(15))
    assert one_sign[0] == 0 == both_signs[1]
    assert 0 < one_sign[1] < 0.04 - 1.645 * (0.21 / 1500) ** 0.5


def test_value_and_sum_of_a_calibrated_model_err_together_as_often_as_one_test():
    count = torch.full((15,), 100.0).double()
    noise = Noise(Cells(count, 0.7 * count, 0.7 * count), count, 0.21 * count)
    gap = torch.tensor([[0.0], [0.02]]).double().expand(2, 15) / 15 * torch.tensor([1.0, 20.0]).double()[:, None]
    quantile, most = noise.shared(1.96, gap)
    by_sum = float(most[0]) / (0.21 / 1500) ** 0.5
    assert normal_tail(float(quantile[0])) / 2 + normal_tail(by_sum) == pytest.approx(0.025, rel=1e-3)
    assert float(quantile[1]) == pytest.approx(1.96, abs=1e-6)  # far from 0 the sum says nothing, and costs nothing
