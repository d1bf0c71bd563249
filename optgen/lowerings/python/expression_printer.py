"""Print scalar expressions and statements as Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from optgen.ir.nodes import Assign, Call, Const, Expr, If, Linear, Program, Ref, Term
from optgen.ir.ops import ATOM, PRECEDENCE
from optgen.lowerings.python.literals import comment, exact_literal
from optgen.passes.linear import is_number, split_sign

_PROPERTIES = {
    "ndim": "{0}.dim()",
    "numel": "{0}.numel()",
    "rows": "rows({0})",
    "cols": "cols({0})",
    "machine_eps": "torch.finfo({0}.dtype).eps",
}
_COMPARISON = PRECEDENCE["<"]


@dataclass(frozen=True)
class PythonPrinter:
    """Printer of expressions. `names` replaces variables, `functions` replaces function names."""

    names: Mapping[str, str]
    functions: Mapping[str, str]

    def text(self, expr: Expr) -> str:
        """Return an expression as Python."""
        return self._text(expr)[0]

    def _text(self, expr: Expr) -> tuple[str, int]:
        """Return an expression as Python, and its precedence."""
        match expr:
            case Const(value):
                text = exact_literal(value)
                return text, PRECEDENCE["neg"] if text.startswith("-") else ATOM
            case Ref(name):
                return self.names.get(name, name), ATOM
            case Call("truth", (a,)):
                return self._text(a)
            case Call("is_none", (a,)):
                return f"{self._operand(a, _COMPARISON + 1)} is None", _COMPARISON
            case Call("not", (Call("is_none", (a,)),)):
                return f"{self._operand(a, _COMPARISON + 1)} is not None", _COMPARISON
            case Call("fresh", (Ref(name),)):
                return f"fresh_{name}", ATOM
            case Call("copy", (a,)):
                return f"{self._operand(a, ATOM)}.clone()", ATOM
            case Call(word, (a,)) if word in _PROPERTIES:
                return _PROPERTIES[word].format(self._operand(a, ATOM)), ATOM
            case Call("item", (values, Const(index))):
                return f"{self.text(values)}[{index}]", ATOM
            case Call("neg" | "not" as word, (a,)):
                sign = "-" if word == "neg" else "not "
                return sign + self._operand(a, PRECEDENCE[word]), PRECEDENCE[word]
            case Call(word, (a, b)) if word in PRECEDENCE:
                precedence = PRECEDENCE[word]
                is_right_associative = word == "**"
                left = self._operand(a, precedence + is_right_associative)
                right_precedence = precedence + (not is_right_associative)
                if word == "%":  # a % b * c would mean (a % b) * c
                    right_precedence = PRECEDENCE["*"] + 1
                return f"{left} {word} {self._operand(b, right_precedence)}", precedence
            case Call(word, args):
                arguments = ", ".join(self.text(a) for a in args)
                return f"{self.functions.get(word, word)}({arguments})", ATOM
            case Linear():
                return self._linear(expr)

    def _operand(self, expr: Expr, min_precedence: int) -> str:
        """Return an expression's text, in parentheses if its precedence is too low."""
        text, precedence = self._text(expr)
        return text if precedence >= min_precedence else f"({text})"

    def _linear(self, form: Linear) -> tuple[str, int]:
        """Return a sum of terms as Python, with minus signs between terms, and its precedence."""
        text, precedence = "", 0
        for term in form.terms:
            is_negative, unsigned, precedence = self._term(term)
            if not text:
                text = f"-{unsigned}" if is_negative else unsigned
            else:
                text += f" - {unsigned}" if is_negative else f" + {unsigned}"
        if len(form.terms) > 1:
            return text, PRECEDENCE["+"]
        return text, min(precedence, PRECEDENCE["neg"]) if text.startswith("-") else precedence

    def _term(self, term: Term) -> tuple[bool, str, int]:
        """Return whether a term is negative, its text without the sign, and the precedence."""
        is_negative, coefficient = split_sign(term.coefficient)
        factors: list[Expr] = [] if is_number(coefficient, 1) and term.factors else [coefficient]
        product: Expr
        product, *rest = [*factors, *term.factors]
        for factor in rest:
            product = Call("*", (product, factor))
        for divisor in term.divisors:
            product = Call("/", (product, divisor))
        text, precedence = self._text(product)
        return is_negative, (f"({text})" if precedence < PRECEDENCE["*"] else text), precedence


AssignmentPrinter = Callable[[Assign], str]


def statements(
    program: Program, printer: PythonPrinter, print_assignment: AssignmentPrinter, indent: str = ""
) -> list[str]:
    """Return a program as Python lines, each assignment below the spec's line as a comment.

    `print_assignment` prints an assignment as one or more lines. A comment equal to the first line
    is left out.
    """

    def print_arm(arm: Program, arm_indent: str) -> list[str]:
        return statements(arm, printer, print_assignment, arm_indent)

    lines: list[str] = []
    last_quote: tuple[str, ...] = ()
    for stmt in program:
        if isinstance(stmt, Assign):
            printed_lines = print_assignment(stmt).split("\n")
            if stmt.quote != last_quote:
                lines += [indent + comment(q) for q in stmt.quote if q != printed_lines[0]]
            last_quote = stmt.quote
            lines += [indent + text for text in printed_lines]
            continue
        lines += branch(stmt, printer, print_arm, indent)
        last_quote = ()
    return lines


def branch(
    stmt: If, printer: PythonPrinter, print_arm: Callable[[Program, str], list[str]], indent: str
) -> list[str]:
    """Return an `if` with its arms. If the first arm is empty, the condition is negated."""
    arm_indent = indent + "    "
    condition, then, orelse = stmt.condition, stmt.then, stmt.orelse
    if not then:
        condition, then, orelse = Call("not", (condition,)), orelse, ()
    lines = [f"{indent}if {printer.text(condition)}:", *print_arm(then, arm_indent)]
    if len(orelse) == 1 and isinstance(orelse[0], If) and orelse[0].then:
        first, *rest = branch(orelse[0], printer, print_arm, indent)
        return [*lines, f"{indent}el{first.removeprefix(indent)}", *rest]
    if orelse:
        lines += [f"{indent}else:", *print_arm(orelse, arm_indent)]
    return lines
