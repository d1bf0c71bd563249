"""Dtype codes and limits of the streams in a row of the kernel's table."""

import re

import torch

from optgen.runtime.rule import Rule, State

# torch's numbers of the dtypes that kernels know; dtypes.h has the same.
CODES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
# A word has four bits for each of 16 streams: the parameter, its gradient, and as many states.
_STATES = 14
# A byte has a bit for each state that the rule asks `fresh` of.
_FRESH = 8
_LOCALS = re.compile(r'optgen_locals = "(.*)"')


def in_stream(bits: int, stream: int) -> int:
    """Four bits at a stream's place in a word that has four of each, the parameter's lowest."""
    return bits << 4 * stream


def excess(rule: Rule, source: str = "") -> str:
    """Return what of a rule does not fit into a row of the table, in a few words; "" if all fits.

    The C++ source names the tensors that matrix words take and make.
    """
    if len(rule.fresh) > _FRESH:
        return f"more than {_FRESH} states ask whether they are fresh"
    like, scalar = shaped_and_scalar(rule)
    states = len(like) + len(scalar)
    if states > _STATES:
        return f"more than {_STATES} states"
    named = _LOCALS.search(source)
    matrices = len(named[1].split()) if named else 0
    return f"more than {_STATES} states and matrices" if states + matrices > _STATES else ""


def shaped_and_scalar(rule: Rule) -> tuple[list[State], list[str]]:
    """The states that have a shape, and the keys of those that are one number."""
    scalar = [state.key for state in rule.states if state.shape == "scalar"]
    like = [state for state in rule.states if state.shape != "scalar"]
    return like, ["step", *scalar] if rule.step else scalar
