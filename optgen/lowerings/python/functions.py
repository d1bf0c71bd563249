"""Assemble a generated Python file: its functions, each with signature, scalar program and body."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from optgen.ir.algorithm import Algorithm, State
from optgen.ir.kinds import PARAM
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    If,
    Program,
    Ref,
    always_assigned,
    assigns,
    children,
    expressions,
    filter_assigns,
    map_expressions,
    names_assigned,
    names_read,
    rebuild,
    refs,
)
from optgen.ir.plan import Plan, Stream
from optgen.ir.reserved_in_python import RUNTIME_NAMES, plural
from optgen.lowerings.lowering import Context
from optgen.lowerings.python.expression_printer import PythonPrinter, statements
from optgen.lowerings.python.literals import annotation, comment
from optgen.passes.extract_subexpressions import Draws, is_item, reuse_item_names
from optgen.passes.recognize_rules import widens_in_python


@dataclass(frozen=True)
class Function:
    """Generated function: its name, tensor lists, keyword arguments and lines."""

    name: str
    doc: str
    lists: tuple[str, ...]
    keywords: tuple[str, ...]
    body: tuple[str, ...]
    returns: str = "None"


@dataclass(frozen=True)
class Body:
    """Lines of tensor operations, the numbers that the lines read, and a function's first lines."""

    lines: list[str]
    numbers_read: frozenset[str]
    opening: Sequence[str] = ()


def python_file(algorithm: Algorithm, functions: list[Function]) -> Context:
    """Return the template's variables: the functions, and the imports that they need."""
    used = _names_called(line for function in functions for line in function.body)
    used |= _names_in_annotations(functions)
    imports = {
        module: [name for name in names if name in used] for module, names in RUNTIME_NAMES.items()
    }
    return {
        "algorithm": algorithm,
        "functions": functions,
        "imports": {module: names for module, names in imports.items() if names},
    }


def _names_called(lines: Iterable[str]) -> set[str]:
    """Return the names of the functions that lines call, except in comments."""
    code_lines = (line for line in lines if not line.lstrip().startswith("#"))
    return {name for line in code_lines for name in re.findall(r"(?<![\w.])(\w+)\(", line)}


def _names_in_annotations(functions: Iterable[Function]) -> set[str]:
    """Return the names in the annotations of keyword arguments and results."""
    annotations = (keyword.partition(":")[2] for f in functions for keyword in f.keywords)
    texts = (*annotations, *(function.returns for function in functions))
    return {name for text in texts for name in re.findall(r"\w+", text)}


def bucket_function(plan: Plan, loop: Callable[[Plan], Body]) -> Function:
    """Return the `update` of one bucket: the scalar program, then the lines from `loop`."""
    arguments, plan = keywords(plan), fresh_as_keywords(plan)
    body = loop(plan)
    shape = "" if plan.algorithm.elementwise else "a shape and "
    return Function(
        function_name("update", plan.facts),
        f"Update a bucket in place. Its tensors share {shape}the results of the scalar program.",
        list_names(plan.algorithm),
        arguments,
        separated_blocks(
            [*body.opening, *scalar_lines(plan, BUCKET, body.numbers_read)], body.lines
        ),
        "Update" if plan.algorithm.is_wide else "None",
    )


def loop_in_wide_dtype(
    plan: Plan, parts: str, streams: Sequence[Stream], names: Sequence[str], lines: list[str]
) -> tuple[str, list[str]]:
    """Return what the loop of an elementwise rule iterates over, and the loop's lines.

    If the rule computes in a wider dtype, its streams are widened: `names` are their variables in
    the loop. Random numbers are not.

    Args:
        plan: The plan of the rule, with a single sweep.
        parts: Text of the parts of tensors.
        streams: The sweep's streams that the loop goes over.
        names: Their variables.
        lines: Lines of the loop, which compute with these variables.
    """
    if not widens_in_python(plan.algorithm):
        return parts, lines
    if plan.algorithm.has_random_ops:
        return parts, lines_with_wide_copies(names, names, streams, lines)
    return f"widened({parts}{_read_only_argument(streams)})", lines


def lines_with_wide_copies(
    names: Sequence[str], tensors: Sequence[str], streams: Iterable[Stream], lines: Iterable[str]
) -> list[str]:
    """Return lines that compute with wide copies of the tensors of these streams.

    `tensors` are the texts of the tensors, and `names` are the variables of the copies.
    """
    return [
        f"copies = WideCopies({', '.join(tensors)}{_read_only_argument(streams)})",
        f"{unpacking_target(names)} = copies.tensors",
        *lines,
        "copies.write_back()",
    ]


def _read_only_argument(streams: Iterable[Stream]) -> str:
    """Return the argument `read_only`, unless the second stream is the only one not stored."""
    positions = tuple(n for n, stream in enumerate(streams) if not stream.stored)
    return "" if positions == (1,) else f", read_only={positions}"


def function_name(name: str, facts: Mapping[str, bool]) -> str:
    """Return a function's name with the facts of its plan, as in `update_factored`."""
    answers = (fact if holds else f"not_{fact}" for fact, holds in facts.items())
    return "_".join((name, *answers))


def indented(lines: Iterable[str], header: str) -> list[str]:
    """Return lines indented under the header of a loop or branch."""
    return [header, *(f"    {line}" if line else line for line in lines)]


def guarded_lines(tensor: Stream | State, line: str) -> list[str]:
    """Return a line, inside an `if` if the stream or state exists only under a condition."""
    return indented([line], f"if {tensor.when}:") if tensor.when else [line]


def in_sublists(plan: Plan, draw_lines: Iterable[str], lines: Iterable[str]) -> list[str]:
    """Return lines that draw random numbers, then `lines`.

    If parameters have streams of their own, the numbers of few parameters exist at once.
    """
    streams = [plural(state.symbol) for state in plan.algorithm.stream_states()]
    if not streams:
        return [*draw_lines, *lines]
    tensors = [plural(stream.name) for sweep in plan.sweeps for stream in sweep.streams]
    lists = ", ".join((*tensors, *streams))
    body = [f"{lists} = sublist", *draw_lines, *lines]
    return indented(body, f"for sublist in sublists({lists}):")


def unpacking_target(names: Sequence[str]) -> str:
    """Return the target of a tuple unpacking, with parentheses for a single name."""
    return ", ".join(names) if len(names) > 1 else f"({names[0]},)"


def separated_blocks(*blocks: list[str]) -> tuple[str, ...]:
    """Return blocks of lines with an empty line between them."""
    lines = [line for block in blocks if block for line in (*block, "")]
    return tuple(lines[:-1])


def list_names(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the names of the tensor lists, in the order in which the runtime passes them."""
    states = tuple(plural(s.symbol) for s in algorithm.states)
    steps = ("state_steps",) if algorithm.step else ()
    return (plural(algorithm.param), plural(algorithm.grad), *states, *steps)


def keywords(plan: Plan) -> tuple[str, ...]:
    """Return the annotated keyword-only arguments: hyperparameters, then `fresh_…` flags."""
    hypers = (
        f"{h.name}: {'str | None' if h.type == 'choice' else annotation(h)}"
        for h in plan.algorithm.hypers
    )
    return (*hypers, *(f"fresh_{s.key}: bool" for s in plan.fresh_states()))


def fresh_as_keywords(plan: Plan) -> Plan:
    """Return the plan with every `fresh(s)` replaced by its keyword argument."""
    names = {s.symbol: Ref(f"fresh_{s.key}") for s in plan.fresh_states()}

    def with_keyword(expr: Expr) -> Expr:
        match expr:
            case Call("fresh", (Ref(name),)):
                return names[name]
        return rebuild(expr, with_keyword)

    renamed = plan.map_programs(lambda program: map_expressions(program, with_keyword))
    return replace(renamed, kinds={**plan.kinds, **dict.fromkeys(names.values(), PARAM)})


@dataclass(frozen=True)
class ScalarText:
    """Texts of the code that reads and writes the step count and scalar states.

    `param` is the parameter whose properties are read; in a bucket, they are equal for all
    parameters. `advance` adds one to the step count and returns it. `tensor` is the 0-dim tensor of
    a scalar state, `read` is its value, and `store` writes a new value and returns it. `{0}` stands
    for the name of the list of the state's tensors, and `{1}` for the new value.
    """

    param: str
    advance: str
    tensor: str
    read: str
    store: str


BUCKET = ScalarText(
    param="params[0]",
    advance="advance(state_steps)",
    tensor="{0}[0]",
    read="{0}[0].item()",
    store="store({0}, {1})",
)
ONE_PARAM = ScalarText(
    param="params[index]",
    advance="advance_one(state_steps[index], capturable)",
    tensor="{0}[index].clone()",  # autograd may need the old value
    read="read_one({0}[index], capturable)",
    store="store_one({0}[index], {1}, capturable)",
)


def scalar_lines(plan: Plan, texts: ScalarText, names_read_later: Collection[str]) -> list[str]:
    """Return the lines of the scalar program, the step count first.

    A name that neither these lines nor later ones read (`names_read_later`) is left out.
    """
    states = {s.symbol for s in plan.algorithm.scalar_states()}
    plan = replace(plan, scalars=scalars_needed(plan, names_read_later))
    read_after_store = {r.name for r in _refs_read(plan) if r.version > 0}
    param = {plan.algorithm.param: texts.param}
    printer = PythonPrinter(param, {})

    def lines(stmt: Assign) -> list[str]:
        name = stmt.target.name
        if name not in states:
            return [f"{name} = {printer.text(stmt.value)}"]
        tensor = texts.tensor.format(plural(name))
        value = PythonPrinter(param | {name: tensor}, {}).text(stmt.value)
        stored = texts.store.format(plural(name), value)
        return [f"{name} = {stored}" if name in read_after_store else stored]

    copies = _copies_of_old_values(plan)
    program = tuple(s for s in plan.scalars if s not in copies.values())
    return [
        *_opening_lines(plan, texts, copies),
        *_with_unpackings(statements(program, printer, lines), plan),
    ]


def scalars_needed(plan: Plan, names_read_later: Collection[str]) -> Program:
    """Return the scalar program without names that neither it, a state nor later lines read."""
    states = {s.symbol for s in plan.algorithm.scalar_states()}
    return _without_unread(reuse_item_names(plan.scalars), states.union(names_read_later))


def _without_unread(program: Program, needed: set[str]) -> Program:
    """Return the program without names that nothing reads, such as the second weight of a lerp.

    The items of a tuple stay, because one line unpacks them.
    """
    read = needed | names_read(program)
    shorter = filter_assigns(program, lambda a: a.target.name in read or is_item(a.value))
    return program if shorter == program else _without_unread(shorter, needed)


def _refs_read(plan: Plan) -> Iterator[Ref]:
    """Yield every name that the scalar program or a phase reads, as often as it is read."""
    return (r for e in (*expressions(plan.scalars), *plan.values()) for r in refs(e))


def _copies_of_old_values(plan: Plan) -> dict[str, Assign]:
    """Map a scalar state to the statement that copies its old value, if nothing else reads it."""
    reads = Counter(r for r in _refs_read(plan) if r.version == 0)
    branches = tuple(s for s in plan.scalars if isinstance(s, If))
    states = {s.symbol for s in plan.algorithm.scalar_states()}
    unbranched_states = states - names_assigned(branches)
    return {
        stmt.value.name: stmt
        for stmt in plan.scalars
        if isinstance(stmt, Assign) and isinstance(stmt.value, Ref)
        if stmt.target.name not in states
        if stmt.value.name in unbranched_states and reads[stmt.value] == 1
    }


def _opening_lines(plan: Plan, texts: ScalarText, copies: Mapping[str, Assign]) -> list[str]:
    """Return the lines that advance the step and read the old values of scalar states."""
    lines = []
    if plan.algorithm.step:
        is_read = Ref(plan.algorithm.step) in set(_refs_read(plan))
        lines.append(f"{plan.algorithm.step} = {texts.advance}" if is_read else texts.advance)
    for state in plan.algorithm.scalar_states():
        other_values = (*_values_besides(plan.scalars, state.symbol), *plan.values())
        branches = tuple(s for s in plan.scalars if isinstance(s, If))
        is_read = Ref(state.symbol) in {r for e in other_values for r in refs(e)}
        if is_read or state.symbol in names_assigned(branches):
            copy = copies.get(state.symbol)
            name = copy.target.name if copy else state.symbol
            lines.append(f"{name} = {texts.read.format(plural(state.symbol))}")
    return lines


def _values_besides(program: Program, name: str) -> Iterator[Expr]:
    """Yield the values and conditions of a program, except the values assigned to a name."""
    return expressions(filter_assigns(program, lambda a: a.target.name != name))


def _with_unpackings(lines: list[str], plan: Plan) -> list[str]:
    """Return lines with `beta1 = betas[0]` and `beta2 = betas[1]` merged into the author's line."""
    items: dict[str, list[Assign]] = {}
    for stmt in assigns(plan.scalars):
        if stmt.quote and is_item(stmt.value):
            items.setdefault(stmt.quote[0], []).append(stmt)
    merged = list(lines)
    for quote, unpacking in items.items():
        names = ", ".join(a.target.name for a in unpacking)
        values, _ = children(unpacking[0].value)
        if isinstance(values, Ref) and f"{names} = {values.name}" == quote:
            start = [line.strip() for line in merged].index(comment(quote))
            indent = merged[start].removesuffix(comment(quote))  # the line may be in a branch
            merged[start : start + len(unpacking) + 1] = [indent + quote]
    return merged


def defaults_before_draws(plan: Plan, draws: Draws) -> list[str]:
    """Return lines that define numbers that draws read, if a path leaves them unassigned.

    A draw stands outside of branches, so it runs even if the branch that reads its numbers does
    not run.
    """
    assigned = names_assigned(plan.scalars)
    missing = numbers_in_draws(draws) & assigned - always_assigned(plan.scalars)
    return [f"{name} = 0.0" for name in sorted(missing)]


def numbers_in_draws(draws: Draws) -> frozenset[str]:
    """Return the names of the numbers that draws read."""
    return frozenset(ref.name for call in draws.values() for ref in refs(call))
