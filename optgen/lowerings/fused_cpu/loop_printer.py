"""Print a C++ loop over elements, rows, columns or matrices: loads, computations, stores."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from optgen.contract.states import Condition
from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Axes
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    Linear,
    Program,
    RuleError,
    Term,
    assigns,
    walk,
)
from optgen.ir.plan import Plan, Sweep
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.fused_cpu.cpp_text import (
    WIDTH,
    constant,
    indented,
    variable,
    wrapped_list,
    wrapped_statement,
)
from optgen.lowerings.fused_cpu.loop_body import LoopBody
from optgen.lowerings.fused_cpu.scalar_program import INPUTS, ScalarProgram

_COLUMN = 12  # at which the lines of a loop's body begin
_MAX_FLAGS = 8
_STREAMS_OF_PREFETCH = 3
"""A loop prefetches only if it reads exactly this number of streams.

Prefetching made loops over two or four streams slower (two: by 5 %).
"""

Parameter = tuple[str, str]
"""C++ type and name of a function's parameter."""


@dataclass(frozen=True)
class LoopArray:
    """Array that a loop indexes. `when` is the condition on a flag under which it exists."""

    name: str
    loaded: bool
    stored: bool
    when: Condition | None = None
    axes: Axes = Axes.TENSOR
    has_fewer_axes: bool = False  # than the loop: its value is one number, or is broadcast
    only_summed: bool = False  # the loop only adds the values to sums
    type: str = "C"  # of the array's elements

    @property
    def flag(self) -> str:
        """The compile-time condition under which the array exists, or ""."""
        if self.when is None:
            return ""
        return f"{'' if self.when.holds else '!'}{constant(self.when.name)}"


@dataclass(frozen=True)
class Loop:
    """Loop over arrays. `numbers` has the names with one value for the whole tensor."""

    arrays: Sequence[LoopArray]
    body: Program
    numbers: Mapping[str, str] = field(default_factory=dict)  # name -> C++ text
    sum_operands: Collection[str] = ()  # read after the body

    @property
    def flags(self) -> dict[str, str]:
        """Map each flag that decides which arrays exist to its template parameter."""
        conditions = (array.when for array in self.arrays if array.when)
        return {condition.name: constant(condition.name) for condition in conditions}


class LoopPrinter:
    """Printer of one loop, as a function template `name`: its definition, and a call.

    The template parameters are `types`, the flags that decide which streams exist, `EXPANDED`,
    which is true if row and column values have been broadcast to every element, and
    `SIMPLE_POWERS`, which is true if all exponents have turned out to be simple ones.
    """

    types: Sequence[str] = ("C",)
    call_column = 16

    def __init__(
        self, name: str, plan: Plan, loop: Loop, program: ScalarProgram, column: int = _COLUMN
    ) -> None:
        self.name, self.loop, self.column = name, loop, column
        _check_flags(plan.algorithm, loop.flags)
        self.body = LoopBody(
            plan,
            loop.body,
            program,
            numbers=loop.numbers,
            flags=loop.flags,
            arrays=[array.name for array in loop.arrays],
            loaded=[array.name for array in loop.arrays if array.loaded],
            outputs=[*loop.sum_operands, *(a.name for a in loop.arrays if a.stored)],
            column=column,
        )

    def definition(self) -> list[str]:
        """Return the lines of the function template."""
        simple = ["SIMPLE_POWERS"] if self.body.are_simple else []
        flags = (*self._expanded_parameter(), *simple, *self.loop.flags.values())
        template = [*(f"class {name}" for name in self.types), *(f"bool {name}" for name in flags)]
        head = f"NOINLINE static void {self.name}("
        return [
            f"template <{', '.join(template)}>",
            *wrapped_list(head, map(" ".join, self.parameters()), ") {", column=4),
            *indented(self.lines()),
            "}",
        ]

    def call(self) -> list[str]:
        """Return the lines that call the instantiation for the values of the flags."""
        simple = ["false"] if self.body.are_simple else []
        first = [*self.types, *self._expanded_parameter(), *simple]
        return dispatch_call(
            self.name, first, self.loop.flags, self.arguments(), column=self.call_column
        )

    def _expanded_parameter(self) -> list[str]:
        """Return the template parameter `EXPANDED`, if the loop reads it."""
        return ["EXPANDED"] if self.reads_expanded else []

    def lines(self) -> list[str]:
        """Return the body of the function: constants, then the loop."""
        constants = [*self.constants(), *self._choice_of_powers()]
        return [*constants, "", *self.loop_lines()] if constants else self.loop_lines()

    def _choice_of_powers(self) -> list[str]:
        """Return the lines that go on with simple powers if all exponents are simple."""
        if not self.body.are_simple:
            return []
        template = [*self.types, *self._expanded_parameter(), "true", *self.loop.flags.values()]
        arguments = [name for _, name in self.parameters()]
        call = f"return {self.name}<{', '.join(template)}>("
        return [
            "if constexpr (!SIMPLE_POWERS) {",
            *indented(wrapped_statement(f"if ({self.body.are_simple})", column=_COLUMN + 4)),
            *indented(indented(wrapped_list(call, arguments, ");", column=_COLUMN + 4))),
            "}",
        ]

    def constants(self) -> list[str]:
        """Declare the constants that the loop reads."""
        return self.body.constants

    def loop_lines(self) -> list[str]:
        """Return the loop."""
        return ["for (i64 i = 0; i < n; ++i) {", *self.inside(), "}"]

    def inside(self) -> list[str]:
        """Return the lines inside the loop: loads, computations and stores, with empty lines."""
        blocks = [indented(lines) for lines in (self.loads(), self.body.lines, self.stores())]
        return [line for block in blocks if block for line in ("", *block)][1:]

    def loads(self) -> list[str]:
        """Return one line per array that is loaded."""
        changed = {a.target.name for a in assigns(self.loop.body)}
        lines = []
        for array in (array for array in self.loop.arrays if array.loaded):
            const = "const " if array.has_fewer_axes and array.name not in changed else ""
            text = self.load_text(array)
            text = f"{array.flag} ? {text} : C(0)" if array.flag else text
            lines.append(f"{const}C {variable(array.name)} = {text};")
        return lines

    def stores(self) -> list[str]:
        """Return the statements that write arrays."""
        lines = []
        for array in self.loop.arrays:
            if not array.stored or array.only_summed:
                continue
            guard = f"if constexpr ({array.flag})" if array.flag else ""
            text = self.store_text(array.name)
            line = f"{guard} {text}".lstrip()
            lines += [line] if self.column + len(line) <= WIDTH else [guard, *indented([text])]
        return lines

    def load_text(self, array: LoopArray) -> str:
        """Return the text that loads an array's element at the loop's position."""
        return (
            f"{variable(plural(array.name))}[{'EXPANDED ? i : 0' if array.has_fewer_axes else 'i'}]"
        )

    def store_text(self, name: str) -> str:
        """Return the statement that stores a value in its array."""
        return f"{variable(plural(name))}[i] = {variable(name)};"

    @property
    def reads_expanded(self) -> bool:
        """Tell whether the loop reads `EXPANDED`: are values broadcast to every element?"""
        return any(array.loaded and array.has_fewer_axes for array in self.loop.arrays)

    @property
    def inputs(self) -> list[str]:
        """The names of the parameters from which the loop reads numbers."""
        return [name for name in INPUTS if name in self.body.inputs]

    def parameters(self) -> list[Parameter]:
        """Return the function's parameters: only those that it reads."""
        return [*self.input_parameters(), ("i64", "n"), *self.array_parameters()]

    def input_parameters(self) -> list[Parameter]:
        """Return the parameters that are not arrays."""
        return [(INPUTS[name], name) for name in self.inputs]

    def array_parameters(self) -> list[Parameter]:
        """Return the loop's arrays as parameters."""
        return [
            (
                f"{'' if array.stored else 'const '}{array.type}* __restrict",
                variable(plural(array.name)),
            )
            for array in self.loop.arrays
        ]

    def arguments(self) -> list[str]:
        """Return the arguments of a call: fields of `inputs`, then `n`, then arrays of `at`."""
        return [
            *self.input_arguments(),
            "n",
            *(f"at[{constant(a.name)}]" for a in self.loop.arrays),
        ]

    def input_arguments(self) -> list[str]:
        """Return the arguments that are not arrays."""
        return [f"inputs.{'named_numbers()' if n == 'numbers' else n}" for n in self.inputs]


class ElementwiseLoop(LoopPrinter):
    """Printer of the only loop of an elementwise rule. An iteration computes a SIMD vector.

    A loop with a root or a division delays its stores, and computes the next elements meanwhile.
    Other loops over three streams prefetch, because only memory bandwidth bounds them.
    """

    types = ("S",)
    call_column = 8

    def __init__(self, plan: Plan, sweep: Sweep, program: ScalarProgram) -> None:
        arrays = [
            LoopArray(s.name, loaded=True, stored=s.stored, when=s.condition) for s in sweep.streams
        ]
        values = (a.value for a in assigns(sweep.body))
        self._delays_stores = any(_has_long_latency(e) for value in values for e in walk(value))
        self._prefetches = len(arrays) == _STREAMS_OF_PREFETCH and not self._delays_stores
        self._rounded_names = set(_names_rounded_last(sweep.body))
        # A loop that prefetches is inside a loop over strips.
        column = _COLUMN + 4 * self._prefetches
        super().__init__("sweep", plan, Loop(arrays, sweep.body), program, column)

    def array_parameters(self) -> list[Parameter]:
        """Return the streams as parameters."""
        return [
            (f"Stream<{'' if array.stored else 'const '}S>", variable(plural(array.name)))
            for array in self.loop.arrays
        ]

    def arguments(self) -> list[str]:
        """Return the arguments of a call: fields of `inputs`, then `n`, then streams."""
        streams = (f"streams[{constant(array.name)}]" for array in self.loop.arrays)
        return [*self.input_arguments(), "n", *streams]

    def constants(self) -> list[str]:
        """Declare the constants, the prefetch distance, and delayed stores or a strip's length."""
        type_ = "using C = ComputeType<S>;"
        lines = [type_, *super().constants(), "const i64 ahead = prefetch_distance<S>(n);"]
        if self._delays_stores:
            return [*lines, *self._delayed_stores()]
        if not self._prefetches:
            return lines
        flags = [array.flag for array in self.loop.arrays if array.flag]
        strip = "prefetch_strip<S>(n)"
        strip = f"{' && '.join(flags)} ? {strip} : n" if flags else strip
        return [*lines, f"const i64 strip = {strip};"]

    def loop_lines(self) -> list[str]:
        """Return the loop. A loop that prefetches goes over strips, and fetches each before.

        The index of a strip's first element is named `begin`, because functions that draw random
        numbers have a parameter `first`.
        """
        if not self._prefetches:
            return ["for (i64 i = 0; i < n; i += LANES<C>) {", *self.inside(), "}"]
        prefetches = [f"prefetch({variable(plural(a.name))} + i);" for a in self.loop.arrays]
        strip_lines = [
            "const i64 end = begin + strip < n ? begin + strip : n;",
            "for (i64 i = begin; strip < n && i < end; i += CACHE_LINE) {",
            *indented(prefetches),
            "}",
            "for (i64 i = begin; i < end; i += LANES<C>) {",
            *self.inside(),
            "}",
        ]
        return ["for (i64 begin = 0; begin < n; begin += strip) {", *indented(strip_lines), "}"]

    def load_text(self, array: LoopArray) -> str:
        """Return the text that loads a vector of an array."""
        return f"load({variable(plural(array.name))} + i, ahead)"

    def store_text(self, name: str) -> str:
        """Return the statement that stores a vector in its array."""
        array, value = variable(plural(name)), variable(name)
        if self._delays_stores:
            return f"delayed.{value}.store({array} + i, {value});"
        function = "store_rounded<S>" if name in self._rounded_names else "store"
        return f"{function}({array} + i, {value});"

    def _delayed_stores(self) -> list[str]:
        """Declare a delayed store for each written array; stores of rounded values come first."""
        stored = [array.name for array in self.loop.arrays if array.stored]
        rounded = [variable(name) for name in stored if name in self._rounded_names]
        unrounded = [variable(name) for name in stored if name not in self._rounded_names]
        first = f"RoundedStore<S> {', '.join(rounded)}; " if rounded else ""
        if not unrounded:
            return [f"struct {{ {first}}} delayed;"]
        before = f"struct {{ {first}DelayedStore<S> "
        return wrapped_list(before, unrounded, "; } delayed;", _COLUMN - 4)


def dispatch_call(
    function: str,
    first_template_arguments: Sequence[str],
    flags: Iterable[str],
    arguments: Sequence[str],
    column: int,
) -> list[str]:
    """Return the lines that call the instantiation of a function template for some flags.

    Args:
        function: the name of the template.
        first_template_arguments: the template arguments before the flags.
        flags: the names of hyperparameters that are template arguments.
        arguments: the arguments of the call.
        column: the column at which the lines begin.
    """
    flags = list(flags)
    values = product(("false", "true"), repeat=len(flags))
    variants = [f"{function}<{', '.join([*first_template_arguments, *value])}>" for value in values]
    if not flags:
        return wrapped_list(f"return {variants[0]}(", arguments, ");", column)
    index, *bits = (
        f"truth(inputs.hypers.{variable(name)})" for name in flags
    )  # the highest bit first
    for position, bit in enumerate(bits):
        index = f"2 * ({index}) + {bit}" if position else f"2 * {index} + {bit}"
    before = f"constexpr decltype(&{variants[0]}) variants[] = {{"
    call = wrapped_list(f"return variants[{index}](", arguments, ");", column)
    return [*wrapped_list(before, variants, "};", column), *call]


def _check_flags(algorithm: Algorithm, flags: Collection[str]) -> None:
    """Check that few flags decide which streams a loop has: n flags mean 2**n variants.

    Raises:
        RuleError: There are more than `_MAX_FLAGS` flags.
    """
    if len(flags) > _MAX_FLAGS:
        message = f"{len(flags)} flags decide which states exist; a kernel takes {_MAX_FLAGS}"
        hint = "give states that exist together one when=, or keep some of them always"
        raise RuleError(algorithm.place, message, hint)


def _names_rounded_last(body: Program) -> Iterator[str]:
    """Yield the names whose last value is rounded at random to the parameter's dtype."""
    last = {assign.target.name: stmt for stmt in body for assign in assigns((stmt,))}
    for name, stmt in last.items():
        match stmt:
            case Assign(_, Linear((Term(Const(1), (Call("rounded_at_random"),), ()),))):
                yield name


def _has_long_latency(expr: Expr) -> bool:
    """Tell whether an expression is a root or a division, whose results take many cycles."""
    match expr:
        case Call("/" | "sqrt"):
            return True
        case Linear(terms):
            return any(term.divisors for term in terms)
    return False
