"""Print the phases of a rule with reductions as Python, for one tensor or for lists of tensors.

A large tensor is swept in blocks. Names of blocks end in `_block`. The small values (numbers, rows
and columns on the device) of a list of tensors are stacked along a new first axis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from optgen.ir.algorithm import State
from optgen.ir.binding_times import Axes, Kind, Stage, kind_of
from optgen.ir.compute_dtype import widens
from optgen.ir.generated_names import plural
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    Linear,
    Program,
    Ref,
    Term,
    always_assigned,
    assigns,
    children,
    expressions,
    names_read,
    rebuild,
    refs,
    rename_program,
)
from optgen.ir.plan import Finish, MatrixCall, Plan, Stream, Sweep, reads
from optgen.ir.whole_matrices import is_wide
from optgen.lowerings.python.collectives import collective_points, collective_requests
from optgen.lowerings.python.expression_printer import PythonPrinter, statements
from optgen.lowerings.python.function import Body, indented, loop_iterable
from optgen.lowerings.python.literals import comment
from optgen.lowerings.python.phase_syntax import PhaseSyntax
from optgen.lowerings.python.random_calls import (
    defaults_before_draws,
    numbers_in_draws,
)
from optgen.lowerings.python.widened_tensors import shares_widened_tensors, widened_loop_header
from optgen.passes.coefficients_to_factors import coefficients_to_factors
from optgen.passes.if_conversion import use_tensor_logic
from optgen.passes.instructions import Instruction, live_tensors, numbers_read
from optgen.passes.name_random import name_random, with_random_streams
from optgen.passes.rematerialize_if_blocked import reads_blocked, rematerialize_if_blocked
from optgen.passes.select_instructions import select_instructions

_PRINTER = PythonPrinter({}, {})
_ZEROS = {Axes.NONE: "zero_sum", Axes.ROW: "zero_row_sum", Axes.COLUMN: "zero_col_sum"}


def _tensor_names(plan: Plan) -> list[str]:
    """Return the names of a parameter's tensors, in the order of the lists in a sublist."""
    states = (s.symbol for s in plan.algorithm.device_states())
    return [plan.algorithm.param, plan.algorithm.grad, *states]


def phase_body(plan: Plan, syntax: PhaseSyntax) -> Body:
    """Return the lines of all phases, for a bucket whose tensors have one shape."""
    lists = ", ".join(map(plural, _tensor_names(plan)))
    has_matrix_calls = any(isinstance(phase, MatrixCall) for phase in plan.phases)
    plan = plan if has_matrix_calls or syntax.over_ranks else rematerialize_if_blocked(plan)
    plan, draws = name_random(plan)
    plan = with_random_streams(plan, draws)
    if shares_widened_tensors(plan) and not syntax.in_lists:
        syntax = replace(syntax, whole_tensor="{0}")
    factored = coefficients_to_factors(plan)
    printer = _Printer(factored, plan.kinds, syntax, has_matrix_calls, dict(draws))
    lines = list(printer.lines())
    if shares_widened_tensors(plan):
        lines = indented(lines, widened_loop_header(plan, syntax.in_lists))
    if syntax.over_ranks:
        lines = [*([f"sublist = {lists}"] if printer.rereads_lists else []), *lines]
    else:
        opening = [f"{lists} = sublist"] if syntax.in_lists else []
        lines = indented([*opening, *lines], syntax.loop.format(lists=lists))
    return Body(lines, frozenset(printer.reads), defaults_before_draws(plan, draws))


@dataclass
class _Printer:
    """Printer of a plan's phases."""

    plan: Plan
    kinds: Mapping[Ref, Kind]  # kinds before `coefficients_to_factors`
    syntax: PhaseSyntax
    has_matrix_calls: bool  # they take whole tensors, so no sweep runs in blocks
    undrawn_calls: dict[str, Call]  # draws of random numbers that are not printed yet
    reads: set[str] = field(default_factory=set)  # numbers read by the lines printed so far

    def lines(self) -> Iterator[str]:
        """Yield the lines inside the loop over tensors or sublists."""
        if reads_blocked(self.plan):
            yield self.syntax.set_blocked
        yield from (f"{name} = None" for name in self._sometimes_unassigned())
        for state in self.plan.algorithm.finish_states():
            line = f"{state.symbol} = {self._filled_in(self._read(state), state.symbol)}"
            yield from indented([line], f"if {state.when}:") if state.when else [line]
        for phase in self.plan.phases:
            match phase:
                case Sweep():
                    yield from self._draw(phase)
                    if self._runs_on_whole_tensors(phase):
                        yield from self._lines_over_whole_tensors(phase)
                    else:
                        yield from self._lines_over_blocks(phase)
                    yield from self._completion(phase.reductions)
                case Finish(body):
                    yield from self._finish(body)
                case MatrixCall():
                    yield from self._call(phase)

    def _draw(self, sweep: Sweep) -> list[str]:
        """Return the lines that draw the random numbers that a sweep is the first to read."""
        read = names_read(sweep.body) & self.undrawn_calls.keys()
        first_read = {name: self.undrawn_calls.pop(name) for name in sorted(read)}
        self.reads |= numbers_in_draws(first_read)
        return self.syntax.draw(first_read)

    def _read(self, state: State) -> str:
        """Return the text that reads a row or column state, or a scalar state on the device."""
        if state.on_device:
            return self.syntax.read_number
        return self.syntax.read_wider if widens(self.plan.algorithm) else self.syntax.read

    @property
    def rereads_lists(self) -> bool:
        """Tell whether a sweep reads a list whose name an earlier sweep has reassigned."""
        return self.syntax.in_lists and any(map(self._reassigned_streams, self.plan.sweeps))

    def _runs_on_whole_tensors(self, sweep: Sweep) -> bool:
        """Tell whether a sweep runs on whole tensors, without small values."""
        if not self.has_matrix_calls or widens(self.plan.algorithm):
            return False
        has_small_values = any(map(self._is_small, _names_read_or_reduced(sweep)))
        return not has_small_values and not self._changes_later_gradient(sweep)

    def _changes_later_gradient(self, sweep: Sweep) -> bool:
        """Tell whether a sweep over lists changes the gradient that a later sweep reads."""
        later = self.plan.sweeps[self.plan.sweeps.index(sweep) + 1 :]
        grad = self.plan.algorithm.grad
        changed = any(a.target.name == grad for a in assigns(sweep.body))
        read = any(stream.name == grad for other in later for stream in other.streams)
        return self.syntax.in_lists and changed and read

    def _lines_over_whole_tensors(self, sweep: Sweep) -> Iterator[str]:
        """Print a sweep over whole tensors, one operation after another."""
        if self.syntax.in_lists:
            yield from self._restoring_lines(sweep)
        else:
            for stream in self._loop_streams(sweep):
                if stream.role != "local":
                    line = (
                        f"{stream.name} = {self._filled_in(self.syntax.whole_tensor, stream.name)}"
                    )
                    yield from indented([line], f"if {stream.when}:") if stream.when else [line]
        yield from self.syntax.lines(self._instructions(sweep))

    def _restoring_lines(self, sweep: Sweep) -> Iterator[str]:
        """Yield the lines that restore lists whose names an earlier sweep has reassigned."""
        for name in self._reassigned_streams(sweep):
            yield f"{plural(name)} = sublist[{_tensor_names(self.plan).index(name)}]"

    def _reassigned_streams(self, sweep: Sweep) -> list[str]:
        """Return the streams of a sweep whose names an earlier sweep has reassigned."""
        position = self.plan.sweeps.index(sweep)
        before = [
            other for other in self.plan.sweeps[:position] if self._runs_on_whole_tensors(other)
        ]
        stored = {stream.name for other in before for stream in other.streams if stream.stored}
        reassigned = {a.target.name for other in before for a in assigns(other.body)} - stored
        return [s.name for s in sweep.streams if s.name in reassigned and s.role != "local"]

    def _lines_over_blocks(self, sweep: Sweep) -> Iterator[str]:
        """Initialize the sums, then loop over the blocks."""
        if self.syntax.in_lists:
            yield from self._restoring_lines(sweep)
        for stmt in sweep.reductions:
            zero = _ZEROS[self.kinds[stmt.target].axes]
            yield f"{stmt.target.name} = {zero}({self._sample_param()}{self.syntax.count})"
        small = dict.fromkeys(ref for ref in _names_read_or_reduced(sweep) if self._is_small(ref))
        sums = {r.target for r in sweep.reductions if self.kinds[r.target].axes is Axes.NONE}
        small_values = [ref.name for ref in small if ref not in sums]
        accumulators = [ref.name for ref in small if ref in sums]  # of sums over whole tensors
        in_chunks = self.syntax.over_ranks and not self.has_matrix_calls
        if self.syntax.in_lists and not in_chunks:
            yield from (f"{plural(name)} = {self._small_argument(name)}" for name in accumulators)
        loop_streams = self._loop_streams(sweep)
        streams = [s.name for s in loop_streams]
        arguments = [self._whole_argument(stream) for stream in loop_streams]
        arguments += [self._small_argument(name) for name in small_values]
        if in_chunks and accumulators:
            small_values += accumulators
            arguments.append(f"sums=[{', '.join(map(self._small_argument, accumulators))}]")
        instructions = self._instructions(sweep, {*streams, *small_values})
        lines = list(self.syntax.lines(instructions))
        loop_variables = [self._listed(f"{name}_block") for name in (*streams, *small_values)]
        is_first_read = any(loop_variables[0] in line for line in lines)
        if loop_streams[0] not in sweep.streams and not is_first_read:
            loop_variables[0] = "_"  # it only decides how large blocks may be
        names = ", ".join(loop_variables) + "," * (len(loop_variables) == 1)
        blocks = self.syntax.single_block if self.has_matrix_calls else self.syntax.blocks
        blocks_call = f"{blocks}({', '.join(arguments)})"
        if not shares_widened_tensors(self.plan):
            blocks_call = loop_iterable(self.plan, blocks_call, (s.stored for s in loop_streams))
        yield f"for {names} in {blocks_call}:"
        yield from (f"    {line}" for line in lines)
        live = live_tensors(instructions, [f"{name}_block" for name in streams])
        if live and in_chunks and sweep.reductions:
            yield f"del {', '.join(map(plural, live))}  # freed before waiting for other ranks"

    def _loop_streams(self, sweep: Sweep) -> list[Stream]:
        """Return the streams of the loop; the first always exists, in the parameter's dtype."""
        streams = [s for s in sweep.streams if s.role != "local" or not s.stored]
        if streams and _is_like_param(streams[0]):
            return streams
        return [Stream(self.plan.algorithm.param, "param", False), *streams]

    def _instructions(self, sweep: Sweep, blocks: Collection[str] = ()) -> tuple[Instruction, ...]:
        """Select a sweep's instructions; names in `blocks` get the suffix `_block`."""

        def block_name(ref: Ref) -> Ref:
            return replace(ref, name=f"{ref.name}_block") if ref.name in blocks else ref

        streams = (s for s in self._loop_streams(sweep) if s.role != "local")
        renamed = Sweep(
            tuple(replace(s, name=block_name(Ref(s.name)).name) for s in streams),
            rename_program(sweep.body, block_name),
        )
        kinds = {block_name(ref): kind for ref, kind in self.plan.kinds.items()}
        instructions = select_instructions(replace(self.plan, kinds=kinds), renamed)
        self.reads |= {*numbers_read(instructions)}
        return instructions

    def _finish(self, body: Program) -> Iterator[str]:
        """Print a finish: its small values, then the stores of its states."""
        printer = PythonPrinter(
            {self.plan.algorithm.param: self.syntax.param}, self.syntax.functions
        )
        self.reads |= names_read(body)
        requests = collective_points(body) if self.syntax.over_ranks else {}
        in_lists = self.syntax.in_lists  # in lists, a stacked state is a copy already

        def line(stmt: Assign) -> str:
            if is_wide(stmt.value):
                return f"{stmt.target.name} = {self._wide_reduction(stmt.value, printer)}"
            expr = use_tensor_logic(stmt.value, self._is_device_value)
            value = printer.text(self._with_equal_sides(expr))
            if self._is_small(stmt.target) and not self._is_device_value(stmt.value):
                value = f"number({self._sample_param()}, {value}{self.syntax.count})"
            if isinstance(stmt.value, Ref) and self._is_state(stmt.value) and not in_lists:
                value += ".clone()"  # the state is overwritten later
            completion = self._completion(requests.get(stmt.target, ()))
            return "\n".join([f"{stmt.target.name} = {value}", *completion])

        yield from statements(body, printer, line)
        assigned = {a.target.name for a in assigns(body)}
        for state in self.plan.algorithm.states:
            if state.symbol in assigned:
                text = self.syntax.write_number if state.on_device else self.syntax.write
                write = self._filled_in(text, state.symbol)
                yield from indented([write], f"if {state.when}:") if state.when else [write]

    def _wide_reduction(self, reduction: Expr, printer: PythonPrinter) -> str:
        """Return the text that requests a reduction over several parameters."""
        assert isinstance(reduction, Call)
        (operand,) = reduction.args
        text = printer.text(operand)
        if not self._is_device_value(operand):
            text = f"number({self._sample_param()}, {text}{self.syntax.count})"
        return f"yield {reduction.op}({text})"

    def _with_equal_sides(self, value: Expr) -> Expr:
        """Return a value in which a `where` has tensors on both sides if it has one on a side."""
        new_value = rebuild(value, self._with_equal_sides)
        match value:
            case Call("where", (condition, *arms)) if not self._is_device_value(condition) and any(
                map(self._is_device_value, arms)
            ):
                _, *new_arms = children(new_value)
                count = [Ref(self.syntax.count.removeprefix(", "))] if self.syntax.count else []
                tensors = (
                    new
                    if self._is_device_value(old)
                    else Call("number", (Ref(self._sample_param()), new, *count))
                    for old, new in zip(arms, new_arms, strict=True)
                )
                return Call("where", (condition, *tensors))
        return new_value

    def _is_state(self, ref: Ref) -> bool:
        return self.plan.algorithm.state(ref.name) is not None

    def _completion(self, reductions: Sequence[Assign]) -> list[str]:
        """Return the line that requests the completion of these reductions over the ranks."""
        requests = (
            collective_requests(reductions, self.kinds.__getitem__)
            if self.syntax.over_ranks
            else []
        )
        return [f"yield [{', '.join(requests)}]"] if requests else []

    def _call(self, call: MatrixCall) -> Iterator[str]:
        """Print the call of a matrix op on one tensor or on a sublist."""
        yield from map(comment, call.quote)
        self.reads |= {ref.name for arg in call.args for ref in refs(arg)}
        target, (first, *rest) = call.target.name, (_PRINTER.text(arg) for arg in call.args)
        if self.syntax.over_ranks:
            yield f"whole = yield collectives.gather({plural(first)})"
            result = f"{call.op}({', '.join(['whole', *rest])})"
            yield f"{plural(target)} = yield collectives.scatter({result})"
        elif self.syntax.in_lists:
            yield f"{plural(target)} = {call.op}({', '.join([plural(first), *rest])})"
        else:
            yield f"{target} = {matrix_call(Call(call.op, call.args))}"
        if not self._is_only_added(call.target):  # some ops need equal dtypes
            cast = f"{target}.to({self._sample_param()}.dtype)"
            text = f"[{cast} for {target} in {plural(target)}]" if self.syntax.in_lists else cast
            yield f"{self._listed(target)} = {text}"

    def _is_only_added(self, target: Ref) -> bool:
        """Tell whether a tensor is only scaled and added to other tensors."""
        for value in (e for sweep in self.plan.sweeps for e in expressions(sweep.body)):
            terms = value.terms if isinstance(value, Linear) else ()
            added = sum(term == Term(term.coefficient, (target,)) for term in terms)
            is_first = bool(terms) and terms[0].factors == (target,)
            if is_first or sum(ref == target for ref in reads(value)) > added:
                return False
        return True

    def _sample_param(self) -> str:
        """Return the text of a parameter of the bucket; all have its shape, dtype and device."""
        whole = self._filled_in(self.syntax.whole_tensor, self.plan.algorithm.param)
        return f"{whole}[0]" if self.syntax.in_lists else whole

    def _is_device_value(self, expr: Expr) -> bool:
        """Tell whether a value is known only on the device."""
        return kind_of(expr, self.kinds.__getitem__).stage is Stage.DEVICE

    def _is_small(self, ref: Ref) -> bool:
        """Tell whether a name is a number, a row or a column on the device."""
        kind = self.kinds[ref]
        return kind.stage is Stage.DEVICE and kind.axes is not Axes.TENSOR

    def _listed(self, name: str) -> str:
        return plural(name) if self.syntax.in_lists else name

    def _whole_argument(self, stream: Stream) -> str:
        """Return the text of a whole tensor or list; a missing state is None or an empty list."""
        if stream.role == "local":
            return self._listed(stream.name)
        text = self._filled_in(self.syntax.whole_tensor, stream.name)
        may_be_none = stream.when and not self.syntax.in_lists
        return f"{text} if {stream.when} else None" if may_be_none else text

    def _sometimes_unassigned(self) -> list[str]:
        """Return the small values that start as None, because some path leaves them unassigned.

        These include the states that exist only under a condition.
        """
        finishes = [phase.body for phase in self.plan.phases if isinstance(phase, Finish)]
        names = {a.target.name: None for body in finishes for a in assigns(body)}
        always = {name for body in finishes for name in always_assigned(body)}
        read = {ref.name for sweep in self.plan.sweeps for ref in _names_read_or_reduced(sweep)}
        states = {state.symbol for state in self.plan.algorithm.states}
        optional = [s.symbol for s in self.plan.algorithm.factor_states() if s.when]
        sometimes = [name for name in names if name not in always | states]
        return [name for name in (*optional, *sometimes) if name in read]

    def _small_argument(self, name: str) -> str:
        """Return the text of a small value as an argument of the loop over blocks."""
        text = self._filled_in(self.syntax.small_value, name)
        may_be_none = self.syntax.in_lists and name in self._sometimes_unassigned()
        return f"[] if {name} is None else {text}" if may_be_none else text

    def _filled_in(self, spelling: str, name: str) -> str:
        return spelling.format(name, plural(name))


def matrix_call(call: Call) -> str:
    """Return the text of a matrix op on one tensor. The runtime's functions take lists."""
    first, *rest = (_PRINTER.text(arg) for arg in call.args)
    return f"{call.op}({', '.join([f'[{first}]', *rest])})[0]"


def _is_like_param(stream: Stream) -> bool:
    """Tell whether a stream exists for every parameter, in the parameter's shape and dtype."""
    state = stream.state
    return stream.role != "local" and not (state and (state.when or state.dtype))


def _names_read_or_reduced(sweep: Sweep) -> Iterator[Ref]:
    """Yield every name that a sweep reads or reduces to, in order."""
    yield from (stmt.target for stmt in sweep.reductions)
    for expr in expressions(sweep.body):
        yield from reads(expr)
