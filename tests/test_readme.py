"""Every command and every piece of code in the README runs, in the order in which a reader meets it."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from acls.cli import main

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)
COMMANDS = [line for kind, block in BLOCKS if kind == "bash" for line in block.strip().splitlines()]


def test_the_readme_opens_with_the_two_commands():
    assert [shlex.split(line, comments=True) for line in COMMANDS[:2]] == [["make", "demo"], ["make", "test"]]


def test_every_command_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ours = [shlex.split(line, comments=True) for line in COMMANDS]
    ours = [words[1:] for words in ours if words[0] == "acls"]
    assert len(ours) > 10
    for words in ours:
        assert main(words) == 0, f"acls {shlex.join(words)}\n{capsys.readouterr().err}"
    assert (tmp_path / "calibrated.npz").is_file()
    assert "<html" in (tmp_path / "studies" / "digits" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", [block for kind, block in BLOCKS if kind == "python"])
def test_every_piece_of_code_runs(code, tmp_path):
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True)


def test_every_file_that_the_readme_links_to_is_there():
    for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / target).exists(), target
