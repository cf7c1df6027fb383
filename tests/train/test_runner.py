"""What a run writes and says, and each switch of the runner."""

import csv
import json
import math
import sys
import types
from dataclasses import replace

import pytest
import torch
from torch import nn

from acls.errors import InputError
from acls.losses import ACLS, CE, LabelSmoothing
from acls.metrics.catalogue import selectable
from acls.predictions import Predictions
from acls.recipes import LossOptions, load_recipe
from acls.storage import load_tensors
from acls.train import TrainingStopped, fit, open_run, predict_run, resume
from acls.train.evaluate import Sample, above_margin, outlook, regulariser
from acls.train.loggers import tensorboard
from acls.train.session import Session, build_optimizer
from acls.train.setup import check_bf16
from tests.train.quick import digits, maps


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    recipe = digits(epochs=3, limit_batches=None, log=("tensorboard",))
    return fit(recipe, folder, show=False)


def test_a_run_folder_holds_all_that_is_needed_to_repeat_and_judge_it(run):
    names = {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*") if path.is_file()}
    assert {
        "recipe.yaml",
        "environment.json",
        "splits.safetensors",
        "metrics.csv",
        "summary.json",
        "best.safetensors",
        "last.safetensors",
        "resume.safetensors",
        "predictions/val.safetensors",
        "predictions/test.safetensors",
    } <= names
    assert any(name.startswith("tensorboard/events") for name in names)
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]


def test_tensorboard_reads_the_numbers_of_every_epoch_and_hides_those_that_were_trained_again(run, tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def read(folder):
        read = reader.EventAccumulator(str(folder / "tensorboard"))
        read.Reload()
        return [(event.step, event.value) for event in read.Scalars("val/nll")]

    assert read(run.folder) == [(row["epoch"], pytest.approx(row["val/nll"])) for row in run.history]
    for first, values in ((0, (3.0, 2.0, 1.0)), (1, (0.5,))):
        with tensorboard(tmp_path, run, first, "") as log:
            for epoch, value in enumerate(values, first):
                log({"val/nll": value}, epoch)
    assert read(tmp_path) == [(0, 3.0), (1, 0.5)]


def test_metrics_hold_the_live_numbers_of_every_epoch(run):
    with open(run.folder / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    live = ("ece", "aece", "nll", "regulariser_active", "regulariser_flips", "top_logit", "logit_gap", "temperature",
            "smoothing_predicted", "smoothing_others", "accuracy")  # fmt: skip
    for name in live:
        assert all(math.isfinite(float(row[f"val/{name}"])) for row in rows), name


def test_saved_predictions_are_those_of_the_best_weights(run):
    predictions = Predictions.load(run.folder / "predictions" / "test.safetensors")
    assert float(predictions.correct().float().mean()) == pytest.approx(run.test["accuracy"])
    again = predict_run(run.folder)
    torch.testing.assert_close(again.scores, predictions.scores)
    assert torch.equal(again.labels, predictions.labels)
    assert predictions.meta["loss"].startswith("ACLS(")


def test_the_best_checkpoint_is_the_first_of_the_highest_accuracy(run):
    accuracies = [row["val/accuracy"] for row in run.history]
    assert run.best_epoch == accuracies.index(max(accuracies))
    _, meta = load_tensors(run.folder / "best.safetensors")
    assert meta["epoch"] == str(run.best_epoch)
    assert json.loads(meta["classes"]) == [str(digit) for digit in range(10)]
    assert run.val["accuracy"] == pytest.approx(max(accuracies))


def test_the_recipe_in_the_folder_is_the_resolved_one(run):
    _, recipe = open_run(run.folder)
    assert recipe == load_recipe(run.folder / "recipe.yaml")
    assert recipe.epochs == 3


def test_a_folder_that_holds_a_run_is_not_overwritten(run):
    with pytest.raises(InputError, match="already contains a run: continue it with --resume"):
        fit(digits(), run.folder, show=False)


def test_digits_are_learned(tmp_path):
    """Not only steps: ten epochs of cross-entropy tell nine of ten digits apart."""
    result = fit(digits(epochs=10, limit_batches=None, loss=LossOptions(name="CE")), tmp_path / "run", show=False)
    assert result.test["accuracy"] > 0.9


def test_accumulation_is_the_same_step_in_parts(tmp_path):
    """The small network has no batch statistics, so that parts of a batch add up to the batch."""
    for parts in (1, 4):
        fit(digits(accumulate=parts, batch=50, loss=LossOptions(name="CE")), tmp_path / str(parts), show=False)
    whole, parts = (load_tensors(tmp_path / name / "last.safetensors")[0] for name in ("1", "4"))
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-5)


def test_the_average_of_the_weights_is_what_is_kept(tmp_path):
    session = Session(digits(ema=0.5))
    weight = session.model.head.weight
    expected = None
    for number, draw in enumerate(session.draws(0)[:3]):
        session.step(session.data.train.__getitems__(draw), 0, number)
        expected = weight.detach().clone() if expected is None else 0.5 * expected + 0.5 * weight.detach()
    torch.testing.assert_close(session.judged.head.weight, expected)
    assert session.judged is not session.model


def test_clipping_bounds_the_step(tmp_path):
    recipe = digits(clip=1e-3, optim=replace(digits().optim, lr=1.0, momentum=0.0, weight_decay=0.0))
    session = Session(recipe)
    before = [weight.detach().clone() for weight in session.model.parameters()]
    session.step(session.data.train.__getitems__(session.draws(0)[0]), 0, 0)
    moved = sum(float((w.detach() - b).square().sum()) for w, b in zip(session.model.parameters(), before, strict=True))
    assert moved**0.5 == pytest.approx(1e-3, rel=1e-3)


def test_biases_are_not_decayed_where_the_recipe_says_so():
    options = replace(digits().optim, decay_all=False, weight_decay=0.3)
    optimizer = build_optimizer(options, nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    decays = {tuple(w.shape): group["weight_decay"] for group in optimizer.param_groups for w in group["params"]}
    assert decays == {(3, 2): 0.3, (3,): 0.0}


def test_patience_ends_a_run_that_does_not_improve(tmp_path):
    recipe = digits(epochs=50, patience=2, optim=replace(digits().optim, lr=0.0))
    assert len(fit(recipe, tmp_path / "run", show=False).history) == 3


def test_selection_by_a_calibration_number_takes_the_lowest(tmp_path):
    result = fit(digits(epochs=4, select="ece"), tmp_path / "run", show=False)
    values = [row["val/ece"] for row in result.history]
    assert result.best_epoch == values.index(min(values))


def test_every_number_of_an_epoch_that_can_choose_has_a_known_direction(tmp_path):
    (row, *_) = fit(digits(epochs=1), tmp_path / "run", show=False).history
    measured = {name.removeprefix("val/") for name in row if name.startswith("val/")}
    told = set(selectable(maps=False))
    described = {"n", "confidence", "temperature", "top_logit", "logit_gap", "gap_above_margin", "top_above_margin"}
    rest = {name for name in measured - told - described if not name.startswith(("regulariser", "smoothing"))}
    assert told <= measured
    assert {name for name in rest if not name.endswith("_bound")} == set()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"select": "acuracy"}, r"cannot be chosen by 'acuracy': did you mean 'accuracy'"),
        ({"select": "miou"}, "cannot be chosen by 'miou'"),
        ({"select": "temperature"}, "cannot be chosen by 'temperature'"),
        ({"log": ("tensorbord",)}, "did you mean 'tensorboard'"),
        ({"limit_batches": 0}, r"limit_batches: expected .* got 0"),
        ({"ema": 2.0}, r"ema: expected a number in .0, 1., got 2.0"),
        ({"clip": -1.0}, r"clip: expected .* got -1.0"),
        ({"optim": replace(digits().optim, lr=-1.0)}, r"optim.lr: expected .* got -1.0"),
        ({"accelerator": "mps"}, "finds no mps device"),
    ],
)
def test_what_cannot_be_is_told_before_the_run_has_a_folder(changes, told, tmp_path):
    with pytest.raises(InputError, match=told):
        fit(digits(**changes), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_every_sample_is_drawn_once_an_epoch_in_another_order():
    session = Session(digits(limit_batches=None))
    first, second = (torch.cat([draw.samples for draw in session.draws(epoch)]) for epoch in (0, 1))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(len(session.data.train)))
    assert first.tolist() != second.tolist()


def test_pruned_samples_are_not_drawn():
    session = Session(digits(limit_batches=None))
    keep = torch.arange(len(session.data.train)) % 3 == 0
    session.loss.keep_mask = lambda: keep
    drawn = torch.cat([draw.samples for draw in session.draws(0)])
    assert sorted(drawn.tolist()) == keep.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("lr", [1e12])
def test_a_loss_that_explodes_stops_with_a_message_and_keeps_the_last_good_state(lr, tmp_path, monkeypatch):
    recipe = digits(epochs=3, limit_batches=4, save_every=1)
    real = Session.step

    def poisoned(self, batch, epoch, number, *rest):
        if (epoch, number) == (1, 2):
            with torch.no_grad():
                self.model.head.weight.fill_(math.nan)
        return real(self, batch, epoch, number, *rest)

    monkeypatch.setattr(Session, "step", poisoned)
    with pytest.raises(TrainingStopped, match=r"no longer finite in epoch 2, at step 3: .*resume.safetensors hold"):
        fit(recipe, tmp_path / "run", show=False)
    for name in ("best", "last", "resume"):
        tensors, _ = load_tensors(tmp_path / "run" / f"{name}.safetensors")
        assert all(bool(torch.isfinite(value).all()) for value in tensors.values() if value.is_floating_point())


def test_weights_that_are_not_finite_are_not_saved(tmp_path, monkeypatch):
    """The last step of an epoch can ruin the weights after a loss that was fine."""
    real = Session.step

    def poisoned(self, batch, epoch, number, *rest):
        sums = real(self, batch, epoch, number, *rest)
        if (epoch, number) == (1, 2):
            with torch.no_grad():
                self.model.hidden[0].bias.fill_(math.inf)
        return sums

    monkeypatch.setattr(Session, "step", poisoned)
    with pytest.raises((TrainingStopped, InputError)):
        fit(digits(), tmp_path / "run", show=False)
    tensors, _ = load_tensors(tmp_path / "run" / "last.safetensors")
    assert all(bool(torch.isfinite(value).all()) for value in tensors.values())


def test_fp16_trains_on_a_cpu(tmp_path):
    result = fit(digits(precision="fp16"), tmp_path / "run", show=False)
    assert math.isfinite(result.history[-1]["train/loss"])


def test_bf16_trains_on_a_cpu_that_can(tmp_path):
    try:
        check_bf16()
    except InputError as error:
        pytest.skip(str(error))
    result = fit(digits(precision="bf16"), tmp_path / "run", show=False)
    assert math.isfinite(result.history[-1]["train/loss"])


def test_a_cpu_that_dies_of_bf16_is_told_before_training(monkeypatch):
    monkeypatch.setattr("acls.train.setup._PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    check_bf16.cache_clear()
    with pytest.raises(InputError, match=r"ended by signal 4 .*--precision fp32.*ONEDNN_MAX_CPU_ISA"):
        check_bf16()
    check_bf16.cache_clear()


def test_mixed_batches_train_with_soft_labels(tmp_path):
    recipe = digits(data=replace(digits().data, mix="mixup", mix_prob=1.0), loss=LossOptions(name="CE"))
    assert math.isfinite(fit(recipe, tmp_path / "run", show=False).history[-1]["train/loss"])


def test_dense_predictions_hold_labelled_pixels_of_every_image(tmp_path):
    result = fit(maps(pixels=7, limit_batches=None), tmp_path / "run", show=False)
    predictions = Predictions.load(tmp_path / "run" / "predictions" / "test.safetensors")
    assert torch.bincount(predictions.image).tolist() == [7] * 32
    assert 0 < result.test["miou_foreground"] <= 1


def test_the_progress_line_has_the_miou_of_the_summary(tmp_path, capsys):
    """It had the foreground's, and the summary that of all classes: 17.10 and 22.37 for one checkpoint."""
    fit(maps(epochs=1), tmp_path / "run")
    val = json.loads((tmp_path / "run" / "summary.json").read_text())["val"]
    assert f"mIoU {100 * val['miou']:.2f} %" in capsys.readouterr().out
    assert val["miou"] != val["miou_foreground"]


# -- live numbers --------------------------------------------------------------------------------------------------

LOGITS = torch.tensor([[9.0, 1.0, 0.0], [0.5, 0.4, 0.0], [0.0, 0.0, 12.0], [3.0, 2.0, 1.0]])
TARGET = torch.tensor([0, 0, 1, -100])
BATCH = (LOGITS, TARGET, torch.arange(4))


def test_cross_entropy_has_no_regulariser():
    numbers = regulariser(CE(), [BATCH], -100)
    assert numbers["regulariser_active"] == 0
    assert numbers["smoothing_predicted"] == pytest.approx(0, abs=1e-6)


def test_label_smoothing_takes_what_it_gives():
    """epsilon (1 - 1/K) from the true class, epsilon / K to each other; two of the three predictions are right."""
    numbers = regulariser(LabelSmoothing(epsilon=0.3), [BATCH], -100)
    assert numbers["regulariser_active"] == 1
    assert numbers["smoothing_predicted"] == pytest.approx((0.2 + 0.2 - 0.1) / 3, abs=1e-5)
    assert numbers["smoothing_others"] == pytest.approx((0.1 + 0.1 - 0.05) / 3, abs=1e-5)


def test_the_margin_says_where_acls_is_active():
    assert regulariser(ACLS(margin=10.0), [BATCH], -100)["regulariser_active"] == pytest.approx(1 / 3)
    assert regulariser(ACLS(margin=5.0), [BATCH], -100)["regulariser_active"] == pytest.approx(2 / 3)


def test_the_outlook_is_of_labelled_rows():
    sample = Sample(4)
    sample.add(*BATCH)
    numbers = outlook(sample, -100, margin=10.0)
    assert numbers["top_logit"] == pytest.approx((9 + 0.5 + 12) / 3)
    assert numbers["logit_gap"] == pytest.approx((9 + 0.5 + 12) / 3)
    assert numbers["gap_above_margin"] == numbers["top_above_margin"] == pytest.approx(1 / 3)
    shifted = above_margin(torch.tensor([[9.0, -3.0], [11.0, 10.0]]), 10.0)
    assert shifted == {"gap_above_margin": 0.5, "top_above_margin": 0.5}


def test_the_sample_of_dense_maps_is_bounded(monkeypatch):
    monkeypatch.setattr("acls.train.evaluate.SAMPLE", 1000)
    sample = Sample(10)
    for _ in range(10):
        sample.add(torch.zeros(1, 5, 40, 40), torch.zeros(1, 40, 40).long(), torch.zeros(1))
    assert sum(logits.numel() for logits, _, _ in sample.batches) <= 1000 * 1.5


# -- loggers -------------------------------------------------------------------------------------------------------


class FakeTracker(types.ModuleType):
    """Stands in for W&B and MLflow, which most environments of the suite lack: it notes what it is told."""

    run_id = "the-run"

    def __init__(self, name):
        super().__init__(name)
        self.calls = []
        self.info = self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def note(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self

        return note


@pytest.mark.parametrize(("name", "method"), [("wandb", "log"), ("mlflow", "log_metrics")])
def test_trackers_get_the_numbers_of_every_epoch(name, method, tmp_path, monkeypatch):
    tracker = FakeTracker(name)
    monkeypatch.setitem(sys.modules, name, tracker)
    fit(digits(log=(f"{name}:mine",)), tmp_path / "run", show=False)
    told = [(args[0], kwargs["step"]) for called, args, kwargs in tracker.calls if called == method]
    assert [step for _, step in told] == [0, 1, 1]
    assert any("ece" in key for key in told[0][0])
    assert all(key.startswith("test") for key in told[2][0])
    assert "mine" in str(tracker.calls[0]), "the project or experiment is the user's"


def test_a_run_of_mlflow_holds_settings_every_epoch_and_the_test_part(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which recent versions ask for
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "tracked").as_uri())
    monkeypatch.chdir(tmp_path)
    result = fit(digits(log=("mlflow:mine",)), tmp_path / "run", show=False)
    client = mlflow.MlflowClient()
    run_id = (tmp_path / "run" / "mlflow_run").read_text()
    run = client.get_run(run_id)
    assert client.get_experiment(run.info.experiment_id).name == "mine"
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run_id, "val.ece")
    assert [point.step for point in history] == [0, 1]
    assert [point.value for point in history] == [row["val/ece"] for row in result.history]
    assert run.data.metrics["test.ece"] == result.test["ece"]
    assert run.data.params["optim.lr"] == str(digits().optim.lr)
    assert run.data.params["loss.name"] == "ACLS"
    resume(tmp_path / "run", show=False)
    assert (tmp_path / "run" / "mlflow_run").read_text() == run_id


def test_a_tracker_that_cannot_start_is_told_in_one_line(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://at-all")
    with pytest.raises(InputError, match="--log mlflow: mlflow cannot start a run"):
        fit(digits(log=("mlflow",)), tmp_path / "run", show=False)


def test_a_run_of_wandb_holds_settings_every_epoch_and_the_test_part(tmp_path, monkeypatch):
    of_wandb = pytest.importorskip("wandb.sdk.wandb_run").Run  # wandb.Run from 0.22 on
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    kept = {}
    finish = of_wandb.finish

    def finished(run):
        step = run.step
        run.log({}, commit=True)  # what is logged of a step is in the summary once the step is over
        kept.update(project=run.project, config=dict(run.config), summary=dict(run.summary), step=step)
        finish(run)

    monkeypatch.setattr(of_wandb, "finish", finished)
    result = fit(digits(log=("wandb:mine",)), tmp_path / "run", show=False)
    assert kept["project"] == "mine"
    assert kept["config"]["optim"]["lr"] == digits().optim.lr
    assert kept["summary"]["val/ece"] == pytest.approx(result.history[-1]["val/ece"])
    assert kept["summary"]["test/ece"] == pytest.approx(result.test["ece"])
    assert kept["step"] == 1, "two epochs, the test part with the second"
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))
