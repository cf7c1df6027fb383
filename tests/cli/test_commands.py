"""What holds for every command: help with an example, at once; completion; exit codes."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from acls.cli import COMMANDS, main
from acls.predictions import Predictions


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_that_fits_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"acls {command}" in out.split("examples:")[1]
    assert max(map(len, out.splitlines())) <= 80
    assert "(default: [])" not in " ".join(out.split())


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


def test_an_unknown_command_or_option_exits_with_2(capsys):
    for words in (["evalute"], ["methods", "--jsn"]):
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["evalute"]) == 2
    assert "no command 'evalute': did you mean 'evaluate'?" in capsys.readouterr().err
    for option, known in (("--lable", "--label"), ("--boot=0", "--bootstrap"), ("--jso", "--json")):  # nor abbreviated
        assert main(["evaluate", "absent.npz", option]) == 2
        told = f"{option}: did you mean '{known}'? see `acls evaluate --help`\n"
        assert told in capsys.readouterr().err


@pytest.fixture
def two_parts(tmp_path):
    pytest.importorskip("pyarrow")
    for number in range(2):
        scores = torch.randn(40, 3, generator=torch.Generator().manual_seed(number))
        Predictions(scores, scores.argmax(1), "logits").save(tmp_path / f"part-{number}.parquet")
    return str(tmp_path / "part-*.parquet")


def test_verbose_logs_what_is_read_fitted_and_written(two_parts, tmp_path, caplog):
    caplog.set_level("INFO", "acls")
    assert main(["evaluate", two_parts, "-v"]) == 0
    assert f"reading {two_parts}: 2 file(s), 80 rows of logits, from the columns logits, labels" in caplog.messages
    caplog.clear()
    out = str(tmp_path / "c.safetensors")
    assert main(["calibrate", two_parts, "--out", out, "--force", "-v"]) == 0
    assert any(one.startswith("Temperature(temperature=") and "fitted on 80 rows" in one for one in caplog.messages)
    assert f"wrote {out}" in caplog.messages


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--address", "127.0.0.1:1"], "--address is the address of a Ray cluster: pass --engine ray too"),
        (["--by", "predicted", "--workers", "2"], "--by predicted needs one process"),
    ],
)
def test_evaluate_ignores_no_option_for_many_machines(two_parts, options, said, capsys):
    assert main(["evaluate", two_parts, *options]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_named_twice_is_refused(two_parts, capsys):
    """Of two equal names, evaluate once measured one file without a word."""
    part = two_parts.replace("*", "0") if "*" in two_parts else two_parts
    for command in (["evaluate", part, part], ["compare", "--predictions", part, part], ["report", part, part]):
        assert main(command) == 2, command
        assert "twice" in capsys.readouterr().err


def test_no_draws_are_as_the_help_says(two_parts, capsys):
    assert main(["evaluate", two_parts, "--bootstrap", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["intervals"] == {}
    assert "ece" in found["floors"]
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    assert "at least 200; 0: also no intervals" in " ".join(capsys.readouterr().out.split())


def test_verbose_says_where_an_error_came_from(tmp_path):
    command = [sys.executable, "-m", "acls", "evaluate", "absent.npz"]
    quiet, loud = (
        subprocess.run([*command, *flags], cwd=tmp_path, capture_output=True, text=True, check=False)
        for flags in ((), ("-vv",))
    )
    assert quiet.returncode == loud.returncode == 2
    assert len(quiet.stderr.splitlines()) == 1
    assert "Traceback" in loud.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_commands_options_and_recipes(shell, capsys):
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "evaluate" in out
    assert "--bootstrap" in out
    assert "digits_cnn" in out


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(("line", "expected"), [("acls eva", "evaluate"), ("acls train dig", "digits_cnn")])
def test_bash_completes(line, expected, capsys):
    main(["completion", "bash"])
    script = capsys.readouterr().out
    words = line.split()
    asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_acls; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", script + asked], capture_output=True, text=True, check=True)
    assert expected in done.stdout.split()


def test_python_m_acls_is_the_command():
    done = subprocess.run([sys.executable, "-m", "acls", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("acls ")


SAYS = ("methods", "explain", "recipes", "completion", "advise")  # what they print is all that they are for


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_speak_json_and_be_quiet(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    told = capsys.readouterr().out
    assert "--json" in told or command == "completion"
    assert "--quiet" in told or command in SAYS


def test_json_is_all_that_is_printed(tmp_path, capsys):
    """From training to a diagnosis, each command's output can be read by a program."""
    run = tmp_path / "run"
    short = ["--epochs", "1", "--limit-batches", "2", "--accelerator", "cpu", "--no-figures", "--loggers", ""]
    steps = (
        ["train", "digits_cnn", *short, "--dry-run"],
        ["train", "digits_cnn", *short, "--out", str(run)],
        ["predict", str(run), "--part", "val", "--out", str(tmp_path / "val.npz")],
        ["calibrate", str(tmp_path / "val.npz"), "--force", "--out", str(tmp_path / "calibrator.safetensors")],
        ["apply", str(tmp_path / "calibrator.safetensors"), str(tmp_path / "val.npz"), str(tmp_path / "new.npz")],
        ["doctor", str(tmp_path / "new.npz")],
        ["recipes", "digits_cnn"],
        ["explain", "--figure", str(tmp_path / "figure.png")],
        ["reproduce", "table2", "--out", str(tmp_path / "reproduced")],
    )
    for words in steps:
        assert main([*words, "--json"]) in (0, 1), words
        assert isinstance(json.loads(capsys.readouterr().out), dict), words
    assert main(["predict", str(run), "--out", str(tmp_path / "test.npz"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_a_place_that_cannot_be_written_to_is_told_in_a_line(tmp_path, capsys):
    pytest.importorskip("safetensors")
    np.savez(tmp_path / "val.npz", logits=np.random.default_rng(0).normal(size=(60, 3)), labels=np.arange(60) % 3)
    place = tmp_path / "val.npz" / "c.safetensors"  # in a file, not in a folder
    assert main(["calibrate", str(tmp_path / "val.npz"), "--out", str(place), "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", ["compare", "train", "tune"])
def test_help_shows_what_people_use_first_and_help_all_every_setting(command, capsys):
    texts = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main([command, option])
        texts.append(capsys.readouterr().out)
    short, whole = texts
    assert "--epochs" in short
    assert "--data.mix-alpha" not in short
    assert "--data.mix-alpha" in whole
    assert len(short) < len(whole) / 2
    assert len(re.findall(r"^  --", short, flags=re.M)) <= 20


@pytest.mark.parametrize("words", [["methods"], ["recipes"]])
def test_lists_fit_eighty_columns(words, capsys):
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80


def test_explain_fits_80_columns_and_still_gives_every_formula(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain", "--logits", "9,2,1,-3", "--label", "0", "--methods", "MbLS, ACLS, ACLS(form=paper)"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("f at the pivot is") == 3
