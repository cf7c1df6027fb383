"""What every registered calibrator fulfils; a new one is tested here with no line written for it."""

import copy

import pytest
import torch
from torch import nn

from acls.calibrators import REGISTRY, Calibrator, Temperature, make_calibrator
from acls.calibrators.affine import Affine
from acls.errors import InputError
from tests.calibrators.synthetic import overconfident, well_calibrated

pytestmark = pytest.mark.parametrize("name", REGISTRY)

DENSE = (6, 4, 5, 7)


def fitted(name, logits, target, **fields):
    return make_calibrator(name, **fields).fit(logits, target)


@pytest.fixture(scope="module")
def data():
    return overconfident(n=800, k=4)


@pytest.fixture(scope="module")
def fits(data):
    """Each calibrator fitted once to the same data."""
    cache = {}

    def get(name):
        if name not in cache:
            cache[name] = fitted(name, *data)
        return cache[name]

    return get


def nll(log_probs, target):
    return float(torch.nn.functional.nll_loss(log_probs.double(), target))


def test_fit_returns_the_calibrator(name, data):
    calibrator = make_calibrator(name)
    assert calibrator.fit(*data) is calibrator
    assert isinstance(calibrator, Calibrator)


def test_rows_of_probabilities_sum_to_one(name, data, fits):
    log_probs = fits(name)(data[0])
    assert log_probs.shape == data[0].shape
    assert torch.allclose(log_probs.exp().sum(1), torch.ones(len(data[0])), atol=2e-6)
    assert (log_probs <= 1e-6).all()


@pytest.mark.parametrize("make", [overconfident, well_calibrated], ids=["overconfident", "well calibrated"])
@pytest.mark.parametrize("k", [2, 4])
def test_nll_of_the_fitting_data_is_never_above_doing_nothing(name, make, k):
    logits, target = make(n=400, k=k)
    calibrator = fitted(name, logits, target)
    before, after = nll(logits.log_softmax(1), target), nll(calibrator(logits), target)
    assert after <= before + 2e-6
    assert calibrator.report.before.nll == pytest.approx(before, abs=1e-6)
    assert calibrator.report.after.nll == pytest.approx(after, abs=2e-5)


def test_order_of_samples_changes_nothing(name, data, fits):
    logits, target = data
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(3))
    shuffled = fitted(name, logits[order], target[order])
    assert torch.allclose(shuffled(logits), fits(name)(logits), atol=1e-4)


def test_ranking_is_kept_where_declared(name, data, fits):
    logits, calibrator = data[0], fits(name)
    log_probs = calibrator(logits)
    if calibrator.keeps_ranking:
        order = logits.argsort(1)
        assert (log_probs.gather(1, order).diff(dim=1) >= -1e-6).all()
        assert (log_probs.argmax(1) == logits.argmax(1)).all()


def test_state_dict_fills_a_fresh_calibrator(name, data, fits):
    fresh = make_calibrator(name)
    fresh.load_state_dict(fits(name).state_dict())
    assert torch.equal(fresh(data[0]), fits(name)(data[0]))


def test_file_gives_back_class_fields_values_and_report(name, data, fits, tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "calibrator.safetensors"
    fits(name).save(path)
    again = Calibrator.load(path)
    assert type(again) is type(fits(name))
    assert again.settings() == fits(name).settings()
    assert again.report == fits(name).report
    assert torch.equal(again(data[0]), fits(name)(data[0]))


def test_dense_maps_are_their_positions(name, fits, data):
    calibrator = fits(name)
    logits = overconfident(n=210, k=4, seed=5)[0].reshape(6, 5, 7, 4).movedim(-1, 1)
    dense = calibrator(logits)
    assert dense.shape == logits.shape
    if calibrator.pointwise:
        rows = calibrator(logits.movedim(1, -1).reshape(-1, 4))
        assert torch.allclose(dense.movedim(1, -1).reshape(-1, 4), rows, atol=1e-6)


def test_ignored_positions_count_for_nothing(name):
    logits, target = overconfident(n=210, k=4)
    dense, labels = logits.reshape(6, 5, 7, 4).movedim(-1, 1), target.reshape(6, 5, 7).clone()
    labels[:, 0] = 255
    calibrator = make_calibrator(name, ignore_index=255).fit(dense, labels)
    assert calibrator.report.rows == 6 * 4 * 7
    if calibrator.pointwise:
        kept = fitted(name, dense[:, :, 1:], labels[:, 1:])
        assert torch.allclose(calibrator(logits), kept(logits), atol=1e-4)


def test_batches_are_the_whole(name, data, fits):
    logits, target = data
    batches = list(zip(logits.split(300), target.split(300), strict=True))
    batched = make_calibrator(name).fit(batches)
    if batched.pointwise:
        assert torch.allclose(batched(logits), fits(name)(logits), atol=1e-4)
    assert batched.report.rows == len(target)


def test_generator_is_refused_only_where_it_is_read_again(name, data):
    logits, target = data
    calibrator = make_calibrator(name)
    batches = ((z, y) for z, y in zip(logits.split(300), target.split(300), strict=True))
    if calibrator.streams:
        with pytest.raises(InputError, match="generator can be read only once"):
            calibrator.fit(batches)
    else:
        assert calibrator.fit(batches).report.rows == len(target)


def test_a_whole_weight_is_that_many_equal_samples(name):
    logits, target = overconfident(n=600, k=4)
    weight = torch.randint(0, 4, (600,), generator=torch.Generator().manual_seed(1))
    if REGISTRY[name].no_weights:
        with pytest.raises(InputError, match=f"{name} does not support sample_weight: "):
            make_calibrator(name).fit(logits, target, weight)
        return
    # Folds hold rows, of whatever weight: the strength that they choose is not the same.
    fields = {"strength": 1.0} if issubclass(REGISTRY[name], Affine) else {}
    weighted = make_calibrator(name, **fields).fit(logits, target, weight)
    repeated = fitted(name, logits.repeat_interleave(weight, 0), target.repeat_interleave(weight), **fields)
    apart = (weighted(logits).exp() - repeated(logits).exp()).abs().max()
    assert apart <= 2e-4, float(apart)
    assert weighted.report.after.nll == pytest.approx(repeated.report.after.nll, abs=1e-5)
    assert weighted.report.after.ece == pytest.approx(repeated.report.after.ece, abs=2e-4)
    plain = fitted(name, logits, target, **fields)
    assert (weighted(logits).exp() - plain(logits).exp()).abs().max() > 10 * apart, "the weights changed nothing"


def test_weights_come_with_batches_too(name, data):
    logits, target = data
    if not REGISTRY[name].no_weights:
        weight = torch.linspace(0.5, 2, len(target))
        batches = list(zip(logits.split(300), target.split(300), weight.split(300), strict=True))
        whole = make_calibrator(name).fit(logits, target, weight)
        assert torch.allclose(make_calibrator(name).fit(batches)(logits), whole(logits), atol=1e-4)


@pytest.mark.parametrize(
    ("weight", "match"),
    [
        (torch.ones(5), r"expected sample_weight of shape \(800,\), one number per sample, got \(5,\)"),
        (-torch.ones(800), "sample_weight: row 0: expected a weight of 0 or more, got -1"),
        (torch.full((800,), torch.nan), "got nan"),
        (torch.zeros(800), "nothing to fit: "),
    ],
    ids=["shape", "negative", "nan", "zero"],
)
def test_wrong_weights_are_refused(name, data, weight, match):
    if not REGISTRY[name].no_weights:
        with pytest.raises(InputError, match=match):
            make_calibrator(name).fit(*data, weight)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)], ids=["(N,)", "(N, 1)"])
def test_binary_scores_are_the_logits_of_class_one(name, shape):
    logits, target = overconfident(n=400, k=2)
    score = (logits[:, 1] - logits[:, 0]).reshape(shape)
    pair = torch.stack([torch.zeros(400), score.flatten()], dim=1)
    one, two = fitted(name, score, target), fitted(name, pair, target)
    assert torch.equal(one(score), two(pair))
    assert torch.equal(fitted(name, score, target.float().reshape(shape))(score), two(pair))


def test_groups_may_be_named(name, data):
    group = torch.arange(len(data[1])) // 8
    assert make_calibrator(name).fit(*data, group=group).report.rows == len(group)


def test_works_behind_a_model(name, data, fits):
    model = nn.Sequential(nn.Linear(3, 4), fits(name))
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(model(x).exp().sum(1), torch.ones(7), atol=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 1e4], ids=["tiny", "huge"])
def test_extreme_logits_give_finite_probabilities(name, fits, scale):
    logits = scale * torch.tensor([[1.0, -1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [-1.0, -1.0, 1.0, 1.0]])
    log_probs = fits(name)(logits)
    assert not log_probs.isnan().any()
    assert (log_probs < torch.inf).all()
    assert torch.allclose(log_probs.exp().sum(1), torch.ones(3), atol=2e-6)


def test_fit_to_extreme_logits_is_finite(name, data):
    for scale in (1e-4, 1e4):
        log_probs = fitted(name, data[0] * scale, data[1])(data[0] * scale)
        assert not log_probs.isnan().any()


def test_minus_infinity_is_a_small_probability(name, data, fits):
    logits = data[0].clone()
    logits[:50, 0] = -torch.inf
    log_probs = fits(name)(logits)
    assert not log_probs.isnan().any()
    keep = data[1] != 0
    assert not fitted(name, logits[keep], data[1][keep])(logits).isnan().any()


def test_half_precision_is_widened(name, data, fits):
    log_probs = fits(name)(data[0].half())
    assert log_probs.dtype == torch.float32
    assert fitted(name, data[0].half(), data[1])(data[0]).dtype == torch.float32


def test_double_precision_stays(name, data):
    calibrator = fitted(name, data[0].double(), data[1])
    assert calibrator(data[0].double()).dtype == torch.float64
    assert all(value.dtype == torch.float64 for value in calibrator.state_dict().values())


@pytest.mark.parametrize("n", [1, 3])
def test_a_few_samples_are_said_to_be_too_few(name, n):
    logits, target = overconfident(n=n, k=4)
    logits[0, target[0]] += 1.0 + logits.amax()  # one is right, or there would be nothing to cover
    calibrator = fitted(name, logits, target)
    assert not calibrator(logits).isnan().any()
    assert any("too few samples" in warning for warning in calibrator.report.warnings)


def test_missing_class_is_named(name, data):
    keep = data[1] != 2
    calibrator = fitted(name, data[0][keep], data[1][keep])
    assert any("no samples of class 2" in warning for warning in calibrator.report.warnings)


def test_unfitted_says_so(name):
    calibrator = make_calibrator(name)
    if isinstance(calibrator, Temperature):  # T = 1 is a value as good as any
        assert torch.equal(calibrator(torch.zeros(1, 2)), torch.zeros(1, 2).log_softmax(1))
        return
    with pytest.raises(InputError, match="call fit"):
        calibrator(torch.zeros(1, 2))


def test_bad_input_is_refused_with_a_reason(name, data):
    logits, target = data
    with pytest.raises(InputError, match="NaN or infinity"):
        fitted(name, torch.full_like(logits, torch.nan), target)
    with pytest.raises(InputError, match=r"classes are 0\.\.3"):
        fitted(name, logits, target + 10)
    with pytest.raises(InputError, match="nothing to fit: "):
        fitted(name, logits, torch.full_like(target, -100))
    with pytest.raises(InputError, match="target is missing"):
        make_calibrator(name).fit(logits)


def test_copies_are_independent(name, data, fits):
    twin = copy.deepcopy(fits(name))
    twin.fit(data[0] * 3, data[1])
    assert not torch.equal(twin(data[0]), fits(name)(data[0]))


def test_traces_as_a_program_for_any_batch(name, data, fits):
    program = torch.export.export(fits(name), (data[0][:5],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
    assert torch.allclose(program(data[0][:13]), fits(name)(data[0][:13]), atol=1e-6)
