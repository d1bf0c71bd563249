"""Print the calls of matrix ops, on one tensor or on lists of tensors."""

from __future__ import annotations

from collections.abc import Iterator

from optgen.ir.generated_names import plural
from optgen.ir.nodes import Call, Linear, Ref, Term, expressions
from optgen.ir.plan import MatrixCall, Plan, reads
from optgen.lowerings.python.expression_printer import PythonPrinter
from optgen.lowerings.python.literals import comment
from optgen.lowerings.python.phase_syntax import PhaseSyntax

_PRINTER = PythonPrinter({}, {})


def matrix_call(call: Call) -> str:
    """Return the text of a matrix op on one tensor. The runtime's functions take lists."""
    first, *rest = (_PRINTER.text(arg) for arg in call.args)
    return f"{call.op}({', '.join([f'[{first}]', *rest])})[0]"


def matrix_call_lines(
    plan: Plan, call: MatrixCall, syntax: PhaseSyntax, sample_param: str
) -> Iterator[str]:
    """Yield the lines that call a matrix op between two sweeps.

    `sample_param` is the text of a parameter, whose dtype the result gets.
    """
    yield from map(comment, call.quote)
    target, (first, *rest) = call.target.name, (_PRINTER.text(arg) for arg in call.args)
    if syntax.over_ranks:
        yield f"whole = yield collectives.gather({plural(first)})"
        result = f"{call.op}({', '.join(['whole', *rest])})"
        yield f"{plural(target)} = yield collectives.scatter({result})"
    elif syntax.in_lists:
        yield f"{plural(target)} = {call.op}({', '.join([plural(first), *rest])})"
    else:
        yield f"{target} = {matrix_call(Call(call.op, call.args))}"
    if not _is_only_added(plan, call.target):  # some ops need equal dtypes
        cast = f"{target}.to({sample_param}.dtype)"
        text = f"[{cast} for {target} in {plural(target)}]" if syntax.in_lists else cast
        yield f"{syntax.listed(target)} = {text}"


def _is_only_added(plan: Plan, target: Ref) -> bool:
    """Tell whether a tensor is only scaled and added to other tensors."""
    for value in (e for sweep in plan.sweeps for e in expressions(sweep.body)):
        terms = value.terms if isinstance(value, Linear) else ()
        times_added = sum(term == Term(term.coefficient, (target,)) for term in terms)
        is_first = bool(terms) and terms[0].factors == (target,)
        if is_first or sum(ref == target for ref in reads(value)) > times_added:
            return False
    return True
