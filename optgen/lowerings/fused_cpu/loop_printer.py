"""Print a C++ loop over elements, rows, columns or matrices: loads, computations, stores."""

from __future__ import annotations

from optgen.ir.generated_names import plural
from optgen.ir.nodes import assigns, walk
from optgen.ir.plan import Plan
from optgen.lowerings.fused_cpu import prefetch
from optgen.lowerings.fused_cpu.expression_printer import constant, variable
from optgen.lowerings.fused_cpu.kernel_limits import check_flags
from optgen.lowerings.fused_cpu.line_layout import WIDTH, indented, wrapped_list
from optgen.lowerings.fused_cpu.loop_analysis import has_long_latency, names_rounded_last
from optgen.lowerings.fused_cpu.loop_body import LoopBody
from optgen.lowerings.fused_cpu.loop_ir import Loop, LoopArray
from optgen.lowerings.fused_cpu.scalar_program import ScalarProgram

_COLUMN = 12  # at which the lines of a loop's body begin


class LoopPrinter:
    """Printer of one loop. Flags that decide which streams exist become template parameters."""

    def __init__(self, plan: Plan, loop: Loop, program: ScalarProgram) -> None:
        self.loop = loop
        check_flags(plan.algorithm, loop.flags)
        values = (a.value for a in assigns(loop.body))
        self._delays_stores = loop.by_vectors and any(
            has_long_latency(e) for value in values for e in walk(value)
        )
        can_prefetch = sum(array.loaded for array in loop.arrays) == prefetch.STREAMS_READ
        self._prefetches = loop.by_vectors and can_prefetch and not self._delays_stores
        # A loop that prefetches is inside a loop over strips.
        self._column = _COLUMN + 4 * self._prefetches
        self._rounded_names = set(names_rounded_last(loop.body))
        self.body = LoopBody(plan, loop, program, self._column)

    def lines(self) -> list[str]:
        """Return the body of the function."""
        loads, stores = self.loads(), self.stores()
        blocks = [indented(block) for block in (loads, self.body.lines, stores) if block]
        inside = [line for block in blocks for line in ("", *block)][1:]
        increment = "i += LANES<C>" if self.loop.by_vectors else "++i"
        loop = [f"for (i64 i = 0; i < n; {increment}) {{", *inside, "}"]
        if self._prefetches:
            loop = prefetch.with_prefetch(inside, increment, self._arrays_read())
        return [*self.constants(), "", *loop] if self.constants() else loop

    def parameters(self) -> list[str]:
        """Return the function's parameters: only those that it reads."""
        return [*self.input_parameters(), "i64 n", *self.arrays()]

    def input_parameters(self) -> list[str]:
        """Return the parameters that are not arrays."""
        return [f"{type_} {name}" for name, type_ in self._inputs().items()]

    def arguments(self, addresses: str, prefix: str) -> list[str]:
        """Return the arguments of a call: fields of the inputs, then `n`, then arrays.

        Args:
            addresses: C++ text of the table of the arrays' addresses.
            prefix: C++ text before the name of a field, such as `inputs.`.
        """
        arrays = (f"{addresses}[{constant(array.name)}]" for array in self.loop.arrays)
        return [*self.input_arguments(prefix), "n", *arrays]

    def input_arguments(self, prefix: str) -> list[str]:
        """Return the arguments that are not arrays."""
        accessors = {"numbers": "named_numbers()"}
        return [f"{prefix}{accessors.get(name, name)}" for name in self._inputs()]

    def constants(self) -> list[str]:
        """Declare the constants that the loop reads."""
        lines = self.body.constants()
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
        unrounded = [variable(name) for name in stored if name not in self._rounded_names]
        first = f"RoundedStore<S> {', '.join(rounded)}; " if rounded else ""
        if not unrounded:
            return [f"struct {{ {first}}} delayed;"]
        before = f"struct {{ {first}DelayedStore<S> "
        return wrapped_list(before, unrounded, "; } delayed;", _COLUMN - 4)

    def _arrays_read(self) -> dict[str, str]:
        """Return the arrays that are read, each with the flag that it depends on, or ""."""
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
        """Tell whether the loop reads this input, such as `hypers`, `scalars` or `numbers`."""
        text = [*self.constants(), *self.body.lines]
        return any(f"{name}." in line or f"({name} " in line for line in text)

    def _inputs(self) -> dict[str, str]:
        """Map the names of the inputs that the loop reads to their C++ types."""
        types = {
            "hypers": "const Hypers&",
            "scalars": "const Scalars&",
            "sizes": "const Sizes&",
            "numbers": "const Numbers&",
            "fresh_bits": "unsigned",
        }
        return {name: type_ for name, type_ in types.items() if self.uses(name)}

    def arrays(self) -> list[str]:
        """Return the loop's arrays as parameters."""
        return [
            f"{'' if array.stored else 'const '}{array.type}* __restrict "
            f"{variable(plural(array.name))}"
            for array in self.loop.arrays
        ]

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
