"""The foreach lowering: a whole list of tensors at a time, with the fewest `_foreach_` calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import plural
from optgen.ir.plan import Plan
from optgen.lowerings.base import Context, Lowering, PlanPass
from optgen.lowerings.python.forms import FOREACH as SHARES
from optgen.lowerings.python.forms import SHARDED
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
from optgen.lowerings.python.phases import phases
from optgen.lowerings.python.scalars import BUCKET, scalar_lines
from optgen.lowerings.python.signature import keywords, list_names, name_fresh
from optgen.lowerings.python.torch_ops import foreach_lines
from optgen.passes.fold_denominators import fold_denominators
from optgen.passes.guard_scalars import guard_scalars
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.hold_truths import hold_truths
from optgen.passes.inline_scalars import inline_scalars
from optgen.passes.inplace import to_inplace
from optgen.passes.instructions import made, numbers_read
from optgen.passes.join_roots import join_roots
from optgen.passes.plan import plans

ALIVE = 4  # lists of temporaries that optgen.runtime.slices reckons with, unless told otherwise
_PASSES: tuple[PlanPass, ...] = (
    join_roots,
    fold_denominators,
    hoist_scalars,
    inline_scalars,
    guard_scalars,
    hold_truths,
)


def lower(algorithm: Algorithm) -> Context:
    """What templates/foreach.py.jinja lays out: a function for each kind of parameter."""
    made = (reduce(lambda p, change: change(p), _PASSES, p) for p in plans(algorithm, "early"))
    functions = []
    for plan in made:
        functions.append(bucket_function(plan, _loop))
        functions += [] if algorithm.elementwise else _sharded(plan)
    return python_file(algorithm, functions)


def _sharded(plan: Plan) -> Iterator[Function]:
    """The same for parts of parameters: none where every part goes by itself.

    Where there are phases it is a generator, and between them the processes complete what each has
    summed; else only the sizes are those of the whole.
    """
    arguments, plan = keywords(plan), name_fresh(plan)
    body = phases(plan, SHARDED) if plan.is_cut else _loop(plan)
    scalars = scalar_lines(plan, replace(BUCKET, param=SHARDED.param), body.reads)
    if plan.is_cut:
        about, returns = "it yields what the processes must complete together.", "Update"
    elif any(SHARDED.param in line for line in scalars):
        about, returns = "sizes are those of the whole.", "None"
    else:
        return
    yield Function(
        function_name("update_sharded", plan.facts),
        f"The same for parts of parameters: {about}",
        list_names(plan.algorithm),
        (*arguments, "split: Split"),
        parted(scalars, body.lines),
        returns,
    )


def _loop(plan: Plan) -> Body:
    if plan.is_cut:
        return phases(plan, SHARES)
    (sweep,) = plan.sweeps
    names = [plural(s.name) for s in sweep.streams]
    lists = ", ".join(names)
    program = to_inplace(plan, sweep)
    alive = len(set(made(program))) + 1  # the next of a name is made beside the last
    room = f", alive={alive}" if alive > ALIVE else ""
    lines = [f"{unpacked(names)} = cut", *foreach_lines(program)]
    header = f"for cut in cuts({lists}{room}):"
    return Body(indented(lines, header), frozenset(numbers_read(program)))


FOREACH = Lowering("foreach", "foreach.py", "foreach.py.jinja", lower)
