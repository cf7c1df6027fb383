"""Reproduce the paper: ``acls reproduce table3`` trains the networks of a table and compares our numbers with it."""

from acls.reproduce.runs import Setup
from acls.reproduce.targets import TARGETS, Reproduced, papers_of, reproduce

__all__ = ["TARGETS", "Reproduced", "Setup", "papers_of", "reproduce"]
