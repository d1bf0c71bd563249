"""Group optimizers by what a trainer looks for.

Facts of the rules decide, so a new optimizer has a group at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, expressions, walk
from website.entries import Entry, entries

_SCALED_BY_NORMS = ("adam_h", "fromage", "lamb", "lars")
"""Optimizers whose steps are in proportion to the weights. Other rules use norms for less."""
_RATE_FREE = ("adamg", "cocob", "dog", "dowg")
"""Optimizers that find their rate, and keep no number of all groups."""
_SQUARES = (("rows", "rows"), ("cols", "cols"))


@dataclass(frozen=True)
class Group:
    """A group of optimizers: the first in `GROUPS` whose condition holds has an optimizer."""

    title: str
    text: str
    holds: Callable[[Entry], bool]

    @property
    def anchor(self) -> str:
        """The anchor of its heading on the page of all optimizers."""
        return re.sub(r"[^a-z-]", "", self.title.lower().replace(" ", "-"))


def _is_for_embeddings(entry: Entry) -> bool:
    return entry.algorithm.gradient == "sparse_only" or entry.package == "optgen.keyed"


def _has_no_rate_to_tune(entry: Entry) -> bool:
    has_common_number = any(state.of_all for state in entry.algorithm.states)
    return has_common_number or entry.name in _RATE_FREE


def _is_of_second_order(entry: Entry) -> bool:
    algorithm = entry.algorithm
    given = [each.step_argument for each in algorithm.extra_inputs()]
    return "hessian" in given or any(state.shape in _SQUARES for state in algorithm.states)


def _has_little_memory(entry: Entry) -> bool:
    algorithm = entry.algorithm
    has_projection = any(state.shape == ("rows", "rank") for state in algorithm.states)
    has_row_means = any(state.shape in ("row", "col") for state in algorithm.states)
    has_small_states = has_projection or (has_row_means and not algorithm.has_matrix_ops)
    return not algorithm.states or algorithm.has_codes or has_small_states


def _follows_signs(entry: Entry) -> bool:
    return _is_plain(entry.algorithm) and "sign" in _ops(entry.algorithm)


def _keeps_only_momentum(entry: Entry) -> bool:
    return _is_plain(entry.algorithm) and "sign" not in _ops(entry.algorithm)


def _is_plain(algorithm: Algorithm) -> bool:
    """Tell whether a rule is elementwise, and divides by no size of recent gradients."""
    ops = _ops(algorithm)
    return algorithm.elementwise and "sqrt" not in ops and not {"abs", "maximum"} <= ops


def _ops(algorithm: Algorithm) -> set[str]:
    nodes = (node for expr in expressions(algorithm.rule) for node in walk(expr))
    return {node.op for node in nodes if isinstance(node, Call)}


GROUPS = (
    Group(
        "For embeddings",
        "Tables with sparse gradients: a step changes only the rows of a batch.",
        _is_for_embeddings,
    ),
    Group(
        "Schedule-free",
        "No schedule of the learning rate. Call `optimizer.eval()` before you evaluate or save.",
        lambda entry: bool(entry.algorithm.programs),
    ),
    Group(
        "Learning-rate-free",
        "No learning rate to tune: leave `lr` at 1. A schedule may multiply it.",
        _has_no_rate_to_tune,
    ),
    Group(
        "Second order",
        "Curvature: covariances of rows and columns, or the diagonal of the Hessian. Look at the "
        "bytes first.",
        _is_of_second_order,
    ),
    Group(
        "Low memory",
        "States of 8 bits, of rows and columns, of a projection, or none: less memory than Adam's.",
        _has_little_memory,
    ),
    Group(
        "Orthogonal steps",
        "Momentum is made orthogonal. For matrices only: "
        "[a second optimizer](../choose.md#if-the-model-has-several-kinds-of-parameters) takes the "
        "rest. Convolutions are matrices here.",
        lambda entry: entry.algorithm.has_matrix_ops,
    ),
    Group(
        "Sign",
        "Steps that follow signs. Most keep one state, and take a tenth of Adam's rate.",
        _follows_signs,
    ),
    Group(
        "Large batches",
        "Steps in proportion to the norms of the weights.",
        lambda entry: entry.name in _SCALED_BY_NORMS,
    ),
    Group(
        "SGD, for convolutions",
        "Gradients and momentum, as most papers on images train convolutions.",
        _keeps_only_momentum,
    ),
    Group(
        "Adam and its like",
        "Steps that are divided by the size of recent gradients. The usual choice.",
        lambda _: True,
    ),
)


def group(entry: Entry) -> Group:
    """Return the group that lists an optimizer."""
    return next(each for each in GROUPS if each.holds(entry))


def grouped() -> list[tuple[Group, list[Entry]]]:
    """Return the groups with their optimizers, the usual choice first."""
    by_group = [(each, [e for e in entries() if group(e) is each]) for each in GROUPS]
    return [pair for pair in reversed(by_group) if pair[1]]
