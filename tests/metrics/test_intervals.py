"""What a number is worth: floors, intervals and tests, against known truth."""

import math

import numpy as np
import pytest
import torch

from acls.errors import InputError
from acls.metrics import Blocks, Suite
from acls.metrics.intervals import bootstrap, calibration_tests, holm, noise_floor, paired, poisson_weights
from tests.metrics.made import as_triples, confidences, logits_and_labels
from tests.reference import metrics as oracle


def calibrated(n, seed, gap=0.0):
    """Triples whose hits come with probability confidence - gap * confidence."""
    return as_triples(*confidences(n, seed=seed, gap=gap))


def test_the_floor_is_what_relabelling_gives():
    """The simulation by cells against the plain one, sample by sample."""
    confidence, right = confidences(400, seed=1)
    floors = noise_floor(Suite.of_triples(*as_triples(confidence, right)), replicates=2000)
    random = np.random.default_rng(0)
    drawn = [(random.random(400) < confidence).astype(float) for _ in range(400)]
    plain = {
        "ece": [oracle.ece(confidence, y, 15) for y in drawn],
        "mce": [oracle.mce(confidence, y, 15) for y in drawn],
        "rmsce": [oracle.rmsce(confidence, y, 15) for y in drawn],
        "aece": [oracle.aece(confidence, y, 15) for y in drawn[:100]],
        "ks": [oracle.ks(confidence, y) for y in drawn[:100]],
    }
    for name, values in plain.items():
        error = np.std(values) / math.sqrt(len(values))
        assert floors[name].mean == pytest.approx(np.mean(values), abs=4.5 * error), name
        assert floors[name].low < floors[name].mean < floors[name].high
    assert floors["ece"].high == pytest.approx(np.quantile(plain["ece"], 0.975), rel=0.15)


def test_the_floor_of_the_classwise_error():
    logits, _ = logits_and_labels(300, 4)
    probs = (logits / 8).softmax(1)
    random = torch.Generator().manual_seed(0)
    drawn = [torch.multinomial(probs, 1, generator=random)[:, 0] for _ in range(150)]
    plain = [oracle.classwise_ece(probs.numpy(), labels.numpy(), 15) for labels in drawn]
    floor = noise_floor(Suite.of(probs, drawn[0], kind="probs", classwise=True))["classwise_ece"]
    assert floor.mean == pytest.approx(np.mean(plain), rel=0.03)


def test_the_floor_falls_with_the_square_root_of_n():
    few, many = (noise_floor(Suite.of_triples(*calibrated(n, 0)))["ece"].mean for n in (1000, 100_000))
    assert few / many == pytest.approx(10, rel=0.2)


def test_large_sets_are_simulated_in_groups():
    suite = Suite.of_triples(*calibrated(50_000, 0))
    floor = noise_floor(suite, replicates=500)["ece"]
    # Of bin b the residual is normal with variance Σ p (1 - p), so the mean is Σ √(2 var / π) / n.
    confidence = calibrated(50_000, 0)[0].numpy()
    expected = sum(
        math.sqrt(2 * (confidence[m] * (1 - confidence[m])).sum() / math.pi) for m in oracle.in_bins(confidence, 15)
    )
    assert floor.mean == pytest.approx(expected / 50_000, rel=0.03)


def test_intervals_are_reproducible_and_leave_the_global_seed_alone():
    logits, labels = logits_and_labels(300, 4)
    blocks = Blocks.of(logits, labels, classwise=True)
    torch.manual_seed(5)
    before = torch.rand(3)
    torch.manual_seed(5)
    first = bootstrap(blocks, replicates=100)
    assert torch.equal(torch.rand(3), before)
    assert bootstrap(blocks, replicates=100) == first
    assert bootstrap(blocks, replicates=100, seed=1) != first


def test_intervals_hold_the_value_and_stay_in_range():
    logits, labels = logits_and_labels(400, 4)
    summary = Suite.of(logits, labels, classwise=True).summary()
    intervals = bootstrap(Blocks.of(logits, labels, classwise=True), around=summary)
    assert {"accuracy", "nll", "brier", "ece", "aece", "classwise_ece", "mce", "rmsce", "ks", "smece"} <= set(intervals)
    for name, interval in intervals.items():
        assert interval.value == summary[name]
        assert 0 <= interval.low <= interval.high
        if name in ("accuracy", "nll", "brier"):
            assert interval.low < interval.value < interval.high
    error = math.sqrt(summary["accuracy"] * (1 - summary["accuracy"]) / 400)
    width = intervals["accuracy"].high - intervals["accuracy"].low
    assert width == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_a_calibrated_model_may_have_no_error_at_all():
    held = [bootstrap(Blocks.of_triples(*calibrated(2000, seed)), replicates=200)["ece"].low == 0 for seed in range(8)]
    assert sum(held) >= 7


def test_an_interval_reaches_further_down_than_up_where_noise_only_adds():
    """Replicates of an ECE lie above it: taken for the interval itself, they would double the bias."""
    for seed in range(3):
        interval = bootstrap(Blocks.of_triples(*calibrated(3000, seed, gap=0.06)), replicates=300)["ece"]
        assert interval.value - interval.low > 1.2 * (interval.high - interval.value)


def test_pixels_of_an_image_stay_together():
    """Copies of a sample add nothing: resampling them as one must give the width of the originals."""
    confidence, right = confidences(300, seed=4)
    plain = bootstrap(Blocks.of_triples(*as_triples(confidence, right)))["accuracy"]
    many = as_triples(np.repeat(confidence, 20), np.repeat(right, 20))
    naive = bootstrap(Blocks.of_triples(*many))["accuracy"]
    by_image = bootstrap(Blocks.of_triples(*many, unit=torch.arange(300).repeat_interleave(20)))["accuracy"]
    assert by_image.high - by_image.low == pytest.approx(plain.high - plain.low, rel=1e-6)
    assert naive.high - naive.low < 0.3 * (plain.high - plain.low)


def test_dense_maps_are_resampled_as_maps():
    logits, labels = logits_and_labels(6 * 20, 3)
    maps, target = logits.view(6, 4, 5, 3).movedim(-1, 1), labels.view(6, 4, 5)
    one = Blocks.of(maps, target)
    assert one.used == 6
    other = Blocks.of(logits, labels, unit=torch.arange(6).repeat_interleave(20))
    assert torch.allclose(one.cells, other.cells)


def test_one_unit_has_no_interval():
    logits, labels = logits_and_labels(30, 3)
    with pytest.raises(InputError, match="at least 2"):
        bootstrap(Blocks.of(logits, labels, unit=torch.zeros(30, dtype=torch.long)))


@pytest.mark.parametrize("units", [2, 3, 5, 8])
def test_few_units_have_intervals_without_nan(units):
    """By chance a resample leaves them all out: of two units, more than one in eight do."""
    logits, labels = logits_and_labels(30, 4)
    blocks = Blocks.of(logits, labels, unit=torch.arange(30) % units, classwise=True)
    for name, interval in bootstrap(blocks).items():
        assert 0 <= interval.low <= interval.high, name
    for name, found in paired(blocks, Blocks.of(2 * logits, labels, unit=torch.arange(30) % units)).items():
        assert found.low <= found.high, name


def test_only_resamples_without_a_sample_are_drawn_again():
    logits, labels = logits_and_labels(30, 4)
    few = Blocks.of(logits, labels, unit=torch.arange(30) % 3)
    weights = poisson_weights(few, 500, 7)
    plain = torch.poisson(torch.ones(500, 1024, dtype=torch.float64), generator=torch.Generator().manual_seed(7))
    kept = plain[:, :3].sum(1) > 0
    assert 0 < int((~kept).sum()) < 100
    assert torch.equal(weights[kept], plain[kept])
    assert bool((weights[:, :3].sum(1) > 0).all())


def test_one_unit_is_not_compared():
    logits, labels = logits_and_labels(30, 3)
    blocks = Blocks.of(logits, labels, unit=torch.zeros(30, dtype=torch.long))
    with pytest.raises(InputError, match=r"1 unit, but a comparison needs at least 2.*--bootstrap 0"):
        paired(blocks, blocks)


def test_an_infinite_difference_is_not_taken_for_significant():
    """Swapping moves the infinity from one model to the other, and the difference stays as large."""
    probs = logits_and_labels(40, 3)[0].softmax(1)
    labels = probs.argmax(1)
    sure = probs.clone()
    sure[5] = torch.nn.functional.one_hot((labels[5] + 1) % 3, 3).to(probs)
    found = paired(Blocks.of(sure, labels, kind="probs"), Blocks.of(probs, labels, kind="probs"), replicates=50)["nll"]
    assert (found.difference, found.p) == (math.inf, 1.0)
    assert math.isnan(found.low)


def test_without_smooth_ece_all_else_is_the_same():
    logits, labels = logits_and_labels(300, 4)
    blocks, suite = Blocks.of(logits, labels, classwise=True), Suite.of(logits, labels, classwise=True)
    for all_of_it, rest in (
        (bootstrap(blocks, replicates=50), bootstrap(blocks, replicates=50, smooth=False)),
        (noise_floor(suite, replicates=50), noise_floor(suite, replicates=50, smooth=False)),
    ):
        del all_of_it["smece"]
        assert rest == all_of_it


def test_a_streamed_bootstrap_is_that_of_the_whole():
    logits, labels = logits_and_labels(500, 4)
    whole = bootstrap(Blocks.of(logits, labels), replicates=50)
    parts = [Blocks.of(logits[i : i + 64], labels[i : i + 64], first=i) for i in range(0, 500, 64)]
    streamed = bootstrap(sum(parts), replicates=50)
    for name, interval in whole.items():
        assert streamed[name].low == pytest.approx(interval.low, abs=1e-9), name


def test_paired_finds_a_difference_that_separate_intervals_hide():
    logits, labels = logits_and_labels(2000, 5)
    logits = logits / 8
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    worse = logits + 0.1 * noise
    first, second = Blocks.of(worse, labels, classwise=True), Blocks.of(logits, labels, classwise=True)
    found = paired(first, second)["nll"]
    assert found.low > 0
    assert 0 < found.p < 0.01, "chance is never ruled out by so many permutations"
    alone = bootstrap(first)["nll"], bootstrap(second)["nll"]
    assert alone[0].low < alone[1].high, "apart, the intervals overlap"


def test_a_model_does_not_differ_from_itself():
    logits, labels = logits_and_labels(300, 4)
    blocks = Blocks.of(logits, labels, classwise=True)
    for name, found in paired(blocks, blocks, replicates=100).items():
        assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1), name


def test_paired_needs_the_same_samples():
    logits, labels = logits_and_labels(300, 4)
    with pytest.raises(InputError, match="not counted on the same samples"):
        paired(Blocks.of(logits, labels), Blocks.of(logits[:299], labels[:299]))


@pytest.mark.slow
def test_under_no_difference_p_values_are_uniform():
    """Two models whose logits are the same but for independent noise of one size differ by chance only."""
    found = []
    for seed in range(60):
        random = torch.Generator().manual_seed(seed)
        logits = torch.randn(300, 4, generator=random, dtype=torch.float64) * 2
        labels = torch.multinomial(logits.softmax(1), 1, generator=random)[:, 0]
        noisy = [logits + torch.randn(300, 4, generator=random, dtype=torch.float64) for _ in range(2)]
        one, other = (Blocks.of(z, labels) for z in noisy)
        found.append(paired(one, other, replicates=200)["ece"].p)
    assert np.mean(np.array(found) < 0.05) <= 0.15
    assert 0.35 < np.mean(found) < 0.65


def test_tests_of_calibration_reject_what_they_should():
    for name, found in calibration_tests(Suite.of_triples(*calibrated(5000, 0, gap=0.1))).items():
        assert found.p < 1e-6, name


def test_p_values_of_calibrated_models_are_uniform():
    found = [calibration_tests(Suite.of_triples(*calibrated(1000, seed))) for seed in range(300)]
    for name in ("spiegelhalter", "ks"):
        p = np.array([one[name].p for one in found])
        assert np.mean(p < 0.05) == pytest.approx(0.05, abs=0.03), name
        assert np.mean(p) == pytest.approx(0.5, abs=0.06), name


def test_certainty_leaves_nothing_to_chance():
    right = torch.ones(10)
    sure = calibration_tests(Suite.of_triples(*as_triples(torch.ones(10), right)))
    assert {one.p for one in sure.values()} == {1.0}
    right[3] = 0
    wrong = calibration_tests(Suite.of_triples(*as_triples(torch.ones(10), right)))
    assert {one.p for one in wrong.values()} == {0.0}


def test_holm():
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.slow
def test_a_calibrated_model_is_within_its_floor_in_95_of_100():
    inside = 0
    for seed in range(200):
        suite = Suite.of_triples(*calibrated(2000, seed))
        floor = noise_floor(suite, replicates=500, seed=seed)["ece"]
        inside += floor.low <= suite.bins.ece <= floor.high
    # 200 draws at 95 %: within three standard errors, 4.6 points, of it.
    assert inside / 200 == pytest.approx(0.95, abs=0.046)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "gap"), [(2000, 0.1), (10_000, 0.1), (10_000, 0.03)])
def test_the_interval_covers_the_truth_of_a_known_miscalibration(n, gap):
    truth = np.abs(gap * confidences(2_000_000, seed=999)[0]).mean()  # overconfident everywhere, so no bin cancels
    covered = 0
    for seed in range(200):
        interval = bootstrap(Blocks.of_triples(*calibrated(n, seed, gap=gap)), replicates=300, seed=seed)["ece"]
        covered += interval.low <= truth <= interval.high
    assert covered / 200 == pytest.approx(0.95, abs=0.06)
