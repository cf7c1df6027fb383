"""Print a script that completes commands, options and recipes in your shell.

Save the output in a file that your shell reads, as in the examples.

Examples:
  acls completion bash >> ~/.bashrc
  acls completion zsh > ~/.zsh/completions/_acls
  acls completion fish > ~/.config/fish/completions/acls.fish

"""

import argparse

from acls.errors import require


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls completion``."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell to complete in")


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    from acls.cli import full_parser
    from acls.recipes import RECIPES

    shtab = require("shtab", extra="study")
    parser = full_parser()
    (commands,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for action in (action for command in commands.values() for action in command._actions):
        if action.dest == "recipe":
            action.choices = tuple(RECIPES)
        elif action.nargs != 0 and action.choices is None:
            action.complete = shtab.FILE
    print(shtab.complete(parser, shell=args.shell))
