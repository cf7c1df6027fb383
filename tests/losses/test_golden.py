"""Every loss gives the value and the gradient that the reference implementations gave in float64."""

import json
import math

import pytest
import torch

from acls.losses import (
    ACLS,
    CE,
    CPC,
    CRL,
    DCA,
    ECP,
    FLSD,
    MDCA,
    MMCE,
    AdaFocal,
    Brier,
    CaPE,
    Focal,
    InverseFocal,
    LabelSmoothing,
    MbLS,
    Patra,
)
from tests.conftest import GOLDEN

ADAFOCAL_GAPS = torch.tensor([-0.24, 0.02, 0.58, -0.88], dtype=torch.float64)


def _adafocal(updates=3):
    loss = AdaFocal(bins=4, reduction="sum")
    loss.edges.copy_(torch.tensor([0.12, 0.45, 0.77, 0.95, 1.0], dtype=torch.float64))
    for _ in range(updates):
        loss.move(ADAFOCAL_GAPS)
    return loss


def _crl(n_classes):
    loss = CRL()
    loss.prepare(n_train=16, n_classes=n_classes)
    loss.history.hits.copy_(torch.tensor([(7 * k) % 6 for k in range(16)], dtype=torch.float64))
    loss.history.epochs.fill_(5)
    return loss


# The name in the golden file: the loss for K classes that it was made with.
LOSSES = {
    "ce": lambda k: CE(),
    "ls": lambda k: LabelSmoothing(epsilon=0.05),
    "ls_mdca_repo": lambda k: LabelSmoothing(epsilon=0.1, spread="others"),
    "fl3_mean": lambda k: Focal(gamma=3.0),
    "flsd53_mean": lambda k: FLSD(),
    "ecp": lambda k: ECP(),
    "mmce": lambda k: MMCE(),
    "mmce_weighted": lambda k: MMCE(weight=2.0, weighted=True),
    "mdca_nll": lambda k: MDCA(),
    "mdca_fl": lambda k: MDCA(base=Focal(gamma=1.0)),
    "dca": lambda k: DCA(),
    "cpc": lambda k: CPC(),
    "mbls_m10": lambda k: MbLS(),
    "mbls_m6": lambda k: MbLS(margin=6.0),
    "crl": _crl,
    "acls_m10": lambda k: ACLS(form="released"),
    "acls_m6": lambda k: ACLS(form="released", margin=6.0),
    "acls_paper_loss_full_grad": lambda k: ACLS(form="printed-loss"),
    "acls_paper_loss_detached": lambda k: ACLS(form="stopped", lambda2=0.01 * (k - 1)),
    "acls_paper_printed_grad": lambda k: ACLS(form="printed-gradient"),
    "acls_paper_norm_neg_detached": lambda k: ACLS(form="stopped"),
    "acls_ar_only": lambda k: ACLS(form="stopped", lambda2=0.01 * (k - 1), condition="always"),
    "acls_cr_only": lambda k: ACLS(form="printed-gradient", smoothing="constant"),
    "adafocal_sum": lambda k: _adafocal(),
    "inverse_focal1_sum": lambda k: InverseFocal(gamma=1.0, reduction="sum"),
    "inverse_focal2_sum": lambda k: InverseFocal(gamma=2.0, reduction="sum"),
    "inverse_focal2_detached_mean": lambda k: InverseFocal(gamma=2.0, detach=True),
    "focal2_detached_mean": lambda k: Focal(gamma=2.0, detach=True),
    "brier": lambda k: Brier(),
    "patra_huber": lambda k: Patra(),
}
# What the references' own epsilons cost in digits.
ATOL = {"ecp": 1e-11, "cpc": 1e-10}


def golden_logits(n, k, s):
    i, j = torch.meshgrid(torch.arange(n), torch.arange(k), indexing="ij")
    i, j = i.double(), j.double()
    return (6 + 4 * s) * torch.sin(0.7 * i + 1.3 * j + 0.5 * s) + 2 * torch.cos(0.11 * i * j + 0.3 * s)


def golden_labels(z, s):
    n, k = z.shape
    return torch.tensor([(3 * i + 1 + s) % k if (i + s) % 3 == 0 else int(z[i].argmax()) for i in range(n)])


def golden_maps():
    b, k, h, w = 2, 21, 6, 7
    pixel = torch.arange(b * h * w).double().reshape(b, 1, h, w)
    channel = torch.arange(k).double().reshape(1, k, 1, 1)
    z = 9 * torch.sin(0.7 * pixel + 1.3 * channel) + 2 * torch.cos(0.11 * pixel * channel)
    number = pixel.long().reshape(b, h, w)
    y = torch.where(number % 3 != 0, z.argmax(1), (3 * number + 1) % k)
    return z, torch.where(number % 5 == 2, 255, y)


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text())


def _case_inputs(case):
    if case.startswith("seg"):
        return golden_maps()
    n, k, s = (int(part[1:]) for part in case.split("_"))
    z = golden_logits(n, k, s)
    return z, golden_labels(z, s)


def _names():
    cases = json.loads(GOLDEN.read_text())["cases"]
    return [(case, name) for case, content in cases.items() for name in content["methods"]]


def test_the_inputs_are_those_of_the_golden_file(golden):
    for case, content in golden["cases"].items():
        z, y = _case_inputs(case)
        assert y.flatten().tolist() == content["labels"]
        assert z.sum().item() == pytest.approx(content["logits_sum"], rel=1e-12)


def test_every_golden_method_is_ours(golden):
    named = {name for case in golden["cases"].values() for name in case["methods"]}
    assert named == set(LOSSES)


@pytest.mark.parametrize(("case", "name"), _names())
def test_golden_value_and_gradient(golden, case, name):
    expected = golden["cases"][case]["methods"][name]
    z, y = _case_inputs(case)
    z.requires_grad_()
    loss = LOSSES[name](z.shape[1])
    if case.startswith("seg"):
        loss.ignore_index = 255
    index = torch.tensor([(3 * i + 1) % 16 for i in range(len(z))]) if loss.needs_index else None
    value = loss(z, y, index)
    value.backward()
    gradient = z.grad.flatten()
    weights = torch.cos(0.37 * torch.arange(gradient.numel()).double())
    atol = ATOL.get(name, 1e-12)
    assert value.item() == pytest.approx(expected["loss"], rel=1e-9, abs=atol)
    assert gradient[:5].tolist() == pytest.approx(expected["grad5"], rel=1e-9, abs=atol)
    assert gradient.norm().item() == pytest.approx(expected["grad_l2"], rel=1e-9, abs=atol)
    assert gradient.sum().item() == pytest.approx(expected["grad_sum"], rel=1e-9, abs=atol)
    assert (gradient * weights).sum().item() == pytest.approx(expected["grad_dot"], rel=1e-9, abs=atol * 10)


@pytest.mark.parametrize("updates", range(6))
def test_adafocal_gammas_follow_the_reference(golden, updates):
    expected = golden["adafocal_gammas_after_k_updates"][str(updates)]
    assert _adafocal(updates).gammas.tolist() == pytest.approx(expected, rel=1e-12)


def test_cape_targets_follow_the_reference(golden):
    case = golden["cape_bin"]
    n = len(case["targets"])
    p = torch.tensor([abs(math.sin(3.1 * k)) for k in range(n)], dtype=torch.float64)
    y = torch.tensor([int((7 * k) % 5 < 2) for k in range(n)])
    loss = CaPE(bins=case["n_bins"])
    loss.prepare(n_train=n, n_classes=2)
    loss.double()
    logits = torch.stack([(1 - p).log(), p.log()], dim=1)
    loss.start_epoch(_epoch(lambda split: [(logits, y, torch.arange(n))]))
    # The reference sorts one class only; the other class's groups are the same from the other end where n divides.
    column = loss.shares[1]
    order = p.argsort(stable=True)
    groups = [order[i * n // 5 : (i + 1) * n // 5] for i in range(5)]
    ours = torch.empty(n, dtype=torch.float64)
    for share, members in zip(column, groups, strict=True):
        ours[members] = share
    assert ours.tolist() == pytest.approx(case["targets"])


def _epoch(predict, number=0, total=10):
    from acls.losses import Epoch

    return Epoch(number=number, total=total, predict=predict)
