"""Compute how much of a step's elementwise memory traffic runs in fused sweeps.

The traffic of a sweep is what it reads and writes. A statement that torch computes has one call for
each operation in it, sums included, and each call reads its operands and writes its result. Matrix
words are not counted: fusing does not change what they read. Both arms of a branch count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from optgen.contract.states import RANK
from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Kind, height, kind_of, width
from optgen.ir.nodes import Assign, Call, Const, Expr, Program, Ref, children, truth
from optgen.ir.ops import OPS
from optgen.ir.plan import Plan, read_before_assigned
from optgen.passes.hoist_between_sweeps import as_plain_arithmetic
from optgen.passes.outline_sweeps import outline_sweeps
from optgen.passes.plan_rule import plans

_SIZES = {"rows": 1024, "cols": 1024, RANK: 128, "1": 1}
"""Sizes of the axes of a parameter for which the traffic is counted."""
_SWITCHES = ("flag", "choice")
_COUNTED = ("arithmetic", "comparison", "logic", "function", "reduction", "storage", "random")


def fused_share(algorithm: Algorithm) -> float:
    """Return the share of elementwise memory traffic that runs in fused sweeps, from 0 to 1.

    The share is that of the fused lowerings, for a float32 parameter of 1,024 x 1,024 elements and
    a rank of 128. If several plans belong to the rule, their traffic is added. The rule is one on
    whole matrices: kernels of all others compute everything but matrix words.
    """
    outlined = outline_sweeps(algorithm)
    functions = {function.name: function for function in outlined.functions}
    fused = unfused = 0
    for plan in outlined.plans or plans(algorithm):
        defaults = {h.name: h.default for h in plan.algorithm.hypers if h.type in _SWITCHES}
        for stmt in _executed(plan.sweeps[0].body, defaults):
            function = functions.get(stmt.target.name)
            if function is not None:
                fused += sum(map(_traffic_of_sweeps, plans(function))) * _elements(
                    plan.kinds[stmt.target]
                )
            else:
                unfused += _traffic_of_calls(plan, stmt)
    return fused / (fused + unfused) if fused + unfused else 1.0


def _executed(program: Program, defaults: Mapping[str, object]) -> Iterator[Assign]:
    """Yield the statements that are executed if flags and choices have their defaults."""

    def known(condition: Expr) -> bool | None:
        match condition:
            case Ref(name) | Call("truth", (Ref(name),)) if name in defaults:
                return bool(defaults[name])
            case Call("is_none", (Ref(name),)) if name in defaults:
                return defaults[name] is None
            case Call("==" | "!=" as op, (Ref(name), Const(value))) if name in defaults:
                return (defaults[name] == value) is (op == "==")
        return None

    for stmt in program:
        if isinstance(stmt, Assign):
            yield stmt
            continue
        value = truth(stmt.condition, known)
        for holds, arm in ((True, stmt.then), (False, stmt.orelse)):
            if value in (None, holds):
                yield from _executed(arm, defaults)


def _traffic_of_sweeps(plan: Plan) -> int:
    """Return how many tensors of the parameter's shape the sweeps of a function read and write."""
    return sum(
        stream.stored + (stream.name in read)
        for sweep in plan.sweeps
        for read in (read_before_assigned(sweep.body),)
        for stream in sweep.streams
    )


def _traffic_of_calls(plan: Plan, stmt: Assign) -> int:
    """Return the elements that torch's calls for a statement read and write."""

    def traffic(expr: Expr) -> int:
        inner = sum(map(traffic, children(expr)))
        category = OPS[expr.op].category if isinstance(expr, Call) and expr.op in OPS else ""
        if category not in _COUNTED and not (isinstance(expr, Call) and expr.op == "copy"):
            return inner
        values = (expr, *children(expr))
        return inner + sum(_elements(kind_of(e, plan.kinds.__getitem__)) for e in values)

    return traffic(as_plain_arithmetic(stmt.value))


def _elements(kind: Kind) -> int:
    """Return the number of elements of a value; 0 for a number that the host knows."""
    if kind.is_scalar:
        return 0
    return _SIZES[height(kind.axes)] * _SIZES[width(kind.axes)]
