"""The for-loop lowering: one tensor at a time, in place; and once more without changing anything.

The first form is what a person reads and every other lowering is tested against. The second is out
of place up to its last copies, so that autograd (`differentiable`) or the capture of a graph
(`capturable`) can follow it.
"""

from __future__ import annotations

from optgen.ir.nodes import Assign
from optgen.ir.plan import Plan
from optgen.ir.variables import plural
from optgen.lowerings.base import Context, Lowering, planned
from optgen.lowerings.python.scalars import BUCKET, ONE_BY_ONE, scalar_lines
from optgen.lowerings.python.signature import imports, keywords, list_names, name_fresh
from optgen.lowerings.python.text import PythonText, statements
from optgen.lowerings.python.torch_ops import forloop_lines
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.inline_scalars import inline_scalars
from optgen.passes.inplace import to_inplace
from optgen.passes.select_branches import select_branches

_TEXT = PythonText({}, {})


def context(plan: Plan) -> Context:
    """What templates/forloop.py.jinja lays out."""
    arguments = keywords(plan)
    selected, plan = name_fresh(select_branches(plan)), name_fresh(plan)
    (sweep,) = plan.sweeps
    lines = {
        "scalars": scalar_lines(plan, BUCKET),
        "body": forloop_lines(to_inplace(plan, sweep)),
        "functional_scalars": scalar_lines(selected, ONE_BY_ONE),
        "functional_body": _functional_body(selected),
    }
    return {
        "algorithm": plan.algorithm,
        "lists": list_names(plan.algorithm),
        "keywords": arguments,
        "imports": imports(line for block in lines.values() for line in block),
        "streams": [(s.name, plural(s.name)) for s in sweep.streams],
        "reads": _reads(plan),
        "writes": _writes(plan),
        **lines,
    }


def _reads(plan: Plan) -> list[str]:
    """Private copies of what the rule reads and replaces; the gradient it only reads."""
    lines = []
    for stream in plan.sweeps[0].streams:
        clone = "" if stream.role == "grad" else ".clone()"
        line = f"{stream.name} = {plural(stream.name)}[index]{clone}"
        lines += [f"if {stream.when}:", f"    {line}"] if stream.when else [line]
    return lines


def _writes(plan: Plan) -> list[str]:
    lines = []
    for stream in plan.sweeps[0].streams:
        if stream.stored:
            line = f"{plural(stream.name)}[index].copy_({stream.name})"
            lines += [f"if {stream.when}:", f"    {line}"] if stream.when else [line]
    return lines


def _functional_body(plan: Plan) -> list[str]:
    def line(stmt: Assign) -> str:
        return f"{stmt.target.name} = {_TEXT.text(stmt.value)}"

    return statements(plan.sweeps[0].body, _TEXT, line)


FORLOOP = Lowering(
    "forloop",
    "forloop.py",
    "forloop.py.jinja",
    planned((hoist_scalars, inline_scalars), context),
)
