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

    from acls.losses import REGISTRY, Loss
    from acls.report.tables import Table
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
    table = Table(["method", "type", "title", "authors", "venue", "fields"], align="llllll")
    for name, kind in REGISTRY.items():
        fields = ", ".join(f"{field}={_short(value)}" for field, value in settings[name].items())
        venue = f"{kind.about.venue} {kind.about.year}"
        table.add(name, kind.about.kind, kind.about.title, kind.about.authors, venue, fields)
    print(table.text())
    print("\nEvery method also takes ignore_index, reduction and class_weight.")
    print("\nAs methods of acls compare, also, each with base=LOSS for another loss than cross-entropy:")
    for name, technique in TECHNIQUES.items():
        fields = ", ".join(f"{field}={default!r}" for field, (_, default) in technique.fields.items())
        print(f"  {name}({fields}): {technique.about}")


def _short(value: object) -> str:
    return f"{value['name']}()" if isinstance(value, dict) else repr(value)
