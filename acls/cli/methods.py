"""List every training method: its type in the paper's terms, where it comes from, and its fields with their defaults.

AR smooths adaptively, CR under a condition, ACR both; the others change the data term itself.
"""

from __future__ import annotations

import argparse

EXAMPLE = """\
examples:
  acls methods
  acls methods --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, by method")


def run(args: argparse.Namespace) -> None:
    """Print the list."""
    import dataclasses
    import json
    import textwrap

    from acls.losses import REGISTRY, Loss
    from acls.study.methods import TECHNIQUES

    common = {field.name for field in dataclasses.fields(Loss)}
    settings = {
        name: {field: value for field, value in kind().settings().items() if field not in {*common, "name"}}
        for name, kind in REGISTRY.items()
    }
    if args.json:
        about = {name: {**dataclasses.asdict(kind.about), "fields": settings[name]} for name, kind in REGISTRY.items()}
        print(json.dumps(about, indent=2))
        return
    for name, kind in REGISTRY.items():
        paper = kind.about
        sort = "" if paper.kind == "-" else f", {paper.kind}"
        title = f"{name}: {paper.title} ({paper.authors}, {paper.venue} {paper.year}{sort})"
        print(textwrap.fill(title, 79, subsequent_indent="  "))
        fields = ", ".join(f"{field}={_short(value)}" for field, value in settings[name].items())
        if fields:
            print(textwrap.fill(fields, 79, initial_indent="    ", subsequent_indent="    "))
    others = [
        f"{name}({', '.join(f'{field}={default!r}' for field, (_, default) in one.fields.items())}): {one.about}"
        for name, one in TECHNIQUES.items()
    ]
    for text in (
        "Every method also takes ignore_index, reduction and class_weight. A recipe sets the margin published for its "
        "data, 6 for digits and CIFAR-10 and 10 elsewhere, in every method that has one and is not given another.",
        "As methods of acls compare, also, each with base=LOSS for another loss than cross-entropy:",
        *others,
    ):
        print(textwrap.fill(text, 79, initial_indent="" if text in others else "\n", subsequent_indent="    "))


def _short(value: object) -> str:
    return f"{value['name']}()" if isinstance(value, dict) else repr(value)
