"""Temperature scaling reaches the optimum from anywhere, and says so where there is none."""

import json
import math

import numpy as np
import pytest
import torch

from acls.calibrators import Temperature
from acls.errors import InputError
from tests.calibrators.synthetic import overconfident
from tests.conftest import GOLDEN


def nll_at(logits, target, temperature):
    return float(torch.nn.functional.cross_entropy(logits.double() / temperature, target))


def slow_optimum(logits, target):
    """Golden-section search for the least NLL over log T in float64: the second opinion."""
    spread = float(logits.double().std())
    low, high = math.log(1e-4 * spread), math.log(1e4 * spread)
    ratio = (math.sqrt(5) - 1) / 2
    while high - low > 1e-9:
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        if nll_at(logits, target, math.exp(a)) < nll_at(logits, target, math.exp(b)):
            high = b
        else:
            low = a
    return math.exp((low + high) / 2)


def golden_logits():
    i, j = torch.arange(300.0, dtype=torch.float64)[:, None], torch.arange(5.0, dtype=torch.float64)
    scale = torch.where(i % 3 == 0, 0.25, 1.0)
    return scale * (4 * torch.sin(1.7 * i + 2.3 * j) + 2.5 * torch.cos(0.37 * i * (j + 1)))


@pytest.fixture(scope="module")
def golden():
    told = json.loads(GOLDEN.read_text())
    return golden_logits(), torch.tensor(told["metrics"]["labels"]), told["posthoc"]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("k", [2, 10, 1000])
def test_optimum_is_reached_at_any_scale(scale, k):
    logits, target = overconfident(n=500, k=k)
    logits = logits * scale
    fitted = Temperature().fit(logits, target)
    best = nll_at(logits, target, slow_optimum(logits, target))
    assert nll_at(logits, target, float(fitted.temperature)) <= best + 1e-10
    assert fitted.report.gap < 1e-12


def test_optimum_is_reached_in_half_precision():
    logits, target = overconfident(n=2000, k=10)
    fitted = Temperature().fit(logits.half(), target)
    best = nll_at(logits.half(), target, slow_optimum(logits.half(), target))
    assert nll_at(logits.half(), target, float(fitted.temperature)) <= best + 1e-10


def test_large_data_is_fitted_as_well_in_chunks_and_from_a_sample():
    logits, target = overconfident(n=60_000, k=12, temperature=3.0)
    whole = Temperature().fit(logits, target)
    assert float(whole.temperature) == pytest.approx(3.0, rel=0.02)
    assert float(whole.temperature) == pytest.approx(slow_optimum(logits, target), rel=1e-5)


def test_true_temperature_is_found():
    logits, target = overconfident(n=20_000, k=5, temperature=0.4)
    assert float(Temperature().fit(logits, target).temperature) == pytest.approx(0.4, rel=0.03)


def test_separable_data_ends_at_the_boundary_and_says_so():
    logits, _ = overconfident(n=100, k=4)
    fitted = Temperature().fit(logits, logits.argmax(1))
    assert fitted.report.at_boundary
    assert "every sample is right" in fitted.report.warnings[0]
    assert 0 < float(fitted.temperature) < 1
    assert nll_at(logits, logits.argmax(1), float(fitted.temperature)) < 1e-10


def test_labels_worse_than_chance_end_at_the_other_boundary():
    logits, _ = overconfident(n=100, k=4)
    fitted = Temperature().fit(logits, logits.argmin(1))
    assert fitted.report.at_boundary
    assert "belong together" in fitted.report.warnings[0]
    assert nll_at(logits, logits.argmin(1), float(fitted.temperature)) == pytest.approx(math.log(4), abs=1e-3)
    assert torch.equal(fitted(logits).argmax(1), logits.argmax(1))  # at T = 1e12 single precision had only ties


@pytest.mark.parametrize("label", [0, 1, 2])
def test_one_sample_gives_a_positive_finite_temperature(label):
    fitted = Temperature().fit(torch.tensor([[3.0, 1.0, -2.0]]), torch.tensor([label]))
    assert 0 < float(fitted.temperature) < math.inf
    assert fitted(torch.tensor([[3.0, 1.0, -2.0]])).isfinite().all()


def test_equal_logits_change_nothing():
    fitted = Temperature().fit(torch.zeros(10, 3), torch.zeros(10, dtype=torch.long))
    assert float(fitted.temperature) == 1
    assert "are equal: a temperature has no effect" in fitted.report.warnings[0]


def test_a_shift_of_each_row_changes_nothing():
    logits, target = overconfident(n=500, k=6)
    shift = 100 * torch.randn(500, 1, generator=torch.Generator().manual_seed(1))
    plain, shifted = Temperature().fit(logits, target), Temperature().fit((logits + shift).double(), target)
    assert float(shifted.temperature) == pytest.approx(float(plain.temperature), rel=1e-5)


def test_batches_are_read_a_few_times_and_never_held():
    logits, target = overconfident(n=5000, k=10)
    passes = 0

    class Batches:
        def __iter__(self):
            nonlocal passes
            passes += 1
            yield from zip(logits.split(512), target.split(512), strict=True)

    streamed = Temperature().fit(Batches())
    assert passes <= 10
    assert float(streamed.temperature) == pytest.approx(float(Temperature().fit(logits, target).temperature), rel=1e-6)


def test_ece_objective_has_no_larger_ece_than_either_alternative():
    logits, target = overconfident(n=3000, k=5)
    by_ece, by_nll = Temperature(objective="ece").fit(logits, target), Temperature().fit(logits, target)
    assert by_ece.report.after.ece <= by_nll.report.after.ece
    assert by_ece.report.after.ece <= by_ece.report.before.ece


def test_unknown_objective_is_refused():
    with pytest.raises(InputError, match="expected one of nll, ece, got 'mse'"):
        Temperature(objective="mse")


def test_golden_temperatures(golden):
    logits, target, told = golden
    exact = Temperature().fit(logits, target)
    assert float(exact.temperature) == pytest.approx(told["exact_T_nll"]["T"], rel=1e-7)
    assert exact.report.after.nll == pytest.approx(told["exact_T_nll"]["nll"], rel=1e-12)
    for objective in ("nll", "ece"):
        grid = Temperature(grid=True, objective=objective).fit(logits, target)
        wanted = told["grid_0.1_to_10_step_0.1"][objective]
        assert float(grid.temperature) == pytest.approx(wanted["T"], rel=1e-12)
        assert getattr(grid.report.after, objective) == pytest.approx(wanted["value"], rel=1e-9)


@pytest.mark.parametrize(
    ("net", "temperature", "before", "after"),
    [
        ("resnet20", 2.386, 5.13, 1.05),
        ("resnet32", 2.471, 4.86, 0.72),
        ("resnet44", 2.414, 4.55, 0.50),
        ("resnet56", 2.516, 4.26, 0.88),
    ],
)
def test_real_networks(outputs, net, temperature, before, after):
    arrays = np.load(outputs("cifar10_akamaster_resnets"))
    logits, target = torch.from_numpy(arrays[net]), torch.from_numpy(arrays["labels"]).long()
    fitted = Temperature().fit(logits[:5000], target[:5000])
    assert float(fitted.temperature) == pytest.approx(temperature, abs=5e-4)
    from acls.metrics import Suite

    assert 100 * Suite.of(logits[5000:], target[5000:], kind="logits").summary()["ece"] == pytest.approx(
        before, abs=5e-3
    )
    calibrated = fitted(logits[5000:])
    # Two decimals, and the third of resnet44 (0.495) hangs on the fifth digit of T.
    assert 100 * Suite.of(calibrated, target[5000:], kind="log_probs").summary()["ece"] == pytest.approx(
        after, abs=6e-3
    )
