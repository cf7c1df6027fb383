"""AutoACLS: the margin that the validation set moves."""

import copy

import numpy as np
import pytest
import torch

from acls.errors import InputError
from acls.losses import ACLS, AutoACLS, Epoch, effective_label
from acls.losses.auto_acls import confidence_scale


def epoch(logits, target, batch=64):
    """An epoch whose validation set is this."""
    index = torch.arange(len(target))
    parts = [tuple(x[start : start + batch] for x in (logits, target, index)) for start in range(0, len(target), batch)]
    return Epoch(0, 1, lambda split: iter(parts) if split == "val" else iter(()))


def validation(stretch, n=3000, k=7):
    """Logits with labels drawn from their softmax, then stretched: confidence is right at the factor 1/stretch."""
    random = torch.Generator().manual_seed(3)
    z = 2 * torch.randn(n, k, generator=random)
    y = torch.multinomial(z.softmax(1), 1, generator=random)[:, 0]
    return stretch * z, y


@pytest.mark.parametrize("stretch", [0.5, 1.0, 1.7, 3.0])
def test_the_scale_is_where_mean_confidence_is_the_accuracy(stretch):
    z, y = validation(stretch)
    z[5], y[5] = 1e4, -100  # left out
    scale = confidence_scale(epoch(z, y), -100)
    x = np.delete(z.double().numpy(), 5, 0) * scale
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    accuracy = (x.argmax(1) == np.delete(y.numpy(), 5)).mean()
    assert abs(p.max(1).mean() - accuracy) < 1e-3
    assert scale == pytest.approx(1 / stretch, rel=0.1)


def test_the_margin_shrinks_for_the_overconfident_and_grows_for_the_others_by_the_rate():
    for stretch in (0.5, 2.0):
        now = epoch(*validation(stretch))
        whole, half = AutoACLS(margin=6.0, rate=1.0), AutoACLS(margin=6.0, rate=0.5)
        whole.end_epoch(now)
        half.end_epoch(now)
        scale = confidence_scale(now, -100)
        assert (scale < 1) == (stretch > 1)
        assert float(whole.current_margin) == pytest.approx(6 * scale)
        assert float(half.current_margin) == pytest.approx(6 * scale**0.5)


def test_the_loss_and_its_rule_are_those_of_acls_at_the_moved_margin():
    z, y = validation(2.0)
    auto = AutoACLS(margin=6.0)
    assert torch.equal(auto(z, y), ACLS(margin=6.0)(z, y))
    auto.end_epoch(epoch(z, y))
    same = ACLS(margin=float(auto.current_margin))
    torch.testing.assert_close(auto(z, y), same(z, y))
    z = z[:9].double()
    torch.testing.assert_close(auto.rule(7).label(z, y[:9]), effective_label(auto, z, y[:9]))


def test_the_margin_survives_saving_loading_and_copying():
    z, y = validation(2.0)
    auto = AutoACLS(margin=6.0)
    auto.end_epoch(epoch(z, y))
    again = AutoACLS(margin=6.0)
    again.load_state_dict(auto.state_dict())
    for other in (again, copy.deepcopy(auto)):
        assert torch.equal(other(z, y), auto(z, y))
    assert repr(auto) == "AutoACLS(margin=6.0)"  # where it starts, not where it is


def test_the_margin_stays_within_its_reach():
    z = 3 * torch.eye(5).repeat(4, 1)
    y = torch.arange(5).repeat(4)
    for target, bound in ((y, 24.0), ((y + 1) % 5, 1.5)):  # always right, and always wrong
        auto = AutoACLS(margin=6.0)
        for _ in range(20):
            auto.end_epoch(epoch(z, target))
        assert float(auto.current_margin) == bound


def _margins(rate, epochs=30):
    """The margins over epochs of a network whose logits are the margin of the epoch before, and right at margin 6."""
    calibrated, y = validation(1.0, n=300)
    auto, followed, seen = AutoACLS(margin=12.0, rate=rate, reach=1e6), 12.0, []
    for _ in range(epochs):
        auto.end_epoch(epoch(followed / 6 * calibrated, y))
        followed = seen[-1] if seen else 12.0
        seen.append(float(auto.current_margin))
    return np.array(seen)


def test_where_logits_follow_an_epoch_late_the_margin_settles_at_the_default_rate_and_swings_at_2():
    settled = _margins(AutoACLS().rate)
    assert settled[10:] == pytest.approx(settled[-1], rel=0.05)
    assert settled.min() > 0.8 * settled[-1]
    swinging = np.log(_margins(2.0))
    assert np.ptp(swinging[-8:]) > 3


def test_without_validation_labels_the_margin_stays():
    auto = AutoACLS(margin=6.0)
    auto.end_epoch(epoch(torch.randn(4, 3), torch.full((4,), -100)))
    assert float(auto.current_margin) == 6.0


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(InputError, match=r"AutoACLS\(rate=0.0\): expected a number in \(0, inf\)"):
        AutoACLS(rate=0.0)
    with pytest.raises(InputError, match=r"expected a number in \[1, inf\)"):
        AutoACLS(reach=0.5)
