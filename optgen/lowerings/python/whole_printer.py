"""Print a rule on whole matrices as Python, statement by statement.

The rule computes new tensors, for one parameter at a time or for a list of parameters of one shape.
Its last lines write them into the parameters and states. For a list, every operation is one call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import is_wide
from optgen.ir.generated_names import plural
from optgen.ir.kinds import Axes
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    Program,
    Ref,
    map_expressions,
    map_values,
    names_read,
    rebuild,
    refs,
)
from optgen.ir.ops import PROPERTIES, RANDOM_OPS
from optgen.ir.plan import Plan, Stream
from optgen.lowerings.python.aliasing import tensors_to_copy
from optgen.lowerings.python.expression_printer import PythonPrinter, statements
from optgen.lowerings.python.function import Body, guarded_lines, indented
from optgen.lowerings.python.permutations import permute_by_index
from optgen.lowerings.python.random_calls import defaults_before_draws
from optgen.lowerings.python.signature import list_names
from optgen.passes.convert_branches import use_tensor_logic
from optgen.passes.name_values import draws_of

_PRINTER = PythonPrinter({}, {"sum": "total", "orthogonalize": "newton_schulz"})


@dataclass(frozen=True)
class WholeSyntax:
    """Syntax of the loop over tensors or lists.

    `loop` is its first line, and `opening` the lines after it; `{0}` stands for the names of all
    lists. `tensor` reads a tensor or list of the bucket, and `write` stores a value in it; `{0}`
    stands for its name, and `{1}` for the name of its list. `param` is the parameter whose
    properties are read. `draw` draws random numbers: `{0}` stands for their name, `{1}` for the
    function, and `{2}` for its other arguments. For a list, `count` is the number of parameters,
    because a reduction over several parameters takes one number from each of them, even if the
    numbers are equal.
    """

    loop: str
    opening: tuple[str, ...]
    tensor: str
    write: str
    param: str
    draw: str
    count: str = ""


ONE_TENSOR = WholeSyntax(
    loop="for index in range(len(params)):",
    opening=(),
    tensor="{1}[index]",
    write="{1}[index].copy_({0})",
    param="params[index]",
    draw="({0},) = {1}([params[index]], {2})",
)
TENSOR_LISTS = WholeSyntax(
    loop="for sublist in same_shape_sublists({0}):",
    opening=("{0} = sublist",),
    tensor="{1}",
    write="write_back({1}, {0})",
    param="params[0]",
    draw="{0} = TensorList({1}(params, {2}))",
    count="len(params)",
)


def whole_body(plan: Plan, syntax: WholeSyntax) -> Body:
    """Return the loop over a bucket, whose tensors have one shape."""
    program = _with_tensor_logic(plan)
    lists = ", ".join(_lists(plan.algorithm))
    opening = [line.format(lists) for line in syntax.opening]
    stored = [stream.name for stream in streams(plan) if stream.stored]
    lines = [
        *opening,
        *read_lines(plan, program, syntax, tensors_to_copy(program, stored)),
        *whole_statements(plan, program, syntax),
        *write_lines(plan, syntax),
    ]
    body = indented(lines, syntax.loop.format(lists))
    defaults = defaults_before_draws(plan, draws_of(program))
    return Body(body, frozenset(names_read(program)), defaults)


def streams(plan: Plan) -> tuple[Stream, ...]:
    """Return the streams of a plan's only sweep, then the other states on the device."""
    others = (s for s in plan.algorithm.device_states() if s.shape != "like")
    return (*plan.sweeps[0].streams, *(Stream(s.symbol, "state", s.written, s) for s in others))


def read_lines(
    plan: Plan, program: Program, syntax: WholeSyntax, names_to_copy: Collection[str]
) -> Iterator[str]:
    """Yield the lines that read the tensors that a program reads or the rule stores.

    The tensors in `names_to_copy` are copied when they are read.
    """
    read, like = names_read(program), _filled_in(syntax.tensor, plan.algorithm.param)
    for stream in streams(plan):
        if stream.stored or stream.name in read:
            tensor = _filled_in(syntax.tensor, stream.name)
            if stream.state is not None and stream.state.on_device:
                yield from guarded_lines(stream, f"{stream.name} = number_in_float64({tensor})")
                continue
            function = (
                "copy_in_compute_dtype" if stream.name in names_to_copy else "in_compute_dtype"
            )
            yield from guarded_lines(stream, f"{stream.name} = {function}({tensor}, like={like})")


def write_lines(plan: Plan, syntax: WholeSyntax) -> Iterator[str]:
    """Yield the lines that write the values of parameter and states back."""
    for stream in streams(plan):
        if stream.stored:
            is_number = stream.state is not None and stream.state.on_device
            text = f"write_number({syntax.tensor}, {{0}})" if is_number else syntax.write
            yield from guarded_lines(stream, _filled_in(text, stream.name))


def with_typed_numbers(plan: Plan) -> Program:
    """Return the sweep's body with a dtype for each `where` that chooses between two numbers.

    If the mask has elements, the dtype is that of the sweep's tensors. If the result is one number
    for the whole tensor, it stays in float64.
    """
    sweep = plan.sweeps[0]

    def with_dtype(expr: Expr) -> Expr:
        match expr:
            case Call("where", (mask, a, b)) if not plan.kind(mask).is_scalar:
                kinds = [plan.kind(side) for side in (a, b)]
                of_elements = plan.kind(mask).is_tensor
                if all(k.axes is Axes.NONE for k in (plan.kind(mask), *kinds)):
                    return Call("where_number", tuple(map(with_dtype, expr.args)))
                has_dtype = any(k.is_tensor if of_elements else not k.is_scalar for k in kinds)
                if not has_dtype:
                    a = Call("in_dtype_of", (Ref(sweep.streams[0].name), a))
                    expr = replace(expr, args=(mask, a, b))
        return rebuild(expr, with_dtype)

    return map_expressions(sweep.body, with_dtype)


def _with_tensor_logic(plan: Plan) -> Program:
    """Return the sweep's body with typed numbers, and with logic ops that also take tensors."""
    return map_values(
        with_typed_numbers(plan),
        lambda value: use_tensor_logic(
            value, lambda expr: not _is_known_without_tensors(plan, expr)
        ),
    )


def _is_known_without_tensors(plan: Plan, expr: Expr) -> bool:
    """Tell whether a value is known without reading any tensor."""
    return all(plan.kinds[ref].is_scalar for ref in refs(expr))


def whole_statements(plan: Plan, program: Program, syntax: WholeSyntax) -> list[str]:
    """Return the lines of a program. Properties are read from the parameter, not from a copy."""

    def of_param(expr: Expr) -> Expr:
        match expr:
            case Call(op, (Ref(plan.algorithm.param),)) if op in PROPERTIES:
                return replace(expr, args=(Ref(syntax.param),))
            case Call(_, (x,)) if is_wide(expr) and syntax.count and plan.kind(x).is_scalar:
                return replace(expr, args=(of_param(x), Ref(syntax.count)))
        return rebuild(expr, of_param)

    stream_names = [stream.name for stream in streams(plan)]
    indexed = permute_by_index(map_expressions(program, of_param), stream_names)
    return statements(indexed, _PRINTER, lambda stmt: _assignment_line(plan, stmt, syntax))


def _assignment_line(plan: Plan, stmt: Assign, syntax: WholeSyntax) -> str:
    match stmt.value:
        case Call(op, args) if op in RANDOM_OPS:
            return syntax.draw.format(stmt.target.name, op, ", ".join(map(_PRINTER.text, args)))
        case Call(name, args) if name == stmt.target.name:  # a call of an outlined function
            read = [(ref.name, plan.kinds[ref].is_scalar) for ref in args if isinstance(ref, Ref)]
            return f"{name}({', '.join(f'{n}={n}' if is_number else n for n, is_number in read)})"
    request = "yield " if is_wide(stmt.value) else ""  # a reduction over several parameters
    return f"{stmt.target.name} = {request}{_PRINTER.text(stmt.value)}"


def _lists(algorithm: Algorithm) -> list[str]:
    """Return the names of the lists of tensors, without scalar states and step counts."""
    scalars = {plural(s.symbol) for s in algorithm.scalar_states()} | {"state_steps"}
    return [name for name in list_names(algorithm) if name not in scalars]


def _filled_in(spelling: str, name: str) -> str:
    return spelling.format(name, plural(name))
