"""The phases of a rule with reductions as Python lines, for one tensor or for a share of a list.

Whole tensors keep their names; in a trip over them a name ends in `_block`, for a large tensor goes
by in blocks. Both forms print the same small values: of one tensor, or stacked along a new axis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from optgen.ir.generated_names import plural
from optgen.ir.nodes import (
    Assign,
    Call,
    Expr,
    Linear,
    Program,
    Ref,
    Term,
    assigns,
    children,
    expressions,
    names_read,
    rebuild,
    refs,
    rename_program,
)
from optgen.ir.plan import Finish, MatrixCall, Plan, Stream, Sweep, reads
from optgen.ir.value_kinds import Axes, Kind, Stage, kind_of
from optgen.lowerings.python.completions import completions, requests
from optgen.lowerings.python.forms import Form
from optgen.lowerings.python.function import Body, indented
from optgen.lowerings.python.literals import comment
from optgen.lowerings.python.text import PythonText, statements
from optgen.passes.inplace import to_inplace
from optgen.passes.instructions import Instruction, left, numbers_read
from optgen.passes.keep_locals import is_questioned, keep_locals
from optgen.passes.select_branches import connected
from optgen.passes.spread_numbers import spread_numbers

_TEXT = PythonText({}, {})
_EMPTY = {Axes.NONE: "no_sum", Axes.ROW: "no_row_sum", Axes.COLUMN: "no_col_sum"}


def _lists(plan: Plan) -> list[str]:
    """What a share has a list of, in order."""
    states = (s.symbol for s in plan.algorithm.states if s.shape != "scalar")
    return [plan.algorithm.param, plan.algorithm.grad, *states]


def phases(plan: Plan, form: Form) -> Body:
    """Every phase of a bucket whose tensors have one shape."""
    lists = ", ".join(map(plural, _lists(plan)))
    whole = any(isinstance(phase, MatrixCall) for phase in plan.phases)
    plan = plan if whole or form.over_ranks else keep_locals(plan)
    printer = _Printer(spread_numbers(plan), plan.kinds, form, whole)
    if form.over_ranks:
        opening = [f"share = {lists}"] if printer.takes_again else []
        return Body([*opening, *printer.lines()], frozenset(printer.reads))
    opening = [f"{lists} = share"] if form.in_lists else []
    lines = indented([*opening, *printer.lines()], form.loop.format(lists=lists))
    return Body(lines, frozenset(printer.reads))


@dataclass
class _Printer:
    plan: Plan
    kinds: Mapping[Ref, Kind]  # a reduction's number as the number it is
    form: Form
    whole: bool  # a matrix word takes whole tensors: nothing goes by in blocks
    reads: set[str] = field(default_factory=set)  # by the lines printed so far

    def lines(self) -> Iterator[str]:
        """What stands inside the loop over tensors or shares."""
        if is_questioned(self.plan):
            yield self.form.blocked
        yield from (f"{name} = None" for name in self._now_and_then())
        for state in self.plan.algorithm.states:
            if state.shape in ("row", "col"):
                line = f"{state.symbol} = {self._spelt(self.form.read, state.symbol)}"
                yield from indented([line], f"if {state.when}:") if state.when else [line]
        for phase in self.plan.phases:
            match phase:
                case Sweep():
                    plain = self._is_plain(phase)
                    yield from self._over_whole(phase) if plain else self._over_blocks(phase)
                    yield from self._completed(phase.reductions)
                case Finish(body):
                    yield from self._finish(body)
                case MatrixCall():
                    yield from self._call(phase)

    @property
    def takes_again(self) -> bool:
        """Whether a trip needs a list as it was, by whose name an earlier one called another."""
        return self.form.in_lists and any(map(self._called_anew, self.plan.sweeps))

    def _is_plain(self, sweep: Sweep) -> bool:
        """Whether a trip goes over whole tensors, with nothing small beside them."""
        small = any(map(self._is_small, _touched(sweep)))
        return self.whole and not small and not self._changes_what_follows(sweep)

    def _changes_what_follows(self, sweep: Sweep) -> bool:
        """Whether its own gradient would be taken for the given one by a later trip over lists."""
        later = self.plan.sweeps[self.plan.sweeps.index(sweep) + 1 :]
        grad = self.plan.algorithm.grad
        changed = any(a.target.name == grad for a in assigns(sweep.body))
        read = any(stream.name == grad for other in later for stream in other.streams)
        return self.form.in_lists and changed and read

    def _over_whole(self, sweep: Sweep) -> Iterator[str]:
        if self.form.in_lists:
            yield from self._shared_again(sweep)
        else:
            for stream in sweep.streams:
                if stream.role != "local":
                    yield f"{stream.name} = {self._whole(stream)}"
        yield from self.form.lines(self._trip(sweep))

    def _shared_again(self, sweep: Sweep) -> Iterator[str]:
        """The lists as they were, where an earlier trip called a value of its own so."""
        for name in self._called_anew(sweep):
            yield f"{plural(name)} = share[{_lists(self.plan).index(name)}]"

    def _called_anew(self, sweep: Sweep) -> list[str]:
        """The streams of a trip by whose names an earlier one has called values of its own."""
        position = self.plan.sweeps.index(sweep)
        before = [trip for trip in self.plan.sweeps[:position] if self._is_plain(trip)]
        stored = {known.name for trip in before for known in trip.streams if known.stored}
        anew = {a.target.name for trip in before for a in assigns(trip.body)} - stored
        return [s.name for s in sweep.streams if s.name in anew and s.role != "local"]

    def _over_blocks(self, sweep: Sweep) -> Iterator[str]:
        """Empty sums, then the trip, one block after the other."""
        if self.form.in_lists:
            yield from self._shared_again(sweep)
        for stmt in sweep.reductions:
            empty = _EMPTY[self.kinds[stmt.target].axes]
            yield f"{stmt.target.name} = {empty}({self._like()}{self.form.count})"
        small = dict.fromkeys(ref for ref in _touched(sweep) if self._is_small(ref))
        sums = {r.target for r in sweep.reductions if self.kinds[r.target].axes is Axes.NONE}
        along = [ref.name for ref in small if ref not in sums]
        numbers = [ref.name for ref in small if ref in sums]
        portioned = self.form.over_ranks and not self.whole
        if self.form.in_lists and not portioned:
            yield from (f"{plural(name)} = {self._small(name)}" for name in numbers)
        taken_streams = self._taken_streams(sweep)
        streams = [s.name for s in taken_streams]
        given = [self._whole(stream) for stream in taken_streams]
        given += [self._small(name) for name in along]
        if portioned and numbers:
            along += numbers
            given.append(f"sums=[{', '.join(map(self._small, numbers))}]")
        taken = [self._listed(f"{name}_block") for name in (*streams, *along)]
        names = ", ".join(taken) + "," * (len(taken) == 1)
        blocks = self.form.uncut if self.whole else self.form.blocks
        yield f"for {names} in {blocks}({', '.join(given)}):"
        trip = self._trip(sweep, {*streams, *along})
        yield from (f"    {line}" for line in self.form.lines(trip))
        large = left(trip, [f"{name}_block" for name in streams])
        if large and portioned and sweep.reductions:
            yield f"del {', '.join(map(plural, large))}  # nothing large waits for others"

    def _taken_streams(self, sweep: Sweep) -> list[Stream]:
        """Return the streams a trip goes over, first one that is there and of the usual type."""
        taken = [s for s in sweep.streams if s.role != "local" or not s.stored]
        state = taken[0].state if taken else None
        if not taken or (state is not None and (state.when or state.dtype)):
            return [Stream(self.plan.algorithm.param, "param", False), *taken]
        return taken

    def _trip(self, sweep: Sweep, blocks: Collection[str] = ()) -> tuple[Instruction, ...]:
        """One trip; what goes by in blocks is called so."""

        def called(ref: Ref) -> Ref:
            return replace(ref, name=f"{ref.name}_block") if ref.name in blocks else ref

        streams = (s for s in sweep.streams if s.role != "local")
        renamed = Sweep(
            tuple(replace(s, name=called(Ref(s.name)).name) for s in streams),
            rename_program(sweep.body, called),
        )
        kinds = {called(ref): kind for ref, kind in self.plan.kinds.items()}
        trip = to_inplace(replace(self.plan, kinds=kinds), renamed)
        self.reads |= {*numbers_read(trip)}
        return trip

    def _finish(self, body: Program) -> Iterator[str]:
        """Small values, as their text says it; row and column state is stored at once."""
        text = PythonText({self.plan.algorithm.param: self.form.param}, self.form.functions)
        self.reads |= names_read(body)
        needed = completions(body) if self.form.over_ranks else {}
        in_lists = self.form.in_lists  # where a stacked state is a copy

        def line(stmt: Assign) -> str:
            value = text.text(self._spread(connected(stmt.value, self._is_late)))
            if self._is_small(stmt.target) and not self._is_late(stmt.value):
                value = f"number({self._like()}, {value}{self.form.count})"
            if isinstance(stmt.value, Ref) and self._is_state(stmt.value) and not in_lists:
                value += ".clone()"  # the state itself gets another value
            asked = self._completed(needed.get(stmt.target, ()))
            return "\n".join([f"{stmt.target.name} = {value}", *asked])

        yield from statements(body, text, line)
        made = {a.target.name for a in assigns(body)}
        for state in self.plan.algorithm.states:
            if state.symbol in made:
                write = self._spelt(self.form.write, state.symbol)
                yield from indented([write], f"if {state.when}:") if state.when else [write]

    def _spread(self, value: Expr) -> Expr:
        """Return a value in which a choice between a late and another number is a tensor too."""
        spread = rebuild(value, self._spread)
        match value:
            case Call("where", (condition, *arms)) if not self._is_late(condition) and any(
                map(self._is_late, arms)
            ):
                _, *spread_arms = children(spread)
                count = [Ref(self.form.count.removeprefix(", "))] if self.form.count else []
                tensors = (
                    new if self._is_late(old) else Call("number", (Ref(self._like()), new, *count))
                    for old, new in zip(arms, spread_arms, strict=True)
                )
                return Call("where", (condition, *tensors))
        return spread

    def _is_state(self, ref: Ref) -> bool:
        return self.plan.algorithm.state(ref.name) is not None

    def _completed(self, reductions: Sequence[Assign]) -> list[str]:
        """Asking the other processes for their parts of these sums."""
        asked = requests(reductions, self.kinds.__getitem__) if self.form.over_ranks else []
        return [f"yield [{', '.join(asked)}]"] if asked else []

    def _call(self, call: MatrixCall) -> Iterator[str]:
        """A matrix word of one tensor, or of a share."""
        yield from map(comment, call.quote)
        self.reads |= {ref.name for arg in call.args for ref in refs(arg)}
        target, (first, *rest) = call.target.name, (_TEXT.text(arg) for arg in call.args)
        if self.form.over_ranks:
            yield f"whole = yield split.gather({plural(first)})"
            made = f"{call.op}({', '.join(['whole', *rest])})"
            yield f"{plural(target)} = yield split.scatter({made})"
        elif self.form.in_lists:
            yield f"{plural(target)} = {call.op}({', '.join([plural(first), *rest])})"
        else:
            yield f"{target} = {matrix_call(Call(call.op, call.args))}"
        if not self._is_only_added(call.target):  # arithmetic of two types is not for every word
            same = f"{target}.to({self._like()}.dtype)"
            made = f"[{same} for {target} in {plural(target)}]" if self.form.in_lists else same
            yield f"{self._listed(target)} = {made}"

    def _is_only_added(self, target: Ref) -> bool:
        """Whether a tensor is scaled and added to others, and nothing else is done with it."""
        for value in (e for sweep in self.plan.sweeps for e in expressions(sweep.body)):
            terms = value.terms if isinstance(value, Linear) else ()
            alone = sum(term == Term(term.coefficient, (target,)) for term in terms)
            led = bool(terms) and terms[0].factors == (target,)
            if led or sum(ref == target for ref in reads(value)) > alone:
                return False
        return True

    def _like(self) -> str:
        """A tensor of the shape that all of the bucket have."""
        whole = self._spelt(self.form.whole, self.plan.algorithm.param)
        return f"{whole}[0]" if self.form.in_lists else whole

    def _is_late(self, expr: Expr) -> bool:
        return kind_of(expr, self.kinds.__getitem__).stage is Stage.DEVICE

    def _is_small(self, ref: Ref) -> bool:
        kind = self.kinds[ref]
        return kind.stage is Stage.DEVICE and kind.axes is not Axes.TENSOR

    def _listed(self, name: str) -> str:
        return plural(name) if self.form.in_lists else name

    def _whole(self, stream: Stream) -> str:
        """A whole tensor, or a list; an empty list and None stand for a state that is not there."""
        if stream.role == "local":
            return self._listed(stream.name)
        spelt = self._spelt(self.form.whole, stream.name)
        return (
            f"{spelt} if {stream.when} else None"
            if stream.when and not self.form.in_lists
            else spelt
        )

    def _now_and_then(self) -> list[str]:
        """Small values that are made on one side of a branch: on the other one they are None."""
        finishes = [phase.body for phase in self.plan.phases if isinstance(phase, Finish)]
        names = {a.target.name: None for body in finishes for a in assigns(body)}
        always = {name for body in finishes for name in _always(body)}
        read = {ref.name for sweep in self.plan.sweeps for ref in _touched(sweep)}
        states = {state.symbol for state in self.plan.algorithm.states}
        return [name for name in names if name in read and name not in always | states]

    def _small(self, name: str) -> str:
        """A small value where a trip goes over it."""
        spelt = self._spelt(self.form.small, name)
        sometimes = self.form.in_lists and name in self._now_and_then()
        return f"[] if {name} is None else {spelt}" if sometimes else spelt

    def _spelt(self, spelling: str, name: str) -> str:
        return spelling.format(name, plural(name))


def matrix_call(call: Call) -> str:
    """A matrix word of one tensor: the runtime's functions take and return lists."""
    first, *rest = (_TEXT.text(arg) for arg in call.args)
    return f"{call.op}({', '.join([f'[{first}]', *rest])})[0]"


def _always(program: Program) -> set[str]:
    """The names that a program assigns whichever way it goes."""
    found: set[str] = set()
    for stmt in program:
        if isinstance(stmt, Assign):
            found.add(stmt.target.name)
        else:
            found |= _always(stmt.then) & _always(stmt.orelse)
    return found


def _touched(sweep: Sweep) -> Iterator[Ref]:
    """Every name a trip reads or reduces to, in order."""
    yield from (stmt.target for stmt in sweep.reductions)
    for expr in expressions(sweep.body):
        yield from reads(expr)
