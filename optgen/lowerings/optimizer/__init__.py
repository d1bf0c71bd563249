"""Lower to the optimizer class: constructor, checks, docstring, and its rule as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from optgen.contract.states import StateEntry
from optgen.ir.algorithm import AcrossGroups, Algorithm, ModeProgram, State
from optgen.ir.execution import (
    updates_matrices_independently,
    why_not_in_triton,
    why_uncut,
    widens_in_python,
)
from optgen.lowerings.lowering import Lowering
from optgen.lowerings.optimizer.arguments import (
    arguments,
    backfill,
    group_keys,
    keys_that_torch_lacks,
)
from optgen.lowerings.optimizer.checks import checks, param_checks
from optgen.lowerings.optimizer.doc import docstring
from optgen.lowerings.python import literals
from optgen.lowerings.python.literals import literal
from optgen.passes.kernel_plans import codes_readers
from optgen.passes.outline_sweeps import outline_sweeps
from optgen.passes.plan import plans
from optgen.passes.recognize_rules import is_scatter_add, scale_is_ignored, skip_count
from optgen.passes.specialize import facts_read


def optimizer_context(algorithm: Algorithm, base: Algorithm | None = None) -> Mapping[str, Any]:
    """Return the template's variables; `base` is the base of a derived algorithm."""
    positional, keyword_only = arguments(algorithm)
    return {
        "algorithm": algorithm,
        "base": base,
        "parent": _parent(algorithm, base),
        "docstring": literals.docstring(docstring(algorithm, [*positional, *keyword_only])),
        "rule": rule_of(algorithm) if base is None else _derived_rule(algorithm, base),
        "programs": [_program(algorithm, program) for program in algorithm.programs],
        "positional": positional,
        "keyword_only": keyword_only,
        "checks": checks(algorithm, base),
        "param_checks": param_checks(algorithm, base),
        "shared": ", ".join(literal(s.key) for s in algorithm.states if s.eager),
        "defaults": _defaults(algorithm),
        "base_arguments": {} if base is None else _base_arguments(algorithm, base),
    }


def _parent(algorithm: Algorithm, base: Algorithm | None) -> str:
    if base is not None:
        return base.name
    mode_classes = ["ModeOptimizer"] if algorithm.programs else []
    input_classes = ["InputOptimizer"] if any(algorithm.extra_inputs()) else []
    return ", ".join(mode_classes + input_classes) or "GeneratedOptimizer"


def _program(algorithm: Algorithm, program: ModeProgram) -> tuple[str, str, str]:
    """Return a program's mode, its name, and the keys of its lists as Python text.

    A list that is neither the parameter nor a state gets a copy of the first list.
    """
    keys = {algorithm.param: "param", **{s.symbol: s.key for s in algorithm.states}}
    function = program.function
    copy_of_first = f"copy of {keys[function.lists[0]]}"
    return (
        program.mode,
        function.name,
        literal(tuple(keys.get(name, copy_of_first) for name in function.tensors)),
    )


OPTIMIZER = Lowering(
    name="optimizer",
    filename="__init__.py",
    template="optimizer.py.jinja",
    lower=optimizer_context,
    content="optimizer",
)


def rule_of(algorithm: Algorithm) -> dict[str, str]:
    """Return the non-default arguments of `Rule` as Python text."""
    all_plans = plans(algorithm)
    unordered_fresh_keys = {s.key for plan in all_plans for s in plan.fresh_states()}
    fresh_keys = tuple(s.key for s in algorithm.states if s.key in unordered_fresh_keys)
    facts = facts_read(algorithm)
    tensor_hypers = tuple(h.name for h in algorithm.hypers if h.tensor in ("always", "capturable"))
    entries = {
        "name": literal(algorithm.stem),
        "states": _tuple(map(_state, algorithm.states)),
        "hypers": literal(tuple(h.name for h in all_plans[0].algorithm.hypers)),
        "step": _text_of_step(algorithm),
        "fresh": literal(fresh_keys) if fresh_keys else "",
        "gradient": _text_unless_default("dense", algorithm.gradient),
        "sparse_hint": literal(algorithm.sparse_hint) if algorithm.sparse_hint else "",
        "scatter_adds": "True" if is_scatter_add(algorithm) else "",
        "dense_only": _dense_only(algorithm),
        "scalar_device": _text_unless_default("cpu", algorithm.scalar_device),
        "tensor_hypers": "" if tensor_hypers == ("lr",) else literal(tensor_hypers),
        "elementwise": "" if algorithm.elementwise else "False",
        "widens": "True" if widens_in_python(algorithm) else "",
        "draws": "True" if algorithm.has_random_ops else "",
        "why_uncut": _text_unless_default("", why_uncut(algorithm)),
        "by_matrix": "True"
        if not algorithm.elementwise and updates_matrices_independently(algorithm)
        else "",
        "codes_readers": _text_of_names(codes_readers(algorithm)),
        "sweeps": _text_of_names([f.name for f in outline_sweeps(algorithm).functions]),
        "why_no_sweeps": _text_unless_default("", outline_sweeps(algorithm).why_none),
        "why_not_in_triton": _text_unless_default(
            why_uncut(algorithm), why_not_in_triton(algorithm)
        ),
        "ranked": "True" if algorithm.has_rank else "",
        "wide": "True" if algorithm.is_wide else "",
        "zero_grad": "True" if algorithm.zero_grad else "",
        "ignores_scale": "True" if scale_is_ignored(algorithm) else "",
        "skip_count": _text_unless_default("", skip_count(algorithm)),
        "facts": literal(facts) if facts else "",
        "backfill": _pairs(backfill(algorithm)),
        "optional": _pairs(keys_that_torch_lacks(algorithm) | _flags_set_by_steps(algorithm)),
        "fixed": _fixed(algorithm),
        "narrow_flags": _text_of_names([h.name for h in algorithm.hypers if h.narrow]),
        "choices": _pairs(
            {h.name: literal(h.choices) for h in algorithm.hypers if h.type == "choice"}
        ),
        "upper_bounds": _pairs(
            {h.name: literal(h.bounds.lt) for h in algorithm.hypers if h.bounds.lt is not None}
        ),
        "equal": _text_of_names(_names_across_groups(algorithm, "equal")),
        "equal_or_0": _text_of_names(_names_across_groups(algorithm, "equal or 0")),
    }
    return {key: text for key, text in entries.items() if text}


def _text_unless_default(default: str, value: str) -> str:
    """Return a value as Python text, or "" if it is the default."""
    return "" if value == default else literal(value)


def _names_across_groups(algorithm: Algorithm, values: AcrossGroups) -> list[str]:
    """Return the hyperparameters that may have these values in the groups."""
    return [hyper.name for hyper in algorithm.hypers if hyper.groups == values]


def _text_of_names(names: Sequence[str]) -> str:
    return literal(tuple(names)) if names else ""


def _derived_rule(algorithm: Algorithm, base: Algorithm) -> dict[str, str]:
    """Return the arguments of `Rule` that a derived class changes."""
    rule, base_rule = rule_of(algorithm), rule_of(base)
    keys = [key for key in ("sparse_hint", "fixed") if key in rule]  # all that may change
    return {key: rule[key] for key in keys if rule[key] != base_rule.get(key)}


def _state(state: State) -> str:
    """Return a `State` as Python text, with the options that are not their defaults."""
    options = [
        f"{entry.name}={literal(getattr(state, entry.name))}"
        for entry in fields(StateEntry)
        if entry.name != "key" and getattr(state, entry.name) != entry.default
    ]
    return f"State({', '.join([literal(state.key), *options])})"


def _text_of_step(algorithm: Algorithm) -> str:
    if algorithm.step is None:
        return "None"
    return "" if algorithm.counter == "tensor" else literal(algorithm.counter)


def _dense_only(algorithm: Algorithm) -> str:
    names = tuple(h.name for h in algorithm.hypers if not h.rows)
    return literal(names) if names else ""


def _flags_set_by_steps(algorithm: Algorithm) -> dict[str, str]:
    """Return the flags that only a step sets, with their values before the first step."""
    return {h.name: literal(h.default) for h in algorithm.hypers if h.set_by_step}


def _fixed(algorithm: Algorithm) -> str:
    fixed = (h for h in algorithm.hypers if h.fixed and not (h.set_by_step or h.narrow))
    return _pairs({h.name: literal(h.default) for h in fixed})


def _pairs(entries: Mapping[str, str]) -> str:
    return _tuple(f"({literal(k)}, {v})" for k, v in entries.items()) if entries else ""


def _tuple(items: Iterable[str]) -> str:
    texts = list(items)
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _defaults(algorithm: Algorithm) -> dict[str, str]:
    """Return each key of the group, and the constructor's expression for its value."""
    values = {key: key for key in group_keys(algorithm)}
    for hyper in algorithm.hypers:
        if hyper.set_by_step:
            continue
        if hyper.fixed:
            values[hyper.name] = literal(hyper.default)
        elif hyper.type == "tuple" and hyper.tensor != "never":
            item = "x.squeeze() if isinstance(x, Tensor) and x.ndim else x"
            values[hyper.name] = f"tuple({item} for x in {hyper.name})"
    return values


def _base_arguments(algorithm: Algorithm, base: Algorithm) -> dict[str, str]:
    """Return the arguments that a derived class passes to its base's constructor."""
    values = _defaults(algorithm)
    positional, keyword_only = arguments(base)
    fixed = {h.name for h in algorithm.hypers if h.fixed}
    names = [argument.name for argument in (*positional, *keyword_only)]
    return {name: values[name] if name in fixed else name for name in names}
