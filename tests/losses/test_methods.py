"""What is particular to one method: its limits, its memory, its relatives."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from acls.errors import InputError
from acls.losses import (
    ACLS,
    CE,
    CPC,
    CRL,
    DCA,
    MMCE,
    REGISTRY,
    AdaFocal,
    CaPE,
    DualFocal,
    Epoch,
    Focal,
    LabelSmoothing,
    MbLS,
    Patra,
    acls_penalty,
    make_loss,
    mbls_penalty,
)
from acls.losses.acls import FORMS
from acls.losses.cpc import binary_exclusion
from tests.contract.losses import inputs, value_and_gradient


def _now(number=0, total=10, predict=lambda split: ()):
    return Epoch(number=number, total=total, predict=predict)


@pytest.mark.parametrize(
    "loss", [LabelSmoothing(epsilon=0.0), Focal(gamma=0.0), MbLS(weight=0.0), ACLS(lambda1=0.0, lambda2=0.0)], ids=repr
)
def test_at_strength_zero_a_method_is_cross_entropy(loss):
    z, y, _ = inputs()
    torch.testing.assert_close(loss(z, y), F.cross_entropy(z, y))


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.05])
def test_cross_entropy_is_torchs_own(soft, reduction, weighed, smoothing):
    z, y, _ = inputs(n=6, dims=(3,))
    y = z.roll(1, 1).softmax(1) if soft else y
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5], dtype=z.dtype) if weighed else None
    ours = LabelSmoothing(epsilon=smoothing, class_weight=weight, reduction=reduction).double()
    expected = F.cross_entropy(z, y, weight=weight, reduction=reduction, label_smoothing=smoothing)
    if soft and weighed and reduction == "mean":
        expected = F.cross_entropy(z, y, weight=weight, reduction="none", label_smoothing=smoothing).mean()
    torch.testing.assert_close(ours(z, y), expected)


def test_both_spreads_of_label_smoothing_are_one_method():
    z, y, _ = inputs(k=5)
    torch.testing.assert_close(LabelSmoothing(epsilon=0.1)(z, y), LabelSmoothing(epsilon=0.08, spread="others")(z, y))


def test_soft_labels_mix_the_losses_of_their_classes():
    z, y, _ = inputs()
    other = y.roll(1)
    mixed = 0.3 * F.one_hot(y, 5).double() + 0.7 * F.one_hot(other, 5).double()
    for loss in (Focal(), REGISTRY["FLSD"](), DualFocal(), AdaFocal(), REGISTRY["InverseFocal"](), ACLS(margin=1.0)):
        loss = loss.double()
        torch.testing.assert_close(loss(z, mixed), 0.3 * loss(z, y) + 0.7 * loss(z, other))


def test_focal_weight_has_a_finite_gradient_where_the_probability_rounds_to_one():
    z = torch.tensor([[90.0, 0.0, 0.0]])
    for gamma in (0.5, 1.0, 3.0):
        _, gradient = value_and_gradient(Focal(gamma=gamma), z, torch.tensor([0]), None)
        assert gradient.isfinite().all()


def test_mbls_is_acls_with_constant_smoothing_and_no_term_of_its_own_for_the_prediction():
    z, y, _ = inputs(k=5)
    twin = ACLS(form="paper", lambda1=0.0, lambda2=0.1 * 4 / 5, margin=2.0, smoothing="constant")
    for ours, expected in zip(
        value_and_gradient(MbLS(margin=2.0), z, y, None), value_and_gradient(twin, z, y, None), strict=True
    ):
        torch.testing.assert_close(ours, expected)


def test_acls_paper_form_is_the_printed_loss_at_lambda2_over_the_other_classes():
    z, y, _ = inputs(k=5, scale=8.0)
    torch.testing.assert_close(
        ACLS(form="paper", margin=3.0)(z, y),
        ACLS(form="printed-loss", margin=3.0, lambda2=0.01 / 4)(z, y),
        rtol=1e-12,
        atol=0,
    )


def test_acls_released_form_is_the_stopped_one_with_the_smallest_logit_taken_as_zero():
    z, y, _ = inputs(k=5, scale=8.0)
    z = z - z.amin(1, keepdim=True)
    for ours, expected in zip(
        value_and_gradient(ACLS(form="released", margin=3.0), z, y, None),
        value_and_gradient(ACLS(form="stopped", margin=3.0), z, y, None),
        strict=True,
    ):
        torch.testing.assert_close(ours, expected)


def test_released_acls_counts_tied_maxima_and_sends_their_gradient_to_the_first():
    z = torch.tensor([[12.0, 12.0, 0.0]], dtype=torch.float64)
    loss = ACLS(form="released", lambda2=0.0)
    value, gradient = value_and_gradient(loss, z, torch.tensor([2]), None)
    assert value.item() == pytest.approx(F.cross_entropy(z, torch.tensor([2])).item() + 0.1 * 2 * 2.0**2)
    torch.testing.assert_close(
        gradient - z.softmax(1) + torch.eye(3).double()[2], torch.tensor([[0.8, 0, 0]], dtype=z.dtype)
    )


@pytest.mark.parametrize("smoothing", ["adaptive", "constant"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "k"), [(40, 3), (70_000, 4), (2_000, 140)])  # at once, in turned blocks, in blocks
def test_the_kernel_is_the_papers_equation(form, smoothing, n, k):
    """Value and gradient, also where logits tie and classes are masked."""
    z, y, _ = inputs(n=n, k=k)
    z = (2 * z).round() / 2
    z[::3, 1], y[::3] = -torch.inf, 0
    upstream = torch.linspace(-1, 2, n).double()
    a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
    fields = {"margin": 2.0, "lambda1": 0.3, "lambda2": 0.2, "form": form, "smoothing": smoothing}
    kernel = ACLS(reduction="none", **fields)(a, y)
    equation = F.cross_entropy(b, y, reduction="none") + sum(acls_penalty(b, **fields))
    torch.testing.assert_close(kernel, equation)
    (kernel * upstream).sum().backward()
    (equation * upstream).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
    a.grad = b.grad = None
    total = ACLS(**fields)(a, y)
    torch.testing.assert_close(total, equation.detach().mean())
    (3 * total).backward()
    (3 * (F.cross_entropy(b, y) + sum(part.mean() for part in acls_penalty(b, **fields)))).backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_the_papers_equation_by_hand():
    """Eq. 13 at one row of logits, with the second term averaged."""
    z = torch.tensor([[12.0, 6.0, 2.0, -1.0]], requires_grad=True)
    predicted, others = acls_penalty(z, margin=6.0, form="paper")
    assert predicted.item() == pytest.approx(0.1 * (13 - 6) ** 2)
    assert others.item() == pytest.approx(0.01 / 3 * (0 + 4**2 + 7**2))
    (gradient,) = torch.autograd.grad(predicted.sum(), z)
    torch.testing.assert_close(gradient, torch.tensor([[1.4, 0.0, 0.0, -1.4]]))
    assert mbls_penalty(z, margin=6.0).item() == pytest.approx(0.1 / 4 * (4 + 7))


def test_the_penalties_take_dense_maps():
    z, _, _ = inputs(n=3, dims=(2, 4))
    rows = z.movedim(1, -1).reshape(-1, 5)
    for penalty in (lambda z: sum(acls_penalty(z, margin=1.0)), lambda z: mbls_penalty(z, margin=1.0)):
        assert torch.equal(penalty(z), penalty(rows).reshape(3, 2, 4))


@pytest.mark.parametrize("loss", [MbLS(), *(ACLS(form=form) for form in FORMS)], ids=repr)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_an_accelerator_runs_as_many_operators_for_any_number_of_rows_and_never_waits(loss, reduction):
    """Counted on device meta, which has no data: a look at it would raise, a loop over blocks would show."""
    loss = copy.deepcopy(loss).to("meta")
    loss.reduction = reduction
    counts = []
    for n in (1_000, 500_000):
        seen = []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(str(func))  # noqa: B023
                return func(*args, **(kwargs or {}))

        z = torch.zeros(n, 21, device="meta", requires_grad=True)
        with Watch():
            loss(z, torch.zeros(n, dtype=torch.long, device="meta")).sum().backward()
        assert not any("_local_scalar_dense" in name for name in seen)
        counts.append(len(seen))
    assert counts[0] == counts[1] < 120


def test_the_one_pass_can_be_run_backward_twice():
    z, y, _ = inputs()
    z.requires_grad_()
    value = ACLS(margin=2.0)(z, y)
    (first,) = torch.autograd.grad(value, z, retain_graph=True)
    (second,) = torch.autograd.grad(value, z)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_second_derivatives_are_refused_with_the_way_to_get_them():
    z, y, _ = inputs()
    z.requires_grad_()
    with pytest.raises(RuntimeError, match=r"use sum\(loss.terms\(logits, target\).values\(\)\)"):
        torch.autograd.grad(ACLS(margin=2.0)(z, y), z, create_graph=True)
    (gradient,) = torch.autograd.grad(sum(ACLS(margin=2.0).terms(z, y).values()), z, create_graph=True)
    gradient.square().sum().backward()
    assert z.grad.isfinite().all()


def test_cpc_has_second_derivatives():
    z, y, _ = inputs(n=3, k=4)
    assert torch.autograd.gradgradcheck(lambda given: CPC()(given, y), (z.double().requires_grad_(),))


@pytest.mark.parametrize("loss", [ACLS(margin=1.0), ACLS(margin=1.0, form="released"), MbLS(margin=1.0)], ids=repr)
@pytest.mark.parametrize("shape", [(8, 5), (256, 100), (4096, 100), (256, 200)])  # each way through the one pass
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_give_a_loss_that_is_not(loss, shape, value):
    z = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    z[1, 2] = value
    y = torch.zeros(shape[0], dtype=torch.long)
    assert not loss(z.requires_grad_(), y).isfinite()
    loss(z, y).backward()


@pytest.mark.parametrize("name", REGISTRY)
def test_an_empty_batch_costs_nothing(name):
    loss = REGISTRY[name]()
    loss.prepare(n_train=3, n_classes=3)
    z, y, index = (
        torch.zeros(0, 3, requires_grad=True),
        torch.zeros(0, dtype=torch.long),
        torch.zeros(0, dtype=torch.long),
    )
    value = loss(z, y, index)
    value.backward()
    assert value == 0


def test_two_regularisers_of_a_kind_add_up():
    z, y, _ = inputs()
    inner, outer = MbLS(margin=0.5), MbLS(margin=1.0)
    both = MbLS(margin=1.0, base=MbLS(margin=0.5))
    torch.testing.assert_close(both(z, y), inner(z, y) + outer(z, y) - CE()(z, y))
    assert list(both.terms(z, y)) == ["ce", "margin", "margin_2"]


@pytest.mark.parametrize("base", [AdaFocal, CRL, CaPE, Patra])
def test_the_memory_of_a_base_ignores_what_the_whole_loss_does(base):
    """So that outer settings reach its hooks: what it remembers is as if it stood alone with them."""
    z, y, _ = inputs(4, 3, dims=(2, 2))
    y[0, 0, 0] = 255
    numbers, states = torch.arange(4), []
    for loss in (DCA(base=base(), ignore_index=255), base(ignore_index=255)):
        loss.prepare(n_train=4, n_classes=3)
        now = Epoch(0, 3, lambda split: [(z, y, numbers)])
        loss.start_epoch(now)
        loss.observe(z, y, numbers)
        loss.end_epoch(now)
        states.append({name.removeprefix("base."): value for name, value in loss.state_dict().items()})
    assert states[1], "a loss with memory has buffers"
    for name, value in states[1].items():
        torch.testing.assert_close(states[0][name], value)


@pytest.mark.parametrize("loss", [CRL(), ACLS(condition="ranking"), Patra()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_memory_that_was_cast_with_its_module_goes_on(loss, dtype):
    loss.prepare(n_train=4, n_classes=3)
    loss.to(dtype)
    z, y, _ = inputs(4, 3)
    loss.observe(z, y, torch.arange(4))
    loss.end_epoch(Epoch(0, 3, lambda split: []))
    assert loss(z, y, torch.arange(4)).isfinite()


def test_cpc_pairs_in_blocks_equal_the_whole_tensor(monkeypatch):
    z, y, _ = inputs(n=6, k=11)

    def naive(z):
        pair = F.softplus(z[:, None, :] - z[:, :, None]) * 0.5
        wrong = F.one_hot(y, 11).bool().logical_not()
        both = wrong[:, :, None] & wrong[:, None, :]
        return (pair * both).sum((1, 2)) / (10 * 9)

    for at_once in (1, 50, 1 << 19):
        monkeypatch.setattr("acls.losses.cpc._PAIRS_AT_ONCE", at_once)
        a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
        torch.testing.assert_close(binary_exclusion(a, y), naive(b))
        binary_exclusion(a, y).square().sum().backward()
        naive(b).square().sum().backward()
        torch.testing.assert_close(a.grad, b.grad)


def test_cpc_never_holds_all_pairs_at_once():
    n, k = 64, 500
    z = torch.randn(n, k, requires_grad=True)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.untyped_storage().nbytes() // out.element_size())
            return out

    with Watch():
        CPC()(z, torch.zeros(n, dtype=torch.long)).backward()
    assert largest < n * k * k / 20


@pytest.mark.parametrize("weighted", [False, True])
def test_mmce_by_sorting_equals_the_matrix(weighted):
    z, y, _ = inputs(n=50, scale=2.0)
    y = torch.where(torch.arange(50) % 2 == 0, z.argmax(1), y)

    def naive(z):
        r, predicted = z.softmax(1).max(1)
        c = (predicted == y).double()
        kernel = torch.exp(-(r[:, None] - r[None, :]).abs() / 0.4)
        if not weighted:
            u = c - r
            return F.cross_entropy(z, y) + (u[:, None] * u[None, :] * kernel).sum() / 50**2
        right, wrong = c * (1 - r), (1 - c) * r
        m, n = c.sum(), (1 - c).sum()
        mean = lambda a, b, na, nb: (a[:, None] * b[None, :] * kernel).sum() / (na * nb)  # noqa: E731
        squared = (
            mean(right, right, m, m) / (m * m + 1e-5)
            + mean(wrong, wrong, n, n) / (n * n + 1e-5)
            - 2 * mean(right, wrong, m, n) / (m * n + 1e-5)
        )
        return F.cross_entropy(z, y) + (squared + 1e-10).sqrt()

    a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
    ours, expected = MMCE(weighted=weighted)(a, y), naive(b)
    torch.testing.assert_close(ours, expected)
    ours.backward()
    expected.backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_weighted_mmce_is_zero_in_a_batch_without_mistakes():
    z, _, _ = inputs()
    y = z.argmax(1)
    value, gradient = value_and_gradient(MMCE(weighted=True), z, y, None)
    expected, plain = value_and_gradient(CE(), z, y, None)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, plain)


# -- memory ------------------------------------------------------------------------------------------------------------


def _train_crl(loss, epochs, batches):
    for number in range(epochs):
        for z, y, index in batches:
            loss(z, y, index)
            loss.observe(z, y, index)
        loss.end_epoch(_now(number))


def test_crl_is_cross_entropy_in_its_first_epoch():
    loss, (z, y, index) = CRL(), inputs()
    loss.prepare(n_train=40, n_classes=5)
    torch.testing.assert_close(loss(z, y, index), F.cross_entropy(z, y))
    loss.observe(z, y, index)
    assert loss.history.epochs == 0


def test_crl_counts_hits_over_epochs_as_the_reference():
    loss, (z, y, index) = CRL(), inputs()
    loss.prepare(n_train=40, n_classes=5)
    _train_crl(loss, 3, [(z, y, index)])
    hits = (z.argmax(1) == y).double() * 3
    torch.testing.assert_close(loss.history.hits[index], hits)
    assert loss.history.hits.sum() == hits.sum()
    assert loss.history.epochs == 3


def test_a_history_of_all_correct_gives_zero_not_nan():
    z, _, _ = inputs(n=7)
    y, index = z.argmax(1), torch.arange(7)
    for loss in (CRL(), ACLS(condition="ranking", margin=1.0)):
        loss.prepare(n_train=7, n_classes=5)
        _train_crl(loss, 3, [(z, y, index)])
        torch.testing.assert_close(loss(z, y, index), F.cross_entropy(z, y))


def test_acls_with_ranking_smooths_only_where_two_orders_disagree():
    loss = ACLS(condition="ranking", margin=1.0)
    loss.prepare(n_train=3, n_classes=2)
    loss.history.hits.copy_(torch.tensor([0.0, 2.0, 1.0]))
    loss.history.epochs.fill_(2)
    # Confidence falls from the first to the last: 0 against 1 disagrees, 1 against 2 agrees, 2 against 0 disagrees.
    z, y = torch.tensor([[6.0, 0.0], [4.0, 0.0], [2.0, 0.0]]), torch.zeros(3, dtype=torch.long)
    terms = ACLS.terms(loss, z, y, torch.arange(3))
    excess = torch.tensor([5.0, 0.0, 1.0])
    torch.testing.assert_close(terms["predicted"], 0.1 * excess.square().mean())


def test_adafocal_raises_gamma_where_the_network_is_overconfident():
    loss = AdaFocal(bins=2)
    confidence = torch.tensor([0.3, 0.4, 0.5, 0.8, 0.9, 0.95, 0.99, 0.3])
    correct = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    loss.update(confidence, correct)
    assert loss.gammas[0] < 1 < loss.gammas[1]


def test_adafocal_leaves_a_gamma_of_zero_again():
    loss = AdaFocal(bins=1, gamma_min=0.0)
    found = []
    for gap in (-0.9, -0.9, -0.9, 0.9, 0.9):
        loss.move(torch.tensor([gap], dtype=torch.float64))
        found.append(round(float(loss.gammas), 3))
    assert found == [0.407, 0.0, 0.2, 0.492, 1.21]


def test_adafocal_edges_are_the_reference_interpolation():
    import numpy as np

    confidence = torch.rand(37, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = AdaFocal(bins=15)
    loss.update(confidence, torch.ones(37))
    ordered = np.sort(confidence.numpy())
    torch.testing.assert_close(loss.edges, torch.tensor(np.interp(np.linspace(0, 37, 16), np.arange(37), ordered)))


def test_adafocal_asks_for_the_validation_set_after_each_epoch():
    loss, asked = AdaFocal(), []

    def predict(split):
        asked.append(split)
        yield inputs(seed=1)
        yield inputs(seed=2)

    loss.end_epoch(_now(predict=predict))
    assert asked == ["val"]
    assert (loss.gammas != 1).any()


@pytest.mark.parametrize("mode", ["classwise", "toplabel"])
def test_cape_trains_towards_frequencies_every_third_epoch(mode):
    n, k = 40, 4
    z, y, _ = inputs(n=n, k=k)
    index = torch.arange(n)
    loss = CaPE(mode=mode)
    loss.prepare(n_train=n, n_classes=k)
    for number in range(4):
        loss.start_epoch(
            _now(number, predict=lambda split: [(z[:20], y[:20], index[:20]), (z[20:], y[20:], index[20:])])
        )
        hard = F.cross_entropy(z, y).item()
        assert (loss(z, y, index).item() == pytest.approx(hard)) == (number not in (0, 3))
    torch.testing.assert_close(loss.targets.sum(1), torch.ones(n))


def test_cape_of_two_classes_is_the_reference_for_sizes_that_divide():
    p = torch.rand(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (torch.arange(20) % 3 == 0).long()
    loss = CaPE(bins=5).double()
    loss.prepare(n_train=20, n_classes=2)
    loss.double()
    logits = torch.stack([(1 - p).log(), p.log()], 1)
    loss.start_epoch(_now(predict=lambda split: [(logits, y, torch.arange(20))]))
    for members in p.argsort().reshape(5, 4):
        torch.testing.assert_close(loss.targets[members, 1], y[members].double().mean().expand(4))


def test_cape_looks_targets_up_where_pixels_have_no_number():
    z, y, _ = inputs(n=3, k=4, dims=(4, 4))
    loss = CaPE()
    loss.prepare(n_train=3, n_classes=4)
    loss.double()
    loss.start_epoch(_now(predict=lambda split: [(z, y, torch.arange(3))]))
    flat = CaPE()
    flat.prepare(n_train=48, n_classes=4)
    flat.double()
    rows, labels = z.movedim(1, -1).reshape(-1, 4), y.flatten()
    flat.start_epoch(_now(predict=lambda split: [(rows, labels, torch.arange(48))]))
    torch.testing.assert_close(loss(z, y, torch.arange(3)), flat(rows, labels, torch.arange(48)))


def test_patra_prunes_the_least_confident_and_never_brings_them_back():
    loss = Patra(prune_at=(0.5, 1.0), prune_fraction=0.25)
    loss.prepare(n_train=8, n_classes=2)
    lead = torch.arange(8.0)
    z, y, index = torch.stack([lead, -lead], 1), torch.zeros(8, dtype=torch.long), torch.arange(8)
    kept = []
    for number in range(4):
        loss.observe(z, y, index)
        loss.end_epoch(_now(number, total=4))
        kept.append(loss.keep_mask().nonzero().squeeze(1).tolist())
    assert kept == [list(range(8)), [2, 3, 4, 5, 6, 7], [2, 3, 4, 5, 6, 7], [3, 4, 5, 6, 7]]
    assert loss.confidence[7].item() == pytest.approx((1 - 0.7**4) * 1.0, rel=1e-5)


def test_mbls_as_version_0_1_0_recorded_it_is_read():
    fields = {"schedule": "constant", "mu": 1.0, "max_weight": 100.0, "step_size": 100}
    assert repr(make_loss("MbLS", margin=6.0, **fields)) == "MbLS(margin=6.0)"
    with pytest.raises(InputError, match=r"schedule='add'.*removed"):
        make_loss("MbLS", schedule="add")
    MbLS().load_state_dict({"current_weight": torch.tensor(0.1)})


def test_dual_focal_looks_at_the_next_class_below():
    p = torch.tensor([[0.5, 0.3, 0.2]])
    value = DualFocal(gamma=2.0)(p.log(), torch.tensor([1]))
    assert value.item() == pytest.approx(-((1 - 0.3 + 0.2) ** 2) * math.log(0.3), rel=1e-5)
    lowest = DualFocal(gamma=2.0)(p.log(), torch.tensor([2]))
    assert lowest.item() == pytest.approx(-((1 - 0.2) ** 2) * math.log(0.2), rel=1e-5)


@pytest.mark.parametrize("make", [ACLS, MbLS])
def test_torch_func_gives_the_gradient_of_the_kernel(make):
    loss, (z, y, _) = make(margin=1.0), inputs()
    found = torch.func.grad(lambda z: loss(z, y))(z)
    torch.testing.assert_close(found, value_and_gradient(loss, z, y, None)[1])
