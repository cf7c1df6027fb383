"""Print a script that completes commands, options and recipes in your shell.

Put its output where the shell reads it, as the examples do.
"""

from __future__ import annotations

import argparse

EXAMPLE = """\
examples:
  acls completion bash >> ~/.bashrc
  acls completion zsh >> ~/.zshrc
  acls completion fish > ~/.config/fish/completions/acls.fish
"""

_BASH = """\
_acls() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"; else case "${{COMP_WORDS[1]}}" in
{cases}
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word"))
}}
complete -o filenames -F _acls acls
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose completion")


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    from acls.cli import COMMANDS

    words = {name: _words(name) for name in COMMANDS}
    if args.shell == "fish":
        lines = ["complete -c acls -n __fish_use_subcommand -f -a '" + " ".join(COMMANDS) + "'"]
        lines += [
            f"complete -c acls -n '__fish_seen_subcommand_from {name}' -a '{' '.join(found)}'"
            for name, found in words.items()
        ]
        print("\n".join(lines))
        return
    cases = "\n".join(f'    {name}) words="{" ".join(found)}";;' for name, found in words.items())
    if args.shell == "zsh":  # which runs bash's completions
        print("autoload -U +X bashcompinit && bashcompinit")
    print(_BASH.format(commands=" ".join(COMMANDS), cases=cases), end="")


def _words(command: str) -> list[str]:
    """What may stand behind a command: its options, and the recipes where it takes one."""
    import importlib

    from acls.recipes import RECIPES

    parser = argparse.ArgumentParser()
    importlib.import_module(f"acls.cli.{command}").configure(parser)
    options = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    takes_recipe = any(action.dest == "recipe" for action in parser._actions)
    return sorted(options) + (list(RECIPES) if takes_recipe else [])
