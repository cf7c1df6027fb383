"""A shared study: the same numbers and diagrams, a fraction of the size, nothing of where it was made."""

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from acls.cli import main
from acls.errors import InputError
from acls.report.page import of_path, render
from acls.study.files import RunFiles
from acls.study.ranking import difference, resamples_of
from acls.study.runs import detailed, run_study
from acls.study.share import share
from acls.study.store import Store
from tests.study.quick import HERE, cells


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secret")
    assert run_study(cells(folder), HERE) == []
    return folder


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_numbers_are_the_same_and_diagrams_are_within_rounding(study, tmp_path):
    assert share(study, tmp_path / "copy") == 4
    assert Store(tmp_path / "copy").rows() == Store(study).rows()
    for one, two in zip(of_path(study), of_path(tmp_path / "copy"), strict=True):
        assert (one.method, one.seed, one.history) == (two.method, two.seed, two.history)
        for mine, theirs in zip(one.states, two.states, strict=True):
            assert mine.result == theirs.result
            ece = mine.result.suite.summary()["ece"]
            assert theirs.result.suite.summary()["ece"] == pytest.approx(ece, abs=2e-3)
        assert one.temperature == two.temperature
    assert size(tmp_path / "copy") < 0.5 * size(study)


def test_without_outputs_the_tables_are_left(study, tmp_path):
    share(study, tmp_path / "copy", outputs=False)
    subjects = of_path(tmp_path / "copy")
    assert all(state.result.suite is None for subject in subjects for state in subject.states)
    assert "ACLS(margin=4.0)" in render(subjects, title="shared")


def test_without_outputs_differences_have_the_same_intervals(study, tmp_path):
    share(study, tmp_path / "copy", outputs=False)
    share(tmp_path / "copy", tmp_path / "copy of the copy", outputs=False)
    rows = Store(study).rows()
    for posthoc in {row.posthoc for row in rows}:
        ce, acls = (
            [row for row in rows if row.method.startswith(name) and row.posthoc == posthoc] for name in ("CE", "ACLS")
        )
        expected = difference(*(detailed(study, some) for some in (acls, ce)), "ece", resamples_of)
        assert expected.low < expected.value < expected.high
        assert expected.high - expected.low < (difference(acls, ce, "ece").high - difference(acls, ce, "ece").low)
        for place in ("copy", "copy of the copy"):
            found = difference(*(detailed(tmp_path / place, some) for some in (acls, ce)), "ece", resamples_of)
            assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_no_file_tells_where_the_study_or_the_data_was(study, tmp_path):
    rows = Store(study).rows()
    place = "/home/somebody/private/cifar10_train.zip"
    for row in rows:
        row.settings["recipe"]["data"]["root"] = place
        row.settings["recipe"]["model"]["weights"] = place
    Store(study).add(*rows)
    for recipe in study.glob("runs/*/recipe.yaml"):
        text = recipe.read_text().replace("root: null", f"root: {place}")
        recipe.write_text(text.replace("weights: null", f"weights: {place}"))
    for environment in study.glob("runs/*/environment.json"):
        told = json.loads(environment.read_text())
        told["command"] = [
            "acls",
            "reproduce",
            "--data",
            f"cifar10={place}",
            "--out",
            place,
            f"--root={place}",
            "--epochs=2",
        ]
        environment.write_text(json.dumps(told))
    share(study, tmp_path / "copy")
    run = RunFiles(tmp_path / "copy", rows[0].run)
    kept = json.loads(run.text("environment.json"))["command"]
    assert kept[3:] == [
        "cifar10=cifar10_train.zip",
        "--out",
        "cifar10_train.zip",
        "--root=cifar10_train.zip",
        "--epochs=2",
    ]
    for file in (tmp_path / "copy").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"/home/somebody" not in content, file
            assert str(study).encode() not in content, file
            assert str(Path.cwd()).encode() not in content, file
    assert "cifar10_train.zip" in run.text("recipe.yaml")


def test_what_cannot_be_is_refused(study, tmp_path):
    with pytest.raises(InputError, match="the study itself"):
        share(study, study)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("...")
    with pytest.raises(InputError, match="other files"):
        share(study, tmp_path / "mine")


def test_the_command_says_what_there_is_and_can_be_repeated(study, tmp_path, capsys):
    for _ in range(2):
        assert main(["share", str(study), str(tmp_path / "copy")]) == 0
        assert "4 runs" in capsys.readouterr().out


def test_a_shared_study_is_two_files_and_can_be_shared_again(study, tmp_path):
    share(study, tmp_path / "one")
    share(tmp_path / "one", tmp_path / "two")
    for place in ("one", "two"):
        assert {file.name for file in (tmp_path / place).iterdir()} == {"study.sqlite", "outputs.safetensors"}
    first, second = (of_path(tmp_path / place) for place in ("one", "two"))
    for one, two in zip(first, second, strict=True):
        assert one.mistakes == two.mistakes
        assert one.history == two.history
        assert one.states[0].result.suite.summary() == two.states[0].result.suite.summary()


@pytest.mark.parametrize("run", ["../escape", "/etc", "runs/../../escape", "runs\\..\\escape"])
def test_a_run_outside_of_the_study_is_refused_and_nothing_is_written(study, tmp_path, run):
    rows = Store(study).rows()
    received = tmp_path / "received"
    Store(received, create=True).add(replace(rows[0], run=run))
    with pytest.raises(InputError, match="expected the folder of a run inside the study"):
        share(received, tmp_path / "out" / "copy")
    with pytest.raises(InputError, match="expected the folder of a run inside the study"):
        of_path(received)
    assert not (tmp_path / "out").exists()


def test_links_are_not_followed(study, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    rows = Store(study).rows()
    received = tmp_path / "received"
    Store(received, create=True).add(rows[0])
    (received / "runs").mkdir()
    shutil.copytree(study / rows[0].run, received / rows[0].run)
    (received / rows[0].run / "summary.json").unlink()
    (received / rows[0].run / "summary.json").symlink_to(secret)
    with pytest.raises(InputError, match="is a link, which is not followed"):
        share(received, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_the_store_of_a_shared_study_holds_no_weights(study, tmp_path):
    share(study, tmp_path / "copy")
    with sqlite3.connect(tmp_path / "copy" / "study.sqlite") as database:
        names = {name for (name,) in database.execute("SELECT DISTINCT name FROM files")}
    assert names == {
        "recipe.yaml", "metrics.csv", "summary.json", "environment.json", "calibrators/Temperature.safetensors",
        "outputs.safetensors",
    }  # fmt: skip
