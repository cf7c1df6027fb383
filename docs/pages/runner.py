"""Runs the code of a page in the order in which a reader meets it: for the tests, and for the tutorial's pictures."""

from __future__ import annotations

import contextlib
import io
import math
import re
import shlex
from dataclasses import dataclass
from typing import Any

from acls.cli import main

_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", flags=re.S | re.M)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
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


def run(markdown: str, *, check_outputs: bool = False) -> None:
    """Run the Python and the ``acls`` commands of a page in the current folder; what Python defines lasts to its end.

    Pieces with a title are files: they are not run. With ``check_outputs`` a piece of text after a piece of code must
    be what that code printed: see `check`.
    """
    names: dict[str, Any] = {"__name__": "__page__"}
    printed = ""
    for block in blocks(markdown):
        if block.language == "text" and check_outputs:
            check(block.code, printed)
        with contextlib.redirect_stdout(out := io.StringIO()):
            if block.language == "python" and not block.title:
                exec(compile(block.code, "<page>", "exec"), names)
            elif block.language == "bash":
                for words in commands(block):
                    _run_command(words)
        printed = out.getvalue()


def check(shown: str, printed: str) -> None:
    """Raise for a line that was not printed; ``...`` leaves lines out, and numbers may differ by what is drawn."""
    rest = [line.split() for line in printed.splitlines()]
    for line in shown.splitlines():
        if line.strip() in ("", "..."):
            continue
        while rest and not _agree(line.split(), rest[0]):
            rest.pop(0)
        if not rest:
            raise RuntimeError(f"the page shows a line that was not printed: {line}")


def _agree(shown: list[str], printed: list[str]) -> bool:
    """Whether two lines have the same words, and numbers that are nearly the same."""
    if [_NUMBER.sub("#", word) for word in shown] != [_NUMBER.sub("#", word) for word in printed]:
        return False
    pairs = zip(_NUMBER.findall(" ".join(shown)), _NUMBER.findall(" ".join(printed)), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=0.15, abs_tol=0.05) for a, b in pairs)


def _run_command(words: list[str]) -> None:
    if words[0] == "acls":
        code = main(words[1:])
        if code:
            raise RuntimeError(f"{shlex.join(words)} ended with {code}")
    elif words[0] not in ELSEWHERE:
        raise RuntimeError(
            f"{shlex.join(words)}: expected an acls command: mark the block as text if it is not to be run"
        )
