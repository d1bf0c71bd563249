"""The for-loop lowering: one tensor at a time, in place; and once more without changing anything.

The first form is what a person reads and every other lowering is tested against. The second is out
of place up to its last copies, so that autograd (`differentiable`) or the capture of a graph
(`capturable`) can follow it.
"""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    If,
    Program,
    Ref,
    assigns,
    expressions,
    refs,
    rename_program,
)
from optgen.ir.plan import Plan
from optgen.ir.variables import plural
from optgen.ir.words import WORDS
from optgen.lowerings.base import Context, Lowering, planned
from optgen.lowerings.python.scalars import BUCKET, ONE_BY_ONE, scalar_lines
from optgen.lowerings.python.signature import imports, keywords, list_names, name_fresh
from optgen.lowerings.python.text import PythonText, statements
from optgen.lowerings.python.torch_ops import forloop_lines
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.inline_scalars import inline_scalars
from optgen.passes.inplace import to_inplace

_TEXT = PythonText({}, {})


def context(plan: Plan) -> Context:
    """What templates/forloop.py.jinja lays out."""
    arguments, plan = keywords(plan), name_fresh(plan)
    (sweep,) = plan.sweeps
    lines = {
        "scalars": scalar_lines(plan, BUCKET),
        "body": forloop_lines(to_inplace(plan, sweep)),
        "functional_scalars": scalar_lines(plan, ONE_BY_ONE, _selecting(plan, plan.scalars)),
        "functional_body": _functional_body(plan),
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

    return statements(_selecting(plan, plan.sweeps[0].body), _TEXT, line)


def _selecting(plan: Plan, program: Program) -> Program:
    """Branches on a number of the parameter get a second form: both sides, then a choice.

    A graph under capture holds no branch, so with `capturable` the number is a tensor and chooses.
    """
    return tuple(
        If(Ref("capturable"), _chosen(plan, program, stmt), (stmt,))
        if isinstance(stmt, If) and _is_numeric(stmt.condition)
        else stmt
        for stmt in program
    )


def _is_numeric(condition: Expr) -> bool:
    return isinstance(condition, Call) and WORDS[condition.word].sort == "comparison"


def _chosen(plan: Plan, program: Program, stmt: If) -> Program:
    """Both arms one after the other, what both assign under two names, and the choices."""
    then = {a.target.name for a in assigns(stmt.then)}
    orelse = {a.target.name for a in assigns(stmt.orelse)}
    before = {r.name for r in plan.kinds if r.version == 0 and r not in _targets(plan, stmt)}
    twofold = (then & orelse) | ((then | orelse) & before)
    needed = _read_outside(plan, program, stmt)
    joins = tuple(
        Assign(Ref(name), Call("where", (stmt.condition, *_sides(name, then, orelse))))
        for name in sorted(twofold & needed)
    )
    return (*_arm(stmt.then, twofold, "then"), *_arm(stmt.orelse, twofold, "else"), *joins)


def _targets(plan: Plan, stmt: If) -> set[Ref]:
    return {a.target for a in (*assigns((stmt,)), *assigns(plan.scalars))}


def _read_outside(plan: Plan, program: Program, stmt: If) -> set[str]:
    """Names that something other than the branch itself reads, or that are stored."""
    others = [s for s in (*plan.scalars, *plan.sweeps[0].body) if s != stmt]
    stored = {s.name for s in plan.sweeps[0].streams if s.stored}
    return stored | {r.name for e in expressions(tuple(others)) for r in refs(e)}


def _sides(name: str, then: set[str], orelse: set[str]) -> tuple[Ref, Ref]:
    return (
        Ref(f"{name}_then" if name in then else name),
        Ref(f"{name}_else" if name in orelse else name),
    )


def _arm(arm: Program, twofold: set[str], suffix: str) -> Program:
    """An arm that is always run, its own values of the twofold names suffixed."""
    own = {a.target for a in assigns(arm) if a.target.name in twofold}
    return rename_program(arm, lambda r: replace(r, name=f"{r.name}_{suffix}") if r in own else r)


FORLOOP = Lowering(
    "forloop",
    "forloop.py",
    "forloop.py.jinja",
    planned((hoist_scalars, inline_scalars), context),
)
