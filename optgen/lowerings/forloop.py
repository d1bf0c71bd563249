"""Lower to a for-loop: one tensor at a time, in an in-place and a functional form.

The in-place form is the readable reference. Every other lowering is tested against it. The
functional form is out of place up to its last copies, so that autograd (`differentiable`) or a
graph capture (`capturable`) can follow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import plural
from optgen.ir.nodes import Assign, Call, Expr, Program, Ref, names_read, rebuild
from optgen.ir.ops import MATRIX_OPS
from optgen.ir.plan import Plan, Stream
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
    widened,
)
from optgen.lowerings.python.phase_printer import matrix_call, phases
from optgen.lowerings.python.phase_syntax import ONE_TENSOR
from optgen.lowerings.python.random_calls import (
    draw_for_lists,
    draw_for_one,
    name_random,
    read_by,
    undefined_before_draw,
)
from optgen.lowerings.python.scalar_program import ONE_PARAM, scalar_lines
from optgen.lowerings.python.signature import keywords, list_names, name_fresh
from optgen.lowerings.python.torch_ops import forloop_lines
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.if_conversion import if_convert
from optgen.passes.inline_scalars import inline_scalars
from optgen.passes.instructions import numbers_read
from optgen.passes.plan import Order, plan
from optgen.passes.rewrite import map_expressions
from optgen.passes.select_instructions import select_instructions
from optgen.passes.specialize_shape import Facts, fact_combinations
from optgen.passes.truths_to_bool import truths_to_bool
from optgen.passes.use_ieee_operators import use_ieee_operators

_PRINTER = PythonPrinter({}, {"sum": "total"})


def lower(algorithm: Algorithm) -> Context:
    """Return the variables of templates/forloop.py.jinja: both forms for each set of facts."""

    def planned(facts: Facts, order: Order) -> Plan:
        return use_ieee_operators(inline_scalars(hoist_scalars(plan(algorithm, facts, order))))

    functions = []
    for facts in fact_combinations(algorithm):
        functions.append(bucket_function(truths_to_bool(planned(facts, "early")), _loop))
        if not algorithm.is_function:  # neither autograd nor a capture follows a function
            functions.append(_functional(planned(facts, "whole")))
    return python_file(algorithm, functions)


def _loop(plan: Plan) -> Body:
    if plan.is_cut:
        return phases(plan, ONE_TENSOR)
    plan, drawn = name_random(plan)
    (sweep,) = plan.sweeps
    streams = [*(s.name for s in sweep.streams), *drawn]
    names, lists = unpacked(streams), ", ".join(map(plural, streams))
    program = select_instructions(plan, sweep)
    rows = widened(plan, f"slices({lists})", (s.stored for s in sweep.streams))
    lines = indented(forloop_lines(program), f"for {names} in {rows}:")
    reads = read_by(drawn).union(numbers_read(program))
    return Body([*draw_for_lists(drawn, ""), *lines], reads, undefined_before_draw(plan, drawn))


def _functional(plan: Plan) -> Function:
    arguments, plan = keywords(plan), name_fresh(truths_to_bool(if_convert(plan)))
    named, drawn = name_random(plan)
    program = _typed(named)
    numbers = names_read(program) | read_by(drawn)
    opening = [*_reads(plan), *undefined_before_draw(plan, drawn)]
    opening += [*scalar_lines(plan, ONE_PARAM, numbers), *draw_for_one(drawn)]
    lines = parted(opening, statements(program, _PRINTER, _line), [*_writes(plan)])
    lists = list_names(plan.algorithm)
    return Function(
        function_name("update_functional", plan.facts),
        "Update out of place, except for the last copies; autograd or a graph capture can follow.",
        lists,
        (*arguments, "capturable: bool"),
        tuple(indented(lines, f"for index in range(len({lists[0]})):")),
    )


def _typed(plan: Plan) -> Program:
    """Return the sweep with each `where` of two numbers cast to the sweep's dtype."""
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
    return f"{stmt.target.name} = {_PRINTER.text(stmt.value)}"


def _reads(plan: Plan) -> Iterator[str]:
    """Yield the lines that read tensors; those that the rule overwrites are cloned."""
    for stream in _streams(plan):
        value = f"{plural(stream.name)}[index]"
        if plan.algorithm.widens:
            value = f"wider({value})"
        elif stream.stored:
            value += ".clone()"
        yield from _when(stream, f"{stream.name} = {value}")


def _writes(plan: Plan) -> Iterator[str]:
    """Yield the lines that copy new values to the tensors of the lists."""
    for stream in _streams(plan):
        if stream.stored:
            is_number = stream.state is not None and stream.state.on_device
            new = f"{stream.name}.reshape(())" if is_number else stream.name
            yield from _when(stream, f"{plural(stream.name)}[index].copy_({new})")


def _streams(plan: Plan) -> tuple[Stream, ...]:
    """Return the streams of the whole plan's only sweep, then the states of a `Finish`."""
    small = plan.algorithm.finish_states()
    return (*plan.sweeps[0].streams, *(Stream(s.symbol, "state", s.written, s) for s in small))


def _when(stream: Stream, line: str) -> list[str]:
    return indented([line], f"if {stream.when}:") if stream.when else [line]


FORLOOP = Lowering("forloop", "forloop.py", "forloop.py.jinja", lower)
