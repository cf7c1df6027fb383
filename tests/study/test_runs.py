"""The runs of a study: every cell once, whatever happens in between, each number with its protocol."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from acls.cli import main
from acls.errors import InputError
from acls.metrics import Suite
from acls.recipes import LossOptions
from acls.report.results import results_table
from acls.study import runs
from acls.study.engine import Local, make_engine
from acls.study.runs import Progress, chosen, epochs_of, missing, outputs, plan, run_cell, run_study
from acls.study.store import Store
from acls.train import TrainingStopped
from acls.train.session import Session
from tests.processes import wait_for
from tests.study.quick import HERE, cells, timeless
from tests.study.test_engine import alive
from tests.train.quick import digits, maps


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    assert run_study(cells(folder), HERE) == []
    return folder


def test_each_method_seed_and_post_hoc_method_has_a_row(finished):
    rows = Store(finished).rows()
    found = {(row.method, row.seed, row.posthoc) for row in rows}
    assert found == {(m, s, p) for m in ("CE", "ACLS(margin=4.0)") for s in (1, 2) for p in ("none", "Temperature")}


def test_rows_hold_the_numbers_of_the_predictions_behind_them(finished):
    for row in Store(finished).rows():
        p = outputs(finished, row)
        summary = Suite.of(p.scores, p.labels, kind=p.kind).summary()
        assert row.n == len(p)
        for name in ("accuracy", "ece", "aece", "nll"):
            assert row.result[name] == pytest.approx(summary[name], abs=1e-12)
        ece, floor = row.result.estimates["ece"], row.result.floors["ece"]
        assert ece.low <= ece.debiased <= ece.value <= ece.high
        assert 0 < floor.mean < floor.high
        assert 0 <= row.result.p <= 1


def test_temperature_keeps_accuracy_and_was_fitted_on_validation_only(finished):
    by_key = {(row.method, row.seed, row.posthoc): row for row in Store(finished).rows()}
    for (method, seed, posthoc), row in by_key.items():
        if posthoc == "Temperature":
            before = by_key[method, seed, "none"]
            assert row.result["accuracy"] == before.result["accuracy"]
            assert row.result["nll"] != before.result["nll"]
            assert row.protocol["calibrated on"] == "validation"


def test_rows_say_how_they_came_about(finished):
    row = next(row for row in Store(finished).rows() if row.method != "CE")
    assert row.settings["recipe"]["epochs"] == 2
    assert row.settings["loss"]["margin"] == 4
    assert row.seconds > 0
    assert (finished / row.run / "metrics.csv").exists()
    assert row.protocol["bins"] == 15
    assert row.protocol["checkpoint"] == "best validation accuracy"


def test_a_finished_cell_is_not_run_again(finished, monkeypatch):
    monkeypatch.setattr(runs, "run_cell", lambda cell: pytest.fail(f"{cell.method} was run again"))
    assert run_study(cells(finished), HERE) == []


def test_another_post_hoc_method_is_measured_without_training(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path / "copy")
    monkeypatch.setattr(runs, "fit", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr(runs, "resume", lambda *_, **__: pytest.fail("trained again"))
    more = cells(tmp_path / "copy", posthoc="temperature, Vector")
    assert {repr(one) for cell in missing(more, Store(tmp_path / "copy").rows()) for one in cell.posthoc} == {
        "Vector()"
    }
    run_study(more, HERE)
    assert len(Store(tmp_path / "copy").rows()) == 12


def test_other_settings_are_refused_before_anything_is_trained(finished):
    with pytest.raises(InputError, match=r"has runs with epochs 2, got 3.*--out"):
        run_study(cells(finished, epochs=3), HERE)


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 1},
        {"log": ("tensorboard",)},
        {"accelerator": "auto"},
        {"devices": 2},
        {"save_every": 5},
        {"compile": True},
        {"data": replace(digits().data, workers=3, download=True)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_that_change_nothing_never_stop_a_study(finished, monkeypatch, changes):
    monkeypatch.setattr(runs, "run_cell", lambda cell: pytest.fail(f"{cell.method} was run again"))
    assert run_study(cells(finished, **changes), HERE) == []


def test_a_run_that_was_broken_off_goes_on_with_settings_that_change_nothing(tmp_path, monkeypatch):
    whole = Session.step

    def step(self, batch, epoch, *rest):
        if epoch == 1:
            raise KeyboardInterrupt
        return whole(self, batch, epoch, *rest)

    one = {"methods": "CE", "seeds": (1,), "posthoc": "none"}
    monkeypatch.setattr(Session, "step", step)
    with pytest.raises(KeyboardInterrupt):
        run_study(cells(tmp_path, **one), HERE)
    monkeypatch.undo()
    other = {"log": ("tensorboard",), "threads": 1, "save_every": 1}
    assert run_study(cells(tmp_path, **one, **other), HERE) == []
    assert len(Store(tmp_path).rows()) == 1


def test_other_settings_than_those_of_a_broken_run_are_refused(tmp_path):
    run_cell(cells(tmp_path)[0])  # trained, but not stored
    with pytest.raises(InputError, match=r"has runs with batch 64, got 32"):
        run_study(cells(tmp_path, batch=32), HERE)


def test_a_training_that_stops_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    whole = runs.fit

    def fit(recipe, *args, **kwargs):
        if recipe.loss.name == "CE":
            raise TrainingStopped("the loss is no longer finite")
        return whole(recipe, *args, **kwargs)

    monkeypatch.setattr(runs, "fit", fit)
    (failed,) = run_study(cells(tmp_path, seeds=(1,)), HERE)
    assert (failed.method, failed.seed, failed.why) == ("CE", 1, "the loss is no longer finite")
    assert {row.method for row in Store(tmp_path).rows()} == {"ACLS(margin=4.0)"}


def test_pixels_of_an_image_are_resampled_together_and_miou_is_told(tmp_path):
    run_study(plan(tmp_path, maps(), "CE", [1], "temperature"), HERE)
    as_is, calibrated = Store(tmp_path).rows()
    assert 0 < as_is.result["miou"] < 1
    assert "miou" not in calibrated.result.estimates
    assert as_is.result.unit == "image"
    p = outputs(tmp_path, as_is)
    independent = runs.evaluated(replace(p, image=None)).intervals["accuracy"]
    of_images = as_is.result.intervals["accuracy"]
    assert of_images[1] - of_images[0] != pytest.approx(independent[1] - independent[0], rel=0.01)


def test_rows_of_another_protocol_do_not_get_into_one_table(finished):
    one, *rest = Store(finished).rows()
    with pytest.raises(InputError, match=r"cannot be in one table: bins is 10"):
        results_table([replace(one, protocol={**one.protocol, "bins": 10}), *rest])


def test_rows_come_by_post_hoc_method_then_in_the_order_of_the_methods(finished):
    wanted = cells(finished, methods="ACLS(margin=4), CE")
    told = [(row.posthoc, row.method, row.seed) for row in chosen(wanted, Store(finished).rows())]
    methods = ("ACLS(margin=4.0)", "CE")
    assert told == [(p, m, s) for p in ("none", "Temperature") for m in methods for s in (1, 2)]


def test_the_recipe_sets_fields_that_the_user_does_not():
    recipe = digits()
    planned = plan("x", recipe, "ACLS, ACLS(margin=10), MDCA(base=Focal(gamma=1)), CE, CE()", [1])
    assert [cell.method for cell in planned] == ["ACLS(margin=6.0)", "ACLS", "MDCA(base=Focal(gamma=1.0))", "CE"]
    assert planned[1].recipe.loss == LossOptions("ACLS", {"margin": 6.0}, {"margin": 10})
    assert len({cell.run for cell in planned}) == 4


@pytest.mark.parametrize(
    ("methods", "posthoc", "message"),
    [
        ("ALCS", "none", "did you mean 'ACLS'"),
        ("ACLS(margn=1)", "none", "did you mean 'margin'"),
        ("CE", "temprature", "did you mean 'Temperature'"),
        ("CE", "temperature(objectiv=1)", "did you mean 'objective'"),
        ("", "none", "expected a method"),
    ],
)
def test_names_that_are_none_are_refused(methods, posthoc, message):
    with pytest.raises(InputError, match=message):
        plan("x", digits(), methods, [1], posthoc)


STUDY = """
import sys
from acls.study.engine import Here, Local
from acls.study.runs import run_study
from tests.study.quick import cells
if __name__ == "__main__":
    engine = Local(workers=2, threads=1) if sys.argv[2] == "2" else Here(1, 1)
    run_study(cells(sys.argv[1], seeds=(0,), epochs=5, save_every=1), engine)
"""


def study(folder, workers=2):
    return subprocess.Popen([sys.executable, "-c", STUDY, str(folder), str(workers)], cwd=Path(__file__).parents[2])


def test_a_study_killed_and_resumed_has_the_rows_of_an_unbroken_one(tmp_path, one_thread):
    """Once, in its third epoch; `tests/faults/test_kills.py` does so at random moments."""
    process = study(tmp_path / "broken")
    while sum(map(epochs_of, (tmp_path / "broken").glob("runs/*/metrics.csv"))) <= 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    same = {"seeds": (0,), "epochs": 5, "save_every": 1}
    run_study(cells(tmp_path / "broken", **same), HERE)
    run_study(cells(tmp_path / "whole", **same), HERE)
    broken, whole = (Store(tmp_path / name).rows() for name in ("broken", "whole"))
    assert len(whole) == 4
    assert timeless(broken) == timeless(whole)


@pytest.mark.slow
def test_a_study_on_ray_has_the_rows_of_a_local_one(tmp_path):
    pytest.importorskip("ray")
    run_study(cells(tmp_path), make_engine("ray", workers=2))
    run_study(cells(tmp_path / "local"), make_engine("local", workers=2))
    assert timeless(Store(tmp_path).rows()) == timeless(Store(tmp_path / "local").rows())


def test_two_studies_on_one_folder_do_not_run_at_once(tmp_path):
    first = study(tmp_path, workers=1)
    while not (tmp_path / "study.lock").exists() or not (tmp_path / "study.lock").read_text():
        assert first.poll() is None
        time.sleep(0.02)
    same = cells(tmp_path, seeds=(0,), epochs=5, save_every=1)
    with pytest.raises(InputError, match=f"in use by process {first.pid}"):
        run_study(same, HERE)
    run_study(same, HERE, wait=True)
    assert first.wait() == 0
    assert len(Store(tmp_path).rows()) == 4


def test_compare_prints_the_table_and_where_the_report_is(finished, capsys):
    settings = ["--epochs", "2", "--limit-batches", "3", "--accelerator", "cpu"]
    command = ["compare", "digits_cnn", "--methods", "CE, ACLS(margin=4)", "--seeds", "2", "--out", str(finished)]
    assert main([*command, *settings]) == 0
    out = capsys.readouterr().out
    assert "ACLS(margin=4.0)  Temperature" in out
    assert f"report: {finished / 'report.html'}" in out
    assert "has the lowest ECE" in out
    assert "intervals and p-values over seeds and test samples" in " ".join(out.split())
    assert (finished / "report.html").read_text().startswith("<!doctype html>")


def test_progress_names_method_seed_and_epoch(tmp_path):
    cells = [
        SimpleNamespace(
            run=f"CE-{seed}", method="CE", recipe=SimpleNamespace(seed=seed, epochs=30), place=tmp_path / str(seed)
        )
        for seed in (1, 2, 3)
    ]  # fmt: skip
    progress = Progress(cells)
    assert progress.look() == (0, "0/3 runs, CE, seed 1, epoch 1/30")
    progress.finished.add("CE-1")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "metrics.csv").write_text("\n" * 14)
    assert progress.look() == (43, "1/3 runs, CE, seed 2, epoch 14/30")
    progress.finished |= {"CE-2", "CE-3"}
    assert progress.look() == (90, "3/3 runs")


SEVERAL = {"methods": "CE", "seeds": (1,), "posthoc": "none", "devices": 2}


@pytest.mark.slow
def test_a_cell_on_two_devices_trains_once_in_two_processes(tmp_path):
    """Lightning's launcher would start the command of the study again, as the second process."""
    for folder, changes in (("two", {}), ("one", {"devices": 1})):
        assert run_study(cells(tmp_path / folder, **(SEVERAL | {"batch": 63} | changes)), Local(2, 1)) == []
    (two,), (one,) = (Store(tmp_path / folder).rows() for folder in ("two", "one"))
    assert two.result["nll"] == pytest.approx(one.result["nll"], rel=1e-3)
    assert two.result["accuracy"] == pytest.approx(one.result["accuracy"], abs=0.01)
    summary = tmp_path / "two" / two.run / "summary.json"
    summary.unlink()
    run_cell(cells(tmp_path / "two", **(SEVERAL | {"batch": 63, "devices": 1}))[0])  # goes on as it was begun
    assert summary.exists()


@pytest.mark.slow
def test_what_one_of_two_processes_raises_is_the_error_of_the_cell(tmp_path):
    (failed,) = run_study(cells(tmp_path, **SEVERAL, optim=replace(digits().optim, lr=1e30), clip=None), HERE)
    assert "no longer finite" in failed.why
    with pytest.raises(InputError, match="cannot be chosen by 'eec'"):
        run_study(cells(tmp_path / "other", **SEVERAL, select="eec"), HERE)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_an_interrupted_study_leaves_none_of_its_processes(tmp_path, how, code):
    words = [
        "compare",
        "digits_cnn",
        "--methods",
        "CE",
        "--seeds",
        "1",
        "--epochs",
        "10000",
        "--devices",
        "2",
        "--quiet",
    ]
    command = [sys.executable, "-m", "acls", *words, "--out", str(tmp_path / "out")]
    mark = f"ACLS_TEST={tmp_path}"
    process = subprocess.Popen(command, env=os.environ | dict([mark.split("=")]))

    def ours():
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark.encode() in (place / "environ").read_bytes() and alive(int(place.name)):
                    found.append(place.name)
        return found

    wait_for(lambda: epochs_of(tmp_path / "out" / "runs" / "CE-1" / "metrics.csv"))
    assert len(ours()) >= 4  # the command, its worker, and two that train
    process.send_signal(how)
    assert process.wait() == code
    wait_for(lambda: not ours())
