"""Write consecutive elementwise statements of a rule as a function over lists of tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from optgen.ir.algorithm import Algorithm, Hyper, State
from optgen.ir.generated_names import free_name
from optgen.ir.kinds import Kind
from optgen.ir.nodes import Assign, Expr, Program, Ref, refs, rename_refs
from optgen.passes.hoist_between_sweeps import as_plain_arithmetic


@dataclass(frozen=True)
class SweepFunction:
    """Function, and how the rule calls it.

    * `created`: maps each variable that the caller must create to a variable of the same shape.
    * `reused`: maps each variable to the dead variable whose memory it takes.
    * `arguments`: the caller's variables in the order of the function's lists.
    * `renamed`: maps each variable to the name under which the call returns its new value.
    """

    function: Algorithm
    created: Mapping[str, str]
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
        self,
        statements: Sequence[Assign],
        outputs: Collection[str],
        dead: Collection[str],
        name: str,
    ) -> SweepFunction | None:
        """Return the function of some statements.

        Return None if the function would write every list that it reads, or no output.

        Args:
            statements: elementwise statements over tensors of one shape.
            outputs: the variables that other statements read, or that the rule stores.
            dead: the variables that no other statement reads; their memory may be reused.
            name: the name of the function.
        """
        assigned = dict.fromkeys(stmt.target.name for stmt in statements)
        read = self._read_before_assigned(statements)
        kept_outputs = [n for n in assigned if n in outputs]
        reused = self._reused(
            statements, kept_outputs, [n for n in read if n in dead and n not in assigned]
        )
        inputs = [n for n in read if n not in reused.values()]
        updated = [n for n in kept_outputs if n in self.in_place]
        if not set(inputs) - set(updated):
            reused, inputs = {}, read  # a function needs a list that it only reads
        only_read = [n for n in inputs if n not in updated]
        if not only_read or not kept_outputs:
            return None
        used_names = {ref.name for ref in self.kinds}
        old_names = {n: free_name(f"{n}_before", used_names) for n in only_read if n in assigned}
        new_names = {n: free_name(f"{n}_after", used_names) for n in old_names if n in kept_outputs}
        written = [*updated, *(n for n in kept_outputs if n not in updated)]
        numbers = dict.fromkeys(
            r.name for s in statements for r in refs(s.value) if self.kinds[r].is_scalar
        )
        body = _with_inputs(statements, old_names | {old: n for n, old in reused.items()})
        lists = [*written, *(old_names.get(n, n) for n in only_read)]
        function = self._function(name, lists, written, tuple(numbers), body, reused)
        variables = {n: new_names.get(n, n) for n in written} | {
            old_names.get(n, n): n for n in only_read
        }
        return SweepFunction(
            function=function,
            created={
                new_names.get(n, n): only_read[0]
                for n in kept_outputs
                if n not in updated and n not in reused
            },
            reused=reused,
            arguments=tuple(variables[n] for n in function.lists),
            renamed=new_names,
        )

    def _read_before_assigned(self, statements: Sequence[Assign]) -> list[str]:
        """Return the tensors that statements read before they assign them, in order."""
        assigned: set[str] = set()
        read: dict[str, None] = {}
        for stmt in statements:
            names = (r.name for r in refs(stmt.value) if not self.kinds[r].is_scalar)
            read |= dict.fromkeys(n for n in names if n not in assigned)
            assigned.add(stmt.target.name)
        return list(read)

    def _reused(
        self, statements: Sequence[Assign], kept_outputs: Sequence[str], dead: Sequence[str]
    ) -> dict[str, str]:
        """Map each new variable to a dead one that is not read after the new one is assigned."""
        reused: dict[str, str] = {}
        for name in kept_outputs:
            assigned_at = next(i for i, stmt in enumerate(statements) if stmt.target.name == name)
            later = {r.name for stmt in statements[assigned_at + 1 :] for r in refs(stmt.value)}
            is_new = name not in self.in_place and name not in self._read_before_assigned(
                statements
            )
            free = [n for n in dead if n not in later and n not in reused.values()]
            if is_new and free:
                reused[name] = free[0]
        return reused

    def _function(
        self,
        name: str,
        lists: Sequence[str],
        written: Sequence[str],
        numbers: Sequence[str],
        body: Program,
        reused: Mapping[str, str],
    ) -> Algorithm:
        """Return an algorithm over lists: the first written one is its parameter."""
        param, grad = written[0], next(n for n in lists if n not in written)
        others = [n for n in lists if n not in (param, grad)]
        return Algorithm(
            name=name,
            module=self.algorithm.module,
            doc=f"Elementwise part of a step of {self.algorithm.name}, which outlined.py calls.",
            paper="",
            states=tuple(State(n, n, written=n in written) for n in others),
            hypers=tuple(Hyper(number, "number", 0.0) for number in numbers),
            rule=body,
            param=param,
            grad=grad,
            step=None,
            lists=(param, grad, *others),
            is_sweep=True,
            overwritten=tuple(reused.items()),
        )


def _with_inputs(statements: Sequence[Assign], inputs: Mapping[str, str]) -> Program:
    """Return statements without versions, which read old values by other names.

    `inputs` maps a variable to the name of its old value, which is read until a statement assigns
    the variable.
    """
    names_of_old = dict(inputs)

    def current(ref: Ref) -> Ref:
        return Ref(names_of_old.get(ref.name, ref.name))

    out = []
    for stmt in statements:
        value: Expr = rename_refs(as_plain_arithmetic(stmt.value), current)
        names_of_old.pop(stmt.target.name, None)
        out.append(Assign(Ref(stmt.target.name), value, stmt.quote, stmt.place))
    return tuple(out)
