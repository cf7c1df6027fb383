"""List every training method: its type in the paper's terms, where it comes from, and its fields with their defaults.

AR smooths adaptively, CR under a condition, ACR both; the others change the data term itself.

Examples:
  acls methods
  acls methods --json

"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from acls.cli.common import Parts, add_shared, say


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls methods``."""
    add_shared(parser, json="print one JSON object, by method")


def run(args: argparse.Namespace) -> None:
    """Print the list."""
    from acls.losses import REGISTRY, Loss

    common = {"name", *(field.name for field in dataclasses.fields(Loss))}
    about = {
        name: {
            **dataclasses.asdict(kind.about),
            "fields": {field: value for field, value in kind().settings().items() if field not in common},
        }
        for name, kind in REGISTRY.items()
    }
    say(args, about, _parts(about))


def _parts(about: dict[str, dict[str, Any]]) -> Parts:
    from acls.study.methods import TECHNIQUES

    for name, one in about.items():
        sort = "" if one["kind"] == "-" else f", {one['kind']}"
        yield f"{name}: {one['title']} ({one['authors']}, {one['venue']} {one['year']}{sort})"
        fields = ", ".join(f"{field}={_short(value)}" for field, value in one["fields"].items())
        if fields:
            yield f"    {fields}"
    yield ""
    yield (
        "AR, CR, ACR: regularisers that smooth labels adaptively, under a condition, or both, in the terms of the ACLS "
        "paper. Every method also takes ignore_index, reduction and class_weight. A recipe sets the margin published "
        "for its data, 6 for digits and CIFAR-10 and 10 elsewhere, in every method that has one and is given no other."
    )
    yield from ("", "As methods of acls compare, also, each with base=LOSS for another loss than cross-entropy:")
    for name, technique in TECHNIQUES.items():
        values = ", ".join(f"{field}={default!r}" for field, (_, default) in technique.fields.items())
        yield f"{name}({values}): {technique.about}"


def _short(value: object) -> str:
    return f"{value['name']}()" if isinstance(value, dict) else repr(value)
