"""Find the expressions of numbers in a C++ loop. It computes them before it begins, in double.

In the compute type of the loop, which may be float, `1 - beta2` would lose digits: its rounding
error is one of `beta2`, which is much larger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from optgen.ir.generated_names import free_name
from optgen.ir.kinds import Axes
from optgen.ir.nodes import Call, Const, Expr, Program, assigns, children, refs
from optgen.ir.ops import CONDITION_OPERANDS, OPS, PROPERTIES, RANDOM_OPS
from optgen.ir.plan import Plan
from optgen.lowerings.fused_cpu.expression_printer import ExpressionPrinter, variable
from optgen.passes.names import scalar_name


@dataclass(frozen=True)
class NumberConstants:
    """Names of the constants that hold the expressions of numbers in one loop."""

    names: Mapping[Expr, str]

    @classmethod
    def of(cls, plan: Plan, body: Program, used_names: Collection[str]) -> NumberConstants:
        """Name each largest expression of numbers in a loop's body; equal ones share a name."""
        assigned = {a.target for a in assigns(body)}
        names: dict[Expr, str] = {}
        for assign in assigns(body):
            for expr in _number_expressions(assign.value, plan):
                if expr not in names and assigned.isdisjoint(refs(expr)):
                    wanted = scalar_name(expr) or "scalar"
                    names[expr] = free_name(wanted, {*used_names, *names.values()})
        return cls(names)

    def name(self, expr: Expr) -> str | None:
        """Return the C++ name of an expression of numbers; for other expressions, None."""
        name = self.names.get(expr)
        return None if name is None else variable(name)

    def declarations(self, number_printer: ExpressionPrinter) -> Iterator[str]:
        """Yield the statement that declares each constant."""
        for expr, name in self.names.items():
            yield f"const C {variable(name)} = C({number_printer(expr)});"


def _number_expressions(expr: Expr, plan: Plan) -> Iterator[Expr]:
    """Yield the largest arithmetic expressions of numbers in an expression.

    Numbers in conditions, in keys of random numbers and of single properties are not among them:
    the loop computes those before it begins, too.
    """
    if isinstance(expr, Call) and expr.op in RANDOM_OPS:
        return
    if _is_arithmetic(expr) and plan.kind(expr).axes is Axes.NONE:
        yield expr
        return
    num_conditions = CONDITION_OPERANDS.get(expr.op, 0) if isinstance(expr, Call) else 0
    for position, child in enumerate(children(expr)):
        if position >= num_conditions or not plan.kind(child).is_scalar:
            yield from _number_expressions(child, plan)


def _is_arithmetic(expr: Expr) -> bool:
    """Tell whether an expression may round its value; a sign and the reciprocal of a size do not.

    The loop prints the reciprocal of a size as a number in double.
    """
    match expr:
        case Call("/", (Const(), Call(word, _))) if word in PROPERTIES:
            return False
        case Call(word, _) if word != "neg":
            return OPS[word].category in ("arithmetic", "function")
    return False
