"""Print the body of a sweep: loads, statements below the spec's lines, stores."""

from __future__ import annotations

from collections.abc import Container, Sequence

from optgen.contract.states import QUANTIZED
from optgen.ir.generated_names import plural
from optgen.ir.nodes import Assign, Call, Expr, If, Program, assigns, refs
from optgen.ir.plan import Stream, is_reduction
from optgen.lowerings.fused_triton.expression_printer import ExpressionPrinter, constant, variable
from optgen.lowerings.fused_triton.packed_scalars import PackedScalars
from optgen.lowerings.python.literals import comment

_INDENT = "    "
REDUCTIONS = {
    "sum": "total({}, mask)",
    "max_abs": "largest({}, mask)",
    "row_sum": "row_total({}, mask)",
    "col_sum": "column_total({}, mask)",
    "row_max_abs": "row_largest({}, mask)",
    "col_max_abs": "column_largest({}, mask)",
}
"""Triton calls that reduce a tile's valid elements, in float64."""


def print_loads(
    streams: Sequence[Stream], body: Program, packed: PackedScalars, may_hold_codes: bool = False
) -> list[str]:
    """Return the lines that load a tile's streams, for a body that reads them.

    With `may_hold_codes`, a stream may hold codes of 8 bits. Each tile of such a sweep has whole
    blocks of a flat tensor.
    """
    lines: list[str] = []
    read_if_absent = _read_if_absent(body, packed, streams, frozenset())
    for stream in streams:
        name, pointers = variable(stream.name), variable(plural(stream.name))
        value = f"tl.load({pointers} + lanes, mask)"
        if may_hold_codes and (codes := code_format(stream)):
            value = f"load_coded({pointers}, {scales_pointer(stream)}, lanes, mask, {codes})"
        lines += _if_present(stream, f"{name} = {value}.to(dtype)")
        if stream.name in read_if_absent:
            zeros = f"{name} = (lanes * 0).to(dtype)  # the branch that reads it is not taken"
            lines += ["else:", _INDENT + zeros]
    return lines


def _read_if_absent(
    body: Program, packed: PackedScalars, streams: Sequence[Stream], known: frozenset[str]
) -> set[str]:
    """Return the names of streams that a body reads where they may not exist.

    Triton compiles a branch whose condition it does not know, even if the branch is never taken.
    `known` has the conditions that Triton knows there.
    """
    absent = {s.name for s in streams if s.when and presence_condition(s) not in known}
    found: set[str] = set()
    for stmt in body:
        if isinstance(stmt, Assign):
            found |= absent & {ref.name for ref in refs(stmt.value)}
            continue
        condition = packed.branch_condition(stmt.condition)
        opposite = condition.removeprefix("not ")
        opposite = opposite if opposite != condition else f"not {condition}"
        for arm, arm_condition in ((stmt.then, condition), (stmt.orelse, opposite)):
            found |= _read_if_absent(arm, packed, streams, known | {arm_condition})
    return found


def scales_pointer(stream: Stream) -> str:
    """Return the name of the pointer to a quantized stream's scales."""
    return f"{stream.name}_scales"


def codes_context(stream: Stream, may_hold_codes: bool = True) -> dict[str, str]:
    """Return the name of a stream's scales and its block size; "" for both if it has no codes."""
    codes = code_format(stream) if may_hold_codes else ""
    return {"scales": scales_pointer(stream) if codes else "", "block": codes.partition(",")[0]}


def code_format(stream: Stream) -> str:
    """Return a stream's block size and whether its map is linear, as arguments in Triton.

    Return "" if the stream never holds codes.
    """
    state = stream.state
    if state is None or state.dtype != QUANTIZED:
        return ""
    return f"{state.block}, {state.map == 'linear'}"


def print_numbers(
    packed: PackedScalars, body: Program, suffix: str = "", known_names: Container[str] = ()
) -> list[str]:
    """Return the lines that load the packed scalars of a body, except the `known_names`.

    `suffix` is appended to each load, for example a conversion to another dtype.
    """
    return [
        f"{name} = tl.load({plus_offset('scalars', number)}){suffix}"
        for name, number in packed.offsets(body).items()
        if name not in known_names
    ]


def plus_offset(pointer: str, number: int) -> str:
    """Return the text of a pointer plus an offset."""
    return f"{pointer} + {number}" if number else pointer


def print_stores(streams: Sequence[Stream], may_hold_codes: bool = False) -> list[str]:
    """Return the lines that store the streams that a sweep changes, each in its own dtype.

    `may_hold_codes` has the same meaning as in `print_loads`.
    """
    lines: list[str] = []
    for stream in streams:
        if stream.stored:
            name = variable(stream.name)
            pointers = variable(plural(stream.name))
            value = f"{name}.to({pointers}.dtype.element_ty)"
            line = f"tl.store({pointers} + lanes, {value}, mask)"
            if may_hold_codes and (codes := code_format(stream)):
                arguments = f"{pointers}, {scales_pointer(stream)}, {name}, lanes, mask, {codes}"
                line = f"store_coded({arguments})"
            lines += _if_present(stream, line)
    return lines


def presence_condition(stream: Stream) -> str:
    """Return the constexpr condition under which a stream exists; "" if it always exists."""
    when = stream.when
    if when is None:
        return ""
    flag = constant(when.removeprefix("not "))
    return f"not {flag}" if when.startswith("not ") else flag


def flags_of(streams: Sequence[Stream]) -> dict[str, str]:
    """Return every constexpr flag, with the launch expression of its value."""
    flags = {}
    for stream in streams:
        condition = presence_condition(stream)
        if stream.state and condition:
            negated = "not " if condition.startswith("not ") else ""
            flags[condition.removeprefix("not ")] = f'{negated}bucket.has("{stream.state.key}")'
    return flags


def _if_present(stream: Stream, line: str) -> list[str]:
    condition = presence_condition(stream)
    return [f"if {condition}:", _INDENT + line] if condition else [line]


def print_sweep(body: Program, packed: PackedScalars) -> list[str]:
    """Return the lines that compute one tile."""
    printer = ExpressionPrinter(
        lambda expr: None, for_elements=True, read_condition=packed.packed_name
    )
    lines: list[str] = []
    for stmt in body:
        if isinstance(stmt, Assign):
            lines += map(comment, stmt.quote)
            lines.append(f"{variable(stmt.target.name)} = {_value(stmt.value, printer)}")
        else:
            lines += _branch(stmt, packed, "if")
    return lines


def print_zeros(body: Program) -> list[str]:
    """Return the lines that initialize the sums that a branch may leave unassigned."""
    branches = [stmt for stmt in body if isinstance(stmt, If)]
    sums = {a.target.name: a.value for a in assigns(tuple(branches)) if is_reduction(a.value)}
    return [
        f"{variable(name)} = {REDUCTIONS[value.op].format('lanes * 0')}"
        for name, value in sums.items()
        if isinstance(value, Call)
    ]


def _value(value: Expr, printer: ExpressionPrinter) -> str:
    if is_reduction(value) and isinstance(value, Call):
        return REDUCTIONS[value.op].format(printer.argument(value.args[0]))
    return printer(value)


def _branch(stmt: If, packed: PackedScalars, keyword: str) -> list[str]:
    lines = [f"{keyword} {packed.branch_condition(stmt.condition)}:"]
    lines += [_INDENT + line for line in print_sweep(stmt.then, packed) or ["pass"]]
    match stmt.orelse:
        case ():
            return lines
        case (If() as other,):
            return lines + _branch(other, packed, "elif")
    return [*lines, "else:", *(_INDENT + line for line in print_sweep(stmt.orelse, packed))]
