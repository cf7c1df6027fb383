"""The training losses of the paper, and functions that show each loss as a form of label smoothing.

``loss = acls.losses.ACLS(margin=6.0)`` replaces ``torch.nn.CrossEntropyLoss()`` in any training loop. To add a method,
write a subclass of `Loss` or `Regularized` in its own file and add it to `REGISTRY`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acls.losses.acls import ACLS, acls_penalty
from acls.losses.base import CE, About, Epoch, Loss, Regularized
from acls.losses.brier import Brier
from acls.losses.cape import CaPE
from acls.losses.cpc import CPC
from acls.losses.crl import CRL
from acls.losses.ecp import ECP
from acls.losses.focal import FLSD, AdaFocal, DualFocal, Focal, InverseFocal
from acls.losses.label_smoothing import LabelSmoothing
from acls.losses.margin import MbLS, mbls_penalty
from acls.losses.mdca import DCA, MDCA
from acls.losses.mmce import MMCE
from acls.losses.patra import Patra
from acls.losses.rule import Rule, Side, effective_label, rule_loss, table
from acls.spec import Spec, build, parse

REGISTRY: dict[str, type[Loss]] = {
    kind.__name__: kind
    for kind in (
        CE, LabelSmoothing, Focal, FLSD, InverseFocal, AdaFocal, DualFocal, Brier,
        ECP, MMCE, MDCA, DCA, CPC, MbLS, CRL, ACLS, CaPE, Patra,
    )
}  # fmt: skip


GROUPS = {
    "paper": ("CE", "LabelSmoothing", "Focal", "FLSD", "ECP", "MMCE", "MDCA", "CPC", "MbLS", "CRL", "ACLS"),
    "all": tuple(REGISTRY),
}
"""Names that stand for several losses."""


def make_loss(spec: str | Mapping[str, Any] | Spec | Loss, **fields: Any) -> Loss:
    """Build a loss from text, or from the output of `Loss.settings`. Names are not case-sensitive.

    >>> make_loss("acls", margin=6.0), make_loss("MDCA(base=Focal(gamma=1))")
    (ACLS(margin=6.0), MDCA(base=Focal(gamma=1.0)))
    """
    return build(spec, REGISTRY, "loss", **fields)


def make_losses(text: str) -> list[Loss]:
    """Build losses from comma-separated text. The names ``paper`` and ``all`` stand for all losses of that group."""
    return [make_loss(spec) for spec in parse(text, "loss", GROUPS)]


__all__ = [
    "ACLS", "CE", "CPC", "CRL", "DCA", "ECP", "FLSD", "MDCA", "MMCE", "REGISTRY", "About", "AdaFocal",
    "Brier", "CaPE", "DualFocal", "Epoch", "Focal", "InverseFocal", "LabelSmoothing", "Loss", "MbLS", "Patra",
    "Regularized", "Rule", "Side", "acls_penalty", "effective_label", "make_loss", "mbls_penalty", "rule_loss", "table",
]  # fmt: skip
