"""Every registered loss, in every form, passes one battery; a loss with a fault does not."""

import functools

import pytest
import torch
from torch import Tensor, nn

from acls.losses import (
    ACLS,
    CRL,
    ECP,
    MDCA,
    MMCE,
    REGISTRY,
    About,
    Focal,
    InverseFocal,
    LabelSmoothing,
    MbLS,
    Regularized,
)
from acls.losses.acls import FORMS
from acls.losses.numerics import log_confidence
from acls.shapes import Positions
from tests.contract import losses as contract

VARIANTS = [
    (LabelSmoothing, {"spread": "others"}),
    (Focal, {"gamma": 0.5}),
    (Focal, {"detach": True}),
    (InverseFocal, {"detach": True}),
    (ECP, {"class_mean": False}),
    (MMCE, {"weighted": True}),
    (MDCA, {"base": Focal(gamma=1.0)}),
    (MbLS, {"margin": 1.0}),
    (CRL, {"target": "margin"}),
    (CRL, {"target": "entropy", "margin": False}),
    (CRL, {"condition": "margin", "logit_margin": 2.0}),
    (ACLS, {"base": LabelSmoothing()}),
    (ACLS, {"condition": "always"}),
    (ACLS, {"condition": "ranking"}),
    (REGISTRY["CaPE"], {"mode": "toplabel"}),
    *[(ACLS, {"form": form, "margin": 2.0}) for form in FORMS],
    *[(ACLS, {"form": form, "margin": 2.0, "smoothing": "constant"}) for form in FORMS],
    *[(ACLS, {"form": form, "margin": 2.0, "condition": "always"}) for form in FORMS],
]


def _makers():
    yield from REGISTRY.items()
    for kind, fields in VARIANTS:
        yield repr(kind(**fields)), functools.partial(kind, **fields)


@pytest.mark.parametrize("check", contract.BATTERY, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in _makers()])
def test_every_loss(check, make):
    check(make)


def _remembering():
    """The losses whose memory is made by `prepare`."""
    for name, make in _makers():
        loss = make()
        before = set(loss.state_dict())
        loss.prepare(n_train=3, n_classes=2)
        if set(loss.state_dict()) != before:
            yield pytest.param(make, id=name)


@pytest.mark.parametrize("make", list(_remembering()))
class TestMemoryInACheckpoint:
    """A loss that nobody prepared, somewhere in a module, takes what a checkpoint remembers, and nothing else."""

    def saved(self, make):
        return {f"net.loss.{key}": value for key, value in contract.ready(make).state_dict().items()}

    def module(self, make):
        return nn.ModuleDict({"net": nn.ModuleDict({"loss": make().double()})})

    def test_is_taken_as_it_is(self, make):
        module, saved = self.module(make), self.saved(make)
        module.load_state_dict(saved)
        loaded = module.state_dict()
        assert loaded.keys() == saved.keys()
        for key, value in saved.items():
            assert torch.equal(loaded[key], value), key
            assert loaded[key].dtype == value.dtype
            assert loaded[key].data_ptr() != value.data_ptr(), "a copy: going on training leaves the checkpoint alone"

    def test_of_something_else_is_refused(self, make):
        with pytest.raises(RuntimeError, match=r"Unexpected key\(s\)[^:]*: \"net.loss.unheard_of\""):
            self.module(make).load_state_dict(self.saved(make) | {"net.loss.unheard_of": torch.zeros(3)})
        with pytest.raises(RuntimeError, match=r"Unexpected key"):
            self.module(REGISTRY["CE"]).load_state_dict(self.saved(make))

    def test_of_other_samples_than_it_was_prepared_for_is_refused(self, make):
        module = self.module(make)
        module["net"]["loss"].prepare(n_train=contract.N_TRAIN + 1, n_classes=5)
        with pytest.raises(RuntimeError, match="size mismatch"):
            module.load_state_dict(self.saved(make))

    def test_is_not_needed_where_the_state_is_loaded_in_part(self, make):
        module = self.module(make)
        before = set(module.state_dict())
        module.load_state_dict({"net.other": torch.zeros(1)}, strict=False)
        assert set(module.state_dict()) == before


class _Faulty(Regularized):
    """Penalises confidence; each subclass gets one thing wrong."""

    about = About("A fault", "Nobody", "Nowhere", 2000)

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        return {"confidence": log_confidence(at.logits)[0].exp()}


class Sound(_Faulty):
    """Nothing is wrong here: what the battery rejects below is the fault, not the way the loss is written."""


class AveragesTheIgnored(_Faulty):
    def penalty(self, at: Positions) -> dict[str, Tensor]:
        return {"confidence": log_confidence(at.logits)[0].exp().mean()}

    couples_samples = True


class OverflowsAtLargeLogits(_Faulty):
    def penalty(self, at: Positions) -> dict[str, Tensor]:
        e = at.logits.exp()
        return {"confidence": (e / e.sum(1, keepdim=True)).amax(1)}


class ForgetsOnSave(_Faulty):
    def observe(self, logits, target, index):
        self.seen = getattr(self, "seen", 0) + 1

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        return {"confidence": getattr(self, "seen", 0) * log_confidence(at.logits)[0].exp()}


class ClaimsAnotherRule(_Faulty):
    def rule(self, n_classes):
        return REGISTRY["CE"]().rule(n_classes)


class StopsItsGradientSilently(_Faulty):
    def penalty(self, at: Positions) -> dict[str, Tensor]:
        return {"confidence": log_confidence(at.logits)[0].exp() * log_confidence(at.logits)[0].detach()}


def _rejections(make):
    failed = set()
    for check in contract.BATTERY:
        try:
            check(make)
        except (AssertionError, RuntimeError):
            failed.add(check.__name__)
    return failed


@pytest.mark.parametrize(
    ("make", "caught_by"),
    [
        (AveragesTheIgnored, "ignored_positions_count_for_nothing"),
        (OverflowsAtLargeLogits, "extreme_logits_stay_finite"),
        (ForgetsOnSave, "the_memory_survives_state_dict_and_copies"),
        (ClaimsAnotherRule, "the_gradient_is_the_papers_row"),
        (StopsItsGradientSilently, "the_gradient_is_that_of_finite_differences"),
    ],
)
def test_the_battery_rejects_a_loss_with_a_fault(make, caught_by):
    assert caught_by in _rejections(make)


def test_the_battery_accepts_a_sound_loss_it_never_saw():
    assert _rejections(Sound) == set()
