"""The page of the command line: what each command's own help says."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator

from acls.cli import COMMANDS, main


def files() -> dict[str, str]:
    """The page by its file name."""
    parts = [
        "# Command line\n",
        "The help of each command, as printed by `--help`, or by `--help-all` for commands with settings. The exit "
        "code is 0 for success, 1 if a check failed, 2 for bad input and 130 after Ctrl-C. With `--json`, a command "
        "prints one JSON object and nothing else.\n",
    ]
    for name, summary in COMMANDS.items():
        parts.append(f"## acls {name}\n\n{summary[0].upper()}{summary[1:]}.\n\n```text\n{help_of(name)}\n```\n")
    return {"commands.md": "\n".join(parts)}


def help_of(command: str) -> str:
    """The whole help of a command, on lines of 100 characters."""
    printed = ""
    for option in ("--help", "--help-all"):
        if option in (printed or option):
            out = io.StringIO()
            with _columns(100), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
                main([command, option])
            printed = out.getvalue().rstrip()
    return printed


@contextlib.contextmanager
def _columns(width: int) -> Iterator[None]:
    """Let argparse see a terminal of this width, and no colours."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS=str(width), NO_COLOR="1")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
