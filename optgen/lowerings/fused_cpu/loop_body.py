"""Print the computations of a C++ loop, and declare the constants that they read."""

from __future__ import annotations

from collections.abc import Iterator

from optgen.ir.nodes import Call, Const, Expr, Ref, assigns, children, map_values
from optgen.ir.ops import CONDITION_OPERANDS, PROPERTIES, RANDOM_OPS
from optgen.ir.plan import Plan
from optgen.lowerings.fused_cpu.expression_printer import (
    CALLS,
    ExpressionPrinter,
    variable,
)
from optgen.lowerings.fused_cpu.line_layout import wrapped_statement
from optgen.lowerings.fused_cpu.loop_analysis import multiply_by_reciprocals
from optgen.lowerings.fused_cpu.loop_conditions import LoopConditions
from optgen.lowerings.fused_cpu.loop_ir import Loop
from optgen.lowerings.fused_cpu.number_constants import NumberConstants
from optgen.lowerings.fused_cpu.number_printer import number_printer
from optgen.lowerings.fused_cpu.random_keys import RandomKeys
from optgen.lowerings.fused_cpu.scalar_program import ScalarProgram
from optgen.lowerings.fused_cpu.statements import Statements, masks
from optgen.passes.convert_branches import BranchFlattener

_COLUMN = 8  # at which constants are declared


class LoopBody:
    """Computations of one loop; `lines` are the lines between loads and stores."""

    def __init__(self, plan: Plan, loop: Loop, program: ScalarProgram, column: int) -> None:
        self._plan, self._loop, self._fields = plan, loop, program.fields
        self._number_printer = number_printer(plan.algorithm, program, loop.numbers)
        self._element_printer = ExpressionPrinter(
            for_elements=True, read=self._read_element, read_condition=self._read_condition
        )
        hypers = {h.name: h for h in plan.algorithm.hypers}
        used_names = {r.name for r in plan.kinds} | set(self._fields.values())
        used_names |= set(loop.sum_operands) | {array.name for array in loop.arrays}
        self._body = map_values(loop.body, multiply_by_reciprocals)
        self._number_constants = NumberConstants.of(plan, self._body, used_names)
        used_names |= set(self._number_constants.names.values())
        self._conditions = LoopConditions(loop.flags, hypers, self._number_printer, used_names)
        self._keys = RandomKeys(self._number_printer, used_names)
        flatten = BranchFlattener(self._conditions.reads_flag)
        body = flatten(self._body)
        self._masks = masks(body)
        loaded = frozenset(array.name for array in loop.arrays if array.loaded)
        stored = {array.name for array in loop.arrays if array.stored}
        self.lines = Statements(
            "C",
            lambda a: self._element_printer(a.value),
            self._conditions.head,
            body,
            loaded,
            frozenset(loop.sum_operands) | stored,
            self._masks,
        ).lines(column)

    def constants(self) -> list[str]:
        """Declare the numbers that the loop reads, in its compute type."""
        lines = list(self._number_declarations())
        for declaration in self._number_constants.declarations(self._number_printer):
            lines += wrapped_statement(declaration, _COLUMN)
        for declaration in self._keys.declarations():
            lines += wrapped_statement(declaration, _COLUMN)
        conditions = list(self._conditions.declarations())
        if conditions:
            lines.append(
                "// Flags: conditions as 1 or 0 of type C, so that branches on them become selects."
            )
        for declaration in conditions:
            lines += wrapped_statement(declaration, _COLUMN)
        return lines

    def _number_declarations(self) -> Iterator[str]:
        """Declare the hyperparameters, scalars and numbers that expressions of elements read."""
        refs_read = {r for a in assigns(self._body) for r in self._numbers_in(a.value)}
        names = {self._fields.get(r, variable(r.name)) for r in refs_read}
        for ref in self._plan.coefficients():
            name = self._fields.get(ref, variable(ref.name))
            if name in names:
                source = "scalars" if ref in self._fields else "hypers"
                yield f"const C {name} = C({source}.{name});"
        for name, text in self._loop.numbers.items():
            if name in {r.name for r in refs_read}:
                yield f"const C {variable(name)} = C({text});"

    def _numbers_in(self, value: Expr) -> Iterator[Ref]:
        """Yield the names that a value reads, except in what the loop computes before it begins."""
        if isinstance(value, Ref):
            yield value
        if self._number_constants.name(value):
            return
        if isinstance(value, Call) and value.op in RANDOM_OPS:
            return  # the key of the draw is computed before the loop
        num_conditions = CONDITION_OPERANDS.get(value.op, 0) if isinstance(value, Call) else 0
        for position, child in enumerate(children(value)):
            if position >= num_conditions or not self._plan.kind(child).is_scalar:
                yield from self._numbers_in(child)

    def _read_condition(self, condition: Expr) -> str | None:
        """Return the text of a named condition, uniform or per element; else None."""
        match condition:
            case Const():
                return None
            case _ if self._plan.kind(condition).is_scalar:
                return f"{self._conditions.name(condition)} != 0"
            case Ref(name):
                return variable(name) if name in self._masks else f"{variable(name)} != 0"
        return None

    def _read_element(self, expr: Expr) -> str | None:
        """Return the text of a scalar, a random draw or a size; for other expressions, None."""
        match expr:
            case Ref():
                return self._fields.get(expr)
            case _ if name := self._number_constants.name(expr):
                return name
            case Call("rounded_at_random", (x, Call("random16") as draw, eps)):
                operands = (
                    self._element_printer(x),
                    self._keys.bits(draw),
                    self._element_printer(eps),
                )
                return CALLS["rounded_at_random"].format(*operands)
            case Call(word, _) as draw if word in RANDOM_OPS:
                return self._keys.numbers(draw)
            case Call(word, _) if word in PROPERTIES:
                return f"C({self._number_printer(expr)})"
            case Call("/", (Const(), Call(word, _))) if word in PROPERTIES:
                return f"C({self._number_printer(expr)})"
        return None
