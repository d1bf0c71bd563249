"""Print C++: expressions of numbers and elements, statements, and lines of at most 100 characters.

Numbers are printed in double, elements in the compute type C. All versions of a name share one
variable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Linear,
    Program,
    Ref,
    Term,
    always_assigned,
    assigns,
    names_read,
    only_factor,
)
from optgen.ir.ops import OPS, SHADOWABLE_FUNCTIONS
from optgen.ir.reserved_in_python import escaped, upper_case_name
from optgen.lowerings.python.literals import Quote, not_shown, one_line, shown_after
from optgen.passes.linear_forms import is_number, split_sign

_INFIX = {  # op -> precedence, C++ operator
    "==": (3, "=="),
    "!=": (3, "!="),
    "<": (4, "<"),
    "<=": (4, "<="),
    ">": (4, ">"),
    ">=": (4, ">="),
    "+": (5, "+"),
    "-": (5, "-"),
    "*": (6, "*"),
    "/": (6, "/"),
}
_SELECT, _LOGIC, COMPARISON, _SUM, _PRODUCT, _PREFIX, ATOM = 0, 1, 3, 5, 6, 7, 9
"""Precedences of texts, on the scale of `_INFIX`."""

_NOT_FINITE = {
    "inf": "__builtin_inf()",
    "-inf": "-__builtin_inf()",
    "nan": '__builtin_nan("")',
}

CALLS: Mapping[str, str] = {
    "%": "mod({0}, {1})",
    "sqrt": "sqrt({0})",
    "exp": "exp({0})",
    "log": "log({0})",
    "tanh": "tanh({0})",
    "sin": "sin({0})",
    "cos": "cos({0})",
    "atan2": "atan2({0}, {1})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "round": "round({0})",
    "rounded": "rounded_to({0}, {1})",
    "rounded_down": "rounded_down_to({0}, {1})",
    "rounded_up": "rounded_up_to({0}, {1})",
    "rounded_at_random": "rounded_at_random_to({0}, {1}, {2})",
    "abs": "abs({0})",
    "sign": "sign({0})",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "clamp": "clamp({0}, {1}, {2})",
    "lerp": "lerp({0}, {1}, {2})",
    "truth": "truth({0})",
    "is_none": "is_none({0})",
    "copy": "{0}",  # registers are never overwritten
}
"""Ops that are calls of functions in the headers. The text of `copy` is its operand."""

_KEYWORDS = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const "
    "constexpr const_cast continue decltype default delete do double dynamic_cast else enum "
    "explicit export extern false float for friend goto if inline int long mutable namespace new "
    "noexcept not not_eq nullptr operator or or_eq private protected public register "
    "reinterpret_cast return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename union unsigned using "
    "virtual void volatile wchar_t while xor xor_eq"
)
_GENERATED_NAMES = (
    "add_to ahead applies at AXES begin broadcast C CACHE_LINE CELLS cells CODES cols COLUMN "
    "COLUMN_REDUCTIONS ComputeScalar ComputeType delayed DelayedStore draw end EXACT_COLUMNS "
    "EXACT_MATRICES EXACT_ROWS EXPANDED first flag fresh_bits HAS_AXES HAS_STEP has_step Hypers "
    "hypers i i64 INLINE inputs lane_sum LANES load load_as LOOP LoopInputs MATRIX "
    "MATRIX_REDUCTIONS mod n named NOINLINE NONE NUMBERS Numbers numbers optgen Pass PASS_COUNTS "
    "PASSES pitch Pointer pow Power prefetch prefetch_distance prefetch_strip program "
    "random_bits16 random_numbers random_numbers16 RandomKey RandomKey16 rare_flag READ_ONLY "
    "READS_SIZES rounded rounded_at_random_to rounded_down_to rounded_to rounded_up_to "
    "RoundedStore ROW row ROW_REDUCTIONS rows run run_axes run_numbers S Scalar Scalars scalars "
    "SCATTER_ADDS set SIMPLE_POWERS Sizes sizes SPLIT Step STEP_COUNT STEPS store store_as "
    "store_rounded STORED_NUMBERS STORES_CELLS Stream STREAMS streams strip SUM sums sweep TENSOR "
    "truth update VALUES VECTOR_BYTES where WHOLE_COLUMNS WHOLE_MATRICES WHOLE_ROWS"
)
RESERVED = frozenset(f"{_KEYWORDS} {_GENERATED_NAMES}".split()) | {
    word
    for word, text in CALLS.items()
    if text.startswith(word) and word not in SHADOWABLE_FUNCTIONS
}
"""Names that a spec may use, but that C++ or the generated code already uses."""


_FOR_COMPILERS = re.compile("(spec)*(_|TARGET_OS_)")
"""The beginnings of names that compilers take for macros and keywords, such as _GNU_SOURCE.

In strict C++17 all of them begin with an underscore, except the platforms of Apple's clang.
"""


def variable(name: str) -> str:
    """Return the C++ variable of a name; all versions of a name share it.

    A name that a compiler may take gets `spec` in front. So `_LP64` becomes `spec_LP64`, and
    `spec_LP64` becomes `specspec_LP64`: names that differ stay different.
    """
    return f"spec{name}" if _FOR_COMPILERS.match(name) else escaped(name, RESERVED)


def constant(name: str) -> str:
    """Return the C++ constant or template parameter of a stream, a cell or a flag."""
    return variable(upper_case_name(name))


_WITHOUT_FUNCTION = (-2, -1, -0.5, 0.5, 2, 3, 4)
"""The exponents whose powers of elements are products, roots, or one over them."""


def has_function(power: Call) -> bool:
    """Tell whether a power of elements is printed as a call of pow."""
    exponent = power.args[1]
    return not (isinstance(exponent, Const) and exponent.value in _WITHOUT_FUNCTION)


@dataclass(frozen=True)
class ExpressionPrinter:
    """Printer of expressions.

    With `for_elements` it prints elements in the compute type C, else numbers in double.
    `read` returns the text of an expression that the surrounding code provides, or None.
    `read_condition` returns the text of a condition that has a name, with its precedence, or None.
    """

    for_elements: bool
    read: Callable[[Expr], str | None] = lambda expr: None
    read_condition: Callable[[Expr], tuple[str, int] | None] = lambda expr: None

    def __call__(self, expr: Expr, min_precedence: int = 0) -> str:
        """Return an expression's text, in parentheses if its precedence is too low."""
        text, precedence = self._text_and_precedence(expr)
        return f"({text})" if precedence < min_precedence else text

    def _truth(self, expr: Expr, min_precedence: int = 0) -> str:
        """Return a condition's text: its name if it has one."""
        text, precedence = self.read_condition(expr) or self._text_and_precedence(expr)
        return f"({text})" if precedence < min_precedence else text

    def _text_and_precedence(self, expr: Expr) -> tuple[str, int]:
        """Return an expression's text without parentheses, and its precedence."""
        provided = self.read(expr)
        if provided is not None:
            return provided, ATOM
        match expr:
            case Const():
                text = self._constant(expr)
                return text, _PREFIX if text.startswith("-") else ATOM
            case Ref(name):
                return variable(name), ATOM
            case Linear(terms):
                return self._sum(terms)
            case Call("neg", (a,)):
                return _negated(self(a, _PREFIX)), _PREFIX
            case Call("not", (a,)):
                return f"!{self._truth(a, _PREFIX)}", _PREFIX
            case Call("where", (condition, a, b)):
                return self._where(condition, a, b)
            case Call("**", (a, b)):
                return self._power(a, b)
            case Call("and" | "or" as word, (a, b)):
                # Elements get & and |, which evaluate both sides, and so work for vectors, too.
                # Operands get parentheses, because compilers warn without them.
                signs = {"and": "&", "or": "|"} if self.for_elements else {"and": "&&", "or": "||"}
                left, right = self._truth(a, _PREFIX), self._truth(b, _PREFIX)
                return f"{left} {signs[word]} {right}", _LOGIC
            case Call(word, (a, b)) if word in _INFIX:
                precedence, sign = _INFIX[word]
                left, right = self(a, precedence), self(b, precedence + 1)
                if word == "/" and _is_int_literal(a) and _is_int_literal(b):
                    right += ".0"  # avoids integer division
                return f"{left} {sign} {right}", precedence
            case Call("item", (values, index)):
                return f"{self(values)}[{self(index)}]", ATOM
            case Call(word, args) if word in CALLS:
                return CALLS[word].format(*map(self._argument, args)), ATOM
        raise TypeError(f"cannot print as C++: {expr!r}")

    def _where(self, condition: Expr, a: Expr, b: Expr) -> tuple[str, int]:
        """Return the text of a `where`, and its precedence."""
        if self.for_elements:
            return f"where<C>({self._truth(condition)}, {self(a)}, {self(b)})", ATOM
        alternative = self._argument(b) if _is_int_literal(a) and _is_int_literal(b) else self(b, 1)
        return f"{self(condition, 1)} ? {self(a, 1)} : {alternative}", _SELECT

    def _argument(self, expr: Expr) -> str:
        """Return an argument's text. Functions need arguments of one type, so integers are cast."""
        if _is_int_literal(expr):
            return f"C({self(expr)})" if self.for_elements else f"{self(expr)}.0"
        return self(expr)

    def _constant(self, constant: Const) -> str:
        value = constant.value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float):
            text = _NOT_FINITE.get(repr(value), repr(value))
            return f"C({text})" if self.for_elements else text
        raise TypeError(f"not a number or a bool: {value!r}")

    def _power(self, a: Expr, b: Expr) -> tuple[str, int]:
        """Return the text of a power, and its precedence."""
        match b:
            case Const(2 | 3 | 4 as n):
                return " * ".join([self(a, _PREFIX)] * int(n)), _PRODUCT
            case Const(-1) if self.for_elements:  # as torch does, and so the others
                return f"1 / {self(a, _PREFIX)}", _PRODUCT
            case Const(-2) if self.for_elements:
                return f"1 / ({self(a, _PREFIX)} * {self(a, _PREFIX)})", _PRODUCT
            case Const(0.5):  # pow differs for -0.0 and -inf
                return f"sqrt({self._argument(a)})", ATOM
            case Const(-0.5):
                return f"1 / sqrt({self._argument(a)})", _PRODUCT
        return f"pow({self._argument(a)}, {self._argument(b)})", ATOM

    def _sum(self, terms: tuple[Term, ...]) -> tuple[str, int]:
        """Return the text of a sum of terms, and its precedence."""
        match terms:
            case (Term(Const(1), (factor,), ()),):
                return self._text_and_precedence(factor)
        text = ""
        for term in terms:
            is_negative, unsigned = self._term(term)
            sign = " - " if is_negative else " + "
            first = _negated(unsigned) if is_negative else unsigned
            text = f"{text}{sign}{unsigned}" if text else first
        if len(terms) > 1:
            return text, _SUM
        return text, ATOM if text.isidentifier() else _PRODUCT

    def _term(self, term: Term) -> tuple[bool, str]:
        """Return whether a term is negative, and its unsigned text."""
        is_negative, coefficient = split_sign(term.coefficient)
        factors = list(term.factors)
        if not is_number(coefficient, 1) or not factors:
            factors = [coefficient, *factors]
        first, *others = factors
        text = " * ".join([self(first, _PRODUCT), *(self(f, _PREFIX) for f in others)])
        if term.divisors:
            divisor = " * ".join(self(d, _PREFIX) for d in term.divisors)
            text += f" / ({divisor})" if len(term.divisors) > 1 else f" / {divisor}"
        return is_negative, text


def _negated(text: str) -> str:
    """Return the text of -x for the text of x, with parentheses to avoid a decrement `--`."""
    return f"-({text})" if text.startswith("-") else f"-{text}"


def _is_int_literal(expr: Expr) -> bool:
    return isinstance(expr, Const) and type(expr.value) is int


INDENT = "    "
WIDTH = 100


@dataclass
class Statements:
    """Printer of the statements of one function, each below the line of the spec it comes from.

    `print_value` prints the right-hand side of an assignment. `print_if` prints an `if` with its
    condition. A name that is not yet declared gets a declaration in the innermost block that
    contains all statements that read it.
    """

    type: str
    print_value: Callable[[Assign], str]
    print_if: Callable[[Expr], str]
    program: Program
    declared_names: frozenset[str]
    read_later: frozenset[str] = frozenset()  # names that are read after the program
    masks: frozenset[str] = frozenset()  # truth values per element, assigned once

    def lines(self, column: int) -> list[str]:
        """Return the lines of the whole program, to be indented to `column`."""
        return self._block(self.program, set(self.declared_names), self.read_later, column)

    def _block(
        self, program: Program, declared: set[str], read_later: frozenset[str], column: int
    ) -> list[str]:
        lines: list[str] = []
        assignment_counts = Counter(a.target.name for a in assigns(program))
        shown: Quote = ()
        for position, stmt in enumerate(program):
            later = read_later | names_read(program[position + 1 :])
            if isinstance(stmt, If):
                for name in _assigned_names(stmt):
                    if name in later and name not in declared:
                        declared.add(name)
                        value = "" if name in always_assigned((stmt,)) else " = 0"
                        lines.append(f"{self.type} {variable(name)}{value};")
                lines += self._if(stmt, declared, later, column)
                shown = ()
            else:
                lines += map(comment, not_shown(stmt.quote, shown))
                shown = shown_after(stmt.quote, shown)
                name = stmt.target.name
                declaration = (
                    "" if name in declared else self._declaration(name, assignment_counts[name])
                )
                lines += wrapped_statement(
                    f"{declaration}{variable(name)} = {self.print_value(stmt)};", column
                )
                declared.add(name)
        return lines

    def _declaration(self, name: str, assignment_count: int) -> str:
        if assignment_count > 1:
            return f"{self.type} "
        return f"const {'auto' if name in self.masks else self.type} "

    def _if(self, stmt: If, declared: set[str], later: frozenset[str], column: int) -> list[str]:
        lines = [f"{self.print_if(stmt.condition)} {{"]
        lines += indented(self._block(stmt.then, set(declared), later, column + 4))
        match stmt.orelse:
            case ():
                return [*lines, "}"]
            case (If() as other,):
                first, *rest = self._if(other, declared, later, column)
                return [*lines, f"}} else {first}", *rest]
        arm = indented(self._block(stmt.orelse, set(declared), later, column + 4))
        return [*lines, "} else {", *arm, "}"]


def masks(program: Program) -> frozenset[str]:
    """Return the names that are assigned once, to a truth value per element."""
    counts = Counter(a.target.name for a in assigns(program))
    truths = (a.target.name for a in assigns(program) if _is_truth(a.value))
    return frozenset(name for name in truths if counts[name] == 1)


def _is_truth(value: Expr) -> bool:
    value = only_factor(value)
    return isinstance(value, Call) and OPS[value.op].category in ("comparison", "logic")


def _assigned_names(stmt: If) -> list[str]:
    return list(dict.fromkeys(a.target.name for a in assigns((stmt,))))


def comment(text: str) -> str:
    """Return a line of the spec as a comment, without a trailing backslash or its trigraph.

    A backslash at the end would continue the comment on the next line. Old standards read two
    question marks and a slash as a backslash.
    """
    return re.sub(r"(\\|\?\?/|\s)+\Z", "", f"// {one_line(text)}")


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    """Return lines indented by `depth` levels."""
    return [f"{INDENT * depth}{line}" if line else line for line in lines]


def indented_blocks(blocks: Mapping[str, tuple[int, Iterable[str]]]) -> dict[str, str]:
    """Return blocks of lines as texts. Each block comes with its indentation depth."""
    return {name: "\n".join(indented(lines, depth)) for name, (depth, lines) in blocks.items()}


def wrapped_list(before: str, items: Iterable[str], after: str, column: int) -> list[str]:
    """Return `before item, item, ... after` on one line if it fits, else wrapped."""
    items = list(items)
    line = f"{before}{', '.join(items)}{after}"
    if column + len(line) <= WIDTH:
        return [line]
    lines, current = [before.rstrip()], INDENT
    for position, item in enumerate(items):
        text = item + ("," if position + 1 < len(items) else after)
        if current.strip() and column + len(current) + 1 + len(text) > WIDTH:
            lines.append(current.rstrip())
            current = INDENT
        current += text if current == INDENT else f" {text}"
    return [*lines, current]


def declarations(type: str, items: Iterable[str], column: int) -> list[str]:
    """Return declarations `type item, item, ...;` on as few lines as fit at a column."""
    lines: list[str] = []
    for item in items:
        if lines and column + len(lines[-1]) + len(item) + 2 < WIDTH:
            lines[-1] += f", {item}"
        else:
            lines.append(f"{type} {item}")
    return [f"{line};" for line in lines]


def wrapped_statement(line: str, column: int) -> list[str]:
    """Return a statement on one line if it fits at a column, else broken before operators."""
    if column + len(line) <= WIDTH:
        return [line]
    operators = [
        (depth, position) for depth, position in _operators(line) if column + position <= WIDTH
    ]
    if not operators:
        return [line]
    shallowest = min(depth for depth, _ in operators)
    end = max(position for depth, position in operators if depth == shallowest)
    rest = wrapped_statement(INDENT + line[end:].lstrip(), column)
    return [line[:end].rstrip(), *rest]


def _operators(line: str) -> list[tuple[int, int]]:
    """Return the depth and the position of each binary operator.

    A level of brackets adds 2 to the depth. A product or quotient is deeper by 1, so that sums are
    broken first.
    """
    operators = []
    for match in re.finditer(r"(?<=\S )(\+|-|\*|/|\?|:|&&?|\|\|?) ", line):
        before = line[: match.start()]
        open_brackets = sum(before.count(c) for c in "([{") - sum(before.count(c) for c in ")]}")
        operators.append((2 * open_brackets + (match[1] in "*/"), match.start()))
    return operators
