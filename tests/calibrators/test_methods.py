"""Each method recovers a map that is known, agrees with a second opinion, and keeps its particular promise."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import nll_loss

from acls.calibrators import (
    ETS,
    IBTS,
    LTS,
    PTS,
    Beta,
    Dirichlet,
    Histogram,
    Isotonic,
    Matrix,
    MetaCal,
    Platt,
    Selective,
    Spline,
    Temperature,
    Vector,
    make_calibrator,
)
from acls.calibrators.affine import _walk
from acls.calibrators.logistic import log_complement
from acls.calibrators.tables import pool_adjacent_violators
from acls.errors import InputError
from tests.calibrators.synthetic import overconfident, sample, well_calibrated
from tests.calibrators.test_temperature import golden_logits
from tests.conftest import GOLDEN


def held_out(calibrator, logits, target):
    """NLL on the second half after fitting to the first."""
    n = len(target) // 2
    return float(nll_loss(calibrator.fit(logits[:n], target[:n])(logits[n:]), target[n:]))


def distance(log_probs, truth):
    return float((log_probs.exp() - truth).abs().mean())


def drawn(truth, seed=7):
    return sample(truth, torch.Generator().manual_seed(seed))


# Platt and Beta


def test_platt_recovers_slope_and_offset_of_two_classes():
    s = 3 * torch.randn(40_000, generator=torch.Generator().manual_seed(0))
    target = drawn(torch.stack([torch.sigmoid(-(0.5 * s + 1)), torch.sigmoid(0.5 * s + 1)], 1))
    fitted = Platt().fit(torch.stack([torch.zeros_like(s), s], 1), target)
    assert fitted.weight.tolist() == pytest.approx([0.5, 0.5], rel=0.05)
    assert fitted.bias.tolist() == pytest.approx([-1, 1], rel=0.05)


def test_platts_targets_keep_separable_data_finite():
    logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
    fitted = Platt(guard=False).fit(logits, torch.tensor([0, 0, 1, 1]))
    # With two of each, the targets are 3/4 and 1/4: no confidence can go much beyond that.
    assert fitted(logits).exp().amax() < 0.9


def test_top_label_platt_calibrates_the_confidence():
    logits, target = overconfident(n=20_000, k=6)
    fitted = Platt(kind="top-label").fit(logits, target)
    assert fitted.report.after.ece < 0.05
    assert fitted.report.before.ece > 0.2


def test_platt_agrees_with_logistic_regression():
    linear_model = pytest.importorskip("sklearn.linear_model")
    logits, target = overconfident(n=2000, k=3)
    log_probs = logits.double().log_softmax(1)
    odds = (log_probs - log_complement(log_probs)).numpy()
    fitted = Platt(platt_targets=False, guard=False).fit(logits.double(), target)
    for k in range(3):
        peer = linear_model.LogisticRegression(C=np.inf, tol=1e-10).fit(odds[:, k : k + 1], (target == k).numpy())
        assert float(fitted.weight[k]) == pytest.approx(peer.coef_[0, 0], rel=1e-4)
        assert float(fitted.bias[k]) == pytest.approx(peer.intercept_[0], abs=1e-3)


def test_beta_recovers_its_three_parameters():
    p = torch.rand(60_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).clamp(1e-4, 1 - 1e-4)
    truth = torch.sigmoid(0.5 * p.log() - 2.0 * (1 - p).log() + 0.3)
    fitted = Beta().fit(torch.stack([(1 - p).log(), p.log()], 1), drawn(torch.stack([1 - truth, truth], 1)))
    assert [float(v[1]) for v in (fitted.a, fitted.b, fitted.c)] == pytest.approx([0.5, 2.0, 0.3], abs=0.1)


def test_beta_never_falls_with_the_probability():
    p = torch.rand(5000, generator=torch.Generator().manual_seed(0)).clamp(1e-3, 1 - 1e-3)
    upside_down = torch.where(p < 0.5, 1 - p, p)  # falls, then rises
    target = drawn(torch.stack([1 - upside_down, upside_down], 1))
    fitted = Beta(guard=False).fit(torch.stack([(1 - p).log(), p.log()], 1), target)
    assert (fitted.a >= 0).all()
    assert (fitted.b >= 0).all()


def test_log_complement_does_not_round_to_minus_infinity():
    log_probs = torch.tensor([[50.0, 0.0, 1.0]]).log_softmax(1)
    assert log_complement(log_probs)[0, 0] == pytest.approx(float(log_probs[0, 1:].logsumexp(0)))


# Affine maps


def test_vector_recovers_its_map():
    logits, _ = well_calibrated(n=40_000, k=4)
    w, b = torch.tensor([0.5, 1.0, 1.5, 2.0]), torch.tensor([0.5, -0.5, 0.0, 0.3])
    fitted = Vector().fit(logits, drawn((w * logits + b).softmax(1)))
    assert distance(fitted(logits), (w * logits + b).softmax(1)) < 0.01
    assert torch.allclose(fitted.weight, w, atol=0.1)
    assert torch.allclose(fitted.bias - fitted.bias.mean(), b - b.mean(), atol=0.1)


def test_vector_of_log_probabilities_does_not_see_what_is_added_to_a_row():
    logits, _ = well_calibrated(n=40_000, k=4)
    w, b = torch.tensor([0.5, 1.0, 1.5, 2.0]), torch.tensor([0.5, -0.5, 0.0, 0.3])
    truth = (w * logits.log_softmax(1) + b).softmax(1)
    added = 5 * torch.randn(len(logits), 1, generator=torch.Generator().manual_seed(3))
    fitted = Vector(space="log_probs").fit(logits + added, drawn(truth))
    assert distance(fitted(logits), truth) < 0.01
    assert torch.allclose(fitted(logits + added), fitted(logits), atol=1e-4)
    assert distance(Vector().fit(logits + added, drawn(truth))(logits + added), truth) > 0.02


def test_vector_of_log_probabilities_mixes_in_one_row_of_chance():
    logits, target = overconfident(n=999, k=4)
    logits[0] = torch.tensor([0.0, -1e4, -1e4, -1e4])  # without the mix one wrong row so sure would rule the fit
    target[0] = 1
    fitted = Vector(space="log_probs").fit(logits, target)
    assert float(fitted.uniform) == pytest.approx(1 / 1000)
    weight, bias, scale = (getattr(fitted, name).double().numpy() for name in ("weight", "bias", "scale"))
    probs = np.exp(scale * logits.double().numpy())
    probs = 0.999 * probs / probs.sum(1, keepdims=True) + 0.001 / 4
    powers = probs**weight * np.exp(bias)
    assert fitted(logits).exp().numpy() == pytest.approx(powers / powers.sum(1, keepdims=True), abs=1e-5)
    assert float(fitted(logits)[0].min()) > -20


@pytest.mark.parametrize(("gains", "chosen"), [((3.0, 2.0, 4.0, 3.0), 3.0), ((9.0, -3.0, -2.0, 0.0), 1.0)])
def test_another_strength_is_taken_only_where_the_folds_agree_that_it_is_better(gains, chosen):
    at_usual = torch.tensor([100.0, 110.0, 90.0, 100.0], dtype=torch.float64)

    def losses(strength, starts):
        return at_usual + {1.0: 0.0, 3.0: -torch.tensor(gains)}.get(strength, 1.0)

    assert _walk(losses) == chosen


@pytest.mark.parametrize("kind", [Matrix, Dirichlet])
def test_matrix_and_dirichlet_recover_their_map(kind):
    logits, _ = well_calibrated(n=40_000, k=4)
    inputs = logits if kind is Matrix else logits.log_softmax(1)
    w = torch.eye(4) + 0.5 * torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
    truth = (inputs @ w.T + torch.tensor([0.5, -0.5, 0.0, 0.3])).softmax(1)
    fitted = kind().fit(logits, drawn(truth))
    assert distance(fitted(logits), truth) < 0.015
    assert fitted.report.gap < 1e-12


@pytest.mark.parametrize(
    "calibrator",
    [Vector(strength=2.0), Vector(strength=2.0, space="log_probs"), Matrix(strength=2.0), Dirichlet(strength=2.0)],
)
def test_affine_fit_is_the_minimum_by_autograd(calibrator):
    """The gradient of the penalised NLL vanishes at the values learned, whatever way they were found."""
    logits, target = overconfident(n=300, k=3)
    logits = logits.double()
    fitted = calibrator.fit(logits, target)
    beta = 1 / float(Temperature().fit(logits, target).temperature)
    if "scale" in fitted.learned:
        assert float(fitted.scale) == pytest.approx(beta)
        x = (300 / 301 * (logits * beta).softmax(1) + 1 / 301 / 3).log()
        weight = fitted.weight
    else:
        x, weight = logits * beta, fitted.weight / beta
    diagonal, bias = weight.ndim == 1, fitted.bias.clone()
    matrix = (weight.diag() if diagonal else weight).clone().requires_grad_()
    bias.requires_grad_()
    change = matrix - torch.eye(3)
    off = change - change.diagonal().diag()
    ridge = (
        2.0 * 3 / 300 * (change.diagonal().square().sum() + bias.square().sum()) + 2.0 * 6 / 300 * off.square().sum()
    )
    loss = torch.nn.functional.cross_entropy(x @ matrix.T + bias, target) + ridge
    to_matrix, to_bias = torch.autograd.grad(loss, [matrix, bias])
    gradient = to_matrix.diagonal() if diagonal else to_matrix
    assert gradient.abs().max() < 1e-6
    assert to_bias.abs().max() < 1e-6


def test_a_strong_ridge_is_temperature_scaling():
    logits, target = overconfident(n=500, k=4)
    strong = Matrix(strength=1e8).fit(logits, target)
    assert torch.allclose(strong(logits), Temperature().fit(logits, target)(logits), atol=1e-4)


def test_separable_data_has_a_finite_matrix_and_a_warning():
    logits, _ = overconfident(n=200, k=4)
    fitted = Matrix().fit(logits, logits.argmax(1))
    assert fitted.weight.isfinite().all()
    assert fitted.report.at_boundary
    assert any("separable" in warning for warning in fitted.report.warnings)


def test_matrix_does_not_overfit_many_classes():
    logits, target = overconfident(n=3000, k=120, temperature=2.0)
    matrix = Matrix()
    loss = held_out(matrix, logits, target)
    assert loss <= held_out(Temperature(), logits, target) + 0.01
    assert matrix._values(120) < 1000


def test_low_rank_matrix_recovers_a_map_between_main_directions():
    generator = torch.Generator().manual_seed(0)
    k, n = 110, 8000
    basis = torch.linalg.qr(torch.randn(k, 3, generator=generator)).Q
    logits = 6 * torch.randn(n, 3, generator=generator) @ basis.T + 0.3 * torch.randn(n, k, generator=generator)
    mixing = torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, -0.5]])
    truth = (logits + logits @ basis @ mixing.T @ basis.T).softmax(1)
    target = drawn(truth)
    fitted = Matrix(rank=6, strength=1.0).fit(logits, target)
    vector = Vector(strength=1.0).fit(logits, target)
    assert distance(fitted(logits), truth) < 0.4 * distance(vector(logits), truth)


def test_strength_streams_when_given():
    logits, target = overconfident(n=2000, k=5)
    streamed = Vector(strength=1.0)
    assert streamed.streams
    streamed.fit(list(zip(logits.split(700), target.split(700), strict=True)))
    assert torch.allclose(streamed(logits), Vector(strength=1.0).fit(logits, target)(logits), atol=1e-5)


def test_groups_stay_in_one_fold():
    """Copies of a few rows look like much data: only kept together do they show how little it is."""
    logits, target = overconfident(n=60, k=4)
    many, labels = logits.repeat_interleave(40, 0), target.repeat_interleave(40)
    jitter = 1e-3 * torch.randn(many.shape, generator=torch.Generator().manual_seed(0))
    together = Matrix().fit(many + jitter, labels, group=torch.arange(60).repeat_interleave(40))
    apart = Matrix().fit(many + jitter, labels)
    fresh, truth = overconfident(n=5000, k=4, seed=9)
    assert nll_loss(together(fresh), truth) < nll_loss(apart(fresh), truth)


# Tables


def test_pav_agrees_with_scikit_learn():
    isotonic = pytest.importorskip("sklearn.isotonic")
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(500, generator=generator, dtype=torch.float64)
    x[::7] = x[0]  # ties
    hits = (torch.rand(500, generator=generator) < x).double()
    knots, values = pool_adjacent_violators(x, hits)
    peer = isotonic.IsotonicRegression().fit(x.numpy(), hits.numpy())
    at = np.linspace(float(x.min()), float(x.max()), 999)
    assert np.allclose(np.interp(at, knots.numpy(), values.numpy()), peer.predict(at), atol=1e-12)


@pytest.mark.parametrize("kind", ["one-vs-rest", "pooled"])
def test_isotonic_recovers_a_monotone_map(kind):
    logits, _ = well_calibrated(n=40_000, k=2)
    p = logits.softmax(1)[:, 1]
    q = 0.1 + 0.8 * p**3 / (p**3 + (1 - p) ** 3)
    truth = torch.stack([1 - q, q], 1)
    assert distance(Isotonic(kind=kind).fit(logits, drawn(truth))(logits), truth) < 0.015


def test_pooled_isotonic_keeps_every_prediction_even_where_it_is_flat():
    logits, target = overconfident(n=3000, k=10, temperature=6.0)
    pooled = Isotonic(kind="pooled")
    assert pooled.keeps_ranking
    assert not Isotonic().keeps_ranking
    assert (pooled.fit(logits, target)(logits).argmax(1) == logits.argmax(1)).all()


def test_histogram_holds_the_share_of_hits_in_each_bin():
    p = torch.tensor([0.05, 0.08, 0.25, 0.35, 0.5, 0.95, 0.96, 0.97])
    target = torch.tensor([0, 1, 0, 0, 1, 1, 1, 0])
    fitted = Histogram(bins=5, guard=False).fit(torch.stack([(1 - p).log(), p.log()], 1), target)
    # (0, .2]: 1 of 2; (.2, .4]: 0 of 2, held at 1/4; (.4, .6]: 1 of 1, held at 2/3; (.6, .8]: empty; (.8, 1]: 2 of 3
    assert fitted.value[1].tolist() == pytest.approx([0.5, 0.25, 2 / 3, 0.7, 2 / 3])


def test_equal_mass_bins_hold_equal_numbers():
    logits, target = overconfident(n=1000, k=4)
    fitted = Histogram(kind="mass", bins=10, guard=False).fit(logits, target)
    index = torch.searchsorted(fitted.edges, logits.softmax(1).T.contiguous())
    assert all((row.bincount(minlength=10) - 100).abs().max() <= 1 for row in index)


@pytest.mark.parametrize("kind", ["width", "mass"])
def test_histogram_recovers_a_map(kind):
    logits, target = overconfident(n=40_000, k=3)
    assert distance(Histogram(kind=kind, bins=30).fit(logits, target)(logits), (logits / 2.5).softmax(1)) < 0.04


def test_spline_recovers_the_accuracy_at_each_confidence():
    logits, target = overconfident(n=40_000, k=5, temperature=3.0)
    fitted = Spline().fit(logits, target)
    truth = (logits / 3.0).softmax(1)
    assert float((fitted(logits).exp().amax(1) - truth.amax(1)).abs().mean()) < 0.015
    assert fitted.report.after.ece < 0.01


# Temperatures that vary


@pytest.fixture(scope="module")
def golden():
    told = json.loads(GOLDEN.read_text())
    return golden_logits(), torch.tensor(told["metrics"]["labels"]), told["posthoc"]["mix_n_match"]


@pytest.mark.parametrize(("objective", "t", "w"), [("mse", "t_mse", "ets_w_mse"), ("nll", "t_ce", "ets_w_ce")])
def test_ets_golden_weights(golden, objective, t, w):
    logits, target, told = golden
    fitted = ETS(objective=objective).fit(logits, target)
    assert float(fitted.temperature) == pytest.approx(told[t], rel=1e-5)
    assert fitted.weight.tolist() == pytest.approx(told[w], abs=1e-6)


def test_ets_recovers_its_weights():
    logits, _ = well_calibrated(n=80_000, k=4, spread=4.0)
    truth = 0.7 * logits.softmax(1) + 0.3 / 4
    fitted = ETS().fit(logits, drawn(truth))
    assert distance(fitted(logits), truth) < 0.01
    assert float(fitted.weight[2]) == pytest.approx(0.3, abs=0.03)


def test_ets_weights_are_no_worse_than_a_fine_grid():
    logits, target = overconfident(n=500, k=3, temperature=3.0)
    fitted = ETS(guard=False).fit(logits.double(), target)
    p = torch.stack(
        [(logits.double() / fitted.temperature).softmax(1), logits.double().softmax(1), torch.full((500, 3), 1 / 3.0)]
    ).gather(2, target[None, :, None].expand(3, -1, 1))[:, :, 0]
    steps = torch.linspace(0, 1, 101, dtype=torch.float64)
    grid = torch.stack([torch.stack([a, b, 1 - a - b]) for a in steps for b in steps if a + b <= 1 + 1e-12]).clamp(
        min=0
    )
    best = float(-(grid @ p.double()).log().mean(1).max())
    assert fitted.report.after.nll <= best + 1e-9


def test_pts_recovers_a_temperature_that_depends_on_the_logits():
    generator = torch.Generator().manual_seed(0)
    base = 2 * torch.randn(20_000, 5, generator=generator)
    gap = base.amax(1) - base.mean(1)
    temperature = torch.where(gap > 3, 4.0, 1.0)
    target = drawn(base.softmax(1))
    logits = base * temperature[:, None]
    fitted, plain = PTS().fit(logits, target), Temperature().fit(logits, target)
    truth = base.softmax(1)
    assert distance(fitted(logits), truth) < 0.5 * distance(plain(logits), truth)


def test_selective_gives_each_side_its_own_temperature():
    generator = torch.Generator().manual_seed(0)
    sure, unsure = 6 * torch.eye(4).repeat(5000, 1), 1.5 * torch.randn(20_000, 4, generator=generator)
    sure = sure + 0.5 * torch.randn(sure.shape, generator=generator)
    target = torch.cat([drawn(sure.softmax(1)), drawn((unsure / 4).softmax(1))])
    logits = torch.cat([sure, unsure])
    fitted, plain = Selective().fit(logits, target), Temperature().fit(logits, target)
    assert float(fitted.temperature[1]) > float(fitted.temperature[0])
    assert fitted.report.after.nll < plain.report.after.nll


def test_selective_without_mistakes_is_temperature_scaling():
    logits, target = well_calibrated(n=2000, k=3, spread=6.0)
    fitted = Selective(threshold=0.999999).fit(logits, target)
    assert any("this is plain temperature scaling" in warning for warning in fitted.report.warnings)
    assert torch.allclose(fitted(logits), Temperature().fit(logits, target)(logits), atol=1e-4)


def test_meta_cal_gives_up_the_share_of_right_predictions_it_was_allowed():
    logits, target = overconfident(n=20_000, k=5)
    fitted = MetaCal(alpha=0.1, guard=False).fit(logits[:10_000], target[:10_000])
    z, y = logits[10_000:], target[10_000:]
    right = z.argmax(1) == y
    assert float((~fitted.keeps(z) & right).sum() / right.sum()) == pytest.approx(0.1, abs=0.05)
    assert float(fitted.temperature) == pytest.approx(2.5, rel=0.1)
    rejected = fitted(z)[~fitted.keeps(z)]
    assert torch.allclose(rejected.exp(), torch.tensor(0.2))


def test_meta_cal_keeps_what_is_as_accurate_as_asked():
    logits, target = overconfident(n=20_000, k=5)
    fitted = MetaCal(constraint="coverage-accuracy", accuracy=0.9, guard=False).fit(logits[:10_000], target[:10_000])
    z, y = logits[10_000:], target[10_000:]
    kept = fitted.keeps(z)
    assert float((z.argmax(1) == y)[kept].float().mean()) == pytest.approx(0.9, abs=0.04)


def test_meta_cal_refuses_an_accuracy_out_of_reach():
    logits, _ = overconfident(n=2000, k=5)
    target = torch.randint(0, 5, (2000,), generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="expected accuracy= of at most"):
        MetaCal(constraint="coverage-accuracy", accuracy=0.99).fit(logits, target)


# Maps


def two_textures(n=24, k=3, size=12, seed=0):
    """Maps whose left half is overconfident and whose right half is not; only the image tells them apart."""
    generator = torch.Generator().manual_seed(seed)
    base = 2 * torch.randn(n, k, size, size, generator=generator)
    image = torch.zeros(n, 1, size, size)
    image[:, :, :, : size // 2] = 1
    rows = base.movedim(1, -1).reshape(-1, k)
    target = sample(rows.softmax(1), generator).reshape(n, size, size)
    return base * (1 + 3 * image), target, image, base.softmax(1)


def test_lts_finds_with_the_image_where_the_network_is_overconfident():
    logits, target, image, truth = two_textures()
    fitted = LTS(steps=150).fit(logits, target, image=image)
    plain = Temperature().fit(logits, target)
    error = float((fitted(logits, image).exp() - truth).abs().mean())
    assert error < 0.6 * float((plain(logits).exp() - truth).abs().mean())


def test_ibts_gives_an_image_one_temperature():
    """Every second image is four times overconfident, and its pixels are 1."""
    base, target, image, _ = two_textures()
    whole = image * 0 + torch.arange(24)[:, None, None, None] % 2
    logits = base / (1 + 3 * image) * (1 + 3 * whole)
    fitted = IBTS(steps=150).fit(logits, target, image=whole)
    ratio = (fitted(logits, whole)[:, :1] - fitted(logits, whole)[:, 1:2]) / (logits[:, :1] - logits[:, 1:2])
    assert torch.allclose(ratio.amax((1, 2, 3)), ratio.amin((1, 2, 3)), rtol=1e-2)
    assert float(ratio[::2, 0, 0, 0].min()) > 2 * float(ratio[1::2, 0, 0, 0].max())


def test_maps_fitted_with_images_ask_for_them():
    logits, target, image, _ = two_textures(n=4)
    fitted = LTS(steps=2).fit([(logits, target, image)])
    with pytest.raises(InputError, match="fitted with images"):
        fitted(logits)


def test_the_guard_keeps_the_model_and_can_be_taken_off():
    logits, target = well_calibrated(n=300, k=5)
    guarded, free = Histogram(bins=2).fit(logits, target), Histogram(bins=2, guard=False).fit(logits, target)
    assert any("left unchanged" in warning for warning in guarded.report.warnings)
    assert torch.allclose(guarded(logits), logits.log_softmax(1), atol=1e-5)
    assert free.report.after.nll > free.report.before.nll


def test_local_temperatures_are_left_out_where_unseen_maps_have_nothing_of_them():
    """With few maps whose labels follow one temperature; trained to the end it was 0.011 above it.

    Chosen by the sum over folds alone, 3 of 30 such sets came out up to 0.022 above it; now 0 of 30, at most 0.00002.
    """

    def made(n, seed):
        generator = torch.Generator().manual_seed(seed)
        z = 2 * torch.randn(n, 5, 8, 8, generator=generator)
        probs = (z / 2).softmax(1).movedim(1, -1).flatten(0, -2)
        return z, torch.multinomial(probs, 1, generator=generator).view(n, 8, 8)

    (z, y), (unseen, truth) = made(16, 0), made(300, 1)
    common, local = (float(nll_loss(calibrator.fit(z, y)(unseen), truth)) for calibrator in (Temperature(), LTS()))
    assert local < common + 1e-4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Histogram(bins=0)", r"a number in \[1, inf\)"),
        ("Spline(knots=2)", r"a number in \[3, inf\)"),
        ("Vector(strength=-1)", r"a number in \[0, inf\)"),
        ("Matrix(rank=0)", r"a number in \[1, inf\)"),
        ("PTS(hidden=0)", r"a number in \[1, inf\)"),
        ("MetaCal(alpha=1.0)", r"a number in \(0, 1\)"),
        ("Isotonic(kind=one)", "one of one-vs-rest, pooled"),
    ],
)
def test_a_field_outside_its_range_is_refused_with_the_range(text, expected):
    with pytest.raises(InputError, match=f"{text.split('(')[0]}.*: expected {expected}, got"):
        make_calibrator(text)
