"""The for-loop lowering: one tensor at a time, in place; and once more without changing anything.

The first form is what a person reads and every other lowering is tested against. The second is out
of place up to its last copies, so that autograd (`differentiable`) or the capture of a graph
(`capturable`) can follow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import plural
from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, names_read, rebuild
from optgen.ir.ops import MATRIX_OPS
from optgen.ir.plan import Plan, Stream
from optgen.lowerings.base import Context, Lowering
from optgen.lowerings.python.forms import FORLOOP as ONE_TENSOR
from optgen.lowerings.python.function import (
    Body,
    Function,
    bucket_function,
    function_name,
    indented,
    parted,
    python_file,
    unpacked,
)
from optgen.lowerings.python.phases import matrix_call, phases
from optgen.lowerings.python.scalars import ONE_BY_ONE, scalar_lines
from optgen.lowerings.python.signature import keywords, list_names, name_fresh
from optgen.lowerings.python.text import PythonText, statements
from optgen.lowerings.python.torch_ops import forloop_lines
from optgen.passes.assume import Facts, cases
from optgen.passes.guard_scalars import guard_scalars
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.hold_truths import hold_truths
from optgen.passes.inline_scalars import inline_scalars
from optgen.passes.inplace import to_inplace
from optgen.passes.instructions import numbers_read
from optgen.passes.plan import Order, plan
from optgen.passes.rewrite import map_expressions
from optgen.passes.select_branches import select_branches

_TEXT = PythonText({}, {"sum": "total"})


def lower(algorithm: Algorithm) -> Context:
    """What templates/forloop.py.jinja lays out: both forms for each kind of parameter."""

    def planned(facts: Facts, order: Order) -> Plan:
        return guard_scalars(inline_scalars(hoist_scalars(plan(algorithm, facts, order))))

    functions = []
    for facts in cases(algorithm):
        functions.append(bucket_function(hold_truths(planned(facts, "early")), _loop))
        if not algorithm.is_function:  # whose lists neither autograd nor a capture looks into
            functions.append(_functional(planned(facts, "whole")))
    return python_file(algorithm, functions)


def _loop(plan: Plan) -> Body:
    if plan.is_cut:
        return phases(plan, ONE_TENSOR)
    (sweep,) = plan.sweeps
    names = unpacked([s.name for s in sweep.streams])
    lists = ", ".join(plural(s.name) for s in sweep.streams)
    program = to_inplace(plan, sweep)
    lines = indented(forloop_lines(program), f"for {names} in slices({lists}):")
    return Body(lines, frozenset(numbers_read(program)))


def _functional(plan: Plan) -> Function:
    arguments, plan = keywords(plan), name_fresh(hold_truths(select_branches(plan)))
    program = _typed(plan)
    opening = [*_reads(plan), *scalar_lines(plan, ONE_BY_ONE, names_read(program))]
    lines = parted(opening, statements(program, _TEXT, _line), [*_writes(plan)])
    lists = list_names(plan.algorithm)
    return Function(
        function_name("update_functional", plan.facts),
        "The same, out of place up to the last copies: autograd or a graph capture can follow it.",
        lists,
        (*arguments, "capturable: bool"),
        tuple(indented(lines, f"for index in range(len({lists[0]})):")),
    )


def _typed(plan: Plan) -> Program:
    """The sweep, where a choice for each element between two numbers is one in its type."""
    sweep = plan.sweeps[0]

    def typed(expr: Expr) -> Expr:
        match expr:
            case Call("where", (mask, a, b)) if plan.kind(mask).is_tensor:
                if not plan.kind(a).is_tensor and not plan.kind(b).is_tensor:
                    a = Call("in_type_of", (Ref(sweep.streams[0].name), a))
                    expr = replace(expr, args=(mask, a, b))
        return rebuild(expr, typed)

    return map_expressions(sweep.body, typed)


def _line(stmt: Assign) -> str:
    match stmt.value:
        case Call(word, _) as call if word in MATRIX_OPS:
            return f"{stmt.target.name} = {matrix_call(call)}"
    return f"{stmt.target.name} = {_TEXT.text(stmt.value)}"


def _reads(plan: Plan) -> Iterator[str]:
    """Print private copies of what the rule reads and replaces; the rest it only reads."""
    for stream in _streams(plan):
        clone = ".clone()" if stream.stored else ""
        yield from _when(stream, f"{stream.name} = {plural(stream.name)}[index]{clone}")


def _writes(plan: Plan) -> Iterator[str]:
    for stream in _streams(plan):
        if stream.stored:
            yield from _when(stream, f"{plural(stream.name)}[index].copy_({stream.name})")


def _streams(plan: Plan) -> tuple[Stream, ...]:
    """Tensors as a whole plan has them, then row and column state."""
    small = (s for s in plan.algorithm.states if s.shape in ("row", "col"))
    return (*plan.sweeps[0].streams, *(Stream(s.symbol, "state", s.written, s) for s in small))


def _when(stream: Stream, line: str) -> list[str]:
    return indented([line], f"if {stream.when}:") if stream.when else [line]


FORLOOP = Lowering("forloop", "forloop.py", "forloop.py.jinja", lower)
