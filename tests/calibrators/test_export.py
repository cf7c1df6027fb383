"""Calibrators go into layers, programs and ONNX files without changing what they say."""

import pytest
import torch
from torch import nn

from acls.calibrators import (
    REGISTRY,
    Dirichlet,
    Isotonic,
    Matrix,
    Temperature,
    Vector,
    export,
    export_onnx,
    fold,
    make_calibrator,
)
from acls.errors import InputError
from tests.calibrators.synthetic import overconfident

K = 4


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, K)).eval()


@pytest.fixture
def x():
    return torch.randn(9, 6, generator=torch.Generator().manual_seed(1))


def fitted(name, **fields):
    return make_calibrator(name, **fields).fit(*overconfident(n=500, k=K))


@pytest.mark.parametrize("kind", [Temperature, Vector, Matrix])
@pytest.mark.parametrize("bias", [True, False])
def test_folding_gives_the_same_probabilities(kind, bias, model, x):
    model[2] = nn.Linear(8, K, bias=bias)
    calibrator = fitted(kind.__name__)
    folded = fold(model, calibrator, example=x)
    assert torch.allclose(folded(x).softmax(1), calibrator(model(x)).exp(), atol=1e-6)
    assert not torch.equal(folded[2].weight, model[2].weight)  # the model itself is left alone


@pytest.mark.parametrize("kind", [Temperature, Vector, Matrix])
def test_folding_into_a_convolution(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, K, 1)).eval()
    maps = torch.randn(2, 3, 5, 6)
    calibrator = fitted(kind.__name__)
    assert torch.allclose(fold(model, calibrator)(maps).softmax(1), calibrator(model(maps)).exp(), atol=1e-6)


def test_folding_a_map_that_is_not_affine_says_what_to_do(model):
    with pytest.raises(InputError, match="cannot be folded into a layer"):
        fold(model, fitted("Dirichlet"))


def test_folding_a_vector_of_log_probabilities_names_the_one_that_can_be(model):
    with pytest.raises(InputError, match=r"this Vector is not an affine .* Vector\(space='logits'\)"):
        fold(model, fitted("Vector", space="log_probs"))


def test_folding_what_is_not_fitted_says_so(model):
    with pytest.raises(InputError, match="Vector is not fitted"):
        fold(model, Vector())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", REGISTRY)
def test_a_calibrator_in_a_network_of_half_precision_keeps_its_own(name, dtype, x):
    calibrator = fitted(name)
    before = {key: value.clone() for key, value in calibrator.state_dict().items()}
    whole = nn.Sequential(nn.Linear(6, K), calibrator).to(dtype)
    assert all(torch.equal(before[key], value) for key, value in calibrator.state_dict().items())
    assert whole(x.to(dtype)).isfinite().all()


def test_folding_into_the_wrong_layer_is_found_out(x):
    model = nn.Sequential(nn.Linear(6, K), nn.ReLU(), nn.Linear(K, K)).eval()
    with pytest.raises(InputError, match="not what the model returns"):
        fold(model, fitted("Vector"), layer="0", example=x)


def test_a_last_layer_of_another_width_is_refused(model):
    model[2] = nn.Linear(8, 7)
    with pytest.raises(InputError, match="7 outputs, but the calibrator has 4 classes"):
        fold(model, fitted("Vector"))


def test_program_takes_batches_of_any_size(model, x):
    calibrator = fitted("Temperature")
    program = export(model, calibrator, x[:1]).module()
    assert torch.allclose(program(x), calibrator(model(x)), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fields"), [*((name, {}) for name in REGISTRY), ("Vector", {"space": "log_probs"})])
def test_onnx_says_the_same(name, fields, model, x, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = tmp_path / "model.onnx"
    assert export_onnx(model, fitted(name, **fields), path, x) < 1e-5
    assert path.exists()


@pytest.mark.parametrize("probabilities", [False, True])
def test_onnx_of_temperature(model, x, tmp_path, probabilities):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path, calibrator = tmp_path / "model.onnx", fitted("Temperature")
    assert export_onnx(model, calibrator, path, x[:2], probabilities=probabilities) < 1e-6
    session = runtime.InferenceSession(str(path))
    output = "probabilities" if probabilities else "log_probabilities"
    (found,) = session.run([output], {"input": x.numpy()})  # another batch size
    wanted = calibrator(model(x))
    assert torch.allclose(torch.from_numpy(found), wanted.exp() if probabilities else wanted, atol=1e-5)


def test_onnx_that_differs_is_not_written(model, x, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    with pytest.raises(InputError, match="differ by"):
        export_onnx(model, fitted("Temperature"), tmp_path / "model.onnx", x, tolerance=-1.0)
    assert not list(tmp_path.iterdir())


def test_pooled_isotonic_and_dirichlet_follow_a_model(model, x):
    for calibrator in (Isotonic(kind="pooled"), Dirichlet()):
        calibrator.fit(*overconfident(n=500, k=K))
        assert nn.Sequential(model, calibrator)(x).exp().sum(1).tolist() == pytest.approx([1.0] * 9, abs=1e-5)
