"""Methods of a study: losses, and ways of training and predicting that are not losses."""

from dataclasses import replace

import pytest

from acls.errors import InputError
from acls.predictions import Predictions
from acls.recipes import find
from acls.study.methods import TECHNIQUES, decided_by, methods_of
from acls.study.runs import plan, run_study
from acls.study.store import Store
from tests.study.quick import HERE
from tests.train.quick import digits


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_technique_changes_the_settings_it_owns_and_trains_with_cross_entropy(name):
    recipe = find("digits_cnn")
    (method,) = methods_of(recipe, name.lower())
    assert method.name == name
    assert method.recipe.loss.name == "CE"
    assert decided_by(method.name) == TECHNIQUES[name].settings
    assert method.recipe != methods_of(recipe, "CE")[0].recipe


def test_what_a_method_prints_can_be_pasted_back():
    recipe = find("digits_cnn")
    text = "CutMix(prob=1.0, base=ACLS(margin=6)), MCDropout(passes=5), Mixup(base=MDCA(base=Focal))"
    names = [method.name for method in methods_of(recipe, text)]
    assert names == [
        "CutMix(prob=1.0, base=ACLS(margin=6.0))",
        "MCDropout(passes=5)",
        "Mixup(base=MDCA(base=Focal()))",
    ]
    assert [method.name for method in methods_of(recipe, ", ".join(names))] == names


def test_fields_reach_the_recipe_and_techniques_stack():
    (method,) = methods_of(find("digits_cnn"), "MCDropout(rate=0.3, passes=7, base=CutMix(alpha=0.2))")
    recipe = method.recipe
    assert (recipe.model.dropout, recipe.passes, recipe.data.mix, recipe.data.mix_alpha) == (0.3, 7, "cutmix", 0.2)
    assert decided_by(method.name) >= {"model.dropout", "passes", "data.mix"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CutMix(probability=1)", "CutMix has no field 'probability': choose from alpha, base, prob"),
        ("CutMix(prob=often)", "data.mix_prob: expected a number"),
        ("CutMx", "there is no method 'CutMx': did you mean 'CutMix'"),
        ("MCDropout(rate=2)", "model.dropout: expected a number in"),
    ],
)
def test_what_cannot_be_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        methods_of(find("digits_cnn"), text)


def test_a_study_holds_techniques_beside_losses_and_goes_on_with_either(tmp_path):
    recipe = digits(epochs=1, limit_batches=2)
    for methods in ("CE", "CE, CutMix, MCDropout(passes=3)", "CutMix, ACLS"):
        assert run_study(plan(tmp_path, recipe, methods, [1]), HERE) == []
    rows = {row.method: row for row in Store(tmp_path).rows()}
    assert set(rows) == {"CE", "CutMix", "MCDropout(passes=3)", next(name for name in rows if name.startswith("ACLS"))}
    kinds = {
        name: Predictions.load(tmp_path / row.run / "predictions/test.safetensors").kind for name, row in rows.items()
    }
    assert kinds["MCDropout(passes=3)"] == "log_probs"
    assert kinds["CutMix"] == "logits"


def test_a_study_with_other_settings_of_a_technique_is_refused(tmp_path):
    recipe = digits(epochs=1, limit_batches=1)
    run_study(plan(tmp_path, recipe, "CE", [1]), HERE)
    (mixed,) = methods_of(recipe, "CutMix")
    with pytest.raises(InputError, match=r"has runs with data.mix none, got cutmix"):
        run_study(plan(tmp_path, mixed.recipe, "CE", [2]), HERE)


def test_a_stored_name_means_what_it_was_trained_with_though_a_default_has_changed(tmp_path):
    cells = plan(tmp_path, digits(epochs=1, limit_batches=1), "MDCA", [1])
    run_study(cells, HERE)
    (row,) = Store(tmp_path).rows()
    then = {**row.settings["loss"], "weight": 0.5}  # as if 0.5 had been the default
    Store(tmp_path).add(replace(row, settings={**row.settings, "loss": then}))
    assert [row.method for row in Store(tmp_path).rows()] == ["MDCA(weight=0.5)"]
    with pytest.raises(InputError, match=r"has MDCA\(weight=0.5\) instead of MDCA: write it in full in --methods"):
        run_study(cells, HERE)
