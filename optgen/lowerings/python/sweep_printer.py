"""Print a sweep of a rule with phases, over blocks of a tensor or over whole tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from optgen.ir.execution import widens_in_python
from optgen.ir.nodes import Ref, assigns, rename_program
from optgen.ir.plan import Plan, Stream, Sweep
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.python.functions import guarded_lines, loop_iterable
from optgen.lowerings.python.syntax import SmallValues, Syntax, filled_in
from optgen.passes.select_torch_ops import select_torch_ops
from optgen.passes.torch_ops import Branch, Instruction, Op, live_tensors, numbers_read


@dataclass
class SweepPrinter:
    """Printer of the sweeps of a plan. `reads` are the numbers that the printed lines read."""

    plan: Plan
    syntax: Syntax
    small_values: SmallValues
    tensor_names: Sequence[str]  # of a parameter's tensors, in the order of the lists
    reads: set[str] = field(default_factory=set)

    def lines(self, sweep: Sweep) -> Iterator[str]:
        """Yield the lines of a sweep."""
        if self.syntax.in_lists:
            for name in self._reassigned_streams(sweep):
                yield f"{plural(name)} = sublist[{self.tensor_names.index(name)}]"
        if self._runs_on_whole_tensors(sweep):
            yield from self._lines_over_whole_tensors(sweep)
        else:
            yield from self._lines_over_blocks(sweep)

    @property
    def rereads_lists(self) -> bool:
        """Tell whether a sweep reads a list whose name an earlier sweep has reassigned."""
        return self.syntax.in_lists and any(map(self._reassigned_streams, self.plan.sweeps))

    def _reassigned_streams(self, sweep: Sweep) -> list[str]:
        """Return the streams of a sweep whose names an earlier sweep has reassigned."""
        position = self.plan.sweeps.index(sweep)
        earlier = [
            other for other in self.plan.sweeps[:position] if self._runs_on_whole_tensors(other)
        ]
        stored = {stream.name for other in earlier for stream in other.streams if stream.stored}
        reassigned = {a.target.name for other in earlier for a in assigns(other.body)} - stored
        return [s.name for s in sweep.streams if s.name in reassigned and s.role != "local"]

    def _runs_on_whole_tensors(self, sweep: Sweep) -> bool:
        """Tell whether a sweep runs on whole tensors, without small values."""
        if not self.plan.matrix_calls or widens_in_python(self.plan.algorithm):
            return False
        return not self.small_values.of_sweep(sweep) and not self._changes_later_gradient(sweep)

    def _changes_later_gradient(self, sweep: Sweep) -> bool:
        """Tell whether a sweep over lists changes the gradient that a later sweep reads."""
        later = self.plan.sweeps[self.plan.sweeps.index(sweep) + 1 :]
        grad = self.plan.algorithm.grad
        changed = any(a.target.name == grad for a in assigns(sweep.body))
        read = any(stream.name == grad for other in later for stream in other.streams)
        return self.syntax.in_lists and changed and read

    def _lines_over_whole_tensors(self, sweep: Sweep) -> Iterator[str]:
        """Print a sweep over whole tensors, one operation after another."""
        if not self.syntax.in_lists:
            for stream in self._loop_streams(sweep):
                if stream.role != "local":
                    tensor = filled_in(self.syntax.whole_tensor, stream.name)
                    yield from guarded_lines(stream, f"{stream.name} = {tensor}")
        yield from self.syntax.print_instructions(self._instructions(sweep))

    def _lines_over_blocks(self, sweep: Sweep) -> Iterator[str]:
        """Initialize the sums, then loop over the blocks."""
        for stmt in sweep.reductions:
            yield f"{stmt.target.name} = {self.small_values.zero(stmt.target)}"
        sums = {r.target for r in sweep.reductions if self.small_values.is_sum_of_tensor(r.target)}
        small_refs = self.small_values.of_sweep(sweep)
        small_values = [ref.name for ref in small_refs if ref not in sums]
        accumulators = [ref.name for ref in small_refs if ref in sums]  # of sums over whole tensors
        in_chunks = self.syntax.over_ranks and not self.plan.matrix_calls
        if self.syntax.in_lists and not in_chunks:
            for name in accumulators:
                yield f"{plural(name)} = {self.small_values.argument(name)}"
        loop_streams = self._loop_streams(sweep)
        streams = [s.name for s in loop_streams]
        arguments = [self._whole_argument(stream) for stream in loop_streams]
        arguments += map(self.small_values.argument, small_values)
        if in_chunks and accumulators:
            small_values += accumulators
            sum_arguments = map(self.small_values.argument, accumulators)
            arguments.append(f"sums=[{', '.join(sum_arguments)}]")
        instructions = self._instructions(sweep, {*streams, *small_values})
        lines = list(self.syntax.print_instructions(instructions))
        loop_variables = [self.syntax.listed(f"{name}_block") for name in (*streams, *small_values)]
        is_first_read = f"{streams[0]}_block" in _tensors_read(instructions)
        if loop_streams[0] not in sweep.streams and not is_first_read:
            loop_variables[0] = "_"  # it only decides how large blocks may be
        yield self._loop_header(loop_variables, arguments, loop_streams)
        yield from (f"    {line}" for line in lines)
        live = live_tensors(instructions, [f"{name}_block" for name in streams])
        if live and in_chunks and sweep.reductions:
            yield f"del {', '.join(map(plural, live))}  # freed before waiting for other ranks"

    def _loop_header(
        self, variables: Sequence[str], arguments: Sequence[str], streams: Sequence[Stream]
    ) -> str:
        """Return the header of the loop over the blocks of tensors."""
        target = ", ".join(variables) + "," * (len(variables) == 1)
        function = (
            self.syntax.single_block_function
            if self.plan.matrix_calls
            else self.syntax.blocks_function
        )
        blocks = f"{function}({', '.join(arguments)})"
        if not shares_widened_tensors(self.plan):
            blocks = loop_iterable(self.plan, blocks, (stream.stored for stream in streams))
        return f"for {target} in {blocks}:"

    def _whole_argument(self, stream: Stream) -> str:
        """Return the text of a whole tensor or list; a missing state is None or an empty list."""
        if stream.role == "local":
            return self.syntax.listed(stream.name)
        text = filled_in(self.syntax.whole_tensor, stream.name)
        may_be_none = stream.when and not self.syntax.in_lists
        return f"{text} if {stream.when} else None" if may_be_none else text

    def _loop_streams(self, sweep: Sweep) -> list[Stream]:
        """Return the streams of the loop; the first always exists, in the parameter's dtype."""
        streams = [s for s in sweep.streams if s.role != "local" or not s.stored]
        if streams and _is_like_param(streams[0]):
            return streams
        return [Stream(self.plan.algorithm.param, "param", stored=False), *streams]

    def _instructions(
        self, sweep: Sweep, block_names: Collection[str] = ()
    ) -> tuple[Instruction, ...]:
        """Select a sweep's instructions; names in `block_names` get the suffix `_block`."""

        def block_name(ref: Ref) -> Ref:
            return replace(ref, name=f"{ref.name}_block") if ref.name in block_names else ref

        streams = (s for s in self._loop_streams(sweep) if s.role != "local")
        renamed = Sweep(
            tuple(replace(s, name=block_name(Ref(s.name)).name) for s in streams),
            rename_program(sweep.body, block_name),
        )
        kinds = {block_name(ref): kind for ref, kind in self.plan.kinds.items()}
        instructions = select_torch_ops(replace(self.plan, kinds=kinds), renamed)
        self.reads |= {*numbers_read(instructions)}
        return instructions


def _is_like_param(stream: Stream) -> bool:
    """Tell whether a stream exists for every parameter, in the parameter's shape and dtype."""
    state = stream.state
    return stream.role != "local" and not (state and (state.when or state.dtype))


def shares_widened_tensors(plan: Plan) -> bool:
    """Tell whether sweeps share widened tensors: later sweeps read what earlier ones store."""
    return widens_in_python(plan.algorithm) and len(plan.sweeps) > 1


def widened_loop_header(plan: Plan, in_lists: bool) -> str:
    """Return the header of a loop that runs once, over the tensors of all sweeps in a wider dtype.

    With `in_lists` the loop goes over lists of tensors, else over the tensors of one parameter.
    """
    streams = [Stream(plan.algorithm.param, "param", stored=False)]
    streams += [s for sweep in plan.sweeps for s in sweep.streams if s.role != "local"]
    stored = {stream.name: False for stream in streams}
    stored |= {stream.name: True for stream in streams if stream.stored}
    names = ", ".join(map(plural, stored) if in_lists else stored)
    conditions = {stream.name: stream.when for stream in streams}
    tensors = names if in_lists else ", ".join(_at_index(name, conditions[name]) for name in stored)
    trailing_comma = "," * (len(stored) == 1)
    iterable = loop_iterable(plan, f"[({tensors}{trailing_comma})]", stored.values())
    return f"for {names}{trailing_comma} in {iterable}:"


def _at_index(name: str, when: str | None) -> str:
    """Return the text of the tensor of the parameter at an index; None for an absent state."""
    text = f"{plural(name)}[index]"
    return f"{text} if {when} else None" if when else text


def _tensors_read(instructions: Iterable[Instruction]) -> set[str]:
    """Return the names of the tensors that instructions read."""
    read: set[str] = set()
    for instruction in instructions:
        if isinstance(instruction, Branch):
            read |= _tensors_read((*instruction.then, *instruction.orelse))
            continue
        for operation in instruction.operations:
            args = operation.args if isinstance(operation, Op) else ()
            read |= {operand for operand in (operation.source, *args) if isinstance(operand, str)}
    return read
