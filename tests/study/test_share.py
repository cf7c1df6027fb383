"""A shared study: the same numbers and diagrams, a fraction of the size, nothing of where it was made."""

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from acls.cli import main
from acls.errors import InputError
from acls.metrics.protocols import protocol
from acls.options import from_plain, override
from acls.predictions import Predictions
from acls.recipes import Recipe, save_recipe
from acls.report.page.build import render
from acls.report.page.sources import of_path
from acls.results import Result
from acls.study.ranking import difference
from acls.study.runs import detailed, run_study
from acls.study.share import share
from acls.study.store import RunFiles, Store, shared_files
from tests.study.quick import HERE, cells


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secret")
    assert run_study(cells(folder), HERE) == []
    return folder


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_numbers_are_the_same_and_diagrams_are_within_rounding(study, tmp_path):
    assert share(study, tmp_path / "copy").added == 4
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
        expected = difference(*(detailed(study, some) for some in (acls, ce)), "ece")
        assert expected.low < expected.value < expected.high
        assert expected.high - expected.low < (difference(acls, ce, "ece").high - difference(acls, ce, "ece").low)
        for place in ("copy", "copy of the copy"):
            found = difference(*(detailed(tmp_path / place, some) for some in (acls, ce)), "ece")
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
    with pytest.raises(InputError, match="folder inside the study"):
        share(received, tmp_path / "out" / "copy")
    with pytest.raises(InputError, match="folder inside the study"):
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


def test_finished_runs_are_added_to_a_shared_study_and_nothing_is_replaced(study, tmp_path):
    """One study shared run by run is the study shared at once."""
    rows = Store(study).rows()
    for seed in (1, 2):
        part = tmp_path / f"seed {seed}"
        Store(part, create=True).add(*(row for row in rows if row.seed == seed))
        for run in {row.run for row in rows if row.seed == seed}:
            shutil.copytree(study / run, part / run)
    copy = tmp_path / "copy"
    assert share(tmp_path / "seed 1", copy).added == 2
    assert share(tmp_path / "seed 2", copy).added == 2
    assert share(tmp_path / "seed 1", copy).added == 0
    share(study, tmp_path / "whole")
    assert sorted(map(repr, Store(copy).rows())) == sorted(map(repr, Store(tmp_path / "whole").rows()))
    assert shared_files(copy).keys() == shared_files(tmp_path / "whole").keys()
    for row in rows:
        mine, theirs = (RunFiles(place, row.run).test() for place in (copy, tmp_path / "whole"))
        assert torch.equal(mine.scores, theirs.scores)
        assert torch.equal(mine.labels, theirs.labels)
    assert size(copy) < 1.1 * size(tmp_path / "whole")  # labels are there once


def test_a_shared_study_is_continued_with_the_data_in_any_folder(study, tmp_path):
    """Its rows have the name of the data alone; once it was refused as another file."""
    rows = Store(study).rows()
    for row in rows:
        row.settings["recipe"]["data"]["root"] = "images.zip"
        row.settings["recipe"]["model"]["weights"] = None  # which another test of this study changes
    Store(tmp_path / "copy", create=True).add(*(replace(row, run="") for row in rows))

    def planned(root):
        return [replace(one, recipe=override(one.recipe, {"data.root": root})) for one in cells(tmp_path / "copy")]

    assert run_study(planned("/elsewhere/images.zip"), HERE) == []  # nothing is left to train
    with pytest.raises(InputError, match=r"has runs with data\.root images\.zip"):
        run_study(planned("/elsewhere/others.zip"), HERE)


def test_a_run_of_other_numbers_or_settings_is_refused_and_the_shared_study_stays(study, tmp_path):
    copy = tmp_path / "copy"
    share(study, copy)
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    first, *_ = Store(study).rows()
    estimates = {name: replace(one, value=one.value / 2) for name, one in first.result.estimates.items()}
    recipe = first.settings["recipe"]
    changed = {
        "with different numbers": replace(first, result=Result(first.n, estimates)),
        "has runs with batch": replace(first, settings={**first.settings, "recipe": {**recipe, "batch": 7}}),
        "another run named": replace(first, method="Mixup", result=first.result),
    }
    for number, (message, row) in enumerate(changed.items()):
        other = tmp_path / str(number)
        Store(other, create=True).add(row)
        shutil.copytree(study / row.run, other / row.run)
        with pytest.raises(InputError, match=message):
            share(other, copy)
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == before


def test_the_path_of_the_users_own_model_is_reduced_to_its_file(study, tmp_path):
    rows = Store(study).rows()
    model = {"name": "/home/somebody/nets/mynet.py:MyNet", "source": "0" * 32}
    part = tmp_path / "own"
    recipe = {**rows[0].settings["recipe"], "model": {**rows[0].settings["recipe"]["model"], **model}}
    Store(part, create=True).add(replace(rows[0], settings={**rows[0].settings, "recipe": recipe}))
    shutil.copytree(study / rows[0].run, part / rows[0].run)
    save_recipe(from_plain(Recipe, recipe), part / rows[0].run / "recipe.yaml")
    share(part, tmp_path / "copy")
    assert Store(tmp_path / "copy").rows()[0].settings["recipe"]["model"]["name"] == "mynet.py:MyNet"
    assert RunFiles(tmp_path / "copy", rows[0].run).recipe().model.name == "mynet.py:MyNet"
    assert b"somebody" not in (tmp_path / "copy" / "study.sqlite").read_bytes()


def test_without_outputs_label_maps_keep_the_papers_ece_and_the_iou_of_frequent_classes(study, tmp_path):
    random = np.random.default_rng(0)
    images, pixels, classes = 20, 50, 4
    labels = random.integers(0, 3, (images, pixels))
    labels[0, :5] = 3  # a class that one image in twenty shows
    scores = random.normal(size=(images, pixels, classes)) + 2 * np.eye(classes)[labels]
    flat = torch.from_numpy(scores.reshape(-1, classes)).float(), torch.from_numpy(labels.reshape(-1))
    image = torch.arange(images).repeat_interleave(pixels)
    row = Store(study).rows()[0]
    part = tmp_path / "maps"
    Store(part, create=True).add(row)
    shutil.copytree(study / row.run, part / row.run)
    Predictions(*flat, "logits", image=image).save(part / row.run / "predictions" / "test.safetensors")
    share(part, tmp_path / "copy", outputs=False)
    kept = json.loads(RunFiles(tmp_path / "copy", row.run).text("maps.json"))
    predicted, truth = scores.reshape(-1, classes).argmax(1), labels.reshape(-1)
    iou = [((predicted == k) & (truth == k)).sum() / ((predicted == k) | (truth == k)).sum() for k in (1, 2)]
    assert kept["miou_frequent"] == pytest.approx(np.mean(iou))
    expected = protocol("mbls-segmentation").measure(*flat, image=image)
    assert (kept["ece_protocol"], kept["aece_protocol"]) == (expected["ece"], expected["aece"])
