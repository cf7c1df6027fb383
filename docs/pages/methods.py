"""A page for each training method, from its class."""

from __future__ import annotations

from typing import Any

from acls.losses import REGISTRY, Loss, Regularized
from acls.losses.rule import table as smoothing_table

from .pictures import svg
from .text import code, escape, fields_table, prose, table
from .when import opening

ONE_PASS = "One pass over the logits, O(N K) in time, as cross-entropy."
COST = {
    "MMCE": "All pairs of the batch are compared, pixels too, by sorting: O(N K + N log N) in time, O(N) in memory.",
    "CPC": "All pairs of classes are compared: O(N K²) in time.",
    "CaPE": "A prediction of the whole training set before every `every`-th epoch.",
    "AdaFocal": "One pass over the logits, and a prediction of the validation set after each epoch.",
}
COMMON = "Every method also takes `ignore_index`, `reduction` and `class_weight`: see [`Loss`](../api.md#losses)."
CAPTION = (
    "Left and middle: the label (bars) beside the softmax (dots), for a modest and for an overconfident prediction, "
    "both right. Right: the label at the predicted class ŷ, by how far its logit leads all others. Four classes, "
    "default fields; methods that look at the batch see the same prediction once with each true class, and those with "
    "memory have seen this sample wrong and the others right."
)


def navigation() -> list[Any]:
    """The section's pages in the order of the registry."""
    return ["methods/index.md", *({name: f"methods/{name}.md"} for name in REGISTRY)]


def files() -> dict[str, str | bytes]:
    """The pages and pictures by file name."""
    made: dict[str, str | bytes] = {"methods/index.md": overview()}
    for name, kind in REGISTRY.items():
        made[f"methods/{name}.md"] = page(name, kind)
        made[f"methods/{name}.svg"] = svg(kind)
    return made


def overview() -> str:
    """The list of methods, and the paper's Table 2 as it should read."""
    listed = [
        (f"[{name}]({name}.md)", kind.about.title, kind.about.kind, f"{kind.about.authors}, {_venue(kind)}")
        for name, kind in REGISTRY.items()
    ]
    return "\n".join(
        [
            "# Training methods\n",
            "Each takes the place of `torch.nn.CrossEntropyLoss()`. In the ACLS paper's terms, AR methods smooth "
            "labels adaptively, CR under a condition, ACR both.\n",
            table(["method", "title", "type", "from"], listed),
            "\n## Smoothing functions and conditions\n",
            "The gradient of a loss is softmax(z) minus a label. That label is the one-hot label, lowered by f at the "
            "pivot class where C holds and raised by f at the others where C holds: the paper's Table 2, with its "
            "[errors](../errata.md) corrected; a test holds each row to the method's gradient. `1` means always. "
            "Methods whose gradient is a function of the batch, of a history or of another base have no row.\n",
            _rows(list(REGISTRY.values())),
            "",
        ]
    )


def page(name: str, kind: type[Loss]) -> str:
    """The page of one method."""
    about = kind.about
    fields = fields_table(kind, Loss)
    parts = [
        f"# {name}\n",
        f"**{about.title}** · {about.authors}, {_venue(kind)}"
        + (f" · {about.kind}" if about.kind != "-" else "")
        + "\n",
        *opening(name),
        "\n## Definition\n",
        prose(kind),
        "\n## The label it trains towards\n",
        f"![The label that {name} trains towards]({name}.svg)\n",
        CAPTION + "\n",
        _rows([kind]) or "Its gradient is no function of one position, so it has no row in the paper's Table 2.",
        "\n## What it needs and costs\n",
        "\n".join(f"- {fact}" for fact in _facts(name, kind)),
        "\n## Fields\n",
        f"{fields}\n\n{COMMON}" if fields else COMMON,
        "\n```python\nimport torch\nfrom acls.losses import make_loss\n",
        f'loss = make_loss("{name}")',
        _use(kind),
        "```\n",
    ]
    return "\n".join(parts)


def _use(kind: type[Loss]) -> str:
    lines = ["logits, target = torch.randn(8, 10, requires_grad=True), torch.randint(0, 10, (8,))"]
    if kind().needs_index:
        lines.append("loss.prepare(n_train=50_000, n_classes=10)  # once, before training")
        lines.append("loss(logits, target, index=torch.arange(8)).backward()  # index: numbers in the training set")
    else:
        lines.append("loss(logits, target).backward()")
    return "\n".join(lines)


def _rows(kinds: list[type[Loss]]) -> str:
    rows = smoothing_table(kind() for kind in kinds)
    if not rows:
        return ""
    header = ["method", "pivot", "f at the pivot", "C at the pivot", "f at the others", "C at the others"]
    cells = ((r.method, r.pivot, r.f_pivot, r.c_pivot, r.f_others, r.c_others) for r in rows)
    return table(header, (tuple(map(code, row)) for row in cells))


def _facts(name: str, kind: type[Loss]) -> list[str]:
    loss = kind()
    facts = [COST.get(name, ONE_PASS)]
    values = (_memory(kind, 200) - _memory(kind, 100)) // 100
    if values:
        facts.append(
            f"It remembers {values} value{'s' * (values > 1)} per training sample (with 10 classes), in "
            "buffers that travel in `state_dict`: call `prepare` once before training."
        )
    hooks = [f"`{hook}`" for hook in ("start_epoch", "observe", "end_epoch") if hook in vars(kind)]
    if hooks:
        facts.append(
            f"It acts in the hooks {', '.join(hooks)}: call them in a loop of your own, as `acls train` and the "
            "Lightning and Transformers adapters do."
        )
    if loss.needs_index:
        facts.append(f"`index=` must be passed: {escape(kind.index_reason)}.")
    if kind.couples_samples:
        facts.append('It is a statistic of the batch: it depends on the batch size and has no `reduction="none"`.')
    facts.append(
        "Class ids only: no soft labels, so no CutMix or Mixup."
        if kind.refuses_soft_targets
        else "Class ids or soft labels, also those of CutMix and Mixup."
    )
    if isinstance(loss, Regularized):
        facts.append("`base` may be any other loss: the regulariser is added to it.")
    return facts


def _memory(kind: type[Loss], n_train: int) -> int:
    loss = kind()
    loss.prepare(n_train=n_train, n_classes=10)
    return sum(buffer.numel() for buffer in loss.buffers())


def _venue(kind: type[Loss]) -> str:
    return f"{kind.about.venue} {kind.about.year}"
