"""The losses in timm's own training: its task, loaders, Mixup, optimisers, schedules and averaged weights."""

import argparse
import re
import textwrap
import warnings
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

import acls
from acls.errors import InputError
from acls.integrations.timm import calibration, criterion
from acls.losses import REGISTRY
from tests.processes import together

timm = pytest.importorskip("timm")
CLASSES = 4
GUIDE = Path(__file__).parents[2] / "docs" / "integrations.md"


@pytest.fixture(scope="module")
def images():
    random = torch.Generator().manual_seed(0)
    return torch.randn(8, 3, 32, 32, generator=random), torch.arange(8) % CLASSES


def network():
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=CLASSES)


def mixer(smoothing=0.0):
    return timm.data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=smoothing, num_classes=CLASSES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """41 images of 32 x 32, dark for the first class and brighter for each next."""
    from PIL import Image

    place = tmp_path_factory.mktemp("images")
    random = torch.Generator().manual_seed(0)
    for number in range(41):
        label = number % CLASSES
        pixels = 60 * label + torch.randint(0, 60, (32, 32, 3), generator=random)
        (place / str(label)).mkdir(exist_ok=True)
        Image.fromarray(pixels.byte().numpy()).save(place / str(label) / f"{number}.png")
    return place


def loader(folder, *, batch=8, **settings):
    dataset = timm.data.ImageDataset(folder)
    plain = {"input_size": (3, 32, 32), "num_workers": 0, "persistent_workers": False, "device": torch.device("cpu")}
    return timm.data.create_loader(dataset, batch_size=batch, **(plain | settings))


@pytest.mark.parametrize("prefetcher", [True, False], ids=["FastCollateMixup", "Mixup"])
def test_trains_as_timms_script_does(folder, prefetcher):
    """By default the script mixes while it collates, so that no ``mixup_fn`` is left to ask."""
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2
    from timm.task import ClassificationTask

    settings = {"mixup_alpha": 0.2, "cutmix_alpha": 0.2, "label_smoothing": 0.0, "num_classes": CLASSES}
    collate = timm.data.FastCollateMixup(**settings) if prefetcher else None
    mixup = None if prefetcher else timm.data.Mixup(**settings)
    torch.manual_seed(0)
    train = loader(folder, is_training=True, no_aug=True, collate_fn=collate, use_prefetcher=prefetcher)
    held_out = loader(folder, use_prefetcher=prefetcher)
    task = ClassificationTask(network(), criterion("ACLS(margin=2)", settings), verbose=False)
    task.setup_ema(decay=0.5)
    before = calibration(task.get_eval_model(), held_out)
    optimizer = create_optimizer_v2(task.get_trainable_module(), opt="adamw", lr=0.01)
    schedule, epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=6, updates_per_epoch=len(train))
    task.train()
    for epoch in range(epochs):
        for x, y in train:
            if mixup is not None:
                x, y = mixup(x, y)
            assert y.shape == (len(x), CLASSES), "soft targets"
            optimizer.zero_grad()
            task(x, y)["loss"].backward()
            optimizer.step()
            task.update_ema()
        schedule.step(epoch + 1)
    for model in (task.get_eval_model(), task.get_eval_model(ema=True)):
        after = calibration(model, held_out)
        assert after["nll"] < before["nll"]
        assert after["accuracy"] > 0.9
        assert 0 < after["ece_floor"] < 1


def _added_lines():
    """What the guide's patch adds to the script, place by place."""
    patch = re.search(r"```diff\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.S)[1]
    places = re.split(r"^@@.*\n", patch, flags=re.M)[1:]
    return ["\n".join(line[1:] for line in place.splitlines() if line.startswith("+")) for place in places]


@pytest.mark.parametrize("wanted", ["", "ACLS(margin=6)", "CRL"])
def test_the_patch_of_the_guide_does_what_it_says(folder, images, wanted):
    """Its lines run in the order of the script, among the names that the script has there."""
    from timm.loss import SoftTargetCrossEntropy

    imports, options, loss, metrics = _added_lines()
    assert sum(len(part.splitlines()) for part in (imports, options, loss, metrics)) <= 10
    names = {"parser": argparse.ArgumentParser(), "device": torch.device("cpu"), "mixup_active": True}
    names |= {"mixup_args": {"label_smoothing": 0.0}, "train_loss_fn": SoftTargetCrossEntropy()}
    exec(imports, names)
    exec(options, names)
    names["args"] = names["parser"].parse_args(["--acls", wanted] if wanted else [])
    if wanted == "CRL":
        with pytest.raises(InputError, match="without --mixup"):
            exec(textwrap.dedent(loss), names)
        return
    exec(textwrap.dedent(loss), names)
    x, target = mixer()(images[0].clone(), images[1])
    model = network().eval()
    expected = acls.ACLS(margin=6.0) if wanted else SoftTargetCrossEntropy()
    assert names["train_loss_fn"](model(x), target) == expected(model(x), target)
    names |= {"metrics": OrderedDict(loss=1.0, top1=25.0), "model": model, "loader": loader(folder)}
    exec(textwrap.dedent(metrics), names)
    assert list(names["metrics"])[:2] == ["loss", "top1"]
    assert {"ece", "aece", "nll", "ece_floor"} <= names["metrics"].keys()


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
    with pytest.warns(UserWarning, match="smooths the labels by 0.2"):
        criterion("ACLS", timm.data.NaFlexMixup(num_classes=CLASSES, label_smoothing=0.2))
    for given in ({"mixup_alpha": 0.8}, {"mixup_alpha": 0.8, "label_smoothing": 0.1}):
        with pytest.warns(UserWarning, match="smooths the labels by 0.1"):
            criterion("ACLS", given)
    with pytest.raises(InputError, match="expected one loss, got 2"):
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


def _process(rank, world, folder, images):
    shared, whole = loader(images, distributed=True), loader(images)
    found = [calibration(network(), given) for given in (shared, whole)]
    torch.save(found, folder / f"{rank}.pt")


@pytest.mark.slow
def test_two_processes_measure_the_whole_once(tmp_path, folder):
    """41 samples: timm's sampler gives the second process one of the first's again."""
    together(_process, tmp_path, folder)
    expected = calibration(network(), loader(folder))
    for rank in range(2):
        for found in torch.load(tmp_path / f"{rank}.pt", weights_only=True):
            assert found == pytest.approx(expected, abs=1e-6)
