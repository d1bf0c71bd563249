"""Reports of the interpreter: a fault of a kernel, or an instruction that it does not know."""

from __future__ import annotations


class Fault(Exception):
    """A kernel did what no kernel may do; the message says what, where, and with which threads."""


class Unsupported(Exception):
    """The interpreter does not know a construct; add it where the message says."""
