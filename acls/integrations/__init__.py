"""Thin adapters to other libraries, each an optional extra."""
