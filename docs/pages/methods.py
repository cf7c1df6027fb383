"""A page for each training method, from its class."""

from __future__ import annotations

from typing import Any

from acls.losses import REGISTRY, Loss, Regularized
from acls.losses.rule import table as smoothing_table

from .pictures import svg
from .text import code, escape, fields_table, prose, table
from .when import opening

ONE_PASS = "One pass over the logits, O(N K) in time, like cross-entropy."
COST = {
    "MMCE": "Compares all pairs of samples (or pixels) by sorting: O(N K + N log N) in time, O(N) in memory.",
    "CPC": "Compares all pairs of classes: O(N K²) in time.",
    "CaPE": "Predicts the whole training set once every `every` epochs.",
    "AdaFocal": "One pass over the logits, and a prediction of the validation set after each epoch.",
}
COMMON = "Every method also takes `ignore_index`, `reduction` and `class_weight`: see [`Loss`](../api.md#losses)."
CAPTION = (
    "Left and middle: the effective label (bars) and the softmax (dots) of a modest and of an overconfident "
    "prediction, both correct. Right: the effective label of the predicted class ŷ, as a function of how far its logit "
    "is above all others. There are four classes, and fields have their defaults. For methods that depend on the "
    "batch, the batch contains the same prediction once with each true class; for methods with memory, this sample "
    "was classified wrongly before and the others correctly."
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
            "Each replaces `torch.nn.CrossEntropyLoss()`. In the terms of the ACLS paper, AR methods smooth labels "
            "adaptively, CR methods under a condition, and ACR methods do both.\n",
            table(["method", "title", "type", "from"], listed),
            "\n## Smoothing functions and conditions\n",
            "The gradient of a loss is softmax(z) minus an effective label. Relative to the one-hot label, the "
            "effective label is lowered by f at the pivot class and raised by f at the other classes, where the "
            "condition C holds. "
            "This is the paper's Table 2 with its [errors](../errata.md) corrected; a test compares each row with the "
            "method's gradient. `1` means always. Methods whose gradient depends on the batch, on a history or on "
            "another base loss have no row.\n",
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
        "\n## Effective label\n",
        f"![The effective label of {name}]({name}.svg)\n",
        CAPTION + "\n",
        _rows([kind]) or "Its gradient depends on more than one position, so it has no row in the paper's Table 2.",
        "\n## Requirements and cost\n",
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
        lines.append("loss(logits, target, index=torch.arange(8)).backward()  # index: positions in the training set")
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
            f"It stores {values} value{'s' * (values > 1)} per training sample (with 10 classes), in "
            "buffers that are part of `state_dict`: call `prepare` once before training."
        )
    hooks = [f"`{hook}`" for hook in ("start_epoch", "observe", "end_epoch") if hook in vars(kind)]
    if hooks:
        facts.append(
            f"It uses the hooks {', '.join(hooks)}. In your own loop, call them or use "
            "`acls.integrations.loop.epochs`; `acls train` and the Lightning and Transformers adapters call them."
        )
    if loss.needs_index:
        facts.append(f"`index=` must be passed: {escape(kind.index_reason)}.")
    if kind.couples_samples:
        facts.append('It is a statistic of the batch: it depends on the batch size and has no `reduction="none"`.')
    facts.append(
        "It takes class ids only: no soft labels, so no CutMix or Mixup."
        if kind.refuses_soft_targets
        else "It takes class ids or soft labels, including those of CutMix and Mixup."
    )
    if isinstance(loss, Regularized):
        facts.append("`base` may be any other loss, to which the regulariser is added.")
    return facts


def _memory(kind: type[Loss], n_train: int) -> int:
    loss = kind()
    loss.prepare(n_train=n_train, n_classes=10)
    return sum(buffer.numel() for buffer in loss.buffers())


def _venue(kind: type[Loss]) -> str:
    return f"{kind.about.venue} {kind.about.year}"
