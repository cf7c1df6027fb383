"""Runs the code of a page in the order in which a reader meets it: for the tests, and for the tutorial's pictures."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from acls.cli import main

_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", flags=re.S | re.M)
ELSEWHERE = ("pip", "make", "python", "mkdocs")
"""Commands that a page may show and that are not run."""


@dataclass(frozen=True)
class Block:
    """A piece of code on a page."""

    language: str
    title: str
    """The file that the piece is, where the page gives it a title."""
    code: str


def blocks(markdown: str) -> list[Block]:
    """All pieces of code on a page, including those that are not run."""
    return [
        Block(language, "".join(re.findall(r'title="(.*?)"', options)), code)
        for language, options, code in _FENCE.findall(markdown)
    ]


def commands(block: Block) -> list[list[str]]:
    """The commands of a block of shell, word by word."""
    lines = block.code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run(markdown: str) -> None:
    """Run the Python and the ``acls`` commands of a page in the current folder; what Python defines lasts to its end.

    Pieces with a title are files: they are not run.
    """
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(markdown):
        if block.language == "python" and not block.title:
            exec(compile(block.code, "<page>", "exec"), names)
        elif block.language == "bash":
            for words in commands(block):
                _run_command(words)


def _run_command(words: list[str]) -> None:
    if words[0] == "acls":
        code = main(words[1:])
        if code:
            raise RuntimeError(f"{shlex.join(words)} ended with {code}")
    elif words[0] not in ELSEWHERE:
        raise RuntimeError(
            f"{shlex.join(words)}: expected an acls command: mark the block as text if it is not to be run"
        )
