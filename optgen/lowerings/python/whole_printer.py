"""Print a rule on whole matrices as Python, statement by statement.

The rule computes new tensors, for one parameter at a time or for a list of parameters of one shape.
Its last lines write them into the parameters and states. For a list, every operation is one call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import is_wide
from optgen.ir.kinds import Axes
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Linear,
    Program,
    Ref,
    Stmt,
    assigns,
    children,
    expressions,
    map_expressions,
    map_statements,
    map_values,
    names_read,
    only_factor,
    rebuild,
    refs,
)
from optgen.ir.ops import OPS, PROPERTIES, RANDOM_OPS
from optgen.ir.plan import Plan, Stream
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.python.expression_printer import PythonPrinter, statements
from optgen.lowerings.python.functions import (
    Body,
    defaults_before_draws,
    guarded_lines,
    indented,
    list_names,
)
from optgen.lowerings.python.syntax import Syntax, filled_in
from optgen.passes.convert_branches import use_tensor_logic
from optgen.passes.extract_subexpressions import draws_of, with_listed_streams

_PRINTER = PythonPrinter({}, {"sum": "total", "orthogonalize": "newton_schulz"})


def whole_body(plan: Plan, syntax: Syntax) -> Body:
    """Return the loop over a bucket, whose tensors have one shape."""
    plan = with_listed_streams(plan, syntax.stream, syntax.stream_key)
    program = _with_tensor_logic(plan)
    lists = ", ".join(_lists(plan.algorithm))
    opening = [f"{lists} = sublist"] if syntax.in_lists else []
    stored = [stream.name for stream in streams(plan) if stream.stored]
    lines = [
        *opening,
        *read_lines(plan, program, syntax, tensors_to_copy(program, stored)),
        *whole_statements(plan, program, syntax),
        *write_lines(plan, syntax),
    ]
    body = indented(lines, syntax.loop.format(lists=lists))
    defaults = defaults_before_draws(plan, draws_of(program))
    return Body(body, frozenset(names_read(program)), defaults)


def streams(plan: Plan) -> tuple[Stream, ...]:
    """Return the streams of a plan's only sweep, then the other states on the device."""
    others = (s for s in plan.algorithm.device_states() if s.shape != "like")
    return (*plan.sweeps[0].streams, *(Stream(s.symbol, "state", s.written, s) for s in others))


def read_lines(
    plan: Plan, program: Program, syntax: Syntax, names_to_copy: Collection[str]
) -> Iterator[str]:
    """Yield the lines that read the tensors that a program reads or the rule stores.

    The tensors in `names_to_copy` are copied when they are read.
    """
    read, like = names_read(program), filled_in(syntax.whole_tensor, plan.algorithm.param)
    for stream in streams(plan):
        if stream.stored or stream.name in read:
            tensor = filled_in(syntax.whole_tensor, stream.name)
            if stream.state is not None and stream.state.on_device:
                yield from guarded_lines(stream, f"{stream.name} = number_in_float64({tensor})")
                continue
            function = (
                "copy_in_compute_dtype" if stream.name in names_to_copy else "in_compute_dtype"
            )
            yield from guarded_lines(stream, f"{stream.name} = {function}({tensor}, like={like})")


def write_lines(plan: Plan, syntax: Syntax) -> Iterator[str]:
    """Yield the lines that write the values of parameter and states back."""
    for stream in streams(plan):
        if stream.stored:
            is_number = stream.state is not None and stream.state.on_device
            text = f"write_number({syntax.whole_tensor}, {{0}})" if is_number else syntax.write
            yield from guarded_lines(stream, filled_in(text, stream.name))


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
            value, lambda expr: not all(plan.kinds[ref].is_scalar for ref in refs(expr))
        ),
    )


def whole_statements(plan: Plan, program: Program, syntax: Syntax) -> list[str]:
    """Return the lines of a program. Properties are read from the parameter, not from a copy."""

    def of_param(expr: Expr) -> Expr:
        match expr:
            case Call(op, (Ref(plan.algorithm.param),)) if op in PROPERTIES:
                return replace(expr, args=(Ref(syntax.param),))
            # A reduction over several parameters takes one number from each of them, even if the
            # numbers of a list are equal.
            case Call(_, (x,)) if is_wide(expr) and syntax.in_lists and plan.kind(x).is_scalar:
                return replace(expr, args=(of_param(x), Ref("len(params)")))
        return rebuild(expr, of_param)

    stream_names = [stream.name for stream in streams(plan)]
    indexed = permute_by_index(map_expressions(program, of_param), stream_names)
    return statements(
        one_decomposition(indexed), _PRINTER, lambda stmt: [_assignment_line(plan, stmt, syntax)]
    )


@dataclass(frozen=True)
class _Decomposition(Assign):
    """Statement that assigns the eigenvectors of a matrix to `target`, and its eigenvalues."""

    values: Ref = field(kw_only=True)


def one_decomposition(program: Program) -> Program:
    """Return a program in which two statements for one decomposition are one statement.

    `extract_products` puts the eigenvalues and the eigenvectors of one matrix next to each other.
    """
    out: list[Stmt] = []
    for stmt in program:
        if isinstance(stmt, If):
            then, orelse = one_decomposition(stmt.then), one_decomposition(stmt.orelse)
            out.append(replace(stmt, then=then, orelse=orelse))
        elif out and isinstance(out[-1], Assign) and (pair := _decomposition(out[-1], stmt)):
            out[-1] = pair
        else:
            out.append(stmt)
    return tuple(out)


def _decomposition(first: Assign, second: Assign) -> _Decomposition | None:
    """Return a statement for two answers of one decomposition, or None for other statements."""
    targets: dict[str, Ref] = {}
    words = [only_factor(stmt.value) for stmt in (first, second)]
    for stmt, word in zip((first, second), words, strict=True):
        if isinstance(word, Call) and word.args == children(words[0]):
            targets[word.op] = stmt.target
    if targets.keys() != {"eigenvalues", "eigenvectors"} or first.target in refs(words[1]):
        return None
    value = Call("eigh", children(words[0]))
    vectors, values = targets["eigenvectors"], targets["eigenvalues"]
    return _Decomposition(vectors, value, first.quote, first.place, values=values)


def _assignment_line(plan: Plan, stmt: Assign, syntax: Syntax) -> str:
    if isinstance(stmt, _Decomposition):
        return f"{stmt.values.name}, {stmt.target.name} = {_PRINTER.text(stmt.value)}"
    match stmt.value:
        case Call(op) as call if op in RANDOM_OPS:
            (line,) = syntax.draw_lines({stmt.target.name: call})
            return line
        case Call(name, args) if name == stmt.target.name:  # a call of an outlined function
            return f"{name}({', '.join(map(_argument, args))})"
    request = "yield " if is_wide(stmt.value) else ""  # a reduction over several parameters
    return f"{stmt.target.name} = {request}{_PRINTER.text(stmt.value)}"


def _argument(argument: Expr) -> str:
    """Return the text of an argument of an outlined function."""
    match argument:
        case Call("keyword", (Const(name), number)):
            return f"{name}={_PRINTER.text(number)}"
    return _PRINTER.text(argument)


def _lists(algorithm: Algorithm) -> list[str]:
    """Return the names of the lists that are split: all but those of numbers of a bucket."""
    scalars = {*algorithm.scalar_states()}.difference(algorithm.stream_states())
    numbers = {*(plural(s.symbol) for s in scalars), "state_steps"}
    return [name for name in list_names(algorithm) if name not in numbers]


_NEW_CATEGORIES = ("arithmetic", "comparison", "logic", "reduction", "wide reduction")
_NEW_OPS = (
    *("@", "qr", "eigenvectors", "eigenvalues", "inverse_root", "trace", "descending", "copy"),
    *("cholesky", "solve_triangular", "solve_transposed", "lower", "upper", "row_ones", "col_ones"),
    *("empty_like", "in_rows"),
)


@dataclass(frozen=True)
class _Source:
    """Stored tensor whose memory a value shares: the value is this tensor, or a view of it."""

    name: str
    is_view: bool = False


_Sources = frozenset[_Source]
_SourcesByName = dict[str, _Sources]  # by the names of variables


def tensors_to_copy(program: Program, stored: Collection[str]) -> frozenset[str]:
    """Return the stored tensors that must be copied, because a result shares their memory.

    A result that is still the old tensor of its name needs no copy: to write it changes nothing.
    """
    known = _sources_after(program, {name: frozenset({_Source(name)}) for name in stored})
    return frozenset(
        source.name for name in stored for source in known[name] if source != _Source(name)
    )


def _sources_after(program: Program, known: _SourcesByName) -> _SourcesByName:
    """Return the sources of all variables after a program. After a branch, both arms' sources."""
    for stmt in program:
        if isinstance(stmt, Assign):
            known = {**known, stmt.target.name: _sources(stmt.value, known)}
        else:
            arms = [_sources_after(arm, known) for arm in (stmt.then, stmt.orelse)]
            known = {
                name: frozenset().union(*(arm.get(name, frozenset()) for arm in arms))
                for name in {**arms[0], **arms[1]}
            }
    return known


def _sources(value: Expr, known: _SourcesByName) -> _Sources:
    """Return the stored tensors whose memory a value may share."""
    value = only_factor(value)
    match value:
        case Ref(name):
            return known.get(name, frozenset())
        case Linear():
            return frozenset()
        case Call(op, _) if _makes_new_tensor(op):
            return frozenset()
    operands = frozenset().union(*(_sources(child, known) for child in children(value)))
    if isinstance(value, Call) and value.op == "where":
        return operands
    return frozenset(replace(source, is_view=True) for source in operands)


def _makes_new_tensor(op: str) -> bool:
    """Tell whether the result of an op is certainly a new tensor."""
    category = OPS[op].category if op in OPS else ""
    if category == "function":
        return op != "where"
    return category in _NEW_CATEGORIES or op in _NEW_OPS


def permute_by_index(program: Program, stored: Collection[str]) -> Program:
    """Return the program with orders in place of permutation matrices.

    A permutation that is stored, or used outside of such products, stays a matrix.
    """
    orders = frozenset(a.target.name for a in assigns(program) if _is_permutation(a.value))
    orders -= frozenset(stored)
    orders -= {a.target.name for a in assigns(program) if not _is_permutation(a.value)}
    orders -= {name for expr in expressions(program) for name in _read_otherwise(expr, orders)}
    return _with_orders(map_expressions(program, lambda e: _with_permuted_calls(e, orders)), orders)


def _is_permutation(value: Expr) -> bool:
    value = only_factor(value)
    return isinstance(value, Call) and value.op == "descending"


def _permuted_call(expr: Expr, orders: frozenset[str]) -> Call | None:
    """Return a product with a permutation as `permuted_rows` or `permuted_columns`.

    The permutation is a name of `orders`, or a `descending(…)` in the product itself. Return None
    for any other expression.
    """
    match expr:
        case Call("@", (Ref(name) as order, x)) if name in orders:
            return Call("permuted_rows", (x, order))
        case Call("@", (x, Call("transpose", (Ref(name) as order,)))) if name in orders:
            return Call("permuted_columns", (x, order))
        case Call("@", (Call("descending", numbers), x)):
            return Call("permuted_rows", (x, Call("descending_order", numbers)))
        case Call("@", (x, Call("transpose", (Call("descending", numbers),)))):
            return Call("permuted_columns", (x, Call("descending_order", numbers)))
    return None


def _read_otherwise(expr: Expr, orders: frozenset[str]) -> Iterator[str]:
    """Yield the names that an expression reads, except permutations that it multiplies with."""
    if isinstance(expr, Ref):
        yield expr.name
    call = _permuted_call(expr, orders)
    operands = children(call or expr)
    if call and isinstance(call.args[1], Ref):
        operands = call.args[:1]
    for child in operands:
        yield from _read_otherwise(child, orders)


def _with_permuted_calls(expr: Expr, orders: frozenset[str]) -> Expr:
    call = _permuted_call(expr, orders)
    return rebuild(call or expr, lambda child: _with_permuted_calls(child, orders))


def _with_orders(program: Program, orders: frozenset[str]) -> Program:
    """Return the program with an order in place of each permutation matrix of these names."""

    def with_order(stmt: Assign) -> Assign:
        if stmt.target.name not in orders:
            return stmt
        return replace(stmt, value=Call("descending_order", children(only_factor(stmt.value))))

    return map_statements(program, with_order)
