"""Print the scalar program, and the functions of numbers: both compute in double, once per tensor.

The scalar program computes what follows from the step count, hyperparameters and scalar states.
Functions of numbers compute what also needs the results of reductions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Call, Expr, Ref, assigns, expressions, refs, walk
from optgen.ir.ops import PROPERTIES
from optgen.ir.plan import Plan
from optgen.lowerings.fused_cpu.cpp_text import (
    ExpressionPrinter,
    Statements,
    constant,
    declarations,
    indented,
    variable,
    wrapped_list,
)
from optgen.lowerings.fused_cpu.kernel_steps import Step
from optgen.passes.prepare_for_kernels import ROUNDED, round_state

INPUTS: Mapping[str, str] = {
    "hypers": "const Hypers&",
    "scalars": "const Scalars&",
    "sizes": "const Sizes&",
    "numbers": "const Numbers&",
    "fresh_bits": "unsigned",
    "first": "i64",
}
"""Parameters from which C++ functions read numbers, in their order, with their types."""
_COLUMN = 8


class ScalarProgram:
    """Printer of a plan's scalar program; `fields` are the results that sweeps read."""

    def __init__(self, plan: Plan, fresh_symbols: Sequence[str]) -> None:
        self._plan, self.fresh_symbols = plan, fresh_symbols
        self._hypers = {h.name: h for h in plan.algorithm.hypers}
        self._state_cells = {s.symbol: constant(s.symbol) for s in plan.algorithm.scalar_states()}
        self._printer = ExpressionPrinter(for_elements=False, read=self._read)
        self._last_versions = {a.target.name: a.target.version for a in assigns(plan.scalars)}
        self.fields = {
            ref: self._field(ref) for ref in plan.coefficients() if ref.name not in self._hypers
        }

    def lines(self) -> list[str]:
        """Return the body of the function."""
        read_later = frozenset(ref.name for ref in self.fields)
        statements = Statements(
            "double",
            self._value,
            lambda condition: f"if ({self._printer(condition)})",
            self._plan.scalars,
            frozenset(self._inputs()),
            read_later,
        )
        stores = [
            f"cells[{cell}].value = {variable(symbol)};"
            for symbol, cell in self._state_cells.items()
            if symbol in self._last_versions
        ]
        results = wrapped_list("return {", self.fields.values(), "};", _COLUMN)
        return [*self._loads(), *statements.lines(_COLUMN), *stores, *results]

    def parameters(self) -> list[str]:
        """Return the function's parameters; those that it does not read have no name."""
        inputs = self._inputs()
        reads_hypers = any(name in self._hypers for name in inputs)
        reads_cells = any(name not in self._hypers for name in inputs)
        return [
            "const Hypers& hypers" if reads_hypers else "const Hypers&",
            "Scalar* cells" if reads_cells else "Scalar*",
            "unsigned fresh_bits" if self._calls("fresh") else "unsigned",
            "const Sizes& sizes" if self.reads_sizes else "const Sizes&",
        ]

    @property
    def reads_sizes(self) -> bool:
        """Tell whether the program reads a property of the parameter."""
        return self._calls(*PROPERTIES)

    def _calls(self, *words: str) -> bool:
        """Tell whether the program calls one of these words."""
        nodes = (node for e in expressions(self._plan.scalars) for node in walk(e))
        return any(isinstance(node, Call) and node.op in words for node in nodes)

    def _inputs(self) -> list[str]:
        """Return the hyperparameters, step and scalar states that the program or sweeps read."""
        read = [r.name for e in expressions(self._plan.scalars) for r in refs(e)]
        read += [ref.name for ref in self.fields]
        # An outlined sweep has no step count. If it reads `step`, that is a hyperparameter.
        step = ["step"] if self._plan.algorithm.step else []
        inputs = [*self._hypers, *step, *self._state_cells]
        return [name for name in inputs if name in read or name in self._last_versions]

    def _loads(self) -> list[str]:
        """Return the lines that load inputs, and copy values that the program overwrites."""
        inputs = self._inputs()
        numbers = [n for n in inputs if n in self._hypers and self._hypers[n].type == "number"]
        aliases = [f"{variable(n)} = hypers.{variable(n)}" for n in numbers]
        lines = declarations("const double", aliases, _COLUMN)
        if "step" in inputs and self._plan.algorithm.step:
            lines.append("const double step = cells[STEP].value;  // includes this step")
        for symbol in (s for s in inputs if s in self._state_cells):
            const = "" if symbol in self._last_versions else "const "
            lines.append(
                f"{const}double {variable(symbol)} = cells[{self._state_cells[symbol]}].value;"
            )
        old = (ref for ref, field in self.fields.items() if field == f"old_{ref.name}")
        return [*lines, *(f"const double old_{r.name} = {variable(r.name)};" for r in old)]

    def _field(self, ref: Ref) -> str:
        """Return the result field of a number; `old_` marks a value that is overwritten later."""
        last = self._last_versions.get(ref.name, ref.version)
        if ref.version == last:
            return variable(ref.name)
        if ref.version:
            raise TypeError(f"`{ref.name}` is overwritten after the version that a sweep reads")
        return f"old_{ref.name}"

    def _read(self, expr: Expr) -> str | None:
        match expr:
            case Call("fresh", (Ref(name),)):
                return f"bool(fresh_bits >> {self.fresh_symbols.index(name)} & 1)"
            case Call(word, _) if word in PROPERTIES:
                return f"sizes.{word}"
            case Ref(name) if name in self._hypers and self._hypers[name].type != "number":
                text = f"hypers.{variable(name)}"
                return f"truth({text})" if self._hypers[name].type == "flag" else text
        return None

    def _value(self, stmt: Assign) -> str:
        """Return the text of the value that a statement assigns; a state rounds to its dtype."""
        symbol = stmt.target.name
        if symbol not in self._state_cells:
            return self._printer(stmt.value)

        def read(expr: Expr) -> str | None:
            match expr:
                case Call(word, (value,)) if word == ROUNDED:
                    cell = f"cells[{self._state_cells[symbol]}]"
                    return f"{cell}.rounded_to_dtype({printer(value)})"
            return self._read(expr)

        printer = ExpressionPrinter(for_elements=False, read=read)
        return printer(round_state(stmt.value, symbol))


class NumberPrinter:
    """Printer of numbers, before a loop or in a function of numbers.

    `texts` are the C++ texts of the numbers that steps compute. `inputs` are the `INPUTS` that the
    printed texts read.
    """

    def __init__(
        self, algorithm: Algorithm, program: ScalarProgram, texts: Mapping[str, str]
    ) -> None:
        self.inputs: set[str] = set()
        self._hypers = {h.name: h for h in algorithm.hypers}
        self._program, self._texts = program, texts
        self._printer = ExpressionPrinter(for_elements=False, read=self._read)

    def __call__(self, expr: Expr) -> str:
        """Return the text of a number."""
        return self._printer(expr)

    def input(self, name: str, text: str) -> str:
        """Return a text that reads an input, and note that."""
        self.inputs.add(name)
        return text

    def _read(self, expr: Expr) -> str | None:
        match expr:
            case Ref(name) if name in self._hypers:
                text = self.input("hypers", f"hypers.{variable(name)}")
                return f"truth({text})" if self._hypers[name].type == "flag" else text
            case Call("fresh", (Ref(name),)):
                position = self._program.fresh_symbols.index(name)
                shift = f" >> {position}" if position else ""
                return self.input("fresh_bits", f"bool(fresh_bits{shift} & 1)")
            case Ref(name) if name in self._texts:
                return self.input("numbers", self._texts[name])
            case Ref() if expr in self._program.fields:
                return self.input("scalars", f"scalars.{self._program.fields[expr]}")
            case Call(word, _) if word in PROPERTIES:
                return self.input("sizes", f"sizes.{word}")
        return None


class NumberFunction:
    """Printer of the function of a step that computes numbers: its definition, and a call."""

    def __init__(self, step: Step, algorithm: Algorithm, program: ScalarProgram) -> None:
        self.step = step
        printer = NumberPrinter(algorithm, program, {n: variable(n) for n in step.numbers_read})
        statements = Statements(
            "double",
            lambda stmt: printer(stmt.value),
            lambda condition: f"if ({printer(condition)})",
            step.body,
            frozenset(step.numbers_read),
            frozenset(step.numbers_written),
        )
        assigned = {a.target.name for a in assigns(step.body)}
        self._body = [
            *(
                f"{'' if n in assigned else 'const '}double {variable(n)} = numbers.{variable(n)};"
                for n in step.numbers_read
            ),
            *statements.lines(_COLUMN),
            *(f"numbers.{variable(n)} = {variable(n)};" for n in step.numbers_written),
        ]
        self._inputs = [name for name in INPUTS if name in printer.inputs - {"numbers"}]

    def definition(self) -> list[str]:
        """Return the lines of the function."""
        parameters = [*(f"{INPUTS[name]} {name}" for name in self._inputs), "Numbers& numbers"]
        head = wrapped_list(f"static void {self.step.name}(", parameters, ") {", column=4)
        return [*head, *indented(self._body), "}"]

    def call(self) -> list[str]:
        """Return the lines that call the function."""
        fields = [*self._inputs, "named_numbers()"]
        arguments = (f"inputs.{field}" for field in fields)
        return wrapped_list(f"return {self.step.name}(", arguments, ");", column=16)
