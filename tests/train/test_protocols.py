"""The paper's recipes, at full size but for two small steps, on tiny folders in the real layouts."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from acls.cli import main
from acls.options import override
from acls.recipes import find
from acls.train import fit, make_plan
from acls.train.session import Session
from tests.data.folders import cifar10_binary, class_folders, imagenet_unpacked, masked_folders, tiny_imagenet, voc

SMALL = {"epochs": 1, "limit_batches": 2, "batch": 3, "eval_batch": 2, "log": "", "data.workers": 0}
LAYOUTS = {
    "cifar10_resnet50": (cifar10_binary, {}),
    "cifar10_resnet101": (cifar10_binary, {}),
    "tiny_imagenet_resnet50": (tiny_imagenet, {}),
    "tiny_imagenet_resnet101": (tiny_imagenet, {}),
    "imagenet_resnet50": (imagenet_unpacked, {"devices": 1}),  # in fp16, as in the paper
    "voc_deeplabv3_resnet50": (voc, {"model.pretrained": False, "batch": 2, "data.size": 128}),
    "cifar10_mini": (cifar10_binary, {}),
    "tiny_imagenet_mini": (tiny_imagenet, {}),
    "voc_mini": (voc, {}),
    "custom": (class_folders, {"data.size": 64}),
    "custom_segmentation": (masked_folders, {"data.size": 64}),
}


@pytest.fixture
def recipe(request, tmp_path):
    build, changes = LAYOUTS[request.param]
    root = str(build(tmp_path / "data"))
    return override(find(request.param), SMALL | {"data.root": root} | changes)


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=pytest.mark.slow if "_resnet" in name else ()) for name in LAYOUTS],
    indirect=True,
)
def test_the_recipe_runs_two_steps(recipe, tmp_path, monkeypatch):
    step, changed = Session.step, []

    def watched(self, *batch):
        before = [weight.detach().clone() for weight in self.model.parameters()]
        sums = step(self, *batch)
        changed.append(any(not torch.equal(*pair) for pair in zip(before, self.model.parameters(), strict=True)))
        return sums

    monkeypatch.setattr(Session, "step", watched)
    # From its usual scale of 65536, fp16 overflows in both steps, and the scaler skips them.
    monkeypatch.setattr("torch.amp.GradScaler", partial(torch.amp.GradScaler, init_scale=16.0))
    result = fit(recipe, tmp_path / "run", show=False)
    assert len(changed) == 2
    assert any(changed)
    assert result.test["n"] > 0
    assert f"val/{recipe.select}" in result.history[0]


@pytest.mark.parametrize("recipe", ["tiny_imagenet_resnet50", "voc_deeplabv3_resnet50"], indirect=True)
def test_the_plan_tells_steps_parameters_and_time(recipe):
    plan = make_plan(recipe)
    text = str(plan)
    assert plan.steps == 2
    assert plan.parameters > 20_000_000
    assert plan.memory > 2**20
    assert "about" in text
    assert recipe.data.name in text
    assert "ACLS(" in text


def test_the_plan_of_an_epoch_of_one_step_has_a_pace():
    recipe = find("digits_cnn")
    assert make_plan(replace(recipe, batch=10_000)).seconds_per_step > 0


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits_cnn", "--dry-run", "--loss", "ce"]) == 0
    told = capsys.readouterr().out
    assert "small_cnn, 29,914 parameters" in told
    assert "CE()" in told
    assert list(tmp_path.iterdir()) == []
