"""Add an extra input to drawn rules, and draw tensors for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from torch import Tensor

from fuzz.expressions import ExpressionGenerator, Known
from optgen.ir.algorithm import Algorithm, State
from optgen.runtime.rule import State as Entry

NAME, KEY = "hz", "extra"
_FIRST_STATEMENT = re.compile(r"^    _?beta1, _?beta2 = betas\n", re.M)
_SIGNATURE = re.compile(r"^    p, g, (t, )?/,$", re.M)
_FORMS = (
    "    g = {a} + 0.25 * hz",
    "    if given(hz):\n        g = {a} - 0.25 * hz",
    "    if given(hz):\n        g = hz * {a}\n    else:\n        g = 0.75 * {b}",
    "    if not given(hz):\n        g = 0.75 * {b}\n    else:\n        p = p - 0.125 * hz * {a}",
    "    if given(hz) and {c}:\n        g = {a} + 0.25 * hz\n    elif {c}:\n        g = 0.75 * {b}",
    "    if given(hz) or {c}:\n        g = 0.75 * {b}\n    if given(hz):\n        g = g - 0.5 * hz",
)


def add_extra_input(seed: str | int, text: str) -> str:
    """Return the text, for some seeds with an extra input that the rule's first statements read."""
    rng = Random(f"inputs {seed}")
    if rng.random() > 0.25:
        return text
    declared = [n for n in ("lr", "c", "eps", "fa", "fb") if f"\n    {n}=" in text]
    numbers = [n for n in ("lr", "c", "eps") if n in declared] or ["0.5"]
    draw_with_input = ExpressionGenerator(
        rng,
        Known(numbers=numbers, tensors=["g", "p", NAME]),
        has_odd_forms=rng.random() < 0.4,
        has_reductions=rng.random() < 0.3,
        conditions=[f for f in ("fa", "fb") if f in declared] or ["0.5 > 0"],
    )
    draw_without_input = ExpressionGenerator(
        rng, Known(numbers=numbers, tensors=["g", "p"]), conditions=draw_with_input.conditions
    )
    shape, forms = _shape_and_forms(Random(f"shapes {seed}"), text)
    form = rng.choice(_FORMS)
    if shape:
        form = Random(f"forms {seed}").choice(forms)
    form = form.format(
        a=draw_with_input.tensor(2),
        b=draw_without_input.tensor(2),
        c=draw_with_input.pick(*draw_with_input.conditions),
    )
    text = _FIRST_STATEMENT.sub(lambda first: f"{first[0]}{form}\n", text, count=1)
    return _SIGNATURE.sub(rf'    p, g, \g<1>{NAME}=given("{KEY}"{shape}), /,', text)


def _shape_and_forms(rng: Random, text: str) -> tuple[str, Sequence[str]]:
    """Return the option for another shape than the parameter's, and statements for it."""
    if rng.random() < 0.6:
        return "", ()
    if not re.search(r"require\((factored|ndim|tall)", text) or rng.random() < 0.3:
        return ", shape=()", (
            "    g = {b} + 0.25 * hz",
            "    p = p - hz * {b}",
            "    g = g / (2 + hz)",
        )
    forms = ("    g = {b} {op} hz", "    if given(hz):\n        g = {b} {op} hz")
    shape = rng.choice(('"row"', '"col"', '("cols", "cols")', '("rows", "rows")'))
    by_shape = {
        '("cols", "cols")': ("    g = {b} @ hz", "    if given(hz):\n        g = g @ hz"),
        '("rows", "rows")': (
            "    g = hz @ {b}",
            "    if not given(hz):\n        g = {b}\n    else:\n        g = hz @ g",
        ),
    }
    lines = by_shape.get(shape) or tuple(form.replace("{op}", "*") for form in forms)
    return f", shape={shape}", lines


ExtraInputs = dict[str, list[Tensor | None]]


def draw_inputs(
    algorithm: Algorithm, params: Sequence[Tensor], draw: Callable[[Any], Tensor], step_number: int
) -> ExtraInputs:
    """Return a step's inputs: for all parameters, or only for some if the rule calls `given`."""
    inputs: ExtraInputs = {}
    for state in algorithm.extra_inputs():
        column = [draw(_shape(state, param)) for param in params]
        are_given = [state.when is None or (step_number + i) % 3 > 0 for i in range(len(params))]
        if state.shape == "scalar":
            column = [column[0]] * len(params)
        inputs[state.step_argument] = [
            x if is_given else None for x, is_given in zip(column, are_given, strict=True)
        ]
    return inputs


def _shape(state: State, param: Tensor) -> Sequence[int]:
    if state.shape == "like":
        return param.shape
    return [] if state.shape == "scalar" else Entry(state.key, shape=state.shape).shape_for(param)


def flags_and_states(
    algorithm: Algorithm, inputs: ExtraInputs, index: int
) -> tuple[Mapping[str, bool], Mapping[str, Tensor]]:
    """Return a parameter's inputs as the rule sees them: as flags and states."""
    flags, states = {}, {}
    for state in algorithm.extra_inputs():
        tensor = inputs[state.step_argument][index]
        if state.when:
            flags[state.when] = tensor is not None
        if tensor is not None:
            states[state.key] = tensor
    return flags, states
