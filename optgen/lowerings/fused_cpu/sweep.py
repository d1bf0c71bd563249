"""The sweep in C++: one loop over elements that loads, computes and stores every stream once."""

from __future__ import annotations

from itertools import chain, count

from optgen.ir.nodes import Call, Const, Expr, Ref, assigns, refs, walk
from optgen.ir.plan import Plan, Stream, Sweep
from optgen.ir.variables import is_free, plural
from optgen.lowerings.fused_cpu.expressions import Printer, constant, variable
from optgen.lowerings.fused_cpu.program import ScalarProgram
from optgen.lowerings.fused_cpu.statements import Statements
from optgen.lowerings.fused_cpu.text import folded
from optgen.passes.flatten import Flatten

_COLUMN = 12
_SPOKEN = {
    "<": "below",
    "<=": "at_most",
    ">": "above",
    ">=": "at_least",
    "==": "equals",
    "!=": "differs_from",
}


class SweepPrinter:
    """Prints one sweep. Flags that decide which streams there are become template parameters."""

    def __init__(self, plan: Plan, sweep: Sweep, program: ScalarProgram) -> None:
        self._plan, self._sweep, self._fields = plan, sweep, program.fields
        self._hypers = {h.name: h for h in plan.algorithm.hypers}
        self._fresh = [s.symbol for s in plan.fresh()]
        self._scalars = Printer(tensors=False, read=self._read_scalar)
        self._elements = Printer(tensors=True, read=self._read_element)
        self._conditions: dict[str, str] = {}
        whens = (s.when.removeprefix("not ") for s in sweep.streams if s.when)
        self.flags = {name: constant(name) for name in whens}
        self._read_by_elements = {
            self._fields.get(ref, variable(ref.name))
            for stmt in assigns(sweep.body)
            for ref in refs(stmt.value)
        }
        self.body = self._body()

    def constants(self) -> list[str]:
        """What the loop reads of hyperparameters and scalars, in the type it computes in."""
        lines = []
        for ref in self._plan.coefficients():
            name = self._fields.get(ref, variable(ref.name))
            if name in self._read_by_elements:
                source = "scalars" if ref in self._fields else "hypers"
                lines.append(f"const C {name} = C({source}.{name});")
        for name, text in self._conditions.items():
            lines += folded(f"const C {name} = flag<C>({text});", _COLUMN - 4)
        return lines

    def loads(self) -> list[str]:
        """One line a stream."""
        return [f"C {variable(s.name)} = {self._load(s)};" for s in self._sweep.streams]

    def stores(self) -> list[str]:
        """One line a stream that is written."""
        lines = []
        for stream in (s for s in self._sweep.streams if s.stored):
            flag = self._flag(stream)
            guard = f"if constexpr ({flag}) " if flag else ""
            lines.append(f"{guard}{variable(plural(stream.name))}[i] = {variable(stream.name)};")
        return lines

    def uses(self, word: str) -> bool:
        """Whether the constants read `hypers`, `scalars` or `fresh`."""
        return any(f"{word}." in line or f"({word} " in line for line in self.constants())

    def _body(self) -> list[str]:
        flatten = Flatten(self._is_settled)
        declared = frozenset(s.name for s in self._sweep.streams)
        return Statements(
            "C", lambda a: self._elements(a.value), self._if, flatten(self._sweep.body), declared
        ).lines(_COLUMN)

    def _load(self, stream: Stream) -> str:
        flag = self._flag(stream)
        text = f"{variable(plural(stream.name))}[i]"
        return f"{flag} ? {text} : C(0)" if flag else text

    def _flag(self, stream: Stream) -> str:
        when = stream.when
        if when is None:
            return ""
        return f"{'!' if when.startswith('not ') else ''}{constant(when.removeprefix('not '))}"

    def _if(self, condition: Expr) -> str:
        constant, text = self._condition(condition)
        return f"if {'constexpr ' if constant else ''}({text})"

    def _condition(self, expr: Expr) -> tuple[bool, str]:
        """Whether a condition is a template parameter, and how it reads in the loop."""
        if not self._is_settled(expr):
            return False, f"{self._named(expr)} != 0"
        match expr:
            case Ref(name) | Call("truth", (Ref(name),)):
                return True, self.flags[name]
            case Call("not", (inner,)):
                constant, text = self._condition(inner)
                return constant, f"!({text})" if " " in text else f"!{text}"
            case Call("and" | "or" as word, (a, b)):
                (both, left), (also, right) = self._condition(a), self._condition(b)
                return both and also, f"({left}) {'&&' if word == 'and' else '||'} ({right})"
        raise TypeError(f"no condition of a sweep: {expr!r}")

    def _is_settled(self, expr: Expr) -> bool:
        return any(isinstance(e, Ref) and e.name in self.flags for e in walk(expr))

    def _named(self, expr: Expr) -> str:
        """The name of a condition that is one value for a whole tensor."""
        inner = expr
        while isinstance(inner, Call) and inner.word == "and":
            inner = inner.args[1]
        text = self._scalars(expr)
        numbered = (f"condition{n}" for n in count(1))
        taken = {r.name for r in self._plan.kinds} | set(self._fields.values())
        taken -= _asked(inner)
        for name in chain((_spoken(inner), _spoken(expr)), numbered):
            if is_free(name, taken) and self._conditions.setdefault(name, text) == text:
                return name
        raise AssertionError("numbers do not end")

    def _read_scalar(self, expr: Expr) -> str | None:
        match expr:
            case Ref(name) if name in self._hypers:
                text = f"hypers.{variable(name)}"
                return f"truth({text})" if self._hypers[name].sort == "flag" else text
            case Call("fresh", (Ref(name),)):
                shift = f" >> {position}" if (position := self._fresh.index(name)) else ""
                return f"bool(fresh{shift} & 1)"
            case Ref() if expr in self._fields:
                return f"scalars.{self._fields[expr]}"
        return None

    def _read_element(self, expr: Expr) -> str | None:
        return self._fields.get(expr) if isinstance(expr, Ref) else None


def _asked(expr: Expr) -> set[str]:
    """The flag that a condition is, or the state whose newness it is: it may be called after it."""
    match expr:
        case Ref(name) | Call("fresh", (Ref(name),)):
            return {name}
    return set()


def _spoken(expr: Expr) -> str:
    """A condition as a name."""
    match expr:
        case Const(value):
            return str(value).replace("-", "minus_").replace(".", "_")
        case Ref(name):
            return variable(name)
        case Call("fresh", (Ref(name),)):
            return f"fresh_{name}"
        case Call("truth", (a,)):
            return f"has_{_spoken(a)}"
        case Call("is_none", (a,)):
            return f"no_{_spoken(a)}"
        case Call("neg" | "not" as word, (a,)):
            return f"{'minus' if word == 'neg' else 'not'}_{_spoken(a)}"
        case Call(word, args):
            return f"_{_SPOKEN.get(word, word)}_".join(_spoken(a) for a in args)
    raise TypeError(f"no condition: {expr!r}")
