"""The commands: what they print, what they refuse, and their exit codes."""

import pytest

from acls.cli import main
from acls.predictions import Predictions
from acls.recipes import RECIPES, load_recipe

FAST = ["--epochs", "1", "--limit-batches", "2", "--log", "", "--no-figures", "--quiet"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    command = ["train", "digits_cnn", "--out", str(out), "--loss", "acls", "--loss.margin", "4", "--optim.lr=0.05"]
    assert main([*command, "--model.dropout", "0.5", *FAST]) == 0
    return out


def test_overrides_reach_the_saved_recipe(trained):
    recipe = load_recipe(trained / "recipe.yaml")
    assert recipe.loss.name == "ACLS"
    assert recipe.loss.fields["margin"] == 4.0
    assert recipe.optim.lr == 0.05
    assert recipe.epochs == 1


def test_a_run_can_be_started_from_anothers_recipe(trained, tmp_path, capsys):
    command = ["train", "--config", str(trained / "recipe.yaml"), "--seed", "2", "--out", str(tmp_path / "b")]
    assert main([*command, "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("Test: ")
    assert load_recipe(tmp_path / "b" / "recipe.yaml").loss.fields["margin"] == 4.0


def test_another_loss_drops_the_fields_of_the_old_one(trained, tmp_path):
    command = ["train", "--config", str(trained / "recipe.yaml"), "--loss", "CE", "--out", str(tmp_path / "c")]
    assert main([*command, "--quiet"]) == 0
    assert "margin" not in load_recipe(tmp_path / "c" / "recipe.yaml").loss.fields


def test_predict_writes_a_part_of_the_data(trained, tmp_path, capsys):
    assert main(["predict", str(trained), "--part", "val", "--out", str(tmp_path / "val.npz")]) == 0
    assert "250 rows of 10 classes" in capsys.readouterr().out
    assert Predictions.load(tmp_path / "val.npz").kind == "logits"


def test_predict_averages_passes_with_dropout(trained, tmp_path):
    command = ["predict", str(trained / "last.safetensors"), "--mc-samples", "3", "--out", str(tmp_path / "mc.npz")]
    assert main(command) == 0
    predictions = Predictions.load(tmp_path / "mc.npz")
    assert predictions.kind == "log_probs"


def test_predict_refuses_data_with_other_classes(trained, tmp_path, capsys):
    assert main(["predict", str(trained), "--data", "synthetic", "--out", str(tmp_path / "x.npz")]) == 2
    assert "has 10 classes, synthetic has 4" in capsys.readouterr().err


def test_recipes_are_listed_and_shown(capsys, tmp_path):
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in RECIPES)
    assert main(["recipes", "voc_mini"]) == 0
    shown = capsys.readouterr().out
    (tmp_path / "r.yaml").write_text(shown)
    assert load_recipe(tmp_path / "r.yaml") == RECIPES["voc_mini"]()
    assert main(["recipes", "--models"]) == 0
    assert main(["recipes", "--data"]) == 0
    assert "deeplabv3_resnet50" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["digits_cn"], "no recipe 'digits_cn': did you mean 'digits_cnn'"),
        ([], "expected a recipe"),
        (["digits_cnn", "--optim.lrr", "1"], "no option '--optim.lrr': did you mean '--optim.lr'"),
        (["digits_cnn", "--loss.margn", "1"], "ACLS has no field 'margn': did you mean 'margin'"),
        (["digits_cnn", "--loss", "acl", "--loss.margin", "1"], "no loss 'acl': did you mean 'ACLS'"),
        (["digits_cnn", "--loss", "acl"], "no loss 'acl': did you mean 'ACLS'"),
        (["digits_cnn", "--loss.margin", "wide"], "ACLS(margin='wide'): expected a finite number, got 'wide'"),
        (["digits_cnn", "--loss.margin"], "--loss.margin needs a value"),
        (["digits_cnn", "--model", "resnet_20"], "no model 'resnet_20'"),
        (["digits_cnn", "--batch", "0"], "--batch: expected a whole number in [1, inf), got '0'"),
        (["digits_cnn", "--config", "x.yaml"], "pass a recipe or --config, not both"),
        (["--config", "nowhere.yaml"], "cannot read the recipe nowhere.yaml"),
        (["--resume", "nowhere"], "nowhere is not the folder of a run"),
        (["--resume", "nowhere", "--epochs", "3"], "do not pass a recipe, settings, --out or --dry-run"),
        (["cifar10_mini"], "cifar10 needs its files: pass --root"),
    ],
)
def test_wrong_commands_are_told_in_a_line(command, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *command]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_training_that_must_stop_exits_with_1(capsys, tmp_path):
    command = ["train", "digits_cnn", "--out", str(tmp_path / "run"), "--optim.lr", "1e30", "--clip", "none"]
    assert main([*command, *FAST[2:], "--epochs", "4"]) == 1
    assert "no longer finite" in capsys.readouterr().err


def test_progress_and_verdict_fit_80_columns(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits_cnn", "--out", "run", *FAST[:-1]]) == 0
    first, second, *rest = filter(None, capsys.readouterr().out.splitlines())
    assert first.startswith("epoch 1/1  loss ")
    assert first.endswith(" 0 s left *")
    assert second.startswith("Test: ")
    assert rest[-1] == "The run is in run"
    assert all(len(line) <= 80 for line in (first, second, *rest))


def test_a_finished_run_is_drawn(tmp_path):
    command = ["train", "digits_cnn", "--out", str(tmp_path / "run"), *FAST]
    command.remove("--no-figures")
    assert main(command) == 0
    names = {path.name for path in (tmp_path / "run" / "figures").iterdir()}
    assert names == {"epochs.png", "reliability_val.png", "reliability_test.png"}


def test_stopped_by_hand_a_run_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def stopped(recipe, out, show, wait):
        raise KeyboardInterrupt(str(out))

    monkeypatch.setattr("acls.train.fit", stopped)
    assert main(["train", "digits_cnn", "--out", str(tmp_path / "run")]) == 130
    assert f"continue with acls train --resume {tmp_path / 'run'}" in capsys.readouterr().err


@pytest.mark.parametrize("beside", [["--out", "other"], ["--dry-run"]])
def test_resume_takes_nothing_beside_it(beside, tmp_path, capsys):
    assert main(["train", "--resume", str(tmp_path), *beside]) == 2
    assert "do not pass a recipe, settings, --out or --dry-run" in capsys.readouterr().err
