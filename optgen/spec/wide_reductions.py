"""Read reductions with `over=`, and check the branches of those over several parameters.

`sum(x, over="matrix")` reduces each matrix of a parameter: along rows, then along columns.
`sum(x, over="group")` and `sum(x, over="all")` reduce several parameters.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from optgen.ir.algorithm import Algorithm, Hyper, State
from optgen.ir.execution import is_wide
from optgen.ir.kinds import Axes, height, width
from optgen.ir.nodes import Assign, Call, Const, Expr, Place, Program, Ref, assigns, refs
from optgen.ir.ops import WHOLE_REDUCTIONS
from optgen.spec.scope import SHAPE_NAMES
from optgen.spec.source import Source

if TYPE_CHECKING:
    from optgen.spec.op_calls import OpCalls

OVER_VALUES = ("matrix", "group", "all")


def has_over(node: ast.Call) -> bool:
    """Tell whether a call has the keyword `over`."""
    return any(keyword.arg == "over" for keyword in node.keywords)


def read_reduction_over(reader: OpCalls, node: ast.Call, name: str) -> Expr:
    """Read a reduction with `over=`. One over several parameters becomes a statement of its own."""
    over = _over_argument(reader, node, name)
    if over == "matrix":
        return _reduction_of_matrices(reader, node, name)
    value = reader.number(node.args[0])
    axes, place = reader.scope.kind(value).axes, reader.source.place(node)
    if axes is Axes.NONE and name == "max_abs":  # other words would count elements or parameters
        return _over_parameters(reader, "max", over, Call("abs", (value,), value.place), place)
    if axes is not Axes.TENSOR:
        hint = f'it takes a value of every element: {name}(g, over="{over}")'
        reader.source.error(node.args[0], f"`{name}` of {SHAPE_NAMES[axes]}", hint)
    return _reduction_in_two_stages(reader, name, over, value, place)


def _over_argument(reader: OpCalls, node: ast.Call, name: str) -> str:
    """Check the arguments of a call; return its argument `over`, "group" or "all"."""
    scopes = [f'{name}(x, over="{over}")' for over in OVER_VALUES]
    hint = f"write {', '.join(scopes[:-1])} or {scopes[-1]}"
    if name not in WHOLE_REDUCTIONS:
        words = ", ".join(WHOLE_REDUCTIONS)
        reader.source.error(node, f"`{name}` takes no over=", f"words with over=: {words}")
    match node:
        case ast.Call(args=[arg], keywords=[ast.keyword(value=ast.Constant(value=str() as over))]):
            if over in OVER_VALUES and not isinstance(arg, ast.Starred):
                return over
    reader.source.error(node, f"`{name}` with over= takes one value, and a scope", hint)


def _reduction_of_matrices(reader: OpCalls, node: ast.Call, name: str) -> Expr:
    """Return a reduction of each matrix, by words of rows and columns."""
    reader.check_has_rows_and_columns(node, name)
    value, place = reader.number(node.args[0]), reader.source.place(node)
    axes = reader.scope.kind(value).axes
    sizes = (("row", width(axes)), ("col", height(axes)))
    reduced = [axis for axis, size in sizes if size != "1"]
    if not reduced:
        hint = "it takes a value of every element, or numbers per row or per column"
        reader.source.error(node.args[0], f"`{name}` of {SHAPE_NAMES[axes]}", hint)

    def over_axes(word: str, value: Expr) -> Expr:
        for axis in reduced:
            value = Call(f"{axis}_{word}", (value,), place)
        return value

    word = {"norm": "sum", "rms": "mean"}.get(name)
    if word is None:
        return over_axes(name, value)
    return Call("sqrt", (over_axes(word, Call("**", (value, Const(2)), value.place)),), place)


def _reduction_in_two_stages(
    reader: OpCalls, name: str, over: str, value: Expr, place: Place
) -> Expr:
    """Return a reduction within each parameter, and then over the parameters."""

    def over_parameters(op: str, number: Expr) -> Ref:
        return _over_parameters(reader, op, over, number, place)

    def sum_of_values() -> Ref:
        return over_parameters("sum", Call("sum", (value,), value.place))

    def sum_of_squares() -> Ref:
        squares = Call("**", (value, Const(2)))
        return over_parameters("sum", Call("sum", (squares,), value.place))

    def element_count() -> Ref:
        param = Ref(reader.scope.algorithm.param)
        return over_parameters("sum", Call("numel", (param,), value.place))

    formulas: dict[str, Callable[[], Expr]] = {
        "sum": sum_of_values,
        "max_abs": lambda: over_parameters("max", Call("max_abs", (value,), value.place)),
        "norm": lambda: Call("sqrt", (sum_of_squares(),)),
        "mean": lambda: Call("/", (sum_of_values(), element_count())),
        "rms": lambda: Call("sqrt", (Call("/", (sum_of_squares(), element_count())),)),
    }
    return formulas[name]()


def _over_parameters(reader: OpCalls, op: str, over: str, number: Expr, place: Place) -> Ref:
    """Return the sum or the maximum of a number of each parameter, as a statement of its own."""
    return reader.new_variable(f"{op}_over_{over}", Call(f"{over}_{op}", (number,), place))


def check_shared_values(source: Source, algorithm: Algorithm) -> None:
    """Check the states that groups keep, and the reductions over several parameters.

    Raises:
        SpecError: a state of a group or of all groups is eager, or begins with a value that its
            parameters do not share; it gets a value that they do not share; or a reduction stands
            in a branch that some of its parameters may not take.
    """
    for state in algorithm.group_states():
        _check_start(source, algorithm, state)
    if algorithm.is_wide:
        _SharedValues(source, algorithm).check(algorithm.rule)


def _check_start(source: Source, algorithm: Algorithm, state: State) -> None:
    """Check that a state of a group or of all groups begins with a number that is shared."""
    owner = _OWNERS[_scope_of(state)]
    if state.eager or state.init in ("p", "index"):
        message = f"`{state.symbol}` belongs to {owner}, and begins with a number"
        hint = "init= a number or a hyperparameter, without eager="
        source.error_at(state.place, message, hint)
    start = algorithm.hyper(str(state.init))
    if state.of_all and start is not None and start.groups != "equal":
        message = f"`{state.symbol}` belongs to all groups, and `{start.name}` to one group"
        source.error_at(state.place, message, _equal_hint(start))


class _Scope(IntEnum):
    """The parameters that have one value of a name: a larger scope includes the smaller ones."""

    PARAM = 0
    GROUP = 1
    ALL = 2


_OWNERS = {_Scope.PARAM: "one parameter", _Scope.GROUP: "the group", _Scope.ALL: "all groups"}


def _scope_of(declared: State | Hyper) -> _Scope:
    """Return the scope of a state or of a hyperparameter."""
    if isinstance(declared, Hyper):
        if declared.set_by_step:
            return _Scope.PARAM
        return _Scope.ALL if declared.groups == "equal" else _Scope.GROUP
    if declared.of_all:
        return _Scope.ALL
    return _Scope.GROUP if declared.of_group else _Scope.PARAM


def _equal_hint(hyper: Hyper) -> str:
    word = hyper.type if hyper.type in ("flag", "choice") else "hyper"
    return f'let all groups have one value: {hyper.name}={word}(…, groups="equal")'


class _SharedValues:
    """Checker of a rule with states of groups or reductions over several parameters.

    `scopes` has the scope of each variable's value at the current statement.
    """

    def __init__(self, source: Source, algorithm: Algorithm) -> None:
        self.source, self.algorithm = source, algorithm
        self.owners = {s.symbol: _scope_of(s) for s in algorithm.group_states()}
        self.scopes = self.owners | {h.name: _scope_of(h) for h in algorithm.hypers}

    def check(self, program: Program, in_branch: bool = False, run_by: _Scope = _Scope.ALL) -> None:
        """Check the statements of a rule or of a branch.

        All parameters in the scope `run_by` run these statements, or none does.
        """
        for stmt in program:
            if isinstance(stmt, Assign):
                self._check_branch(stmt.value, in_branch, run_by)
                self._assign(stmt, run_by)
                continue
            taken_by = min(run_by, self._scope(stmt.condition))
            scopes_before = dict(self.scopes)
            self.check(stmt.then, in_branch=True, run_by=taken_by)
            after_then, self.scopes = self.scopes, scopes_before
            self.check(stmt.orelse, in_branch=True, run_by=taken_by)
            for name in {a.target.name for a in assigns((stmt,))}:
                after = (after_then.get(name, _Scope.PARAM), self.scopes.get(name, _Scope.PARAM))
                self.scopes[name] = min(taken_by, *after)

    def _check_branch(self, value: Expr, in_branch: bool, run_by: _Scope) -> None:
        """Check that all parameters of a reduction take the branches around it.

        The parameters may have different shapes, step counts and extra inputs. Parameters of one
        group have equal hyperparameters.
        """
        if not is_wide(value):
            return
        if in_branch and value.op.startswith("all_"):
            message = "a reduction over all parameters in a branch, which some may not take"
            self.source.error_at(value.place, message, "move it before the branch")
        if run_by < _Scope.GROUP:
            message = "a reduction over a group in a branch, which some parameters may not take"
            hint = "branch on hyperparameters only, or move it before the branch"
            self.source.error_at(value.place, message, hint)

    def _assign(self, stmt: Assign, run_by: _Scope) -> None:
        """Record the scope of the assigned value; a state's owner must have one value."""
        name, scope = stmt.target.name, min(run_by, self._scope(stmt.value))
        owner = self.owners.get(name, _Scope.PARAM)
        if scope < owner:
            message = f"`{name}` belongs to {_OWNERS[owner]}, and this value to {_OWNERS[scope]}"
            self.source.error_at(stmt.place, message, self._hint(stmt.value, owner))
        self.scopes[name] = scope

    def _hint(self, value: Expr, owner: _Scope) -> str:
        """Return what a state of this owner may be computed from."""
        if owner is _Scope.GROUP:
            return 'use sum(x, over="group"), hyperparameters, and states of the group'
        for ref in refs(value):
            hyper = self.algorithm.hyper(ref.name)
            if hyper is not None and self.scopes[ref.name] is _Scope.GROUP:
                if hyper.groups == "equal or 0":
                    return f'take the value that is not 0: max_abs({hyper.name}, over="all")'
                return _equal_hint(hyper)
        return 'use sum(x, over="all"), hyperparameters with groups="equal", and states of all'

    def _scope(self, value: Expr) -> _Scope:
        """Return the scope of a value: that of a reduction, or the smallest of its variables'."""
        match value:
            case Ref(name):
                return self.scopes.get(name, _Scope.PARAM)
            case Call(op, _) if is_wide(value):
                return _Scope.ALL if op.startswith("all_") else _Scope.GROUP
            case Call(_, args) if args:
                return min(map(self._scope, args))
        return _Scope.ALL if isinstance(value, Const) else _Scope.PARAM
