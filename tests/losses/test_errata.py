"""Errors of the paper and the reference implementations: each test computes both sides (docs/errata.md)."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from acls.losses import ACLS, CPC, CRL, MDCA, MMCE, Focal, MbLS, effective_label
from acls.recipes import find
from acls.reproduce.published import TABLE_1, TABLE_3, TABLE_5
from tests.contract.losses import inputs, value_and_gradient
from tests.losses.test_golden import _crl, golden_labels, golden_logits


def regulariser_gradient(loss, z, y, index=None):
    """The gradient a position of what the loss adds to cross-entropy."""
    n = len(z)
    _, gradient = value_and_gradient(loss, z, y, index)
    return n * gradient - (z.softmax(1) - F.one_hot(y, z.shape[1]))


def test_mbls_penalises_the_predicted_class():
    """Table 2 and Eq. 9 say C = 0 at the predicted class; the gradient there is (weight/K) times the number of gaps."""
    z = golden_logits(8, 10, 1)
    y = golden_labels(z, 1)
    gradient = regulariser_gradient(MbLS(margin=6.0), z, y)
    predicted = z.argmax(1)
    gaps = (z.amax(1, keepdim=True) - z > 6.0).sum(1)
    at_predicted = gradient.gather(1, predicted.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(at_predicted, 0.1 / 10 * gaps.double())
    assert (at_predicted > 0).any()  # the paper: 0 everywhere


def test_the_printed_acls_gradient_is_no_losses_gradient():
    """Eq. 12 has d g_j/d z_ŷ = -lambda2 but d g_ŷ/d z_j = 0: mixed partials that no function's gradient has."""
    z = torch.tensor([9.0, 0.5, 1.0, -2.0], dtype=torch.float64)

    def jacobian_of(loss):
        """d g_i / d z_j by finite differences."""
        step = 1e-3 * torch.eye(4, dtype=torch.float64)
        ahead, behind = (loss.rule(4).smoothing(z + sign * step, torch.zeros(4, dtype=torch.long)) for sign in (1, -1))
        return (ahead - behind).T / 2e-3

    jacobian = jacobian_of(ACLS(form="printed-gradient", margin=6.0))
    other = 1  # over the margin, and not the smallest logit
    assert abs(jacobian[other, 0].item()) == pytest.approx(0.01)
    assert jacobian[0, other].item() == pytest.approx(0.0, abs=1e-12)
    jacobian = jacobian_of(ACLS(form="printed-loss", margin=6.0))
    torch.testing.assert_close(jacobian, jacobian.T)


def test_the_printed_acls_loss_has_twice_the_printed_gradient_and_more():
    """Integrating Eq. 12 does not give Eq. 13: its gradient has a factor 2 and goes through min z and z_ŷ as well."""
    z = torch.tensor([[9.0, 0.5, 1.0, -2.0]], dtype=torch.float64)
    y = torch.tensor([0])
    printed = regulariser_gradient(ACLS(form="printed-gradient", margin=6.0), z, y)
    of_loss = regulariser_gradient(ACLS(form="printed-loss", margin=6.0), z, y)
    torch.testing.assert_close(of_loss[0, 1:3], 2 * printed[0, 1:3])
    assert of_loss[0, 0] > 2 * printed[0, 0]
    assert of_loss[0, 3] < 2 * printed[0, 3]
    assert of_loss.sum().item() == pytest.approx(0, abs=1e-12)
    assert printed.sum().item() != pytest.approx(0, abs=1e-3)


def test_the_released_acls_is_not_shift_invariant():
    """A constant added to all logits changes nothing in the softmax, but a lot in the released loss."""
    z = golden_logits(8, 10, 1)
    y = golden_labels(z, 1)
    released = [ACLS(form="released")(z + shift, y).item() for shift in (-5.0, 0.0, 5.0)]
    assert released == pytest.approx([3.2600, 3.3492, 6.2182], abs=5e-5)
    for loss in (ACLS(form="paper"), ACLS(form="printed-loss"), MbLS()):
        assert loss(z + 5.0, y).item() == pytest.approx(loss(z, y).item(), rel=1e-9)


@pytest.mark.parametrize(
    ("form", "drifts"),
    [
        ("paper", False),
        ("printed-loss", False),
        ("released", True),
        ("stopped", True),
        ("printed-gradient", True),
    ],
)
def test_stopped_gradients_let_the_logits_drift(form, drifts):
    z = golden_logits(8, 10, 1)
    gradient = regulariser_gradient(ACLS(form=form, margin=6.0), z, golden_labels(z, 1))
    assert (gradient.sum(1).abs().max().item() > 1e-9) == drifts


def test_descending_the_logits_themselves_the_stopped_form_drifts_and_the_paper_form_does_not():
    """Free logits under gradient descent: the mean logit, which no probability depends on, runs away or stays."""
    y = torch.arange(10)
    drift = {}
    for form in ("paper", "stopped"):
        z = (0.1 * torch.randn(10, 10, generator=torch.Generator().manual_seed(0))).double().requires_grad_()
        start = z.mean().item()
        for _ in range(800):
            (gradient,) = torch.autograd.grad(ACLS(form=form, margin=2.0, reduction="sum")(z, y), z)
            z = (z - 0.5 * gradient).detach().requires_grad_()
        drift[form] = abs(z.mean().item() - start)
    assert drift["paper"] < 1e-6
    assert drift["stopped"] > 1.0


def _cpc_f(z, y, signs):
    """f at a wrong class, of Eq. (5) + (6) with the reference's normalisers, and the signs of its two parts."""
    k = z.shape[1]
    p = z.softmax(1)
    p_y = p.gather(1, y.unsqueeze(1))
    wrong = F.one_hot(y, k) == 0
    first = p / (p_y + p) * 0.1 / (k - 1)
    pair = (p[:, None, :] - p[:, :, None]) / (p[:, None, :] + p[:, :, None])
    second = (pair * wrong[:, None, :]).sum(2) / (2 * (k - 1) * (k - 2))
    return signs[0] * first + signs[1] * second, wrong


def test_cpc_raises_the_true_label_and_its_printed_signs_are_wrong():
    """Eqs. 5 and 6 imply f_j = -1v1 part + BE part; Table 2 and Eq. 7 print + for the first, Eq. 8 turns both."""
    z, y, _ = inputs(scale=2.0)
    smoothing = effective_label(CPC(), z, y) - F.one_hot(y, 5)
    right, wrong = _cpc_f(z, y, (-1, +1))
    torch.testing.assert_close(smoothing[wrong], right[wrong])
    for signs in ((+1, +1), (+1, -1)):
        printed, _ = _cpc_f(z, y, signs)
        assert (smoothing[wrong] - printed[wrong]).abs().max() > 1e-3
    assert (smoothing[~wrong] > 0).all()  # f_y < 0: the true class's label is raised, whether predicted or not


def test_mdca_has_twice_the_shape_of_crl_where_the_paper_assumes_it_to_differ():
    """With a = +1 at the predicted class and -1 elsewhere: f = 2 (weight/K) r (1 - r), not p_j (1 + p_ŷ)."""
    z = torch.tensor([[3.0, 1.0, 0.0, -1.0]], dtype=torch.float64).repeat(4, 1)
    y = torch.arange(4)  # the predicted class is predicted four times and occurs once
    p = z[0].softmax(0)
    r = p[0]
    lowered = (F.one_hot(y, 4) - effective_label(MDCA(), z, y))[0]
    torch.testing.assert_close(lowered[0], 2 / 4 * r * (1 - r))
    torch.testing.assert_close(-lowered[1:], 2 / 4 * r * p[1:])
    printed = 1 / 4 * p[1:] * (1 + r)
    assert (printed + lowered[1:]).abs().max() > 1e-3
    assert lowered.sum().item() == pytest.approx(0, abs=1e-12)
    assert (1 / 4 * (1 - r) * r - printed.sum()).abs() > 1e-3  # the printed f does not even sum to zero


def test_crl_has_a_margin_that_the_paper_drops():
    """Pairs are active while t (k_i - k_j) < |c_i - c_j|, not only while they are in the wrong order."""
    for k, n, s in ((10, 8, 0), (200, 5, 0), (10, 8, 1), (200, 5, 1)):
        z = golden_logits(n, k, s)
        y = golden_labels(z, s)
        loss, bare = _crl(k), CRL(margin=False)
        bare.prepare(n_train=16, n_classes=k)
        bare.load_state_dict(loss.state_dict())
        index = torch.tensor([(3 * i + 1) % 16 for i in range(n)])
        c, r = loss.history.hits[index] / 5, z.softmax(1).amax(1)
        lead, ahead = c - c.roll(-1), r - r.roll(-1)
        active = (lead.sign() * ahead < lead.abs()) & (lead != 0)
        disordered = lead * ahead < 0
        assert active.sum() > disordered.sum()
        assert loss.terms(z, y, index)["ranking"] > bare.terms(z, y, index)["ranking"]


def test_crl_raises_the_confidence_of_half_of_the_pairs():
    """'f > 0 whenever C = 1' is false: of two samples out of order one is too sure, the other not sure enough."""
    loss = CRL()
    loss.prepare(n_train=2, n_classes=3)
    loss.history.hits.copy_(torch.tensor([0.0, 1.0]))
    loss.history.epochs.fill_(1)
    z = torch.tensor([[3.0, 0.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    label = effective_label(loss, z, torch.zeros(2, dtype=torch.long), index=torch.arange(2))
    assert label[0, 0] < 1 < label[1, 0]


def test_focal_smooths_towards_its_own_prediction_and_sharpens_where_it_is_unsure():
    """Its label is g q + (1 - g) p, no constant as Table 2 has it; g > 1 below p_y = .253 for gamma 3."""
    y = torch.tensor([0])
    for p_y, sharpens in ((0.10, True), (0.252, True), (0.254, False), (0.9, False)):
        p = torch.tensor([[p_y, (1 - p_y) * 0.6, (1 - p_y) * 0.4]], dtype=torch.float64)
        g = (1 - p_y) ** 3 - 3 * p_y * (1 - p_y) ** 2 * math.log(p_y)
        expected = g * F.one_hot(y, 3) + (1 - g) * p
        torch.testing.assert_close(effective_label(Focal(gamma=3.0), p.log(), y), expected)
        assert (g > 1) == sharpens


def test_cross_entropy_is_the_expectation_of_minus_log_p_not_of_p():
    z, y, _ = inputs()
    p_true = z.softmax(1).gather(1, y.unsqueeze(1)).mean()
    assert F.cross_entropy(z, y).item() != pytest.approx(p_true.item(), abs=0.1)
    assert F.cross_entropy(z, y).item() == pytest.approx(-z.log_softmax(1).gather(1, y.unsqueeze(1)).mean().item())


def test_ece_without_the_absolute_value_is_the_overall_gap_whatever_the_bins():
    """Supplement Eq. 22 lacks it: over- and underconfident bins then cancel."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 1000)
    correct = rng.uniform(size=1000) < np.where(confidence > 0.75, confidence - 0.2, confidence + 0.2)
    bins = np.ceil(confidence * 15).astype(int)
    signed = [(confidence[bins == b].sum() - correct[bins == b].sum()) / 1000 for b in range(1, 16)]
    assert sum(signed) == pytest.approx(confidence.mean() - correct.mean())
    assert abs(sum(signed)) < 0.05 < 0.15 < sum(map(abs, signed))


def test_a_loss_of_probabilities_lowers_as_much_as_it_raises():
    """f_ŷ C_ŷ = sum_j f_j C_j for any function of the softmax; Table 2 breaks it for CPC, MDCA, MbLS and ACLS."""
    z, y, _ = inputs(scale=6.0)
    for loss in (CPC(), MDCA(), MbLS(margin=1.0), ACLS(form="paper", margin=1.0), MMCE()):
        torch.testing.assert_close(effective_label(loss, z, y).sum(1), torch.ones(7).double())


def test_weighted_mmce_divides_twice_by_the_number_of_pairs():
    """The published w = (1 - r)/m becomes (1 - r)/m^2: a batch of 128 weakens the square by orders of magnitude."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(128, 5, generator=generator, dtype=torch.float64) * 2
    y = torch.where(torch.arange(128) % 3 == 0, (z.argmax(1) + 1) % 5, z.argmax(1))
    ours = MMCE(weighted=True).terms(z, y)["mmce"].item()
    r = z.softmax(1).amax(1)
    c = (z.argmax(1) == y).double()
    kernel = torch.exp(-(r[:, None] - r[None, :]).abs() / 0.4)
    once = c * (1 - r) / c.sum() - (1 - c) * r / (1 - c).sum()
    twice = c * (1 - r) / c.sum() ** 2 - (1 - c) * r / (1 - c).sum() ** 2
    form = lambda w: float((w[:, None] * w[None, :] * kernel).sum())  # noqa: E731
    assert ours == pytest.approx(math.sqrt(form(twice) + 1e-10), rel=1e-4)
    assert form(once) > 100 * form(twice)


def test_the_released_acls_at_the_papers_lambdas_smooths_by_other_amounts():
    """2 (z_ŷ - M)/(z_ŷ - min z - M) times the printed amount at ŷ, so twice only at min z = 0; 2/(K - 1) elsewhere."""
    y = torch.tensor([0])
    for lowest in (0.0, -3.0):
        z = torch.tensor([[12.0, 3.0, 1.0, lowest]], dtype=torch.float64)
        released = regulariser_gradient(ACLS(form="released", margin=6.0), z, y)
        printed = regulariser_gradient(ACLS(form="printed-gradient", margin=6.0), z, y)
        at_predicted = 2 * (12 - 6) / (12 - lowest - 6)
        torch.testing.assert_close(released[0] / printed[0], torch.tensor([at_predicted, 2 / 3, 2 / 3, 2 / 3]).double())
    assert at_predicted == pytest.approx(4 / 3)


def test_on_real_logits_the_released_acls_smooths_by_less_than_twice_the_printed_amount(outputs):
    z = np.load(outputs("cifar10_akamaster_resnets"))["resnet56"].astype(np.float64)
    top, low = z.max(1), z.min(1)
    medians = [np.median((2 * (top - m) / (top - low - m))[top > m]) for m in (6, 10)]
    assert medians == pytest.approx([1.28, 1.10], abs=0.005)


@pytest.mark.parametrize("k", [10, 200])
def test_the_printed_sum_over_classes_is_k_minus_1_times_the_mean(k):
    z, y = golden_logits(5, k, 1), golden_labels(golden_logits(5, k, 1), 1)
    summed, averaged = (ACLS(form=form, margin=6.0).terms(z, y)["others"] for form in ("printed-loss", "paper"))
    torch.testing.assert_close(summed, (k - 1) * averaged)


def test_mdca_is_a_mean_over_classes_and_its_sign_is_not_that_of_an_absolute_value():
    """Supplement Eqs. 9 and 10: the sum over classes lacks 1/K, and sgn(|x|) = 1 gives a gradient of 0."""
    z, y, _ = inputs(scale=2.0)
    p, q = z.softmax(1), F.one_hot(y, 5).double()
    gap = p.mean(0) - q.mean(0)
    torch.testing.assert_close(MDCA().terms(z, y)["mdca"], gap.abs().sum() / 5)
    gradient = regulariser_gradient(MDCA(), z, y)

    def by_signs(a):
        return p * (a - (a * p).sum(1, keepdim=True)) / 5

    torch.testing.assert_close(gradient, by_signs(gap.sign()))
    assert by_signs(gap.abs().sign()).abs().max() < 1e-12 < gradient.abs().max()


def test_the_printed_tables_do_not_show_what_is_said_of_them():
    cifar, cifar_101 = (TABLE_3[f"cifar10_resnet{depth}"] for depth in (50, 101))
    assert cifar["MbLS"].ece - cifar["ACLS"].ece == pytest.approx(0.04)
    assert cifar_101["MbLS"].ece - cifar_101["ACLS"].ece == pytest.approx(0.02)
    assert cifar_101["MbLS"].aece == cifar_101["ACLS"].aece == 3.25
    first = TABLE_3["tiny_imagenet_resnet50"]
    others = [table for table in TABLE_3.values() if table is not first]
    for method in ("CPC", "MDCA"):  # of Table 1, which the introduction points to
        assert first[method].ece == TABLE_1["tiny_imagenet_resnet50"][method].ece < first["LS"].ece
        assert all(table[method].ece > table["LS"].ece for table in others)
    for ablation in TABLE_5.values():  # so the sentence on Table 5, which is on the authors' own rows, holds
        assert all(ablation[row].ece < ablation["LS"].ece for row in ("ACLS, AR only", "ACLS, CR only"))
    ablation = TABLE_5["tiny_imagenet_resnet101"]
    assert ablation["ACLS, AR only"].aece < ablation["ACLS"].aece
    tiny, imagenet = TABLE_3["tiny_imagenet_resnet50"], TABLE_3["imagenet_resnet50"]
    assert sorted(tiny, key=lambda name: tiny[name].ece)[:3] == ["ACLS", "CE + TS", "MbLS"]
    assert tiny["CRL"].aece == tiny["CE + TS"].aece == 1.52
    assert sorted(imagenet, key=lambda name: imagenet[name].aece)[:3] == ["ACLS", "FL", "FLSD"]


def test_cifar10_accuracies_split_with_resnet101_and_not_with_resnet50():
    low = ("CE", "CE + TS", "ECP", "LS", "FL", "FLSD")
    for depth, apart in ((50, low[:2]), (101, low)):
        rows = {row: printed.accuracy for row, printed in TABLE_3[f"cifar10_resnet{depth}"].items()}
        below, above = ([value for row, value in rows.items() if (row in apart) == under] for under in (True, False))
        lowest_highest = (min(below), max(below), min(above), max(above))
        assert lowest_highest == ((93.2, 93.2, 94.75, 95.4) if depth == 50 else (92.38, 93.35, 94.99, 95.66))


def test_every_test_that_the_errata_name_is_here():
    text = Path("docs/errata.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 20
    assert named <= globals().keys()


def test_the_recipes_clip_as_the_released_code_does():
    assert all(find(name).clip == 2.0 for name in TABLE_3)


def test_on_balanced_classes_accuracy_is_the_mean_over_classes():
    """So 40,000 images with an accuracy of 75.65 % and a class mean of 75.36 % are not 40 of each of 1,000 classes."""
    right = np.random.default_rng(0).uniform(size=(1000, 40)) < 0.75
    assert right.mean() == pytest.approx(right.mean(1).mean(), abs=1e-12)
    counts = np.random.default_rng(1).integers(20, 61, 1000)
    uneven = [right[k, : min(n, 40)] for k, n in enumerate(counts)]
    assert abs(np.concatenate(uneven).mean() - np.mean([one.mean() for one in uneven])) > 1e-6
