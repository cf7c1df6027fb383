"""torch.compile traces every pointwise loss without a break and gives the same numbers."""

import copy
import pickle
from functools import partial

import pytest
import torch

from acls.errors import InputError
from acls.losses import ACLS, CE, REGISTRY, Focal, MbLS
from acls.losses.acls import FORMS
from tests.contract.losses import inputs, ready, value_and_gradient

POINTWISE = [name for name, kind in REGISTRY.items() if not kind.couples_samples and name != "CaPE"]


def in_graph(loss, backend):
    return torch.compile(loss, fullgraph=True, backend=backend)


def in_place(loss, backend):
    compiled = copy.deepcopy(loss)
    compiled.compile(backend=backend)
    return compiled


def _same_compiled(make, backend, sizes=((7, 5),), how=in_graph):
    torch._dynamo.reset()
    loss = ready(make, ignore_index=255).float()
    compiled = how(loss, backend)
    for n, k in sizes:
        z, y, _ = inputs(n, k, dtype=torch.float32)
        y[1] = 255
        for ours, expected in zip(
            value_and_gradient(compiled, z, y, None), value_and_gradient(loss, z, y, None), strict=True
        ):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", POINTWISE)
def test_no_pointwise_loss_breaks_the_graph(name):
    _same_compiled(REGISTRY[name], "aot_eager")


@pytest.mark.parametrize("name", POINTWISE)
def test_every_pointwise_loss_compiles_in_place(name):
    _same_compiled(REGISTRY[name], "aot_eager", how=in_place)


@pytest.mark.parametrize("form", FORMS)
def test_compiled_as_eager_the_first_of_tied_classes_is_predicted(form):
    torch._dynamo.reset()
    loss = ACLS(margin=1.0, form=form)
    z = torch.tensor([[3.0, 3.0, -1.0, -1.0], [0.0, 5.0, 5.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    y = torch.tensor([0, 3, 1])
    for ours, expected in zip(
        value_and_gradient(in_graph(loss, "aot_eager"), z, y, None), value_and_gradient(loss, z, y, None), strict=True
    ):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", ["none", "void", "a class"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_compiled_in_place_a_loss_of_maps_is_the_same(reduction, ignored, dtype):
    torch._dynamo.reset()
    loss = ACLS(margin=1.0, reduction=reduction, ignore_index=2 if ignored == "a class" else 255)
    compiled = in_place(loss, "eager")
    z, y, _ = inputs(3, 5, dims=(2, 4), dtype=torch.float32)
    if ignored == "void":
        y[0, 1, 2:] = 255
    found = []
    for one in (compiled, loss):
        given = z.to(dtype).requires_grad_()
        (one(given, y) * torch.linspace(1, 2, y.numel()).view(y.shape)[..., :4]).sum().backward()
        found.append((one(given, y), given.grad))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


def test_a_compiled_gradient_in_half_precision_is_rounded_after_the_scaling_of_the_loss():
    torch._dynamo.reset()
    loss = in_place(ACLS(margin=1.0), "eager")
    z = torch.randn(1, 4, 256, 256, generator=torch.Generator().manual_seed(0)).half()
    y = torch.zeros(1, 256, 256, dtype=torch.long)
    gradients = []
    for dtype in (torch.float16, torch.float32):
        given = z.detach().to(dtype).requires_grad_()
        (loss(given, y) * 65536.0).backward()  # what a GradScaler begins with
        gradients.append(given.grad.float())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("z", "y"),
    [
        (torch.randn(4, 5), torch.tensor([0, 1, 2])),
        (torch.randn(4, 5), torch.rand(4)),
    ],
)
def test_what_is_refused_is_refused_by_a_compiled_loss(z, y):
    compiled = in_place(ACLS(), "eager")
    with pytest.raises(InputError):
        compiled(z, y)


def test_soft_labels_and_class_weights_do_without_the_compiled_pass():
    z, y, _ = inputs(6, 5, dtype=torch.float32)
    soft = torch.nn.functional.one_hot(y, 5).float()
    weighted = ACLS(class_weight=torch.arange(1.0, 6.0))
    assert torch.equal(in_place(ACLS(), "eager")(z, soft), ACLS()(z, soft))
    torch.testing.assert_close(in_place(weighted, "eager")(z, y), weighted(z, y))


def test_compiled_losses_do_not_take_each_other_for_themselves():
    torch._dynamo.reset()
    makes = [partial(kind, margin=margin) for kind in (ACLS, MbLS) for margin in (1.0, 2.0)]
    makes += [partial(ACLS, margin=1.0, form=form) for form in FORMS]
    z, y, _ = inputs(9, 5, dtype=torch.float32)
    pairs = [(in_place(make(), "eager"), make()) for make in makes]
    for _ in range(2):
        for compiled, loss in pairs:
            for ours, expected in zip(
                value_and_gradient(compiled, z, y, None), value_and_gradient(loss, z, y, None), strict=True
            ):
                torch.testing.assert_close(ours, expected)


def test_a_compiled_loss_can_be_copied_and_saved():
    loss = ACLS()
    loss.compile(backend="eager")
    z, y, _ = inputs(6, 5)
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert torch.equal(other(z, y), ACLS()(z, y))


@pytest.mark.slow
@pytest.mark.parametrize("how", [in_graph, in_place])
@pytest.mark.parametrize("make", [CE, Focal, MbLS, ACLS])
def test_compiled_code_gives_the_same(make, how, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # a compile killed half-way must not break later runs
    _same_compiled(make, "inductor", sizes=((7, 5), (300, 100)), how=how)
