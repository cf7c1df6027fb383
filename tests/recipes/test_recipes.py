"""Recipes: the protocols' numbers, overrides by dotted names, files that read back what was written."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acls.errors import InputError
from acls.options import from_plain, leaves, override, to_plain
from acls.recipes import RECIPES, Recipe, ScheduleOptions, find, load_recipe, save_recipe

SETTINGS = leaves(Recipe)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_saved_recipe_reads_back_the_same(name, suffix, tmp_path):
    recipe = replace(find(name), epochs=7)
    save_recipe(recipe, tmp_path / f"r.{suffix}")
    assert load_recipe(tmp_path / f"r.{suffix}") == recipe


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_bears_its_name_and_says_its_command(name):
    assert find(name).name == name
    assert f"acls train {name}" in RECIPES[name].__doc__


def test_every_setting_has_help():
    assert [leaf.name for leaf in SETTINGS.values() if not leaf.help] == []


def test_every_default_is_a_value_that_its_setting_takes():
    for name in RECIPES:
        plain = to_plain(find(name))
        assert from_plain(Recipe, plain) == find(name)


PROTOCOLS = {
    # section 4.1 of the paper: lr, weight decay, momentum, epochs, batch, milestones, margin
    "cifar10_resnet50": (0.1, 5e-4, 0.9, 350, 128, (150, 250), 6.0),
    "cifar10_resnet101": (0.1, 5e-4, 0.9, 350, 128, (150, 250), 6.0),
    "tiny_imagenet_resnet50": (0.1, 5e-4, 0.9, 100, 64, (40, 60), 10.0),
    "tiny_imagenet_resnet101": (0.1, 5e-4, 0.9, 100, 64, (40, 60), 10.0),
    "imagenet_resnet50": (5e-4, 5e-2, 0.9, 200, 256, (), 10.0),
    "voc_deeplabv3_resnet50": (1e-2, 5e-4, 0.9, 100, 8, (40, 80), 10.0),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocol_recipes_have_the_papers_numbers(name):
    lr, decay, momentum, epochs, batch, milestones, margin = PROTOCOLS[name]
    recipe = find(name)
    assert (recipe.optim.lr, recipe.optim.weight_decay, recipe.optim.momentum) == (lr, decay, momentum)
    assert (recipe.epochs, recipe.batch, recipe.schedule.milestones) == (epochs, batch, milestones)
    assert recipe.loss.protocol == {"margin": margin}
    assert recipe.clip == 2.0


def test_steps_divide_by_ten_from_the_milestone_on():
    schedule = ScheduleOptions(name="steps", milestones=(40, 60))
    rates = [schedule.rate(0.1, epoch, 100) for epoch in (0, 39, 40, 59, 60, 99)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_cosine_warms_up_and_falls_to_its_least():
    schedule = ScheduleOptions(name="cosine", warmup=2, warmup_lr=0.0, min_lr=0.01)
    rates = [schedule.rate(0.1, epoch, 10) for epoch in range(11)]
    assert rates[:3] == pytest.approx([0.0, 0.05, 0.1])
    assert rates[10] == pytest.approx(0.01)
    assert all(a > b for a, b in pairwise(rates[2:]))


def test_overrides_reach_nested_fields_and_leave_the_rest():
    recipe = override(find("digits_cnn"), {"optim.lr": "0.05", "epochs": "3", "schedule.milestones": "1,2"})
    assert (recipe.optim.lr, recipe.epochs, recipe.schedule.milestones) == (0.05, 3, (1, 2))
    assert recipe.optim.momentum == find("digits_cnn").optim.momentum
    assert find("digits_cnn").optim.lr != 0.05


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optim.lrr": "1"}, "no setting 'optim.lrr': did you mean 'optim.lr'"),
        ({"epochs": "many"}, r"epochs: expected a whole number in \[1, inf\), got 'many'"),
        ({"epochs": "1.5"}, r"epochs: expected a whole number in \[1, inf\), got '1.5'"),
        ({"optim.name": "adam"}, "optim.name: expected one of sgd, adamw, got 'adam'"),
        ({"data.flip": "perhaps"}, "data.flip: expected true or false, got 'perhaps'"),
        ({"clip": "x"}, r"clip: expected a number in \(0, inf\) or none, got 'x'"),
        ({"schedule.milestones": "1,x"}, r"schedule.milestones: expected whole numbers in \[0, inf\) sep"),
    ],
)
def test_wrong_overrides_are_told(values, message):
    with pytest.raises(InputError, match=message):
        override(Recipe(), values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3", "no setting 'epoch': did you mean 'epochs'"),
        ("optim: {rate: 3}", "no setting 'optim.rate'"),
        ("optim: 3", "optim: expected nested settings, got 3"),
        ("- 1", "contains no settings"),
        ("a: [", "is not YAML"),
        ("epochs: ten", r"epochs: expected a whole number in \[1, inf\), got 'ten'"),
    ],
)
def test_wrong_files_are_told(text, message, tmp_path):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_recipe(tmp_path / "r.yaml")


def test_none_switches_clipping_off():
    assert override(Recipe(), {"clip": "none"}).clip is None


@given(st.floats(1e-8, 1e3), st.integers(1, 10**6), st.booleans(), st.lists(st.integers(0, 500), max_size=4))
@settings(deadline=None, max_examples=50)
def test_text_of_a_value_is_read_as_the_value(lr, epochs, flip, milestones):
    given = {"optim.lr": lr, "epochs": epochs, "data.flip": flip, "schedule.milestones": tuple(milestones)}
    text = {name: str(value) for name, value in given.items()}
    assert override(Recipe(), text) == override(Recipe(), given)


def test_an_unknown_recipe_is_told_the_closest():
    with pytest.raises(InputError, match="did you mean 'cifar10_resnet50'"):
        find("cifar10_resnet5")


def test_recipes_come_without_torch():
    code = "import sys, acls.recipes; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
