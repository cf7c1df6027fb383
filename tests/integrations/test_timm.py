"""The losses in timm's own training task, with its Mixup."""

import warnings

import pytest
import torch

import acls
from acls.errors import InputError
from acls.integrations.timm import calibration, criterion
from acls.losses import REGISTRY

timm = pytest.importorskip("timm")
CLASSES = 4


@pytest.fixture(scope="module")
def images():
    random = torch.Generator().manual_seed(0)
    return torch.randn(8, 3, 32, 32, generator=random), torch.arange(8) % CLASSES


def network():
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=CLASSES)


def mixer(smoothing=0.0):
    return timm.data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=smoothing, num_classes=CLASSES)


@pytest.mark.parametrize("mixed", [False, True], ids=["class ids", "mixup"])
@pytest.mark.parametrize("name", ["CE", "ACLS", "MbLS", "Focal", "MDCA"])
def test_timms_task_trains_with_a_loss_of_acls(images, name, mixed):
    from timm.task import ClassificationTask

    model, mixup = network(), mixer() if mixed else None
    x, y = mixup(images[0].clone(), images[1]) if mixed else images
    task = ClassificationTask(model, criterion(acls.make_loss(name), mixup), verbose=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        found = task(x, y)
        found["loss"].backward()
        optimizer.step()
        losses.append(float(found["loss"].detach()))
    assert found["output"].shape == (8, CLASSES)
    assert losses[-1] < losses[0]


def test_cross_entropy_of_soft_targets_is_timms(images):
    from timm.loss import SoftTargetCrossEntropy

    x, target = mixer(0.1)(images[0].clone(), images[1])
    logits = network().eval()(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = criterion("CE", mixer(0.1))(logits, target)
    torch.testing.assert_close(ours, SoftTargetCrossEntropy()(logits, target))


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_mixup_fits_or_is_refused_in_time(images, name):
    loss = acls.make_loss(name)
    if loss.refuses_soft_targets:
        with pytest.raises(InputError, match="without --mixup"):
            criterion(loss, mixer())
    else:
        x, target = mixer()(images[0].clone(), images[1])
        assert bool(torch.isfinite(criterion(loss, mixer())(network().eval()(x), target)))


def test_two_smoothings_are_told():
    with pytest.warns(UserWarning, match="--smoothing 0"):
        criterion("ACLS(margin=6)", mixer(0.1))
    with pytest.raises(InputError, match="names 2 losses"):
        criterion("CE, ACLS")


def test_calibration_is_that_of_all_batches_and_leaves_the_mode(images):
    model = network().train()
    x, y = images
    found = calibration(model, [(x[:5], y[:5]), (x[5:], y[5:])])
    assert model.training
    with torch.no_grad():
        expected = acls.Suite.of(model.eval()(x), y).summary()
    for name in ("accuracy", "ece", "aece", "nll", "brier"):
        assert found[name] == pytest.approx(expected[name], abs=1e-6)
