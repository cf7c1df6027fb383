"""List every training method: its type in the paper's terms, where it comes from, and its fields with their defaults.

AR smooths adaptively, CR under a condition, ACR both; the others change the data term itself.

Examples:
  acls methods
  acls methods --json

"""

from __future__ import annotations

import argparse
import dataclasses
import textwrap

from acls.cli.common import add_shared, say


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls methods``."""
    add_shared(parser, json="print one JSON object, by method")


def run(args: argparse.Namespace) -> None:
    """Print the list."""
    from acls.losses import REGISTRY, Loss
    from acls.study.methods import TECHNIQUES

    common = {"name", *(field.name for field in dataclasses.fields(Loss))}
    about = {
        name: {
            **dataclasses.asdict(kind.about),
            "fields": {field: value for field, value in kind().settings().items() if field not in common},
        }
        for name, kind in REGISTRY.items()
    }
    if args.json:
        say(args, about)
        return
    for name, one in about.items():
        sort = "" if one["kind"] == "-" else f", {one['kind']}"
        title = f"{name}: {one['title']} ({one['authors']}, {one['venue']} {one['year']}{sort})"
        print(textwrap.fill(title, 79, subsequent_indent="  "))
        fields = ", ".join(f"{field}={_short(value)}" for field, value in one["fields"].items())
        if fields:
            print(textwrap.fill(fields, 79, initial_indent="    ", subsequent_indent="    "))
    others = [
        f"{name}({', '.join(f'{field}={default!r}' for field, (_, default) in one.fields.items())}): {one.about}"
        for name, one in TECHNIQUES.items()
    ]
    for text in (
        "AR, CR, ACR: regularisers that smooth labels adaptively, under a condition, or both, in the terms of the ACLS "
        "paper. Every method also takes ignore_index, reduction and class_weight. A recipe sets the margin published "
        "for its data, 6 for digits and CIFAR-10 and 10 elsewhere, in every method that has one and is given no other.",
        "As methods of acls compare, also, each with base=LOSS for another loss than cross-entropy:",
        *others,
    ):
        print(textwrap.fill(text, 79, initial_indent="" if text in others else "\n", subsequent_indent="    "))


def _short(value: object) -> str:
    return f"{value['name']}()" if isinstance(value, dict) else repr(value)
