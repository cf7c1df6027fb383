"""The command compare: a study, or saved predictions; what it prints and what it refuses."""

import html
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acls.cli import main
from acls.cli.compare import _seeds
from acls.errors import InputError
from acls.predictions import Predictions, readers
from acls.report.page.sources import of_file
from acls.report.page.subjects import rank_subjects
from acls.study.engine import Engine
from acls.study.store import Store
from acls.train.session import Session
from tests.processes import wait_for
from tests.study.quick import HERE


@pytest.fixture
def outputs(tmp_path):
    """Three models of the same samples: one fits, one is the same but for noise, one is far too sure."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (600,), generator=random)
    logits = torch.nn.functional.one_hot(labels, 5) + torch.randn(600, 5, generator=random)
    for name, scores in (("fits", logits), ("alike", logits + 0.01), ("shouts", 9 * logits)):
        Predictions(scores, labels, "logits").save(tmp_path / f"{name}.npz")
    return tmp_path


def files(folder, *names):
    return [str(folder / f"{name}.npz") for name in names]


def test_saved_predictions_are_ranked_and_the_best_is_marked(outputs, capsys):
    assert main(["compare", "--predictions", *files(outputs, "shouts", "fits"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    ranks = {one["metric"]: one for one in told["ranking"]}
    assert ranks["ece"]["best"] == "fits.npz"
    assert ranks["ece"]["significant"]
    assert not ranks["accuracy"]["significant"]  # the same predictions
    assert main(["compare", "--predictions", *files(outputs, "shouts", "fits")]) == 0
    out = capsys.readouterr().out
    lines = {
        line.split()[0]: line
        for line in out.splitlines()
        if line.startswith(("fits.npz ", "shouts.npz ")) and " none " in line
    }
    assert "*" in lines["fits.npz"]
    assert "*" not in lines["shouts.npz"]
    assert "'" in lines["shouts.npz"]
    assert "different from all others by more than chance" in " ".join(out.split())
    assert out.startswith("fits.npz has the lowest ECE, ")
    assert max(map(len, out.splitlines())) <= 80


def test_the_terminal_and_the_page_have_the_same_p_values(outputs, capsys):
    paths = files(outputs, "fits", "shouts")
    assert main(["compare", "--predictions", *paths, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["ranking"]
    subjects = [of_file(path, title=Path(path).name) for path in paths]
    on_page = rank_subjects([replace(one, states=one.states[:1]) for one in subjects])
    assert [(one["metric"], one["p"]) for one in told] == [(one.metric, one.p) for one in on_page]


def test_the_terminal_the_page_and_the_json_say_the_same_sentence(outputs, capsys):
    paths = files(outputs, "shouts", "fits")
    assert main(["compare", "--predictions", *paths, "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["answer"]
    assert main(["compare", "--predictions", *paths]) == 0
    assert " ".join(capsys.readouterr().out.split()).startswith(answer)
    assert main(["report", *paths, "--out", str(outputs / "page.html")]) == 0
    page = (outputs / "page.html").read_text()
    assert answer in html.unescape(page)


def test_two_files_have_one_p_of_equal_ece_and_the_same_names_in_every_command(outputs, capsys):
    """Of a difference that is near chance, so that two tests of it would not agree."""
    logits, labels = (getattr(Predictions.load(outputs / "fits.npz"), name) for name in ("scores", "labels"))
    Predictions(1.4 * logits, labels, "logits").save(outputs / "louder.npz")
    paths, page = files(outputs, "fits", "louder"), str(outputs / "page.html")

    def told(*words):
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    (evaluated,) = told("evaluate", *paths)["comparisons"]
    compared = next(one for one in told("compare", "--predictions", *paths)["ranking"] if one["metric"] == "ece")
    assert (evaluated["against"], evaluated["file"]) == ("fits.npz", "louder.npz")
    assert compared["baseline"] == "fits.npz"
    p = evaluated["differences"]["ece"]["p"]
    assert 0.001 < p < 0.999
    assert p == compared["p"] == compared["to_baseline"]["louder.npz"]["p"]
    assert f"p = {p:.3f}" in told("report", *paths, "--out", page)["verdict"][0]


def test_a_metric_without_a_value_is_null_in_json(tmp_path, capsys):
    labels = torch.arange(100) % 4
    for name, sharpness in (("one", 2.0), ("two", 3.0)):
        scores = sharpness * torch.nn.functional.one_hot(labels, 4)
        Predictions(scores, labels, "logits").save(tmp_path / f"{name}.npz")
    assert main(["compare", "--predictions", *files(tmp_path, "one", "two"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["metrics"]["accuracy"]["value"] for row in rows] == [1.0, 1.0]
    assert [row["metrics"].get("auroc", {}).get("value") for row in rows] == [None, None]


@pytest.mark.parametrize(
    "words",
    [
        ["--methods", "CE"],
        ["--seeds", "3"],
        ["--posthoc", "temperature"],
        ["--out", "study"],
        ["--no-report"],
        ["--wait"],
        ["--workers", "1"],
        ["--engine", "ray"],
    ],
    ids=lambda words: words[0],
)
def test_what_says_how_to_run_a_study_is_refused_beside_saved_predictions(outputs, capsys, words):
    assert main(["compare", "--predictions", *files(outputs, "fits", "shouts"), *words]) == 2
    assert f"but {words[0]} is for training" in capsys.readouterr().err


def test_models_that_are_alike_are_not_marked(outputs, capsys):
    assert main(["compare", "--predictions", *files(outputs, "fits", "alike")]) == 0
    rows = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("fits.npz ", "alike.npz ")) and " none " in line
    ]
    assert len(rows) == 2
    assert not any("*" in line for line in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--predictions", "{0}/fits.npz"], "two files or more"),
        (["digits_cnn", "--predictions", "{0}/fits.npz", "{0}/alike.npz"], "digits_cnn is for training"),
        (["--predictions", "{0}/fits.npz", "{0}/fits.npz"], "twice"),
        (["--predictions", "{0}/fits.npz", "{0}/other.npz"], "different labels"),
        (
            ["--predictions", "{0}/fits.npz", "{0}/pixels.npz"],
            "pixels.npz and {0}/fits.npz: expected the image of each row in both files or in neither",
        ),
        (["digits_cnn", "--loss", "ACLS"], "--methods"),
        (["digits_cnn", "--config", "x.yaml"], "not both"),
        (["digit_cnn"], "did you mean 'digits_cnn'"),
        (["digits_cnn", "--seeds", "none"], "number of seeds"),
        (["digits_cnn", "--workers", "0"], "--workers: expected a whole number in [1, "),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(outputs, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(outputs)
    Predictions(torch.randn(600, 5), torch.zeros(600, dtype=torch.int64), "logits").save(outputs / "other.npz")
    replace(Predictions.load(outputs / "fits.npz"), image=torch.arange(600) // 6).save(outputs / "pixels.npz")
    assert main(["compare", *(word.format(outputs) for word in arguments)]) == 2
    assert message.format(outputs) in capsys.readouterr().err
    assert not (outputs / "studies").exists()


def test_seeds_are_a_number_or_a_list():
    assert _seeds("3", 1) == [1, 2, 3]
    assert _seeds("2", 10) == [10, 11]
    assert _seeds("5,7,5", 1) == [5, 7]
    assert _seeds("0,", 1) == [0]
    for text in ("0", "-1", "a", "", "1,-2"):
        with pytest.raises(InputError, match="number of seeds"):
            _seeds(text, 1)


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    settings = ["--epochs", "400", "--limit-batches", "3", "--accelerator", "cpu", "--seeds", "1", "--workers", "1"]
    words = ["compare", "digits_cnn", "--methods", "CE", *settings, "--out", str(tmp_path), "--quiet"]
    # A suite in the background ignores Ctrl-C, and so would what it starts.
    process = subprocess.Popen(
        [sys.executable, "-m", "acls", *words], stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    metrics = tmp_path / "runs" / "CE-1" / "metrics.csv"
    wait_for(metrics.exists, process)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert f"the same command continues the study in {tmp_path}" in process.stderr.read()
    assert (metrics.parent / "resume.safetensors").exists()
    assert not (metrics.parent / "summary.json").exists()
    assert Store(tmp_path).rows() == []


def test_ctrl_c_in_a_reproduction_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    class Stopped(Engine):
        def map(self, function, tasks):
            raise KeyboardInterrupt
            yield

    monkeypatch.setattr("acls.study.engine.make_engine", lambda *_, **__: Stopped(1, 1))
    assert main(["reproduce", "statistics", "--seeds", "1", "--out", str(tmp_path), "--quiet"]) == 130
    assert f"stopped; the same command continues at statistics, in {tmp_path}" in capsys.readouterr().err


def test_after_training_each_predictions_file_is_read_once_and_each_part_predicted_once(tmp_path, monkeypatch):
    """Training, post-hoc methods, ranking, table and page: one reading of each file serves all of them."""
    read, passes = Counter(), Counter()
    blocks, predicted = readers.ArrayFile.blocks, Session.outputs

    def count_reads(file, *rest):
        read[file.path.relative_to(tmp_path).as_posix()] += 1
        return blocks(file, *rest)

    def count_passes(self, part, **options):
        name = next(name for name in ("train", "val", "test") if getattr(self.data, name) is part)
        passes[self.recipe.seed, name] += 1
        return predicted(self, part, **options)

    monkeypatch.setattr(readers.ArrayFile, "blocks", count_reads)
    monkeypatch.setattr(Session, "outputs", count_passes)
    monkeypatch.setattr("acls.cli.compare.engine_of", lambda args: HERE)
    settings = ["--epochs", "2", "--limit-batches", "2", "--methods", "CE, ACLS", "--seeds", "1", "--quiet"]
    assert main(["compare", "digits_cnn", "--out", str(tmp_path / "study"), *settings]) == 0
    parts = ("predictions/val.safetensors", "predictions/test.safetensors")
    assert read == {f"study/runs/{run}/{part}": 1 for run in ("ACLS-margin=6.0-1", "CE-1") for part in parts}
    assert passes == {(1, "val"): 2 * (2 + 1), (1, "test"): 2}  # two networks: after each epoch, and at the end
