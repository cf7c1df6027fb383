"""Reproduce the paper: ``acls reproduce table3`` trains the networks of a table and compares our numbers with it."""

from acls.reproduce.runs import SCALES, Setup
from acls.reproduce.targets import TARGETS, Reproduced, papers_of, reproduce

__all__ = ["SCALES", "TARGETS", "Reproduced", "Setup", "papers_of", "reproduce"]
