"""Real data, real minutes: the CPU-sized recipes on the zips beside the clone."""

from dataclasses import replace

import pytest

from acls.options import override
from acls.recipes import LossOptions, find
from acls.train import fit
from tests.train.quick import digits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


def test_ce_on_cifar10_mini_tells_six_of_ten_images_apart(shared, tmp_path):
    recipe = override(find("cifar10_mini"), {"data.root": str(shared / "data" / "cifar10_train.zip"), "log": ""})
    result = fit(replace(recipe, loss=LossOptions(name="CE")), tmp_path / "run", show=False)
    assert result.test["accuracy"] >= 0.60
    assert result.test["n"] == 10_000


@pytest.mark.parametrize(
    ("name", "file", "chance"),
    [("tiny_imagenet_mini", "tiny_imagenet_20c.zip", 0.05), ("voc_mini", "voc2012_animals_small.zip", 1 / 21)],
)
def test_the_other_small_siblings_run_end_to_end(name, file, chance, shared, tmp_path):
    recipe = override(find(name), {"data.root": str(shared / "data" / file), "log": "", "epochs": 3})
    result = fit(recipe, tmp_path / "run", show=False)
    assert result.test["accuracy"] > 2 * chance


def test_a_compiled_network_trains_as_the_plain_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    plain, compiled = (
        fit(digits(compile=switch, loss=LossOptions(name="CE")), tmp_path / str(switch), show=False)
        for switch in (False, True)
    )
    for one, two in zip(plain.history, compiled.history, strict=True):
        assert two["train/loss"] == pytest.approx(one["train/loss"], rel=1e-3)
