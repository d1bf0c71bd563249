"""Lower to foreach: each operation is one `torch._foreach_*` call on a list of tensors.

A rule on whole matrices gets a second file, outlined.py. It has the same lines, but functions
compute the elementwise parts between two matrix ops. Other lowerings print these functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Ref, expressions, refs
from optgen.ir.plan import Plan
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.lowering import Context, Lowering
from optgen.lowerings.python.expression_printer import foreach_lines
from optgen.lowerings.python.functions import (
    BUCKET,
    Body,
    Function,
    bucket_function,
    defaults_before_draws,
    fresh_as_keywords,
    function_name,
    in_sublists,
    indented,
    keywords,
    list_names,
    loop_in_wide_dtype,
    numbers_in_draws,
    python_file,
    scalar_lines,
    scalars_needed,
    separated_blocks,
    unpacking_target,
)
from optgen.lowerings.python.phase_printer import phase_body
from optgen.lowerings.python.syntax import SHARDED, TENSOR_LISTS, WHOLE_LISTS, Syntax
from optgen.lowerings.python.whole_printer import whole_body
from optgen.passes import all_passes
from optgen.passes.extract_subexpressions import extract_draws, with_listed_streams
from optgen.passes.outline_sweeps import outline_sweeps
from optgen.passes.plan_rule import target_plans, why_uncut
from optgen.passes.select_torch_ops import select_torch_ops
from optgen.passes.torch_ops import new_tensors, numbers_read

_DEFAULT_LIVE_LISTS = 4
"""Default of `live_lists` in optgen.runtime.eager.parts: the lists of temporaries at one time."""


def lower(algorithm: Algorithm) -> Context:
    """Return the variables of templates/foreach.py.jinja: the functions of each plan."""
    if why_uncut(algorithm):
        return python_file(algorithm, list(_whole_matrix_updates(algorithm)))
    functions: list[Function] = []
    for plan in target_plans(algorithm, all_passes.FOREACH):
        if not algorithm.is_wide:
            functions.append(bucket_function(plan, _loop))
        if not (algorithm.elementwise or algorithm.is_function):
            functions += _sharded_update(plan)
    return python_file(algorithm, functions)


def _whole_matrix_updates(algorithm: Algorithm) -> Iterator[Function]:
    """Yield the functions of a rule on whole matrices. Such a rule has no function for shards."""
    for plan in target_plans(algorithm, all_passes.WHOLE_IN_PYTHON):
        yield bucket_function(plan, lambda p: whole_body(p, WHOLE_LISTS))


def _sharded_update(plan: Plan) -> Iterator[Function]:
    """Yield `update_sharded`, if sharded parameters need another function than whole parameters.

    A rule with phases gets a generator: it yields the reductions that the ranks complete together.
    A rule without phases gets a plain function, but only if it reads sizes or draws random numbers,
    because both depend on the whole parameter.
    """
    arguments, plan = keywords(plan), fresh_as_keywords(plan)
    body = _loop(plan, SHARDED)
    scalars = scalar_lines(plan, replace(BUCKET, param=SHARDED.param), body.numbers_read)
    if plan.is_cut:
        description, returns = (
            "Yield reductions, which all ranks complete in place.",
            "Update",
        )
        if plan.algorithm.is_wide:
            description = "Yield the reductions over ranks and parameters."
    elif plan.algorithm.has_random_ops:
        description, returns = "Draw the random numbers of whole parameters.", "None"
    elif Ref(plan.algorithm.param) in {
        r for e in expressions(scalars_needed(plan, body.numbers_read)) for r in refs(e)
    }:
        description, returns = "The sizes are those of whole parameters.", "None"
    else:
        return
    yield Function(
        function_name("update_sharded", plan.facts),
        f"Update the shards of a bucket. {description}",
        list_names(plan.algorithm),
        (*arguments, "collectives: Collectives"),
        separated_blocks([*body.opening, *scalars], body.lines),
        returns,
    )


def _loop(plan: Plan, syntax: Syntax = TENSOR_LISTS) -> Body:
    """Return the sweep over lists, or all phases."""
    if plan.is_cut:
        return phase_body(plan, syntax)
    plan, draws = extract_draws(with_listed_streams(plan, syntax.stream, syntax.stream_key))
    (sweep,) = plan.sweeps
    stream_lists = [plural(stream.name) for stream in sweep.streams]
    names = [*stream_lists, *map(plural, draws)]
    instructions = select_torch_ops(plan, sweep)
    # A temporary that is overwritten exists twice for a moment, hence + 1.
    live_lists = len(set(new_tensors(instructions))) + 1
    live_argument = f", live_lists={live_lists}" if live_lists > _DEFAULT_LIVE_LISTS else ""
    chunks, lines = loop_in_wide_dtype(
        plan,
        f"chunks({', '.join(names)}{live_argument})",
        sweep.streams,
        stream_lists,
        foreach_lines(instructions),
    )
    lines = indented([f"{unpacking_target(names)} = chunk", *lines], f"for chunk in {chunks}:")
    reads = numbers_in_draws(draws).union(numbers_read(instructions))
    body = in_sublists(plan, syntax.draw_lines(draws), lines)
    return Body(body, reads, defaults_before_draws(plan, draws))


def lower_outlined(algorithm: Algorithm) -> Context:
    """Return the variables of templates/outlined.py.jinja: the functions of each plan."""
    context = python_file(algorithm, list(_outlined_functions(algorithm)))
    sweeps = [function.name for function in outline_sweeps(algorithm).functions]
    imports = context["imports"]
    names = [*imports.get("eager.tensor_lists", []), "sweep_function"]
    return {**context, "imports": {**imports, "eager.tensor_lists": names}, "sweeps": sweeps}


def _outlined_functions(algorithm: Algorithm) -> Iterator[Function]:
    for plan in outline_sweeps(algorithm).plans:
        yield bucket_function(plan, lambda p: whole_body(p, WHOLE_LISTS))


def _refusal(algorithm: Algorithm) -> str:
    outlined = outline_sweeps(algorithm)
    return "" if outlined.functions else outlined.why_none or "the rule is cut into sweeps itself"


FOREACH = Lowering("foreach", "foreach.py", "foreach.py.jinja", lower)
OUTLINED = Lowering(
    "outlined", "outlined.py", "outlined.py.jinja", lower_outlined, refusal=_refusal
)
