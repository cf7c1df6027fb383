"""A page for each post-hoc calibrator, from its class."""

from __future__ import annotations

from typing import Any

from acls.calibrators import REGISTRY, Calibrator

from .text import escape, fields_table, prose, table
from .when import opening

YES = {True: "yes", False: ""}


def navigation() -> list[Any]:
    """The section's pages in the order of the registry."""
    return ["calibrators/index.md", *({name: f"calibrators/{name}.md"} for name in REGISTRY)]


def files() -> dict[str, str]:
    """The pages by file name."""
    pages = {f"calibrators/{name}.md": page(name, kind) for name, kind in REGISTRY.items()}
    return {"calibrators/index.md": overview(), **pages}


def overview() -> str:
    """The list of calibrators with what tells them apart."""
    rows = [
        (
            f"[{name}]({name}.md)",
            YES[kind.keeps_ranking],
            YES[_folds(kind)],
            YES[kind.streams],
            YES[not kind.pointwise],
            escape(kind.paper),
        )
        for name, kind in REGISTRY.items()
    ]
    header = [
        "calibrator",
        "keeps ranking",
        "folds into the last layer",
        "data larger than memory",
        "needs maps",
        "from",
    ]
    return "\n".join(
        [
            "# Calibrators\n",
            "A calibrator corrects the probabilities of a trained network. `calibrator.fit(logits, target)` learns "
            "from held-out data, and `calibrator(logits)` returns log-probabilities. If the fitted map would raise "
            "the NLL of the data it was fitted to, the model is left unchanged and the report says so.\n",
            table(header, rows),
            "\n*Keeps ranking*: the order of the classes, and so the accuracy, does not change, whatever the fields. "
            "`acls calibrate` compares several calibrators by cross-validation and recommends one, or none.\n",
        ]
    )


def page(name: str, kind: type[Calibrator]) -> str:
    """The page of one calibrator."""
    fields = fields_table(kind, Calibrator)
    common = "Every calibrator also takes `ignore_index` and `guard`: see [`Calibrator`](../api.md#calibrators)."
    facts = [
        "It keeps the order of the classes, and so the accuracy."
        if kind.keeps_ranking
        else "It may change the order of the classes, and so the accuracy.",
        f"It learns {', '.join(f'`{value}`' for value in kind().learned)}.",
    ]
    if _folds(kind):
        facts.append("It is an affine map of the logits: `fold` merges it into the model's last layer, at no cost.")
    if kind.streams:
        facts.append("It is fitted in passes over batches, so the data may be larger than memory.")
    if not kind.pointwise:
        facts.append("It needs whole maps: pass dense logits `(N, K, H, W)`.")
    return "\n".join(
        [
            f"# {name}\n",
            *opening(name),
            "\n## Definition\n",
            prose(kind),
            "\n## What it does\n",
            "\n".join(f"- {fact}" for fact in facts),
            "\n## Fields\n",
            f"{fields}\n\n{common}" if fields else common,
            "\n```python\nimport torch\nfrom acls.calibrators import make_calibrator\n",
            "logits, target = 3 * torch.randn(500, 10), torch.randint(0, 10, (500,))",
            f'calibrator = make_calibrator("{name}").fit(logits, target)',
            "print(calibrator.report)\n```\n",
            f"Reference: {escape(kind.paper)}.\n" if kind.paper else "",
        ]
    )


def _folds(kind: type[Calibrator]) -> bool:
    return kind.affine is not Calibrator.affine
