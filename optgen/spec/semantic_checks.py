"""Check a spec as a whole, after its signature and its rule have been read."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NoReturn

from optgen.contract.states import FACTS, MATRIX_SHAPES, RANK, Condition, Shape
from optgen.ir.algorithm import Algorithm, Hyper, State
from optgen.ir.nodes import Call, Expr, If, Program, children, truth, walk
from optgen.ir.ops import LINEAR_ALGEBRA, MATRIX_OPS, WHOLE_REDUCTIONS, WIDE_OPS
from optgen.spec.errors import SpecError, did_you_mean
from optgen.spec.literals import COMPARISONS, value_of
from optgen.spec.reserved_names import ADDED_ARGUMENTS
from optgen.spec.scope import Scope
from optgen.spec.source import Source

_NAMED_NUMBERS = {"zero": 0, "zeros": 0, "one": 1, "ones": 1}
"""Initial values that have names in other libraries, for hints."""

_ONLY_MATRICES = {Condition("factored"), Condition("tall")}
_CONDITION_TYPES = ("flag", "number", "fact")
_SIZE_NAMES = {"rows": "rows", "cols": "columns", RANK: "the rank"}
_SHAPES: dict[Shape, str] = {
    "scalar": "one number",
    "row": "one number per row",
    "col": "one number per column",
    **{(m, n): f"a matrix of {_SIZE_NAMES[m]} by {_SIZE_NAMES[n]}" for m, n in MATRIX_SHAPES},
}


def check_references(source: Source, algorithm: Algorithm) -> None:
    """Check the names that states refer to.

    `when` names a flag, a number or a shape predicate. A string in `init` names a number, or is
    "p" or "index".
    """
    types_by_name: dict[str, str] = {h.name: h.type for h in algorithm.hypers if not h.set_by_step}
    types_by_name |= dict.fromkeys(FACTS, "fact")
    for state in algorithm.checkpoint_states():
        condition = state.condition
        if condition and condition.limit:
            _check_limit(source, state, algorithm.hyper(condition.limit[1]), condition.limit[1])
        elif condition and types_by_name.get(condition.name) not in _CONDITION_TYPES:
            _unknown_hyper(source, state, "when", condition.name, types_by_name)
        if state.init == "index":
            if state.shape != "scalar":
                message = f'`{state.symbol}` is a tensor, and init="index" is one number'
                source.error_at(state.place, message, 'add shape="scalar"')
            continue
        if (
            isinstance(state.init, str)
            and state.init != "p"
            and types_by_name.get(state.init) != "number"
        ):
            _unknown_hyper(source, state, "init", state.init, types_by_name)
        initial_hyper = algorithm.hyper(state.init) if isinstance(state.init, str) else None
        if initial_hyper is not None and initial_hyper.optional:
            message = f"`{state.symbol}` begins as `{initial_hyper.name}`, which may be None"
            source.error_at(state.place, message, "start from a number: init=0")
        if state.init == "p" and state.shape != "like":
            message = f'`{state.symbol}` is {_SHAPES[state.shape]}, and init="p" is a tensor'
            source.error_at(state.place, message, "start from a number: init=0")


def _check_limit(source: Source, state: State, hyper: Hyper | None, limit: str) -> None:
    """Check that the limit of a size is a number that is known before a step."""
    if limit.isdigit():
        return
    if hyper is None or hyper.type != "number" or hyper.optional or hyper.tensor != "never":
        message = f"`{limit}` is no number that can limit a size"
        hint = f"declare {limit}=hyper(10000, ge=1, whole=True); it may not be None or a tensor"
        source.error_at(state.place, message, hint)


def _unknown_hyper(
    source: Source, state: State, option: str, name: str, types_by_name: Mapping[str, str]
) -> NoReturn:
    allowed = _CONDITION_TYPES if option == "when" else ("number",)
    fitting_names = [known for known, type_ in types_by_name.items() if type_ in allowed]
    otherwise = f"one of {', '.join(fitting_names)}" if fitting_names else "there is none here"
    if option == "init":
        otherwise = 'it is a number or "p"'
        if fitting_names:
            otherwise = f'it is a number, "p", or a hyperparameter: {", ".join(fitting_names)}'
    hint = did_you_mean(name, fitting_names, otherwise)
    if option == "init" and name in _NAMED_NUMBERS:
        hint = f"write the number: init={_NAMED_NUMBERS[name]}"
    if option == "init" and name == "identity":
        hint = f"start from a number, and assign it: if fresh({state.symbol}): "
        hint += f"{state.symbol} = identity({state.symbol})"
        if isinstance(state.shape, str) or state.shape[0] != state.shape[1]:
            hint = "only a square matrix has an identity: start from a number, init=0"
    message = f'{option}="{name}" names no hyperparameter that is a {" or a ".join(allowed[:2])}'
    source.error_at(state.place, message, hint)


def check_shapes(source: Source, algorithm: Algorithm, known_true: Collection[Condition]) -> None:
    """Check that `when` fits a state's shape.

    A row or column state, or a matrix, needs a parameter with rows and columns. A state of one
    number exists for every parameter, since it costs nothing.
    """
    for state in algorithm.states:
        if state.shape == "scalar" and state.when is not None:
            message = f"`{state.symbol}` is one number, and exists for every parameter"
            hint = f"leave given({state.symbol}) out" if state.step_argument else "leave when= out"
            source.error_at(state.place, message, hint)
        if state.condition in known_true:
            message = f"every parameter of this rule is {state.condition}"
            source.error_at(state.place, message, "leave when= out")
        every_param_has_it = state.shape in ("like", "scalar")
        if state.condition and state.condition.limit and state.condition.holds:
            continue  # what has a size has rows and columns
        if not every_param_has_it and not _ONLY_MATRICES & {state.condition, *known_true}:
            message = f"`{state.symbol}` is {_SHAPES[state.shape]}, which not every parameter has"
            hint = 'add when="factored"'
            is_limited = state.condition is not None and state.condition.limit is not None
            if (
                state.step_argument
                or is_limited
                or state.condition == Condition("tall", holds=False)
            ):
                hint = f'say so: require(ndim({algorithm.param}) >= 2, "…")'
            source.error_at(state.place, message, hint)


def check_cases(source: Source, algorithm: Algorithm, known_true: Collection[Condition]) -> None:
    """Check that a rule updates something for every shape of parameter that it accepts."""
    stored_names = {algorithm.param, *(s.symbol for s in algorithm.states if s.shape != "scalar")}
    for fact in FACTS if algorithm.base is None else ():
        cases = (Condition(fact), Condition(fact, holds=False))
        for case in cases:
            if _writes(algorithm.rule, fact, case.holds, stored_names):
                continue
            message = f"the rule does nothing for parameters that are {case}"
            hint = f"write {algorithm.param} in both arms, or let `require` refuse such parameters"
            if not set(cases).isdisjoint(known_true):
                message = f"`require` excludes parameters that are {case}"
                hint = "leave the if out: its condition has one answer"
            source.error_at(algorithm.place, message, hint)


def _writes(program: Program, fact: str, holds: bool, stored_names: Collection[str]) -> bool:
    """Tell whether a program may assign to a name in `stored`, given the answer to a fact."""
    for stmt in program:
        if isinstance(stmt, If):
            answer = truth(
                stmt.condition,
                lambda e: holds if isinstance(e, Call) and e.op == fact else None,
            )
            arms = [stmt.then] * (answer is not False) + [stmt.orelse] * (answer is not True)
            if any(_writes(arm, fact, holds, stored_names) for arm in arms):
                return True
        elif stmt.target.name in stored_names:
            return True
    return False


def check_orders(source: Source, algorithm: Algorithm, node: ast.FunctionDef) -> None:
    """Check that `keywords=` and `group=` list every hyperparameter once, and nothing else."""
    if algorithm.base is None:  # a derived spec inherits hyperparameters
        error = order_error(algorithm, [h for h in algorithm.hypers if not h.set_by_step])
        if error:
            source.error(node.decorator_list[0], *error)


def check_rule(
    source: Source, algorithm: Algorithm, scope: Scope, node: ast.FunctionDef, rule: Program
) -> None:
    """Check that a rule uses everything declared, and that a derived spec has no rule."""
    if algorithm.base is not None:
        if rule or algorithm.states:
            source.error(
                node,
                f"`{node.name}` derives from `{algorithm.base}`, so it has no rule of its own",
                "leave the body and the states out",
            )
        return
    if algorithm.param not in scope.written:
        source.error(
            node, f"the rule never writes `{algorithm.param}`", f"{algorithm.param} = …, the update"
        )
    if not algorithm.is_function:
        _check_states_used(source, algorithm, scope)
    _check_hypers_used(source, algorithm, scope)
    if algorithm.grad not in scope.read and not algorithm.is_function:
        message = f"the rule never reads the gradient `{algorithm.grad}`"
        source.error(node.args.posonlyargs[1], message, "use it: a step follows the gradient")
    for name, place in scope.locals.items():
        if name not in scope.read and not name.startswith("_"):
            source.error_at(place, f"`{name}` is never used", "leave it out, or call it `_`")


def _check_states_used(source: Source, algorithm: Algorithm, scope: Scope) -> None:
    """Check that a rule uses all states and extra inputs, and writes states that begin as a number.

    The rule need not read a state of the group, since users read it in the param group. Neither
    need it read a copy of the parameter, such as one in another dtype for the forward pass.
    """
    for state in algorithm.states:
        if state.symbol not in scope.read | scope.written:
            what = "input" if state.step_argument else "state"
            message = f"{what} `{state.symbol}` is never used"
            source.error_at(state.place, message, "leave it out")
        if state.step_argument:
            continue
        if state.symbol not in scope.written and not isinstance(state.init, str):
            hint = f'assign it: {state.symbol} = …; or keep its initial value with init="p"'
            source.error_at(state.place, f"state `{state.symbol}` is never written", hint)
        read_by_users = state.of_group or state.init == "p"
        if state.symbol not in scope.read and not read_by_users:
            message = f"state `{state.symbol}` is written but never read"
            source.error_at(state.place, message, "leave it out, or read it: steps keep its value")


def _check_hypers_used(source: Source, algorithm: Algorithm, scope: Scope) -> None:
    """Check that the rule, a state or the rank uses each hyperparameter."""
    for hyper in algorithm.hypers:
        is_used = hyper.name in scope.read or any(
            hyper.name == s.init
            or (s.condition and hyper.name in (s.condition.name, *(s.condition.limit or ())))
            for s in algorithm.states
        )
        is_used = is_used or (hyper.name == RANK and algorithm.has_rank)
        if not is_used:
            message = f"hyperparameter `{hyper.name}` is never used"
            source.error_at(hyper.place, message, "leave it out")


def check_device_scalars(source: Source, algorithm: Algorithm) -> None:
    """Check the dtype of the scalar states whose values come from reductions."""
    for state in algorithm.device_scalars():
        if state.dtype is None:
            message = f"`{state.symbol}` comes from a reduction, so it is float64 or float32"
            source.error_at(state.place, message, 'leave dtype="torch" out')


def check_gradient(source: Source, algorithm: Algorithm, node: ast.FunctionDef) -> None:
    """Check `gradient=` and `rows=False`.

    Only a rule that updates each row by itself can take sparse gradients.
    """
    option = f'gradient="{algorithm.gradient}"'
    if algorithm.gradient != "dense" and not algorithm.by_row:
        message = f"{option}, but the rule looks at the whole parameter"
        hint = "a sparse gradient holds only some rows: leave gradient= out"
        source.error(node.decorator_list[0], message, hint)
    declarations: tuple[State | Hyper, ...] = (*algorithm.states, *algorithm.hypers)
    for declaration in declarations if algorithm.base is None else ():
        if not declaration.rows and algorithm.gradient == "dense":
            message = "`rows=False` in a rule that takes no sparse gradients"
            source.error_at(
                declaration.place, message, '@optimizer(gradient="rows"), or leave it out'
            )


def order_error(algorithm: Algorithm, hypers: Sequence[Hyper]) -> tuple[str, str] | None:
    """Return the message and the hint for a missing, repeated or unknown name in an order.

    Return None if both orders are right.
    """
    names = [h.name for h in hypers]
    arguments = [h.name for h in hypers if not h.fixed]
    for option, needed, optional in (("keywords", arguments, ("*",)), ("group", names, ())):
        order: tuple[str, ...] = getattr(algorithm, option)
        for position, name in enumerate(order):
            if name not in (*needed, *ADDED_ARGUMENTS, *optional) or name in order[:position]:
                problem = "occurs twice" if name in order[:position] else "is no argument"
                hint = did_you_mean(name, needed, f"arguments: {', '.join(needed)}")
                return f"`{name}` in {option} {problem}", hint
        missing = [name for name in needed if order and name not in order]
        if missing:
            hint = f"add it; or remove {option} to keep the spec's own order"
            return f"{option} leaves out `{missing[0]}`", hint
    return None


_BATCH_AXES = 3
_ON_EACH_MATRIX = frozenset((*MATRIX_OPS, *LINEAR_ALGEBRA)).difference(
    ("transpose", "identity", "row_ones", "col_ones", "diag", "gaussian")
)
"""Words whose result for a batch depends on which elements form a matrix."""


def batch_warning(algorithm: Algorithm) -> SpecError | None:
    """Return a warning at the first such reduction, or None if a batch steps as its matrices do."""
    if any(truth(each.condition, _holds_for_batch) is False for each in algorithm.requires):
        return None
    exprs = list(_run_for_batch(algorithm.rule))
    nodes = [node for expr in exprs for node in walk(expr) if isinstance(node, Call)]
    words = [node.op for node in nodes if node.op in _ON_EACH_MATRIX]
    reductions = [node for expr in exprs for node in _whole_reductions(expr)]
    if not words or not reductions:
        return None
    name, param = reductions[0].op, algorithm.param
    message = f"warning: `{name}` reduces all matrices of a batch, and `{words[0]}` acts on each"
    hint = f'for each matrix: {name}(x, over="matrix"); if only matrices come: '
    hint += f"require(ndim({param}) == 2, …)"
    return SpecError(reductions[0].place, message, hint, algorithm.source)


def _run_for_batch(program: Program) -> Iterator[Expr]:
    """Yield the values of the statements that a batch may run."""
    for stmt in program:
        if isinstance(stmt, If):
            answer = truth(stmt.condition, _holds_for_batch)
            yield from _run_for_batch(stmt.then if answer is not False else ())
            yield from _run_for_batch(stmt.orelse if answer is not True else ())
        else:
            yield stmt.value


def _whole_reductions(expr: Expr) -> Iterator[Call]:
    """Yield reductions to one number for each parameter, but none over several parameters."""
    if isinstance(expr, Call) and expr.op in WHOLE_REDUCTIONS:
        yield expr
    for child in children(expr) if not (isinstance(expr, Call) and expr.op in WIDE_OPS) else ():
        yield from _whole_reductions(child)


def _holds_for_batch(condition: Expr) -> bool | None:
    """Return the value of a comparison for a parameter of three axes; None if it is unknown."""
    match condition:
        case Call("factored", _):
            return True
        case Call(op, sides) if op in COMPARISONS:
            numbers = [_BATCH_AXES if _is_ndim(side) else value_of(side) for side in sides]
            return None if None in numbers else COMPARISONS[op](*numbers)
    return None


def _is_ndim(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.op == "ndim"
