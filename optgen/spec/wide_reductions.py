"""Read reductions over several parameters, `sum(x, over="group")`, and check their branches."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from optgen.ir.algorithm import Algorithm
from optgen.ir.binding_times import Axes
from optgen.ir.nodes import Assign, Call, Const, Expr, Place, Program, Ref, assigns
from optgen.ir.whole_matrices import is_wide
from optgen.spec.source import Source
from optgen.spec.type_check import SHAPE_NAMES

if TYPE_CHECKING:
    from optgen.spec.op_calls import OpCalls

OVER_VALUES = ("group", "all")
WIDE_REDUCTIONS = ("sum", "mean", "norm", "rms", "max_abs")
"""Reductions that can go over several parameters."""


def is_wide_call(node: ast.Call) -> bool:
    """Tell whether a call has the keyword `over`."""
    return any(keyword.arg == "over" for keyword in node.keywords)


def read_wide_reduction(reader: OpCalls, node: ast.Call, name: str) -> Expr:
    """Read a reduction over several parameters, and make it a statement of its own."""
    over = _over_argument(reader, node, name)
    value = reader.number(node.args[0])
    axes = reader.scope.kind(value).axes
    if axes is not Axes.TENSOR:
        hint = f'it takes a value of every element: {name}(g, over="{over}")'
        reader.source.error(node.args[0], f"`{name}` of {SHAPE_NAMES[axes]}", hint)
    return _reduction_in_two_stages(reader, name, over, value, reader.source.place(node))


def _over_argument(reader: OpCalls, node: ast.Call, name: str) -> str:
    """Check the arguments of a call; return its argument `over`, "group" or "all"."""
    hint = f'write {name}(x, over="group") or {name}(x, over="all")'
    if name not in WIDE_REDUCTIONS:
        words = ", ".join(WIDE_REDUCTIONS)
        reader.source.error(node, f"`{name}` takes no over=", f"words with over=: {words}")
    match node:
        case ast.Call(args=[arg], keywords=[ast.keyword(value=ast.Constant(value=str() as over))]):
            if over in OVER_VALUES and not isinstance(arg, ast.Starred):
                return over
    reader.source.error(node, f"`{name}` with over= takes one value, and a scope", hint)


def _reduction_in_two_stages(
    reader: OpCalls, name: str, over: str, value: Expr, place: Place
) -> Expr:
    """Return a reduction within each parameter, and then over the parameters."""

    def over_parameters(op: str, number: Expr) -> Ref:
        return reader.new_variable(f"{op}_over_{over}", Call(f"{over}_{op}", (number,), place))

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


def check_shared_values(source: Source, algorithm: Algorithm) -> None:
    """Check the states that a group keeps, and the reductions over several parameters.

    Raises:
        SpecError: a state of the group is eager, begins as the parameter or its index, or gets a
            value that depends on one parameter; or a reduction stands in a branch that some of its
            parameters may not take.
    """
    for state in algorithm.group_states():
        if state.eager or state.init in ("p", "index"):
            message = f"`{state.symbol}` belongs to the group, and begins with a number"
            hint = "init= a number or a hyperparameter, without eager="
            source.error_at(state.place, message, hint)
    if algorithm.is_wide:
        _SharedValues(source, algorithm).check(algorithm.rule)


class _SharedValues:
    """Checker of a rule with states of the group or reductions over several parameters.

    `shared_names` are the variables that, at the current statement, have one value for all
    parameters of a group.
    """

    def __init__(self, source: Source, algorithm: Algorithm) -> None:
        self.source, self.algorithm = source, algorithm
        self.group_state_names = {state.symbol for state in algorithm.group_states()}
        self.shared_names = self.group_state_names | {
            h.name for h in algorithm.hypers if not h.set_by_step
        }

    def check(self, program: Program, in_branch: bool = False, by_all: bool = True) -> None:
        """Check the statements of a rule or of a branch.

        With `by_all`, all parameters of a group run these statements, or none does.
        """
        for stmt in program:
            if isinstance(stmt, Assign):
                self._check_branch(stmt.value, in_branch, by_all)
                self._assign(stmt, by_all)
                continue
            is_shared = by_all and self._is_shared(stmt.condition)
            names_before = set(self.shared_names)
            self.check(stmt.then, in_branch=True, by_all=is_shared)
            after_then, self.shared_names = self.shared_names, names_before
            self.check(stmt.orelse, in_branch=True, by_all=is_shared)
            self.shared_names &= after_then
            if not is_shared:
                self.shared_names -= {a.target.name for a in assigns((stmt,))}

    def _check_branch(self, value: Expr, in_branch: bool, by_all: bool) -> None:
        """Check that all parameters of a reduction take the branches around it.

        The parameters may have different shapes, step counts and extra inputs. Parameters of one
        group have equal hyperparameters.
        """
        if not is_wide(value):
            return
        if in_branch and value.op.startswith("all_"):
            message = "a reduction over all parameters in a branch, which some may not take"
            self.source.error_at(value.place, message, "move it before the branch")
        if not by_all:
            message = "a reduction over a group in a branch, which some parameters may not take"
            hint = "branch on hyperparameters only, or move it before the branch"
            self.source.error_at(value.place, message, hint)

    def _assign(self, stmt: Assign, by_all: bool) -> None:
        """Record whether all parameters share the assigned value; a state of the group must."""
        name, is_shared = stmt.target.name, by_all and self._is_shared(stmt.value)
        if name in self.group_state_names and not is_shared:
            message = f"`{name}` belongs to the group, and this value to one parameter"
            hint = 'use sum(x, over="group"), hyperparameters, and states of the group'
            self.source.error_at(stmt.place, message, hint)
        if is_shared:
            self.shared_names.add(name)
        else:
            self.shared_names.discard(name)

    def _is_shared(self, value: Expr) -> bool:
        """Tell whether a value is a wide reduction, or depends on shared names only."""
        match value:
            case Ref(name):
                return name in self.shared_names
            case Call(_, args) if args:
                return is_wide(value) or all(map(self._is_shared, args))
        return isinstance(value, Const)
