"""Lower to a for-loop: one tensor at a time, in an in-place and a functional form.

The in-place form is the readable reference. Every other lowering is tested against it. The
functional form is out of place up to its last copies, so that autograd (`differentiable`) or a
graph capture (`capturable`) can follow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import plural
from optgen.ir.nodes import Assign, Call, names_read
from optgen.ir.ops import MATRIX_OPS
from optgen.ir.plan import Plan
from optgen.ir.whole_matrices import why_unfused
from optgen.lowerings.lowering import Context, Lowering
from optgen.lowerings.python.expression_printer import PythonPrinter, statements
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
from optgen.lowerings.python.phase_printer import matrix_call, phases
from optgen.lowerings.python.phase_syntax import ONE_TENSOR
from optgen.lowerings.python.scalar_program import ONE_PARAM, scalar_lines
from optgen.lowerings.python.signature import keywords, list_names, name_fresh
from optgen.lowerings.python.torch_ops import forloop_lines
from optgen.lowerings.python.whole_printer import ONE_TENSOR as WHOLE_TENSOR
from optgen.lowerings.python.whole_printer import (
    read_lines,
    streams,
    when,
    whole_body,
    whole_statements,
    with_typed_numbers,
    write_lines,
)
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.if_conversion import if_convert
from optgen.passes.inline_scalars import inline_scalars
from optgen.passes.instructions import numbers_read
from optgen.passes.plan import Order, plan
from optgen.passes.select_instructions import select_instructions
from optgen.passes.specialize_shape import Facts, fact_combinations
from optgen.passes.truths_to_bool import truths_to_bool
from optgen.passes.use_ieee_operators import use_ieee_operators

_TEXT = PythonPrinter({}, {"sum": "total"})


def lower(algorithm: Algorithm) -> Context:
    """Return the variables of templates/forloop.py.jinja: both forms per kind of parameter."""

    def planned(facts: Facts, order: Order) -> Plan:
        return use_ieee_operators(inline_scalars(hoist_scalars(plan(algorithm, facts, order))))

    whole = bool(why_unfused(algorithm))
    functions = []
    for facts in fact_combinations(algorithm):
        loop = partial(whole_body, form=WHOLE_TENSOR) if whole else _loop
        functions.append(bucket_function(truths_to_bool(planned(facts, "early")), loop))
        if not algorithm.is_function:  # neither autograd nor a capture follows a function
            functions.append(_functional(planned(facts, "whole"), whole))
    return python_file(algorithm, functions)


def _loop(plan: Plan) -> Body:
    if plan.is_cut:
        return phases(plan, ONE_TENSOR)
    (sweep,) = plan.sweeps
    names = unpacked([s.name for s in sweep.streams])
    lists = ", ".join(plural(s.name) for s in sweep.streams)
    program = select_instructions(plan, sweep)
    lines = indented(forloop_lines(program), f"for {names} in slices({lists}):")
    return Body(lines, frozenset(numbers_read(program)))


def _functional(plan: Plan, whole: bool) -> Function:
    arguments, plan = keywords(plan), name_fresh(truths_to_bool(if_convert(plan)))
    program = with_typed_numbers(plan)
    reads = read_lines(plan, program, WHOLE_TENSOR) if whole else _reads(plan)
    opening = [*reads, *scalar_lines(plan, ONE_PARAM, names_read(program))]
    body = (
        whole_statements(plan, program, WHOLE_TENSOR)
        if whole
        else statements(program, _TEXT, _line)
    )
    lines = parted(opening, body, [*write_lines(plan, WHOLE_TENSOR)])
    lists = list_names(plan.algorithm)
    return Function(
        function_name("update_functional", plan.facts),
        "Update out of place, except for the last copies; autograd or a graph capture can follow.",
        lists,
        (*arguments, "capturable: bool"),
        tuple(indented(lines, f"for index in range(len({lists[0]})):")),
    )


def _line(stmt: Assign) -> str:
    match stmt.value:
        case Call(word, _) as call if word in MATRIX_OPS:
            return f"{stmt.target.name} = {matrix_call(call)}"
    return f"{stmt.target.name} = {_TEXT.text(stmt.value)}"


def _reads(plan: Plan) -> Iterator[str]:
    """Yield the lines that read tensors; those that the rule overwrites are cloned."""
    for stream in streams(plan):
        clone = ".clone()" if stream.stored else ""
        yield from when(stream, f"{stream.name} = {plural(stream.name)}[index]{clone}")


FORLOOP = Lowering("forloop", "forloop.py", "forloop.py.jinja", lower)
