"""Print algorithms and plans as text, for `optgen show NAME --ir` and golden tests."""

from __future__ import annotations

from collections.abc import Iterator

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Call, Const, Expr, Linear, Program, Ref, Term
from optgen.ir.ops import ATOM, PRECEDENCE
from optgen.ir.plan import Finish, MatrixCall, Phase, Plan, Sweep


def to_text(ir: Algorithm | Plan) -> str:
    """Return the text of an algorithm or plan: one statement a line, versions as `name.version`."""
    if isinstance(ir, Algorithm):
        return "\n".join([_header(ir), *_statement_lines(ir.rule, "  ")]) + "\n"
    lines = [f"plan {ir.algorithm.name}", "scalars", *_statement_lines(ir.scalars, "  ")]
    num_sweeps = 0
    for phase in ir.phases:
        if isinstance(phase, Sweep):
            num_sweeps += 1
        lines += _phase_lines(phase, num_sweeps)
    return "\n".join(lines) + "\n"


def _phase_lines(phase: Phase, number: int) -> Iterator[str]:
    match phase:
        case Sweep(streams, body):
            names = ", ".join(s.name + ("*" if s.stored else "") for s in streams)
            yield f"sweep {number}: {names}"
            yield from _statement_lines(body, "  ")
        case Finish(body):
            yield f"finish {number}"
            yield from _statement_lines(body, "  ")
        case MatrixCall(target, op, args):
            yield f"call {expr_text(target)} = {expr_text(Call(op, args))}"


def _header(algorithm: Algorithm) -> str:
    hypers = [f"{h.name}={h.default!r}" for h in algorithm.hypers]
    keywords = ["*", *hypers] if hypers else []
    if algorithm.is_function:
        return f"function {algorithm.name}({', '.join([*algorithm.lists, *keywords])})"
    inputs = [n for n in (algorithm.param, algorithm.grad, algorithm.step) if n]
    states = [f"{s.symbol}={s.key}" for s in algorithm.states]
    return f"algorithm {algorithm.name}({', '.join([*inputs, '/', *states, *keywords])})"


def _statement_lines(program: Program, indent: str) -> Iterator[str]:
    for stmt in program:
        if isinstance(stmt, Assign):
            yield f"{indent}{expr_text(stmt.target)} = {expr_text(stmt.value)}"
            continue
        yield f"{indent}if {expr_text(stmt.condition)}:"
        yield from _statement_lines(stmt.then, indent + "  ")
        if stmt.orelse:
            yield f"{indent}else:"
            yield from _statement_lines(stmt.orelse, indent + "  ")


def expr_text(expr: Expr) -> str:
    """Return an expression in the syntax of the spec language."""
    return _text(expr)[0]


def _text(expr: Expr) -> tuple[str, int]:
    """Return the text of an expression, and the precedence of its outermost operator."""
    match expr:
        case Const(value):
            return repr(value), ATOM if not _is_negative(value) else PRECEDENCE["neg"]
        case Ref(name, version):
            return (f"{name}.{version}" if version else name), ATOM
        case Linear(terms):
            return "[" + " + ".join(_term_text(t) for t in terms) + "]", ATOM
        case Call("item", (values, Const(index))):
            return f"{expr_text(values)}[{index}]", ATOM
        case Call("neg" | "not" as op, (a,)):
            operator = "-" if op == "neg" else "not "
            return operator + _operand_text(a, PRECEDENCE[op]), PRECEDENCE[op]
        case Call(op, (a, b)) if op in PRECEDENCE:
            level = PRECEDENCE[op]
            left, right = (level + 1, level) if op == "**" else (level, level + 1)
            return f"{_operand_text(a, left)} {op} {_operand_text(b, right)}", level
        case Call(op, args):
            return f"{op}({', '.join(expr_text(a) for a in args)})", ATOM


def _is_negative(value: object) -> bool:
    return isinstance(value, int | float) and value < 0


def _operand_text(expr: Expr, level: int) -> str:
    """Return the text of an operand, in parentheses if its precedence is below a level."""
    text, precedence = _text(expr)
    return text if precedence >= level else f"({text})"


def _term_text(term: Term) -> str:
    parts = [_operand_text(term.coefficient, PRECEDENCE["*"] + 1)]
    parts += [_operand_text(f, PRECEDENCE["*"] + 1) for f in term.factors]
    text = " * ".join(parts)
    return text + "".join(f" / {_operand_text(d, ATOM)}" for d in term.divisors)
