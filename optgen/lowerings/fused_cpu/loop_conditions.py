"""Print the conditions of a C++ loop that are the same for all elements of a tensor.

A condition on flags that decide which streams exist is known at compile time. The loop computes any
other condition before it begins, and gives it a name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from optgen.ir.algorithm import Hyper
from optgen.ir.generated_names import is_free
from optgen.ir.nodes import Call, Expr, Ref
from optgen.lowerings.condition_names import candidate_names, is_rare
from optgen.lowerings.fused_cpu.expression_printer import ExpressionPrinter, variable


@dataclass
class LoopConditions:
    """Conditions of a loop. `flags` maps flags to the template parameters that hold them."""

    flags: Mapping[str, str]
    hypers: Mapping[str, Hyper]
    number_printer: ExpressionPrinter
    used_names: Collection[str]
    texts: dict[str, str] = field(default_factory=dict)  # of named conditions, by name

    def declarations(self) -> Iterator[str]:
        """Yield the statement that declares each named condition."""
        return (f"const auto {name} = {text};" for name, text in self.texts.items())

    def head(self, condition: Expr) -> str:
        """Return the head of a branch: `if` with its condition."""
        is_constant, text = self._condition(condition)
        return f"if {'constexpr ' if is_constant else ''}({text})"

    def _condition(self, expr: Expr) -> tuple[bool, str]:
        """Return whether a condition is known at compile time, and its text."""
        if not self.reads_flag(expr):
            return False, f"{self.name(expr)} != 0"
        match expr:
            case Ref(name) | Call("truth", (Ref(name),)):
                return True, self.flags[name]
            case Call("not", (inner,)):
                is_constant, text = self._condition(inner)
                return is_constant, f"!({text})" if " " in text else f"!{text}"
            case Call("and" | "or" as word, (a, b)):
                (a_is_constant, left), (b_is_constant, right) = map(self._condition, (a, b))
                sign = "&&" if word == "and" else "||"
                return a_is_constant and b_is_constant, f"({left}) {sign} ({right})"
        raise TypeError(f"not a compile-time condition: {expr!r}")

    def reads_flag(self, expr: Expr) -> bool:
        """Tell whether a condition reads a flag that decides which streams exist.

        Such a condition is known at compile time, at least in part.
        """
        match expr:
            case Ref(name) | Call("truth", (Ref(name),)):
                return name in self.flags
            case Call("and" | "or" | "not", args):
                return any(map(self.reads_flag, args))
        return False

    def name(self, expr: Expr) -> str:
        """Return the C++ name of a condition that is uniform over the tensor, and declare it."""
        inner = expr  # the condition of the innermost of nested branches
        while isinstance(inner, Call) and inner.op == "and":
            inner = inner.args[1]
        function = "rare_flag" if is_rare(expr, self.hypers) else "flag"
        text = f"{function}<C>({self.number_printer(expr)})"
        used_names = {*self.used_names} - _only_name(inner)
        for name in map(variable, candidate_names(inner, expr)):
            if is_free(name, used_names) and self.texts.setdefault(name, text) == text:
                return name
        raise AssertionError("candidate_names() is infinite")


def _only_name(expr: Expr) -> set[str]:
    """Return the name of the flag or fresh state that a condition consists of, else an empty set.

    The C++ variable of such a condition may have that name.
    """
    match expr:
        case Ref(name) | Call("fresh", (Ref(name),)):
            return {name}
    return set()
