"""The living definition: a rule run plainly on float64 tensors, one parameter at a time.

Every lowering is tested against this. It is right by inspection and never optimised: statement by
statement, in the author's order, taking the branch that holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optgen.ir.algorithm import Algorithm, State
from optgen.ir.nodes import Assign, Call, Const, Expr, Linear, Program, Ref, refs
from optgen.ir.words import WORDS

Values = dict[str, Any]


def evaluate(
    algorithm: Algorithm,
    hypers: Mapping[str, Any],
    param: Tensor,
    grad: Tensor,
    state: Mapping[str, Any],
    scalar_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, dict[str, Any]]:
    """One step of one parameter, from values to values; nothing is changed in place.

    Args:
        algorithm: the rule.
        hypers: every hyperparameter's value, by name.
        param, grad: of any equal shape; taken to float64.
        state: the checkpoint's entries by key, as the previous call returned them; {} at first.
        scalar_dtype: what scalar state is kept in (torch: float32, or float64 where that is the
            default dtype).

    Returns:
        The new parameter (float64) and the new state, `step` included if the rule counts steps.
    """
    values: Values = {
        algorithm.param: param.detach().double(),
        algorithm.grad: grad.detach().double(),
    }
    values |= {name: _number(value) for name, value in hypers.items()}
    kept = [s for s in algorithm.states if _exists(s, hypers)]
    for entry in kept:
        old = state.get(entry.key)
        values[entry.symbol] = (
            _initial(algorithm, entry, values, scalar_dtype) if old is None else old
        )
    fresh = {s.symbol for s in kept if state.get(s.key) is None}
    step = float(state.get("step", 0.0)) + 1.0
    if algorithm.step:
        values[algorithm.step] = _number(step)
    _run(algorithm, algorithm.rule, values, fresh, scalar_dtype)
    new_state = {s.key: _stored(s, values[s.symbol]) for s in kept}
    return values[algorithm.param], ({"step": step} if algorithm.step else {}) | new_state


def _number(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_number(v) for v in value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return torch.tensor(value)
    return torch.as_tensor(value, dtype=torch.float64).detach().squeeze()


def _exists(state: State, hypers: Mapping[str, Any]) -> bool:
    if state.when is None:
        return True
    truth = bool(hypers[state.when.removeprefix("not ")])
    return truth is not state.when.startswith("not ")


def _initial(
    algorithm: Algorithm, state: State, values: Values, scalar_dtype: torch.dtype
) -> Tensor:
    name = algorithm.param if state.init == "p" else state.init
    start: Tensor = values[name] if isinstance(name, str) else _number(name)
    if state.shape == "scalar":
        return start.to(scalar_dtype)
    return torch.zeros_like(values[algorithm.param]) + start


def _stored(state: State, value: Tensor) -> Tensor:
    """What the next step finds: a state with a dtype of its own is kept in it."""
    return value.to(getattr(torch, state.dtype)) if state.dtype else value


def _run(
    algorithm: Algorithm, program: Program, values: Values, fresh: set[str], dtype: torch.dtype
) -> None:
    for stmt in program:
        if isinstance(stmt, Assign):
            values[stmt.target.name] = _assigned(algorithm, stmt, values, fresh, dtype)
        else:
            holds = bool(_value(stmt.condition, values, fresh))
            _run(algorithm, stmt.then if holds else stmt.orelse, values, fresh, dtype)


def _assigned(
    algorithm: Algorithm, stmt: Assign, values: Values, fresh: set[str], dtype: torch.dtype
) -> Any:
    """The value of an assignment; scalar state is computed and kept in torch's scalar dtype."""
    state = algorithm.state(stmt.target.name)
    if state is None or state.shape != "scalar":
        return _value(stmt.value, values, fresh)
    return _value(stmt.value, values, fresh, rounded=(state.symbol, dtype)).to(dtype)


def _value(
    expr: Expr,
    values: Values,
    fresh: set[str],
    rounded: tuple[str, torch.dtype] | None = None,
) -> Any:
    match expr:
        case Const(value):
            return _number(value)
        case Ref(name):
            value = values[name]
            return (
                value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
            )
        case Call("fresh", (Ref(name),)):
            return torch.tensor(name in fresh)
        case Call("item", (values_of, Const(int() as index))):
            return _value(values_of, values, fresh)[index]
        case Call("truth" | "is_none" as word, (a,)):
            value = _value(a, values, fresh)
            if word == "is_none" or value is None:
                return torch.tensor((value is None) is (word == "is_none"))
            return value != 0
        case Call("and" | "or" as word, (a, b)):
            left = _value(a, values, fresh)
            decided = left.ndim == 0 and bool(left) is (word == "or")
            return left if decided else WORDS[word].meaning(left, _value(b, values, fresh))
        case Call("==" | "!=" as word, (a, b)) if _is_choice(values, a, b):
            return torch.tensor(WORDS[word].meaning(*(_value(e, values, fresh) for e in (a, b))))
        case Call(word, args):
            operands = [_value(a, values, fresh, rounded) for a in args]
            if rounded is not None and any(ref.name == rounded[0] for ref in refs(expr)):
                # torch computes with a 0-dim tensor, and with what derives from it, in its dtype
                result = WORDS[word].meaning(*(_in(rounded[1], o) for o in operands))
                return _in(torch.float64, result)
            return WORDS[word].meaning(*operands)
        case Linear():
            raise TypeError("a linear form belongs to a plan; the evaluator runs algorithms")


def _in(dtype: torch.dtype, value: Tensor) -> Tensor:
    """A number in a type; a truth value as it is."""
    return value.to(dtype) if value.is_floating_point() else value


def _is_choice(values: Values, *operands: Expr) -> bool:
    """Whether a comparison is of names, which are no numbers."""
    return any(
        isinstance(e, Const | Ref)
        and isinstance(e.value if isinstance(e, Const) else values[e.name], str | None)
        for e in operands
    )
