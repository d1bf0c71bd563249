"""Draw the random numbers of a rule before its sweep, and give them names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from optgen.ir.binding_times import TENSOR, Kind
from optgen.ir.generated_names import is_free, plural
from optgen.ir.nodes import Call, Expr, Ref, assigns, map_expressions, rebuild, refs
from optgen.ir.ops import RANDOM_OPS
from optgen.ir.plan import Plan
from optgen.lowerings.python.expression_printer import PythonPrinter
from optgen.passes.definitions import on_every_path

_TEXT = PythonPrinter({}, {})
Drawn = Mapping[str, Call]
"""The name of each tensor of random numbers, with the call that draws it."""


def name_random(plan: Plan) -> tuple[Plan, Drawn]:
    """Return the plan with a name in place of every random number, and the calls by name."""
    names: dict[Call, str] = {}
    taken = {ref.name for ref in plan.kinds}

    def named(expr: Expr) -> Expr:
        if not isinstance(expr, Call) or expr.op not in RANDOM_OPS:
            return rebuild(expr, named)
        if expr not in names:
            numbered = (f"uniform{n if n > 1 else ''}" for n in count(1))
            names[expr] = next(n for n in numbered if is_free(n, taken))
            taken.add(names[expr])
        return Ref(names[expr])

    changed = plan.map_sweeps(lambda body: map_expressions(body, named))
    kinds: dict[Ref, Kind] = {**plan.kinds, **{Ref(name): TENSOR for name in names.values()}}
    return replace(changed, kinds=kinds), {name: call for call, name in names.items()}


def undefined_before_draw(plan: Plan, drawn: Drawn) -> list[str]:
    """Return lines that define numbers of calls in branches, which the scalar program may skip."""
    assigned = {a.target.name for a in assigns(plan.scalars)}
    always = {ref.name for ref in on_every_path(plan.scalars)}
    return [f"{name} = 0.0" for name in sorted(read_by(drawn) & assigned - always)]


def draw_for_lists(drawn: Drawn, given: str = "") -> list[str]:
    """Return the lines that draw numbers for a bucket; `given` are further arguments."""
    return [
        f"{plural(name)} = {call.op}({', '.join(['params', *_numbers(call)])}{given})"
        for name, call in drawn.items()
    ]


def draw_for_one(drawn: Drawn) -> list[str]:
    """Return the lines that draw numbers for the parameter at an index."""
    return [
        f"({name},) = {call.op}({', '.join(['[params[index]]', *_numbers(call)])})"
        for name, call in drawn.items()
    ]


def read_by(drawn: Drawn) -> frozenset[str]:
    """Return the names of the numbers that the calls read."""
    return frozenset(ref.name for call in drawn.values() for ref in refs(call))


def _numbers(call: Call) -> list[str]:
    return [_TEXT.text(argument) for argument in call.args]
