"""Print the scalar program as a kernel, and pack the scalars that it passes to the others.

The kernel has one program per tensor, computes in float64, and has branches. It stores the results
of the scalar program in one array of numbers per tensor. The numbers that a `Finish` computes from
reductions come after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from optgen.contract.states import Condition
from optgen.ir.kinds import Axes
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    If,
    Program,
    Ref,
    always_assigned,
    assigns,
    children,
    expressions,
    refs,
    walk,
)
from optgen.ir.ops import CONDITION_OPERANDS
from optgen.ir.plan import Plan, Stream
from optgen.ir.reserved_in_python import is_free, plural
from optgen.lowerings.fused_triton.address_printer import (
    UsedNames,
    indented,
    needed_lines,
    plus_offset,
    prologue_addresses,
)
from optgen.lowerings.fused_triton.expression_printer import (
    ATOM,
    COMPARISON,
    LOGIC,
    ExpressionPrinter,
    Printed,
    constant,
    load_properties,
    read_property,
    variable,
)
from optgen.lowerings.python.literals import Quote, comment, not_shown, shown_after
from optgen.passes.descriptive_names import candidate_names
from optgen.passes.extract_subexpressions import reuse_item_names
from optgen.passes.prepare_for_kernels import ROUNDED, legend_of_choices, round_state


class PackedScalars:
    """Layout of the packed scalars, in the order in which phases first read them.

    `program_results` maps the names of the scalar program's results to their expressions.
    `finish_numbers` has the names of the numbers that a `Finish` computes later.
    """

    def __init__(
        self,
        plan: Plan,
        bodies: Iterable[Program],
        streams: Iterable[Stream],
        finish_numbers: Iterable[str] = (),
    ) -> None:
        self._plan = plan
        self._constexpr_flags = {s.condition.name for s in streams if s.condition}
        self._conditions: dict[str, Expr] = {}
        self.program_results: dict[str, Expr] = {}
        for body in bodies:
            self.program_results |= {
                n: expr for n, expr, is_scalar in self._numbers_read(body) if is_scalar
            }
        self.finish_numbers = tuple(finish_numbers)

    @property
    def count(self) -> int:
        """Number of packed scalars per tensor."""
        return len(self.program_results) + len(self.finish_numbers)

    def offset(self, name: str) -> int:
        """Return the index of a number in the array."""
        return [*self.program_results, *self.finish_numbers].index(name)

    def offsets(self, body: Program) -> Mapping[str, int]:
        """Return the offsets of the numbers that a body reads, in order of the first read."""
        wanted = dict.fromkeys(name for name, _, _ in self._numbers_read(body))
        known = {*self.program_results, *self.finish_numbers}
        return {name: self.offset(name) for name in wanted if name in known}

    def _numbers_read(self, body: Program) -> Iterator[tuple[str, Expr, bool]]:
        """Yield the numbers that a body reads.

        Each comes with its expression, and with whether the scalar program computes it.
        """
        for stmt in body:
            if isinstance(stmt, Assign):
                yield from self._numbers_read_by_value(stmt.value)
                continue
            if not self.constexpr_condition(stmt.condition):
                yield *self._entry(stmt.condition), True
            yield from self._numbers_read(stmt.then)
            yield from self._numbers_read(stmt.orelse)

    def _numbers_read_by_value(self, value: Expr) -> Iterator[tuple[str, Expr, bool]]:
        """Yield the numbers that a value reads: its names, and its uniform num_conditions."""
        if isinstance(value, Ref) and self._plan.kinds[value].axes is Axes.NONE:
            yield variable(value.name), value, self._plan.kinds[value].is_scalar
        num_conditions = CONDITION_OPERANDS.get(value.op, 0) if isinstance(value, Call) else 0
        for position, child in enumerate(children(value)):
            if position < num_conditions and self._is_packed_condition(child):
                yield *self._entry(child), True
            else:
                yield from self._numbers_read_by_value(child)

    def _is_packed_condition(self, condition: Expr) -> bool:
        """Tell whether the scalar program evaluates a condition."""
        return not isinstance(condition, Const) and self._plan.kind(condition).is_scalar

    def packed_name(self, condition: Expr) -> str | None:
        """Return the name of a condition that the scalar program evaluates; None for any other."""
        return self._entry(condition)[0] if self._is_packed_condition(condition) else None

    def branch_condition(self, expr: Expr) -> str:
        """Return the text of a branch condition in a kernel."""
        condition = self.constexpr_condition(expr)
        return str(condition) if condition else f"{self._entry(expr)[0]} != 0"

    def constexpr_condition(self, expr: Expr) -> Condition | None:
        """Return a branch condition on a constexpr flag; None for any other."""
        match expr:
            case Ref(name) | Call("truth", (Ref(name),)) if name in self._constexpr_flags:
                return flag_condition(Condition(name))
            case Call("not", (inner,)) if condition := self.constexpr_condition(inner):
                return condition.negated
        return None

    def constexpr_conditions(self, program: Program) -> Iterator[Condition]:
        """Yield the conditions of a program's branches that are constexpr."""
        for stmt in program:
            if isinstance(stmt, If):
                if condition := self.constexpr_condition(stmt.condition):
                    yield condition
                yield from self.constexpr_conditions((*stmt.then, *stmt.orelse))

    def _entry(self, expr: Expr) -> tuple[str, Expr]:
        """Return the name and the expression of the packed scalar that stands for a condition.

        For the truth of a number that is never None, this is the number.
        """
        match expr:
            case (Ref() as ref) | Call("truth", (Ref() as ref,)):
                hyper = self._plan.algorithm.hyper(ref.name)
                if not (hyper and hyper.optional):
                    return variable(ref.name), ref
        return self._condition_name(expr), expr

    def _condition_name(self, expr: Expr) -> str:
        """Return a name for a condition: the condition in words, if short and free."""
        match expr:
            case Call("fresh", (Ref(state),)):  # the name may contain the state's name
                used_names = {r.name for r in self._plan.kinds} - {state}
            case _:
                used_names = {r.name for r in self._plan.kinds}
        for name in map(variable, candidate_names(expr)):
            if is_free(name, used_names) and self._conditions.setdefault(name, expr) == expr:
                return name
        raise AssertionError("candidate_names() is infinite")


def flag_condition(condition: Condition) -> Condition:
    """Return a stream's condition, with the name of its constexpr flag."""
    return replace(condition, name=constant(condition.name))


class Prologue:
    """Printer of a plan's scalar program, which stores the packed scalars for the phases."""

    def __init__(self, plan: Plan, packed: PackedScalars, stream_count: int) -> None:
        self._plan = replace(plan, scalars=reuse_item_names(plan.scalars))
        self._packed, self._stream_count = packed, stream_count
        self._states = [s.symbol for s in plan.algorithm.scalar_states()]
        self._printer = ExpressionPrinter(self._read, for_elements=False)
        self._exprs = [*expressions(self._plan.scalars), *packed.program_results.values()]
        self._used = UsedNames()
        self._offsets: dict[str, int] = {}
        self._hyper_count = 0  # a tuple counts once per item
        for hyper in plan.algorithm.hypers:
            self._offsets[hyper.name] = self._hyper_count
            self._hyper_count += hyper.size

    def scalar_types(self) -> list[str]:
        """Return the kernel's names for the dtypes of the step and of scalar states."""
        return [f"{name.upper()}_T" for name in self._step_and_states()]

    def doc(self) -> str:
        """Return the docstring of the kernel."""
        step_count = ["step count"] if self._plan.algorithm.step else []
        advanced = [*step_count, *(["scalar states"] if self._states else [])]
        if advanced:
            advance = f"Advance one tensor's {' and '.join(advanced)}"
            return f"{advance}, and compute its scalars in float64."
        if self._plan.scalars:
            return "Compute one tensor's scalars in float64."
        return "Store the hyperparameters of one tensor's group as its scalars."

    def lines(self) -> list[str]:
        """Return the body of the kernel."""
        body, stored = self._block(self._plan.scalars, set(map(variable, self._step_and_states())))
        stored_at_end = [name for name in self._packed.program_results if name not in stored]
        loads = [*self._loads(), *load_properties(self._exprs, self._used)]
        stores = [*self._state_stores(), *map(self._store, stored_at_end)]
        addresses = needed_lines(prologue_addresses(self._hyper_count), self._used)
        return [*addresses, *loads, "", *body, "", *stores]

    @property
    def computes(self) -> bool:
        """Tell whether the kernel has anything to compute or to store."""
        return any(self.lines())

    @property
    def reads_shapes(self) -> bool:
        """Tell whether the kernel loads properties of parameters."""
        return bool(load_properties(self._exprs))

    def _step_and_states(self) -> list[str]:
        return [*(["step"] if self._plan.algorithm.step else []), *self._states]

    def _loads(self) -> list[str]:
        """Load the hyperparameters, step, scalar states and fresh flags that are read."""
        lines: list[str] = []
        numbers = (h for h in self._plan.algorithm.hypers if h.size == 1)
        for hyper in (h for h in numbers if h.name in self._read_names()):
            lines += map(comment, filter(None, [legend_of_choices(hyper)]))
            lines.append(f"{variable(hyper.name)} = tl.load({self._hyper(hyper.name)})")
        assigned = {a.target.name for a in assigns(self._plan.scalars)}
        used = {"step"} | self._read_names() | assigned
        for row, name in enumerate(self._step_and_states()):
            if name not in used:  # a finish stores it
                continue
            address = f"tl.load({self._table_entry(self._stream_count + row)})"
            pointer_type = f"tl.pointer_type({name.upper()}_T)"
            advance = " + 1" if name == "step" else ""
            pointers = variable(plural(name))
            lines += [
                f"{pointers} = {address}.to({pointer_type})",
                f"{variable(name)} = tl.load({pointers}).to(tl.float64){advance}",
            ]
        asked = {e for expr in self._exprs for e in walk(expr)}
        for row, state in enumerate(self._plan.fresh_states(), len(self._step_and_states())):
            flag_address = self._table_entry(self._stream_count + row)
            if Call("fresh", (Ref(state.symbol),)) in asked:
                lines.append(f"fresh_{state.symbol} = tl.load({flag_address})")
            lines.append(f"tl.store({flag_address}, 0)")
        return lines

    def _read_names(self) -> set[str]:
        """Return the names that the scalar program or a packed scalar reads."""
        return {e.name for expr in self._exprs for e in walk(expr) if isinstance(e, Ref)}

    def _hyper(self, name: str, index: int = 0) -> str:
        offset = self._offsets[name] + index
        return plus_offset(self._used("hyper"), offset)

    def _table_entry(self, row: int) -> str:
        """Return the address of a tensor's entry in a row of the bucket's table."""
        return f"{self._used('entry')} + (STREAMS + {row}) * num_tensors"

    def _block(self, program: Program, known_after: set[str]) -> tuple[list[str], set[str]]:
        """Return a block's lines, and the packed scalars stored in its arms.

        A scalar that is unknown after a branch is stored inside the branch. `known_after` holds the
        variables that are known after the block, whether or not the block assigns them.
        """
        lines: list[str] = []
        stored: set[str] = set()
        known_after_branch = known_after | _defined(program)
        shown: Quote = ()
        for stmt in program:
            if isinstance(stmt, Assign):
                assignment = f"{variable(stmt.target.name)} = {self._value(stmt)}"
                new = not_shown(stmt.quote, shown)
                lines += [comment(line) for line in new if line != assignment]
                lines.append(assignment)
                shown = shown_after(stmt.quote, shown)
                continue
            shown = ()
            then, stored_in_arm = self._arm(stmt.then, known_after_branch)
            lines += [f"if {self._printer.condition(stmt.condition)}:", *then]
            stored |= stored_in_arm
            if stmt.orelse:
                orelse, stored_in_arm = self._arm(stmt.orelse, known_after_branch)
                lines += ["else:", *orelse]
                stored |= stored_in_arm
        return lines, stored

    def _arm(self, program: Program, known_after: set[str]) -> tuple[list[str], set[str]]:
        """Return an arm's lines, which end with stores, and the packed scalars stored in it."""
        lines, stored = self._block(program, known_after)
        defined = _defined(program)
        only_here = [
            name
            for name in self._packed.program_results
            if self._is_known_only_in_arm(name, defined, known_after)
        ]
        lines += [self._store(name) for name in only_here]
        return indented(lines or ["pass"]), stored | set(only_here)

    def _is_known_only_in_arm(self, name: str, defined: set[str], known_after: set[str]) -> bool:
        """Tell whether a packed scalar or condition is known in an arm but not after it."""
        computed = {variable(a.target.name) for a in assigns(self._plan.scalars)}
        read = computed & {variable(ref.name) for ref in refs(self._packed.program_results[name])}
        return read <= defined | known_after and not read <= known_after

    def _value(self, stmt: Assign) -> str:
        """Return a right-hand side as text. An update of a scalar state rounds to its dtype."""
        name = stmt.target.name
        if name not in self._states:
            return self._number(stmt.value, self._printer)
        printer = ExpressionPrinter(lambda e: self._read_rounded(e, name), for_elements=False)
        return self._number(round_state(stmt.value, name), printer)

    def _number(self, value: Expr, printer: ExpressionPrinter) -> str:
        """Return a value's text. A literal is cast to float64."""
        rounded = isinstance(value, Call) and value.op == ROUNDED
        return printer(value) if rounded else printer.argument(value)

    def _read_rounded(self, expr: Expr, state: str) -> Printed | None:
        """Return what `_read` returns, or the text of a rounding to a scalar state's dtype."""
        match expr:
            case Call(word, (value,)) if word == ROUNDED:
                printer = ExpressionPrinter(
                    lambda e: self._read_rounded(e, state), for_elements=False
                )
                return f"rounded({printer.argument(value)}, {state.upper()}_T)", ATOM
        return self._read(expr)

    def _read(self, expr: Expr) -> Printed | None:
        """Return the text of a predicate, a property, a tuple item or a flag, else None."""
        match expr:
            case Call("item", (Ref(name), Const(int() as index))):
                return f"tl.load({self._hyper(name, index)})", ATOM
            case Call("truth", (Ref(name),)):
                hyper = self._plan.algorithm.hyper(name)
                nonzero = f"{variable(name)} != 0"
                if hyper and hyper.optional:
                    return f"(is_none({variable(name)}) == 0) & ({nonzero})", LOGIC
                return nonzero, COMPARISON
            case Call("is_none", (Ref(name),)):
                return f"is_none({variable(name)})", ATOM
            case Call("is_none", (Call("item", (Ref(name), Const(int() as index))),)):
                return f"is_none(tl.load({self._hyper(name, index)}))", ATOM
            case Call("fresh", (Ref(name),)):
                return f"fresh_{name} != 0", COMPARISON
            case Call():
                return read_property(expr)
            case Ref(name) if (hyper := self._plan.algorithm.hyper(name)) and hyper.type == "flag":
                return f"{variable(name)} != 0", COMPARISON
        return None

    def _state_stores(self) -> list[str]:
        """Return the lines that store the step and the changed scalar states."""
        unchanged = set(self._states) - {a.target.name for a in assigns(self._plan.scalars)}
        return [
            f"tl.store({variable(plural(n))}, {variable(n)}.to({n.upper()}_T))"
            for n in self._step_and_states()
            if n not in unchanged
        ]

    def _store(self, name: str) -> str:
        """Return the line that stores one packed scalar; a condition is stored as 0 or 1."""
        offset = list(self._packed.program_results).index(name)
        result = self._packed.program_results[name]
        value = variable(result.name) if isinstance(result, Ref) else self._stored_condition(result)
        return f"tl.store({plus_offset(self._used('scalars'), offset)}, {value})"

    def _stored_condition(self, condition: Expr) -> str:
        """Return a condition's text; that of `fresh(x)` is `fresh_x`, which is 0 or 1."""
        match condition:
            case Call("fresh", (Ref(name),)):
                return f"fresh_{name}"
        return self._printer(condition)


def _defined(program: Program) -> set[str]:
    """Return the variables that a block assigns on every path."""
    return set(map(variable, always_assigned(program)))
