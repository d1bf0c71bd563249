"""Print a C++ loop over elements, rows, columns or matrices: loads, computations, stores."""

from __future__ import annotations

from collections.abc import Iterator

from optgen.ir.generated_names import is_free, plural
from optgen.ir.nodes import (
    Call,
    Const,
    Expr,
    Ref,
    assigns,
    children,
    walk,
)
from optgen.ir.ops import CONDITION_OPERANDS, PROPERTIES, RANDOM_OPS
from optgen.ir.plan import Plan
from optgen.lowerings.condition_names import candidate_names, is_rare
from optgen.lowerings.fused_cpu import prefetch
from optgen.lowerings.fused_cpu.expression_printer import (
    CALLS,
    ExpressionPrinter,
    constant,
    variable,
)
from optgen.lowerings.fused_cpu.line_layout import WIDTH, indented, wrapped_list, wrapped_statement
from optgen.lowerings.fused_cpu.loop_analysis import (
    has_long_latency,
    multiply_by_reciprocals,
    names_rounded_last,
)
from optgen.lowerings.fused_cpu.loop_ir import Loop, LoopArray
from optgen.lowerings.fused_cpu.random_keys import RandomKeys
from optgen.lowerings.fused_cpu.scalar_program import ScalarProgram
from optgen.lowerings.fused_cpu.statements import Statements, masks
from optgen.passes.flatten_branches import BranchFlattener
from optgen.passes.rewrite import map_values

_COLUMN = 12  # at which the lines of a loop's body begin


class LoopPrinter:
    """Printer of one loop. Flags that decide which streams exist become template parameters."""

    def __init__(self, plan: Plan, loop: Loop, program: ScalarProgram) -> None:
        self._plan, self.loop, self._fields = plan, loop, program.fields
        self._hypers = {h.name: h for h in plan.algorithm.hypers}
        self._fresh = program.fresh
        self._scalars = ExpressionPrinter(tensors=False, read=self.read_scalar)
        self._elements = ExpressionPrinter(
            tensors=True, read=self._read_element, read_condition=self._read_condition
        )
        self._conditions: dict[str, str] = {}
        used_names = {r.name for r in plan.kinds} | set(self._fields.values())
        self._keys = RandomKeys(self._scalars, used_names)
        flag_names = (array.when.removeprefix("not ") for array in loop.arrays if array.when)
        self.flags = {name: constant(name) for name in flag_names}
        values = (a.value for a in assigns(loop.body))
        self._delays_stores = loop.by_vectors and any(
            has_long_latency(e) for value in values for e in walk(value)
        )
        can_prefetch = sum(array.loaded for array in loop.arrays) == prefetch.STREAMS_READ
        self._prefetches = loop.by_vectors and can_prefetch and not self._delays_stores
        self._column = _COLUMN + 4 * self._prefetches
        self._read_by_elements = {r for a in assigns(loop.body) for r in self._numbers_in(a.value)}
        self._rounded_names = set(names_rounded_last(loop.body))
        self.body = self._body()

    def lines(self) -> list[str]:
        """Return the body of the function."""
        loads, stores = self.loads(), self.stores()
        blocks = [indented(block) for block in (loads, self.body, stores) if block]
        inside = [line for block in blocks for line in ("", *block)][1:]
        step = "i += LANES<C>" if self.loop.by_vectors else "++i"
        loop = [f"for (i64 i = 0; i < n; {step}) {{", *inside, "}"]
        if self._prefetches:
            loop = prefetch.with_prefetch(inside, step, self._arrays_read())
        return [*self.constants(), "", *loop] if self.constants() else loop

    def parameters(self) -> list[str]:
        """Return the function's parameters: only those that it reads."""
        return [*self.input_parameters(), "i64 n", *self.arrays()]

    def input_parameters(self) -> list[str]:
        """Return the parameters that are not arrays."""
        return [f"{type_} {name}" for name, type_ in self._inputs().items()]

    def arguments(self, at: str, inputs: str) -> list[str]:
        """Return the arguments of a call: fields of the inputs, then `n`, then arrays.

        Args:
            at: C++ text of the table of the arrays' addresses.
            inputs: C++ text before the name of a field, such as `inputs.`.
        """
        arrays = (f"{at}[{constant(array.name)}]" for array in self.loop.arrays)
        return [*self.input_arguments(inputs), "n", *arrays]

    def input_arguments(self, inputs: str) -> list[str]:
        """Return the arguments that are not arrays."""
        names = {"numbers": "named_numbers()"}
        return [f"{inputs}{names.get(name, name)}" for name in self._inputs()]

    def constants(self) -> list[str]:
        """Declare the hyperparameters and scalars that the loop reads, in its compute type."""
        read = {r.name for r in self._read_by_elements}
        names = {self._fields.get(r, variable(r.name)) for r in self._read_by_elements}
        lines = []
        for ref in self._plan.coefficients():
            name = self._fields.get(ref, variable(ref.name))
            if name in names:
                source = "scalars" if ref in self._fields else "hypers"
                lines.append(f"const C {name} = C({source}.{name});")
        for name, text in self.loop.numbers.items():
            if name in read:
                lines.append(f"const C {variable(name)} = C({text});")
        for declaration in self._keys.declarations():
            lines += wrapped_statement(declaration, _COLUMN - 4)
        if self._conditions:
            lines.append(
                "// Conditions as 1 or 0 in type C: a loop with branches on them can be vectorized."
            )
        for name, text in self._conditions.items():
            lines += wrapped_statement(f"const auto {name} = {text};", _COLUMN - 4)
        return [*lines, *self._vector_constants()] if self.loop.by_vectors else lines

    def _vector_constants(self) -> list[str]:
        """Declare the prefetch distance, and delayed stores or the constants of prefetching."""
        lines = ["const i64 ahead = prefetch_distance<S>(n);"]
        if self._delays_stores:
            return [*lines, *self._delayed_stores()]
        return [*lines, *prefetch.constants(self._arrays_read())] if self._prefetches else lines

    def _delayed_stores(self) -> list[str]:
        """Declare a delayed store for each written array; stores of rounded values come first."""
        stored = [array.name for array in self.loop.arrays if array.stored]
        rounded = [variable(name) for name in stored if name in self._rounded_names]
        others = [variable(name) for name in stored if name not in self._rounded_names]
        first = f"RoundedStore<S> {', '.join(rounded)}; " if rounded else ""
        if not others:
            return [f"struct {{ {first}}} delayed;"]
        before = f"struct {{ {first}DelayedStore<S> "
        return wrapped_list(before, others, "; } delayed;", _COLUMN - 4)

    def _arrays_read(self) -> dict[str, str]:
        """Return the arrays that are read, each with the flag it depends on."""
        return {
            variable(plural(array.name)): self._flag(array)
            for array in self.loop.arrays
            if array.loaded
        }

    def loads(self) -> list[str]:
        """Return one line per array that is loaded."""
        loaded = [array for array in self.loop.arrays if array.loaded]
        changed = {a.target.name for a in assigns(self.loop.body)}
        lines = []
        for array in loaded:
            const = "const " if array.has_fewer_axes and array.name not in changed else ""
            lines.append(f"{const}C {variable(array.name)} = {self._load_or_zero(array)};")
        return lines

    def stores(self) -> list[str]:
        """Return the statements that write arrays."""
        lines = []
        for array in self.loop.arrays:
            if not array.stored or array.only_summed:
                continue
            flag = self._flag(array)
            guard = f"if constexpr ({flag})" if flag else ""
            text = self.store_text(array.name)
            line = f"{guard} {text}".lstrip()
            lines += [line] if self._column + len(line) <= WIDTH else [guard, *indented([text])]
        return lines

    def store_text(self, name: str) -> str:
        """Return the statement that stores a value in its array."""
        array, value = variable(plural(name)), variable(name)
        if self.loop.by_vectors and self._delays_stores:
            return f"delayed.{value}.store({array} + i, {value});"
        if self.loop.by_vectors:
            function = "store_rounded<S>" if name in self._rounded_names else "store"
            return f"{function}({array} + i, {value});"
        return f"{array}[i] = {value};"

    def uses(self, name: str) -> bool:
        """Tell whether the loop reads `hypers`, `scalars`, `numbers`, `sizes` or `fresh`."""
        text = [*self.constants(), *self.body]
        return any(f"{name}." in line or f"({name} " in line for line in text)

    def _inputs(self) -> dict[str, str]:
        """Map the names of the inputs that the loop reads to their C++ types."""
        types = {
            "hypers": "const Hypers&",
            "scalars": "const Scalars&",
            "sizes": "const Sizes&",
            "numbers": "const Numbers&",
            "fresh": "unsigned",
        }
        return {name: type_ for name, type_ in types.items() if self.uses(name)}

    def arrays(self) -> list[str]:
        """Return the loop's arrays as parameters."""
        return [
            f"{'' if array.stored else 'const '}{array.type}* __restrict "
            f"{variable(plural(array.name))}"
            for array in self.loop.arrays
        ]

    def _body(self) -> list[str]:
        """Return the lines of the computations, between loads and stores."""
        flatten = BranchFlattener(self._reads_existence_flag)
        body = flatten(map_values(self.loop.body, multiply_by_reciprocals))
        self._masks = masks(body)
        loaded = frozenset(array.name for array in self.loop.arrays if array.loaded)
        read_later = frozenset(self.loop.summed) | {
            array.name for array in self.loop.arrays if array.stored
        }
        return Statements(
            "C", lambda a: self._elements(a.value), self._if, body, loaded, read_later, self._masks
        ).lines(self._column)

    def _load_or_zero(self, array: LoopArray) -> str:
        """Return the text that loads an array's element, or gives 0 if there is no array."""
        flag, text = self._flag(array), self.load_text(array)
        return f"{flag} ? {text} : C(0)" if flag else text

    def load_text(self, array: LoopArray) -> str:
        """Return the text that loads an array's element at the loop's position."""
        name = variable(plural(array.name))
        if self.loop.by_vectors:
            return f"load({name} + i, ahead)"
        return f"{name}[{'EXPANDED ? i : 0' if array.has_fewer_axes else 'i'}]"

    def _flag(self, array: LoopArray) -> str:
        """Return the compile-time condition under which an array exists, or ""."""
        when = array.when
        if when is None:
            return ""
        return f"{'!' if when.startswith('not ') else ''}{constant(when.removeprefix('not '))}"

    def _if(self, condition: Expr) -> str:
        is_constant, text = self._condition(condition)
        return f"if {'constexpr ' if is_constant else ''}({text})"

    def _condition(self, expr: Expr) -> tuple[bool, str]:
        """Return whether a condition is known at compile time, and its text."""
        if not self._reads_existence_flag(expr):
            return False, f"{self._condition_name(expr)} != 0"
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

    def _reads_existence_flag(self, expr: Expr) -> bool:
        """Tell whether a condition reads a flag that decides which streams exist.

        Such a condition is known at compile time, at least in part.
        """
        match expr:
            case Ref(name) | Call("truth", (Ref(name),)):
                return name in self.flags
            case Call("and" | "or" | "not", args):
                return any(map(self._reads_existence_flag, args))
        return False

    def _condition_name(self, expr: Expr) -> str:
        """Return the C++ name of a condition that is uniform over the tensor, and declare it."""
        inner = expr  # the condition of the innermost of nested branches
        while isinstance(inner, Call) and inner.op == "and":
            inner = inner.args[1]
        text = f"{'unlikely' if is_rare(expr, self._hypers) else 'flag'}<C>({self._scalars(expr)})"
        used_names = {r.name for r in self._plan.kinds} | set(self._fields.values())
        used_names -= _only_name(inner)
        for name in map(variable, candidate_names(inner, expr)):
            if is_free(name, used_names) and self._conditions.setdefault(name, text) == text:
                return name
        raise AssertionError("candidate_names() is infinite")

    def _read_condition(self, condition: Expr) -> str | None:
        """Return the text of a named condition, uniform or per element; else None."""
        match condition:
            case Const():
                return None
            case _ if self._plan.kind(condition).is_scalar:
                return f"{self._condition_name(condition)} != 0"
            case Ref(name):
                return variable(name) if name in self._masks else f"{variable(name)} != 0"
        return None

    def _numbers_in(self, value: Expr) -> Iterator[Ref]:
        """Yield the names that a value reads, except in conditions that have C++ names."""
        if isinstance(value, Ref):
            yield value
        if isinstance(value, Call) and value.op in RANDOM_OPS:
            return  # its key is computed before the loop
        conditions = CONDITION_OPERANDS.get(value.op, 0) if isinstance(value, Call) else 0
        for position, child in enumerate(children(value)):
            if position >= conditions or not self._plan.kind(child).is_scalar:
                yield from self._numbers_in(child)

    def read_scalar(self, expr: Expr) -> str | None:
        """Return the text of a number that is known before the loop, else None."""
        match expr:
            case Ref(name) if name in self._hypers:
                text = f"hypers.{variable(name)}"
                return f"truth({text})" if self._hypers[name].type == "flag" else text
            case Call("fresh", (Ref(name),)):
                shift = f" >> {position}" if (position := self._fresh.index(name)) else ""
                return f"bool(fresh{shift} & 1)"
            case Ref(name) if name in self.loop.numbers:
                return self.loop.numbers[name]
            case Ref() if expr in self._fields:
                return f"scalars.{self._fields[expr]}"
            case Call(word, _) if word in PROPERTIES:
                return f"sizes.{word}"
        return None

    def _read_element(self, expr: Expr) -> str | None:
        """Return the text of a scalar, a random draw or a size that elements read, else None."""
        match expr:
            case Ref():
                return self._fields.get(expr)
            case Call("rounded_at_random", (x, Call("random16") as draw, eps)):
                operands = self._elements(x), self._keys.bits(draw), self._elements(eps)
                return CALLS["rounded_at_random"].format(*operands)
            case Call(word, _) as draw if word in RANDOM_OPS:
                return self._keys.numbers(draw)
            case Call(word, _) if word in PROPERTIES:
                return f"C({self._scalars(expr)})"
            case Call("/", (Const(), Call(word, _))) if word in PROPERTIES:
                return f"C({self._scalars(expr)})"
        return None


def _only_name(expr: Expr) -> set[str]:
    """Return the name of the flag or fresh state that a condition consists of, else an empty set.

    The C++ variable of such a condition may have that name.
    """
    match expr:
        case Ref(name) | Call("fresh", (Ref(name),)):
            return {name}
    return set()
