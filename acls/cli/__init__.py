"""The command line: each command is a module of this package with `configure(parser)` and `run(args)`.

Only the chosen command's module is imported, and torch only when it runs, so help comes at once.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Container, Sequence

import acls
from acls.errors import InputError, MissingExtra, suggest

COMMANDS = {
    "methods": "list every training method with its type, paper, year and defaults",
    "explain": "show the label that each method really trains towards",
    "train": "train a network by a recipe, or go on with a run",
    "predict": "write the predictions of a trained network",
    "recipes": "list the recipes, or show one whole",
    "evaluate": "measure calibration: every metric with its interval, noise floor and n",
    "calibrate": "fit post-hoc calibrators, judge them by cross-validation, recommend and save one",
    "apply": "apply a saved calibrator to predictions",
    "compare": "train and compare methods over seeds, or compare saved predictions",
    "report": "write a page with verdict, tables and diagrams of runs, studies or predictions",
    "share": "copy a study without its weights, to send or publish",
    "reproduce": "reproduce a table or figure of the paper, with a verdict on each claim",
    "tune": "search settings for the least ECE at an accuracy floor, on the validation part",
    "advise": "say which epoch of a run to keep, by which rule",
    "doctor": "say what looks wrong with a file of predictions",
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


class _Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps examples as written and shows the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, False, argparse.SUPPRESS):
            return action.help
        return super()._get_help_string(action)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 if all went well, 1 if a check or a worker failed, 2 for bad input, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    parser = full_parser([chosen])
    if chosen is not None and chosen not in COMMANDS:
        parser.error(f"there is no command {chosen!r}{suggest(chosen, COMMANDS)}")
    args, rest = parser.parse_known_args(arguments)
    args.rest = rest
    if rest and not getattr(args, "takes_rest", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if args.command is None:
        parser.print_help()
        return 0
    if args.verbose:
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
        _log.setLevel(logging.INFO if args.verbose == 1 else logging.DEBUG)
    try:
        return int(args.run(args) or 0)
    except (InputError, MissingExtra) as error:
        _log.debug("where it came from", exc_info=True)
        print(f"acls {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"acls {args.command}: stopped", file=sys.stderr)
        return 130
    except RuntimeError as error:
        from acls.study.engine import WorkerLost  # here, so that help comes at once

        if not isinstance(error, WorkerLost):
            raise
        print(f"acls {args.command}: {error}. The same command goes on with a study or a search", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        print(f"acls {args.command}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def full_parser(chosen: Container[str | None] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of all commands; only those ``chosen`` have their options."""
    parser = argparse.ArgumentParser(
        prog="acls", description=acls.__doc__.splitlines()[0], epilog=EXAMPLE, formatter_class=_Formatter
    )
    parser.add_argument("--version", action="version", version=f"acls {acls.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        if name not in chosen:
            commands.add_parser(name, help=summary, add_help=False)
            continue
        module = importlib.import_module(f"acls.cli.{name}")
        command = commands.add_parser(
            name, help=summary, description=module.__doc__, epilog=module.EXAMPLE, formatter_class=_Formatter
        )
        command.add_argument("-v", "--verbose", action="count", default=0, help="log what is done; -vv logs more")
        module.configure(command)
        command.set_defaults(run=module.run)
    return parser
