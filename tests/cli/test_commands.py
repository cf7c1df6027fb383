"""What holds for every command: help with an example, at once; completion; exit codes."""

import shutil
import subprocess
import sys

import pytest

from acls.cli import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"acls {command}" in out.split("examples:")[1]


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


def test_an_unknown_command_or_option_exits_with_2(capsys):
    for words in (["evalute"], ["methods", "--jsn"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2


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
    asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _acls; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", script + asked], capture_output=True, text=True, check=True)
    assert expected in done.stdout.split()


def test_python_m_acls_is_the_command():
    done = subprocess.run([sys.executable, "-m", "acls", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("acls ")
