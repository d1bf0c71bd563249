"""Lower to a for-loop: one tensor at a time, in an in-place and a functional form.

The in-place form is written for readers: each line is one operation on one tensor. The functional
form works out of place until its last lines, which copy the results. So autograd (`differentiable`)
or a graph capture (`capturable`) can follow it.
"""

from __future__ import annotations

from collections.abc import Iterator

from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import is_wide
from optgen.ir.nodes import Assign, Call, names_assigned, names_read
from optgen.ir.ops import MATRIX_OPS
from optgen.ir.plan import Plan
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.lowering import Context, Lowering
from optgen.lowerings.python.expression_printer import PythonPrinter, forloop_lines, statements
from optgen.lowerings.python.functions import (
    ONE_PARAM,
    Body,
    Function,
    bucket_function,
    defaults_before_draws,
    fresh_as_keywords,
    function_name,
    guarded_lines,
    in_sublists,
    indented,
    keywords,
    list_names,
    loop_in_wide_dtype,
    numbers_in_draws,
    python_file,
    scalar_lines,
    separated_blocks,
    unpacking_target,
)
from optgen.lowerings.python.phase_printer import matrix_call, phase_body
from optgen.lowerings.python.syntax import ONE_TENSOR, ONE_WHOLE_TENSOR, TENSOR_LISTS
from optgen.lowerings.python.whole_printer import (
    read_lines,
    streams,
    whole_body,
    whole_statements,
    with_typed_numbers,
    write_lines,
)
from optgen.passes import all_passes
from optgen.passes.extract_subexpressions import extract_draws, with_listed_streams
from optgen.passes.plan_rule import target_plan, why_uncut
from optgen.passes.prepare_rule import fact_combinations
from optgen.passes.recognize_rules import widens_in_python
from optgen.passes.select_torch_ops import select_torch_ops
from optgen.passes.torch_ops import numbers_read

_PRINTER = PythonPrinter({}, {"sum": "total"})


def lower(algorithm: Algorithm) -> Context:
    """Return the variables of templates/forloop.py.jinja: both forms for each set of facts."""
    on_whole_matrices = bool(why_uncut(algorithm))
    loop = _whole_matrix_loop if on_whole_matrices else _loop
    passes = all_passes.WHOLE_IN_PYTHON if on_whole_matrices else all_passes.FORLOOP
    functions = []
    for facts in fact_combinations(algorithm):
        functions.append(bucket_function(target_plan(algorithm, facts, passes), loop))
        if not algorithm.is_function:  # an `@elementwise` function has no differentiable form
            plan = target_plan(algorithm, facts, all_passes.FUNCTIONAL)
            functions.append(_functional_update(plan, on_whole_matrices))
    return python_file(algorithm, functions)


def _whole_matrix_loop(plan: Plan) -> Body:
    return whole_body(plan, ONE_WHOLE_TENSOR)


def _loop(plan: Plan) -> Body:
    """Return the in-place loop over the tensors of a bucket."""
    if plan.is_cut:
        return phase_body(plan, ONE_TENSOR)
    plan, draws = extract_draws(
        with_listed_streams(plan, TENSOR_LISTS.stream, TENSOR_LISTS.stream_key)
    )
    (sweep,) = plan.sweeps
    used = names_read(sweep.body) | names_assigned(sweep.body)
    used_streams = [stream for stream in sweep.streams if stream.name in used]
    stream_names = [stream.name for stream in used_streams]
    names = [*stream_names, *draws]
    instructions = select_torch_ops(plan, sweep)
    slices, lines = loop_in_wide_dtype(
        plan,
        f"zip_slices({', '.join(map(plural, names))})",
        used_streams,
        stream_names,
        forloop_lines(instructions),
    )
    lines = indented(lines, f"for {unpacking_target(names)} in {slices}:")
    reads = numbers_in_draws(draws).union(numbers_read(instructions))
    body = in_sublists(plan, TENSOR_LISTS.draw_lines(draws), lines)
    return Body(body, reads, defaults_before_draws(plan, draws))


def _functional_update(plan: Plan, on_whole_matrices: bool) -> Function:
    """Return the functional form of a plan."""
    arguments, plan = keywords(plan), fresh_as_keywords(plan)
    plan_with_names, draws = extract_draws(plan)
    program = with_typed_numbers(plan_with_names)
    numbers = names_read(program) | numbers_in_draws(draws)
    stored = [stream.name for stream in streams(plan) if stream.stored]
    reading = (  # with copies of the stored tensors, because autograd may need the old values
        read_lines(plan, program, ONE_WHOLE_TENSOR, stored)
        if on_whole_matrices
        else _elementwise_read_lines(plan)
    )
    opening = [*reading, *defaults_before_draws(plan, draws)]
    opening += [*scalar_lines(plan, ONE_PARAM, numbers), *ONE_TENSOR.draw_lines(draws)]
    body = (
        whole_statements(plan, program, ONE_WHOLE_TENSOR)
        if on_whole_matrices
        else statements(program, _PRINTER, lambda stmt: [_assignment_line(stmt)])
    )
    lines = separated_blocks(opening, body, [*write_lines(plan, ONE_WHOLE_TENSOR)])
    lists = list_names(plan.algorithm)
    return Function(
        function_name("update_functional", plan.facts),
        "Compute out of place, for autograd and graph captures. Copy the results at the end.",
        lists,
        (*arguments, "capturable: bool"),
        tuple(indented(lines, f"for index in range(len({lists[0]})):")),
        "Update" if plan.algorithm.is_wide else "None",
    )


def _assignment_line(stmt: Assign) -> str:
    match stmt.value:
        case Call(word, _) as call if word in MATRIX_OPS:
            return f"{stmt.target.name} = {matrix_call(call)}"
    request = "yield " if is_wide(stmt.value) else ""  # a reduction over several parameters
    return f"{stmt.target.name} = {request}{_PRINTER.text(stmt.value)}"


def _elementwise_read_lines(plan: Plan) -> Iterator[str]:
    """Yield the lines that read tensors. A tensor that the rule overwrites is cloned."""
    for stream in streams(plan):
        value = f"{plural(stream.name)}[index]"
        if stream.state is not None and stream.state.on_device:
            value = f"number_in_float64({value})"
        elif widens_in_python(plan.algorithm):
            is_param = stream.name == plan.algorithm.param
            like = "" if is_param else f", like={plural(plan.algorithm.param)}[index]"
            value = f"wider({value}{like})"
        elif stream.stored:
            value += ".clone()"
        yield from guarded_lines(stream, f"{stream.name} = {value}")


FORLOOP = Lowering("forloop", "forloop.py", "forloop.py.jinja", lower)
