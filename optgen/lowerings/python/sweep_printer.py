"""Print a sweep of a rule with phases, over blocks of a tensor or over whole tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from optgen.ir.nodes import Assign, Ref, assigns, names_assigned, names_read, rename_program
from optgen.ir.plan import Finish, Plan, Stream, Sweep
from optgen.ir.reserved_in_python import plural
from optgen.lowerings.python.functions import (
    guarded_lines,
    indented,
    lines_with_wide_copies,
)
from optgen.lowerings.python.literals import Quote
from optgen.lowerings.python.syntax import SmallValues, Syntax, filled_in
from optgen.passes.recognize_rules import widens_in_python
from optgen.passes.select_torch_ops import select_torch_ops
from optgen.passes.torch_ops import Branch, Instruction, Op, Reduce, live_tensors, numbers_read


@dataclass
class SweepPrinter:
    """Printer of the sweeps of a plan. `reads` are the numbers that the printed lines read."""

    plan: Plan
    syntax: Syntax
    small_values: SmallValues
    tensor_names: Sequence[str]  # of a parameter's tensors, in the order of the lists
    reads: set[str] = field(default_factory=set)

    def lines(self, sweep: Sweep, shown: Quote = ()) -> Iterator[str]:
        """Yield the lines of a sweep. `shown` are the lines of the rule that stand above them."""
        if self.plan.matrix_calls:
            yield from self._lines_over_whole_tensors(sweep, shown)
        else:
            yield from self._lines_over_blocks(sweep)

    @property
    def rereads_lists(self) -> bool:
        """Tell whether a sweep reads a list whose name an earlier sweep has reassigned."""
        return self.syntax.in_lists and any(map(self._reassigned_streams, self.plan.sweeps))

    def _reassigned_streams(self, sweep: Sweep) -> list[str]:
        """Return the streams of a sweep whose names an earlier sweep has reassigned."""
        if not self.plan.matrix_calls:
            return []
        earlier = self.plan.sweeps[: self.plan.sweeps.index(sweep)]
        stored = {stream.name for other in earlier for stream in other.streams if stream.stored}
        reassigned = {a.target.name for other in earlier for a in assigns(other.body)} - stored
        return [s.name for s in sweep.streams if s.name in reassigned and s.role != "local"]

    def _lines_over_whole_tensors(self, sweep: Sweep, shown: Quote) -> Iterator[str]:
        """Print a sweep over whole tensors, one operation after another."""
        if self.syntax.in_lists or shares_wide_copies(self.plan):
            for name in self._reassigned_streams(sweep):
                yield f"{self.syntax.listed(name)} = {self._reread(name)}"
        else:
            for stream in self._loop_streams(sweep):
                if stream.role != "local":
                    tensor = filled_in(self.syntax.whole_tensor, stream.name)
                    yield from guarded_lines(stream, f"{stream.name} = {tensor}")
        at_once = self._numbers_at_once(sweep)
        for stmt in (each for each in sweep.reductions if each.target not in at_once):
            name = stmt.target.name
            yield f"{name} = {self.small_values.zero(stmt.target)}"
            if self.syntax.in_lists:
                yield f"{plural(name)} = {self.small_values.argument(name)}"
        new_names: dict[str, str] = {}
        for name in self._small_values_read(sweep):
            variable = plural(name) if self.syntax.in_lists else self._narrow_name(name, sweep)
            if variable != name and not self.syntax.in_lists:
                new_names[name] = variable
            if not self._is_narrowed_before(name, sweep):
                like, text = self.small_values.sample_param(), self.small_values.argument(name)
                yield f"{variable} = narrowed({text}, like={like})"
        instructions = (
            _reducing_at_once(instruction, at_once)
            for instruction in self._instructions(sweep, new_names)
        )
        yield from self.syntax.print_instructions(tuple(instructions), shown)

    def _numbers_at_once(self, sweep: Sweep) -> set[Ref]:
        """Return the numbers to which a sweep reduces whole tensors on every path."""
        always = {stmt.target for stmt in sweep.body if isinstance(stmt, Assign)}
        reduced = {stmt.target for stmt in sweep.reductions}
        return {ref for ref in reduced & always if self.small_values.is_sum_of_tensor(ref)}

    def _reread(self, name: str) -> str:
        """Return the text of a stream whose variable was reassigned."""
        if shares_wide_copies(self.plan):
            names = [stream.name for stream in streams_of_wide_copies(self.plan)]
            return f"copies.tensors[{names.index(name)}]"
        return f"sublist[{self.tensor_names.index(name)}]"

    def _small_values_read(self, sweep: Sweep) -> list[str]:
        """Return the names of the small values that a sweep reads, but does not reduce to."""
        reduced = {stmt.target for stmt in sweep.reductions}
        return [ref.name for ref in self.small_values.of_sweep(sweep) if ref not in reduced]

    def _is_narrowed_before(self, name: str, sweep: Sweep) -> bool:
        """Tell whether an earlier sweep narrows a small value that has not changed since."""
        phases = self.plan.phases[: self.plan.phases.index(sweep)]
        for phase in reversed(phases):
            match phase:
                case Finish(body) if name in names_assigned(body):
                    return False
                case Sweep() if name in self._small_values_read(phase):
                    return True
                case Sweep() if name in {stmt.target.name for stmt in phase.reductions}:
                    return False
        return False

    def _narrow_name(self, name: str, sweep: Sweep) -> str:
        """Return the variable of a narrowed number: another one if a finish reads the number."""
        later = self.plan.phases[self.plan.phases.index(sweep) :]
        is_read = any(isinstance(p, Finish) and name in names_read(p.body) for p in later)
        return f"narrow_{name}" if is_read else name

    def _lines_over_blocks(self, sweep: Sweep) -> Iterator[str]:
        """Initialize the sums, then loop over the blocks."""
        for stmt in sweep.reductions:
            yield f"{stmt.target.name} = {self.small_values.zero(stmt.target)}"
        sums = {r.target for r in sweep.reductions if self.small_values.is_sum_of_tensor(r.target)}
        small_refs = self.small_values.of_sweep(sweep)
        small_values = [ref.name for ref in small_refs if ref not in sums]
        accumulators = [ref.name for ref in small_refs if ref in sums]  # of sums over whole tensors
        in_chunks = self.syntax.over_ranks
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
        block_names = {name: f"{name}_block" for name in (*streams, *small_values)}
        instructions = self._instructions(sweep, block_names)
        lines = list(self.syntax.print_instructions(instructions))
        variables = list(map(self.syntax.listed, block_names.values()))
        if widens_in_python(self.plan.algorithm) and not shares_wide_copies(self.plan):
            names = variables[: len(streams)]
            lines = lines_with_wide_copies(names, names, loop_streams, lines)
        elif loop_streams[0] not in sweep.streams and (
            block_names[streams[0]] not in _tensors_read(instructions)
        ):
            variables[0] = "_"  # it only decides how large blocks may be
        target = ", ".join(variables) + "," * (len(variables) == 1)
        blocks = f"{self.syntax.blocks_function}({', '.join(arguments)})"
        yield from indented(lines, f"for {target} in {blocks}:")
        live = live_tensors(instructions, [block_names[name] for name in streams])
        if live and in_chunks and sweep.reductions:
            yield f"del {', '.join(map(plural, live))}  # freed before waiting for other ranks"

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

    def _instructions(self, sweep: Sweep, new_names: Mapping[str, str]) -> tuple[Instruction, ...]:
        """Select a sweep's instructions, in which `new_names` replaces names."""

        def renamed(ref: Ref) -> Ref:
            return replace(ref, name=new_names.get(ref.name, ref.name))

        streams = (s for s in self._loop_streams(sweep) if s.role != "local")
        renamed_sweep = Sweep(
            tuple(replace(s, name=renamed(Ref(s.name)).name) for s in streams),
            rename_program(sweep.body, renamed),
        )
        kinds = {renamed(ref): kind for ref, kind in self.plan.kinds.items()}
        instructions = select_torch_ops(replace(self.plan, kinds=kinds), renamed_sweep)
        self.reads |= {*numbers_read(instructions)}
        return instructions


def _reducing_at_once(instruction: Instruction, numbers: Collection[Ref]) -> Instruction:
    """Return an instruction in which the reductions to these numbers reduce whole tensors."""
    if isinstance(instruction, Branch):
        return instruction
    names = {ref.name for ref in numbers}
    operations = (
        replace(each, whole=True) if isinstance(each, Reduce) and each.target in names else each
        for each in instruction.operations
    )
    return replace(instruction, operations=tuple(operations))


def _is_like_param(stream: Stream) -> bool:
    """Tell whether a stream exists for every parameter, in the parameter's shape and dtype."""
    state = stream.state
    return stream.role != "local" and not (state and (state.when or state.dtype))


def shares_wide_copies(plan: Plan) -> bool:
    """Tell whether sweeps share wide copies of tensors: later ones read what earlier ones store."""
    return widens_in_python(plan.algorithm) and len(plan.sweeps) > 1


def streams_of_wide_copies(plan: Plan) -> list[Stream]:
    """Return the streams that the sweeps of a plan share as wide copies, the parameter first."""
    streams = [Stream(plan.algorithm.param, "param", stored=False)]
    streams += [s for sweep in plan.sweeps for s in sweep.streams if s.role != "local"]
    by_name = {stream.name: stream for stream in streams}
    by_name |= {stream.name: stream for stream in streams if stream.stored}
    return list(by_name.values())


def lines_sharing_wide_copies(plan: Plan, in_lists: bool, lines: Iterable[str]) -> list[str]:
    """Return the lines of all sweeps with wide copies, of lists or of one parameter's tensors."""
    streams = streams_of_wide_copies(plan)
    if in_lists:
        names = [plural(stream.name) for stream in streams]
        return lines_with_wide_copies(names, names, streams, lines)
    names = [stream.name for stream in streams]
    tensors = [_at_index(stream.name, stream.when) for stream in streams]
    return lines_with_wide_copies(names, tensors, streams, lines)


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
