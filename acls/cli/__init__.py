"""The command line: each command is a module of this package with `configure(parser)` and `run(args)`.

The docstring of a module is the help text of its command: a description, then examples. Only the module of the chosen
command is imported, and torch only when the command runs, so the help is shown without delay.
"""

import argparse
import errno
import importlib
import logging
import sys
import textwrap
import traceback
from collections.abc import Container, Sequence
from typing import Any, NoReturn

import acls
from acls.cli.common import COLUMNS
from acls.errors import InputError, MissingExtra, WorkerLost, suggest
from acls.options import SettingError

COMMANDS = {
    "methods": "list every training method with its type, paper, year and defaults",
    "explain": "show the label that each method really trains towards",
    "train": "train a network with a recipe, or continue a run",
    "predict": "write the predictions of a trained network",
    "recipes": "list the recipes, or show one in full",
    "evaluate": "measure calibration: every metric with its interval, noise floor and n",
    "calibrate": "fit post-hoc calibrators, judge them by cross-validation, recommend and save one",
    "apply": "apply a saved calibrator to predictions",
    "compare": "train and compare methods over seeds, or compare saved predictions",
    "report": "write a page with verdict, tables and diagrams of runs, studies or predictions",
    "share": "copy a study without its weights, to send or publish",
    "reproduce": "reproduce a table or figure of the paper, with a verdict on each claim",
    "tune": "search settings for the lowest ECE at a minimum accuracy, on the validation part",
    "advise": "recommend which epoch of a run to keep, by several rules",
    "doctor": "report what looks wrong in a file of predictions",
    "shift": "corrupt the test images and see whether accuracy, calibration and temperature hold",
    "drift": "check new predictions, without labels, against the calibration set",
    "completion": "print a script that completes commands and options in your shell",
}

EXAMPLE = """\
examples:
  acls compare
  acls evaluate predictions.npz
  acls explain --logits 9,2,1,-1 --label 0
"""


_log = logging.getLogger("acls")
_REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space, or write elsewhere") | {
    errno.EROFS: "write elsewhere",
    errno.EACCES: "ask its owner for permission, or pass another path",
}
"""Suggested remedies for system errors, by error number."""


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Wraps paragraphs, keeps the layout of examples, and shows the default of every option that has one."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip("\n").split("\n\n")
        return "\n\n".join(part if "\n  " in part else textwrap.fill(part, width) for part in parts)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, False, argparse.SUPPRESS, []):
            return action.help
        return super()._get_help_string(action)


_FIRST = ("set:data.root", "set:model.name", "set:loss.name", "set:epochs", "set:batch", "set:optim.lr", "set:seed")
"""Recipe settings that ``--help`` shows."""
_FOLDED = ("verbose", "config", "no_report", "no_figures", "wait", "address", "ignore_index")
"""Other options of these commands that only ``--help-all`` shows."""


class _Parser(argparse.ArgumentParser):
    """Raises an error instead of exiting, so that a wrong option is reported in one line like any other error.

    ``--help`` shows the most common settings of a recipe, ``--help-all`` shows all settings.
    """

    def print_help(self, file: Any = None) -> None:
        names = {action.dest for action in self._actions}
        settings = {name for name in names if name.startswith("set:")}
        first = set(_FIRST) - ({"set:loss.name"} if "methods" in names else set())
        folded = (settings - first).union(_FOLDED, COLUMNS) if settings else ()
        for action in self._actions:
            if action.dest in folded:
                action.help = argparse.SUPPRESS
        super().print_help(file)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0 for success, 1 if a check or a worker failed, 2 for bad input, 130 after Ctrl-C.

    Every error is reported in one line; ``--debug`` also shows the traceback.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [word for word in arguments if word != "--debug"]
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        code = _run(arguments, chosen)
        sys.stdout.flush()  # here, where a full disk can still be reported
        return code
    except KeyboardInterrupt as stopped:  # its message says how to continue, if that is possible
        print(f"acls {chosen}: {'; '.join(['stopped', *map(str, stopped.args)])}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has closed the pipe, as `head` does
        sys.stderr.close()
        return 0
    except Exception as error:
        _log.debug("traceback of the error", exc_info=True)
        if debug:
            traceback.print_exc()
        code, line = _line_of(error)
        print(f"acls {chosen}: {line}" if chosen in COMMANDS else f"acls: {line}", file=sys.stderr)
        return code


def _run(arguments: list[str], chosen: str | None) -> int:
    if chosen is not None and chosen not in COMMANDS:
        raise InputError(f"there is no command {chosen!r}{suggest(chosen, COMMANDS)}")
    parser = full_parser([chosen])
    args, rest = parser.parse_known_args(arguments)
    args.rest = rest
    if args.rest and not getattr(args, "takes_rest", False):
        known = getattr(args, "options", ())
        hints = (suggest(word.split("=")[0], known) for word in args.rest if word.startswith("--"))
        hint = next((hint for hint in hints if "did you mean" in hint), ";")
        where = f"{parser.prog} {args.command or ''}".strip()
        raise InputError(f"unrecognized arguments: {' '.join(args.rest)}{hint} see `{where} --help`")
    if args.command is None:
        parser.print_help()
        return 0
    if args.verbose:
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
        _log.setLevel(logging.INFO if args.verbose == 1 else logging.DEBUG)
    return int(args.run(args) or 0)


def _line_of(error: Exception) -> tuple[int, str]:
    """Return the exit code and the message for an error: what happened, where, and how to fix it."""
    said, kind = " ".join(str(error).split()), type(error).__name__
    if isinstance(error, InputError | MissingExtra):
        return 2, f"--{error}" if isinstance(error, SettingError) else said
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        what = where + (error.strerror or said or kind)
        remedies = [_REMEDIES[error.errno]] if error.errno in _REMEDIES else []
        return 2, "; ".join([what, *remedies, *getattr(error, "__notes__", [])])
    if isinstance(error, MemoryError):
        return 2, f"not enough memory: {said or 'allocation failed'}; process less data at a time"
    if isinstance(error, WorkerLost):
        return 1, f"{error}. Run the same command again to continue a study or a search"
    return 2, f"{kind}: {said or 'no message'}; if the input is correct, this is a bug: --debug shows the traceback"


def full_parser(chosen: Container[str | None] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of all commands; only the commands in ``chosen`` have their options."""
    about = acls.__doc__.splitlines()[0]
    how: dict[str, Any] = {"formatter_class": _Formatter, "allow_abbrev": False}
    parser = _Parser(prog="acls", description=about, epilog=EXAMPLE, **how)
    parser.add_argument("--version", action="version", version=f"acls {acls.__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error, with any command")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        if name not in chosen:
            commands.add_parser(name, help=summary, add_help=False)
            continue
        module = importlib.import_module(f"acls.cli.{name}")
        about, _, examples = (module.__doc__ or "").partition("Examples:\n")
        epilog = f"examples:\n{examples.rstrip()}\n"
        command = commands.add_parser(name, help=summary, description=about, epilog=epilog, **how)
        command.add_argument("-v", "--verbose", action="count", default=0, help="log progress; -vv logs more")
        module.configure(command)
        known = [flag for action in command._actions for flag in action.option_strings if flag.startswith("--")]
        command.set_defaults(run=module.run, options=known)
    return parser
