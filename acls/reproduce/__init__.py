"""The paper by name: ``acls reproduce table3`` trains what the table needs and sets our numbers beside the paper's."""

from acls.reproduce.runs import SCALES, Setup
from acls.reproduce.targets import TARGETS, Reproduced, reproduce

__all__ = ["SCALES", "TARGETS", "Reproduced", "Setup", "reproduce"]
