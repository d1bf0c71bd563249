"""Write consecutive elementwise statements of a rule as a function over lists of tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from optgen.ir.algorithm import Algorithm, Hyper, State
from optgen.ir.binding_times import Kind
from optgen.ir.generated_names import free_name
from optgen.ir.nodes import Assign, Expr, Program, Ref, refs, rename_refs
from optgen.passes.hoist_between_sweeps import as_plain_arithmetic


@dataclass(frozen=True)
class SweepFunction:
    """A function, and its use in the rule.

    * `new`: for each variable that the caller creates, a variable of the same shape.
    * `reused`: for each variable that takes the memory of another one, this other one.
    * `arguments`: the caller's variables in the order of the lists.
    * `renamed`: for each variable that gets its new value under another name, that name.
    """

    function: Algorithm
    new: Mapping[str, str]
    reused: Mapping[str, str]
    arguments: tuple[str, ...]
    renamed: Mapping[str, str]


@dataclass(frozen=True)
class SweepBuilder:
    """Builder of the functions of a rule.

    * `in_place`: the variables whose tensors a sweep may overwrite: parameter and states.
    * `kinds`: the kind of every variable.
    """

    algorithm: Algorithm
    in_place: frozenset[str]
    kinds: Mapping[Ref, Kind]

    def build(
        self, group: Sequence[Assign], outputs: Collection[str], dead: Collection[str], name: str
    ) -> SweepFunction | None:
        """Return the function of a group of statements.

        There is none if it would write every list that it reads, or no list that is read later.

        Args:
            group: statements over tensors of one shape.
            outputs: the variables that other statements read, or that the rule stores.
            dead: the variables that no other statement reads; their memory may be reused.
            name: the name of the function.
        """
        made = dict.fromkeys(stmt.target.name for stmt in group)
        read = self._read_before_made(group)
        kept = [n for n in made if n in outputs]
        reused = self._reused(group, kept, [n for n in read if n in dead and n not in made])
        inputs = [n for n in read if n not in reused.values()]
        updated = [n for n in kept if n in self.in_place]
        if not set(inputs) - set(updated):
            reused, inputs = {}, read
        only_read = [n for n in inputs if n not in updated]
        if not only_read or not kept:
            return None
        taken = {ref.name for ref in self.kinds}
        before = {n: free_name(f"{n}_before", taken) for n in only_read if n in made}
        after = {n: free_name(f"{n}_after", taken) for n in before if n in kept}
        written = [*updated, *(n for n in kept if n not in updated)]
        numbers = dict.fromkeys(
            r.name for s in group for r in refs(s.value) if self.kinds[r].is_scalar
        )
        body = _with_inputs(group, before | {old: n for n, old in reused.items()})
        lists = [*written, *(before.get(n, n) for n in only_read)]
        function = self._function(name, lists, written, tuple(numbers), body)
        variables = {n: after.get(n, n) for n in written} | {before.get(n, n): n for n in only_read}
        return SweepFunction(
            function,
            {after.get(n, n): only_read[0] for n in kept if n not in updated and n not in reused},
            reused,
            tuple(variables[n] for n in function.lists),
            after,
        )

    def _read_before_made(self, group: Sequence[Assign]) -> list[str]:
        """Return the tensors that a group reads before it assigns them, in order."""
        made: set[str] = set()
        read: dict[str, None] = {}
        for stmt in group:
            names = (r.name for r in refs(stmt.value) if not self.kinds[r].is_scalar)
            read |= dict.fromkeys(n for n in names if n not in made)
            made.add(stmt.target.name)
        return list(read)

    def _reused(
        self, group: Sequence[Assign], kept: Sequence[str], dead: Sequence[str]
    ) -> dict[str, str]:
        """Return for new variables the list whose memory they take: it is not read afterwards."""
        found: dict[str, str] = {}
        for name in kept:
            first = next(i for i, stmt in enumerate(group) if stmt.target.name == name)
            later = {r.name for stmt in group[first + 1 :] for r in refs(stmt.value)}
            is_new = name not in self.in_place and name not in self._read_before_made(group)
            free = [n for n in dead if n not in later and n not in found.values()]
            if is_new and free:
                found[name] = free[0]
        return found

    def _function(
        self,
        name: str,
        lists: Sequence[str],
        written: Sequence[str],
        numbers: Sequence[str],
        body: Program,
    ) -> Algorithm:
        param, grad = written[0], next(n for n in lists if n not in written)
        others = [n for n in lists if n not in (param, grad)]
        return Algorithm(
            name=name,
            module=self.algorithm.module,
            doc=f"Elementwise part of a step of {self.algorithm.name}.",
            paper="",
            states=tuple(State(n, n, written=n in written) for n in others),
            hypers=tuple(Hyper(number, "number", 0.0) for number in numbers),
            rule=body,
            param=param,
            grad=grad,
            step=None,
            lists=(param, grad, *others),
        )


def _with_inputs(group: Sequence[Assign], inputs: Mapping[str, str]) -> Program:
    """Return the statements of a group without versions, and with names for overwritten inputs.

    A variable that is in `inputs` is read by its name there until the group assigns it.
    """
    made: set[str] = set()
    out = []
    for stmt in group:

        def current(ref: Ref, made: frozenset[str] = frozenset(made)) -> Ref:
            return Ref(ref.name if ref.name in made else inputs.get(ref.name, ref.name))

        value: Expr = rename_refs(as_plain_arithmetic(stmt.value), current)
        made.add(stmt.target.name)
        out.append(Assign(Ref(stmt.target.name), value, stmt.quote, stmt.place))
    return tuple(out)
