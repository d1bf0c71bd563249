"""Print the `Rule(...)` of a generated class: what the runtime must know of a rule, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from optgen.contract.states import StateEntry
from optgen.ir.algorithm import Algorithm, State
from optgen.ir.execution import updates_matrices_independently
from optgen.ir.nodes import Call, Const, Expr, Ref
from optgen.ir.ops import OPS
from optgen.ir.plan import MatrixCall, Plan
from optgen.lowerings.optimizer.constructor import backfill, keys_that_torch_lacks
from optgen.lowerings.python.literals import literal
from optgen.passes.fused_share import fused_share
from optgen.passes.outline_sweeps import outline_sweeps
from optgen.passes.plan_rule import plans, why_uncut
from optgen.passes.prepare_rule import facts_read
from optgen.passes.recognize_rules import (
    codes_readers,
    is_scatter_add,
    scale_is_ignored,
    skip_count,
    why_not_in_triton,
    widens_in_python,
)

_ALWAYS = ("name", "states", "hypers")
"""Arguments of `Rule` without defaults."""
_DEFAULTS: Mapping[str, object] = {
    "step": "tensor",
    "gradient": "dense",
    "scalar_device": "cpu",
    "tensor_hypers": ("lr",),
    "elementwise": True,
    "fused_share": 1.0,
}
"""Defaults of arguments of `Rule`. Those of all others are false or empty."""


class _Text(str):
    """Python text, which `literal` prints as it is."""

    def __repr__(self) -> str:
        return str(self)


def rule_of(algorithm: Algorithm) -> dict[str, str]:
    """Return the non-default arguments of `Rule` as Python text."""
    values = {
        **_facts_of_states(algorithm),
        **_facts_of_kernels(algorithm),
        **_facts_of_groups(algorithm),
    }
    return {
        key: literal(value)
        for key, value in values.items()
        if key in _ALWAYS or (value != _DEFAULTS[key] if key in _DEFAULTS else value)
    }


def derived_rule_of(algorithm: Algorithm, base: Algorithm) -> dict[str, str]:
    """Return the arguments of `Rule` that a derived class changes."""
    rule, base_rule = rule_of(algorithm), rule_of(base)
    keys = [key for key in ("sparse_hint", "fixed") if key in rule]  # all that may change
    return {key: rule[key] for key in keys if rule[key] != base_rule.get(key)}


def _facts_of_states(algorithm: Algorithm) -> dict[str, object]:
    """Return what the runtime must know to create states and to gather gradients."""
    all_plans = plans(algorithm)
    fresh_keys = {s.key for plan in all_plans for s in plan.fresh_states()}
    return {
        "name": algorithm.stem,
        "states": tuple(map(_state, algorithm.states)),
        "hypers": tuple(h.name for h in all_plans[0].algorithm.hypers),
        "step": algorithm.counter if algorithm.step else None,
        "fresh": tuple(s.key for s in algorithm.states if s.key in fresh_keys),
        "streams": tuple(s.key for s in algorithm.stream_states()),
        "gradient": algorithm.gradient,
        "sparse_hint": algorithm.sparse_hint,
        "scatter_adds": is_scatter_add(algorithm),
        "dense_only": tuple(h.name for h in algorithm.hypers if not h.rows),
        "scalar_device": algorithm.scalar_device,
        "tensor_hypers": tuple(
            h.name for h in algorithm.hypers if h.tensor in ("always", "capturable")
        ),
    }


def _facts_of_kernels(algorithm: Algorithm) -> dict[str, object]:
    """Return what the runtime must know to choose a lowering, and to call it."""
    outlined, uncut = outline_sweeps(algorithm), why_uncut(algorithm)
    not_in_triton = why_not_in_triton(algorithm)
    by_matrix = not algorithm.elementwise and updates_matrices_independently(algorithm)
    all_plans = plans(algorithm)
    return {
        "elementwise": algorithm.elementwise,
        "widens": widens_in_python(algorithm),
        "draws": algorithm.has_random_ops,
        "why_uncut": uncut,
        "by_matrix": by_matrix,
        "codes_readers": tuple(codes_readers(algorithm)),
        "sweeps": tuple(function.name for function in outlined.functions),
        "fused_share": round(fused_share(algorithm), 3) if uncut else 1.0,
        "why_no_sweeps": outlined.why_none,
        "matrix_calls": tuple(_matrix_calls(all_plans)),
        "matrices": _matrices(all_plans),
        "why_not_in_triton": "" if not_in_triton == uncut else not_in_triton,
        "ranked": algorithm.has_rank,
        "wide": algorithm.is_wide,
        "zero_grad": algorithm.zero_grad,
        "ignores_scale": scale_is_ignored(algorithm),
        "skip_count": skip_count(algorithm),
        "facts": facts_read(algorithm),
    }


def _facts_of_groups(algorithm: Algorithm) -> dict[str, object]:
    """Return what the runtime must know to check and to load the values of groups."""
    hypers = algorithm.hypers
    set_by_steps = {h.name: h.default for h in hypers if h.set_by_step}
    fixed = (h for h in hypers if h.fixed and not (h.set_by_step or h.narrow))
    optional = {key: _Text(text) for key, text in keys_that_torch_lacks(algorithm).items()}
    return {
        "backfill": tuple((key, _Text(text)) for key, text in backfill(algorithm).items()),
        "optional": tuple({**optional, **set_by_steps}.items()),
        "fixed": tuple((h.name, h.default) for h in fixed),
        "narrow_flags": tuple(h.name for h in hypers if h.narrow),
        "choices": tuple((h.name, h.choices) for h in hypers if h.type == "choice"),
        "upper_bounds": tuple((h.name, h.bounds.lt) for h in hypers if h.bounds.lt is not None),
        "equal": tuple(h.name for h in hypers if h.groups == "equal"),
        "equal_or_0": tuple(h.name for h in hypers if h.groups == "equal or 0"),
    }


def _state(state: State) -> _Text:
    """Return a `State` with the options that are not their defaults."""
    options = [
        f"{entry.name}={literal(getattr(state, entry.name))}"
        for entry in fields(StateEntry)
        if entry.name != "key" and getattr(state, entry.name) != entry.default
    ]
    return _Text(f"State({', '.join([literal(state.key), *options])})")


def _matrix_calls(all_plans: Sequence[Plan]) -> Iterator[_Text]:
    """Yield the matrix ops that cut a fused C++ step into parts, each as a `MatrixCall`.

    An op that some plans lack comes with the facts of each plan that has it.
    """
    texts = [list(map(_arguments_of_call, plan.matrix_calls)) for plan in all_plans]
    longest = max(texts, key=len)
    if any(each != longest[: len(each)] for each in texts):
        raise NotImplementedError("fused C++: plans with different matrix ops")
    for number, arguments in enumerate(longest):
        having = [plan for plan, each in zip(all_plans, texts, strict=True) if number < len(each)]
        facts = tuple(tuple(plan.facts.items()) for plan in having)
        is_in_all = len(having) == len(all_plans)
        yield _Text(f"MatrixCall({arguments}{'' if is_in_all else f', facts={literal(facts)}'})")


def _arguments_of_call(call: MatrixCall) -> str:
    """Return the first arguments of a `MatrixCall` as Python text."""
    source, *rest = map(_name_or_number, call.args[: OPS[call.op].arity])
    text = ", ".join(map(literal, (call.target.name, call.op, source, tuple(rest))))
    return f"{text}, options={literal(call.options)}" if call.options else text


def _name_or_number(expr: Expr) -> str | float:
    match expr:
        case Ref(name):
            return name
        case Const(int() | float() as value):
            return value
        case Call("neg", (Const(int() | float() as value),)):
            return -value
    raise TypeError(f"an operand of a matrix op is computed: {expr!r}")


def _matrices(all_plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return the operands and results of matrix ops, in the order of the kernel's table."""
    streams = (s for plan in all_plans for sweep in plan.sweeps for s in sweep.streams)
    return tuple(dict.fromkeys(s.name for s in streams if s.role == "local"))
