"""A shared study: the same numbers and diagrams, a fraction of the size, nothing of where it was made."""

import json
from functools import partial
from pathlib import Path

import pytest

from acls.cli import main
from acls.errors import InputError
from acls.report.page import of_path, render
from acls.study.ranking import difference
from acls.study.resamples import resampled
from acls.study.runs import run_study
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
            assert mine.numbers == theirs.numbers
            assert theirs.suite.summary()["ece"] == pytest.approx(mine.suite.summary()["ece"], abs=2e-3)
            assert mine.temperature == theirs.temperature
    assert size(tmp_path / "copy") < 0.5 * size(study)


def test_without_outputs_the_tables_are_left(study, tmp_path):
    share(study, tmp_path / "copy", outputs=False)
    subjects = of_path(tmp_path / "copy")
    assert all(state.suite is None for subject in subjects for state in subject.states)
    assert "ACLS(margin=4.0)" in render(subjects, title="shared")


def test_without_outputs_differences_have_the_same_intervals(study, tmp_path):
    share(study, tmp_path / "copy", outputs=False)
    share(tmp_path / "copy", tmp_path / "copy of the copy", outputs=False)
    rows = Store(study).rows()
    for posthoc in {row.posthoc for row in rows}:
        ce, acls = (
            [row for row in rows if row.method.startswith(name) and row.posthoc == posthoc] for name in ("CE", "ACLS")
        )
        expected = difference(acls, ce, "ece", partial(resampled, study))
        assert expected.low < expected.value < expected.high
        for place in ("copy", "copy of the copy"):
            found = difference(acls, ce, "ece", partial(resampled, tmp_path / place))
            assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_no_file_tells_where_the_study_or_the_data_was(study, tmp_path):
    rows = Store(study).rows()
    place = "/home/somebody/private/cifar10_train.zip"
    for row in rows:
        row.settings["recipe"]["data"]["root"] = place
    Store(study).add(*rows)
    for recipe in study.glob("runs/*/recipe.yaml"):
        recipe.write_text(recipe.read_text().replace("root: null", f"root: {place}"))
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
    kept = json.loads(next((tmp_path / "copy").rglob("environment.json")).read_text())["command"]
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
    assert b"cifar10_train.zip" in next((tmp_path / "copy").rglob("recipe.yaml")).read_bytes()


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
