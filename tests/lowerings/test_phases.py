"""Test the for-loop's and foreach's functions for rules with reductions and matrix ops."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from inspect import signature
from typing import Any

import pytest
import torch
from conftest import Golden
from planning import WITH_PHASES
from sharded_step import step_on_shards
from torch import Tensor

from optgen import emit
from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate, exists, properties_of
from optgen.lowerings.foreach import FOREACH
from optgen.lowerings.forloop import FORLOOP
from optgen.lowerings.lowering import Lowering
from optgen.passes.plan_rule import plans
from optgen.passes.prepare_rule import facts_read
from optgen.runtime.eager import parts
from optgen.verification.compare_with_evaluator import iterate_exactly

FORMS = {
    "for-loop": (FORLOOP, "update"),
    "foreach": (FOREACH, "update"),
    "functional": (FORLOOP, "update_functional"),
    "sharded": (FOREACH, "update_sharded"),
}
SHAPES = ((), (6,), (5, 7), (7, 5), (3, 2, 4), (2, 3, 2, 1), (2, 0))
MOMENTUM = {"momentum": 0.9}
"""Without momentum, LARS has no state."""
SETTINGS: tuple[dict[str, Any], ...] = (
    MOMENTUM,
    {**MOMENTUM, "weight_decay": 0.3, "maximize": True},
)


@pytest.fixture(autouse=True)
def float64_matrix_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep matrix ops in float64."""
    monkeypatch.setattr("optgen.runtime.newton_schulz.iterate", iterate_exactly)


@pytest.mark.parametrize(
    ("name", "lowering"),
    [("CAME", FOREACH), ("LAMB", FORLOOP), ("LARS", FOREACH)],
    ids=["CAME-foreach", "LAMB-forloop", "LARS-foreach"],
)
def test_code_is_printed_as_recorded(name: str, lowering: Lowering, golden: Golden) -> None:
    golden.check(emit.render(WITH_PHASES[name], lowering, emit.find_ruff()))


@pytest.mark.one_case_in(12)
@pytest.mark.parametrize("in_blocks", [False, True], ids=["whole", "in blocks"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WITH_PHASES)
def test_a_bucket_takes_the_steps_of_its_rule(
    name: str, form: str, in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_blocks:
        monkeypatch.setattr(parts, "CPU_ELEMENTS", 4)
    algorithm = WITH_PHASES[name]
    module = functions_of(name, FORMS[form][0])
    for shape in shapes_for(algorithm, form):
        for settings in SETTINGS[1:] if in_blocks else SETTINGS:
            assert_steps_of_the_rule(algorithm, module, FORMS[form][1], shape, settings)


def shapes_for(algorithm: Algorithm, form: str) -> Iterable[tuple[int, ...]]:
    """Return shapes of parameters that a form of a rule takes.

    Shards need an axis. A rule with one phase has no form for shards.
    """
    shapes = ((5, 7), (7, 5)) if algorithm.requires else SHAPES
    if form == "functional":
        return (shape for shape in shapes if 0 not in shape)
    if form == "sharded":
        return (shape for shape in shapes if shape and is_cut(algorithm, shape))
    return shapes


def is_cut(algorithm: Algorithm, shape: tuple[int, ...]) -> bool:
    """Tell whether the rule has several phases for parameters of this shape."""
    properties = properties_of(torch.zeros(shape))
    return any(p.is_cut for p in plans(algorithm) if p.facts.items() <= properties.items())


@cache
def functions_of(name: str, lowering: Lowering) -> dict[str, Any]:
    """Return the functions of a generated file."""
    module: dict[str, Any] = {}
    text = emit.render(WITH_PHASES[name], lowering, None)
    exec(compile(text, lowering.filename, "exec"), module)
    return module


def assert_steps_of_the_rule(
    algorithm: Algorithm,
    module: dict[str, Any],
    name: str,
    shape: tuple[int, ...],
    settings: dict[str, Any],
) -> None:
    """Compare three steps of a bucket with the rule. Its three parameters have one shape."""
    generator = torch.Generator().manual_seed(len(shape))

    def random() -> list[Tensor]:
        return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]

    hypers = {h.name: settings.get(h.name, h.default) for h in algorithm.hypers}
    params = random()
    existing_states = [
        s for s in algorithm.states if exists(s, {**hypers, **properties_of(params[0])})
    ]
    starts = {s.key: hypers.get(s.init, s.init) for s in existing_states}
    states = {
        s.key: [zeros_of_shape(s.shape, p) + starts[s.key] for p in params] for s in existing_states
    }
    steps = [torch.zeros(()) for _ in params] if algorithm.step else []
    expected: list[tuple[Tensor, dict[str, Any]]] = [(p.clone(), {}) for p in params]
    maximize = settings.get("maximize", False)
    update = update_for(algorithm, module, name, params[0])
    extra = {"capturable": False} if "functional" in name else {}
    lists = [*states.values(), *([steps] if steps else [])]
    parameters_of_update = signature(update).parameters
    fresh_flags = [name for name in parameters_of_update if name.startswith("fresh_")]
    hypers_of_update = {
        name: value for name, value in hypers.items() if name in parameters_of_update
    }
    for step in range(3):
        grads = random()
        fresh = dict.fromkeys(fresh_flags, step == 0)
        options = {**hypers_of_update, "maximize": maximize, **extra, **fresh}
        if name == "update_sharded":
            shapes = [
                "like",
                "like",
                *(s.shape for s in existing_states),
                *["scalar"] * bool(steps),
            ]
            axis = (step + len(hypers)) % len(shape)
            step_on_shards(update, axis, shapes, [params, grads, *lists], **options)
        else:
            update(params, grads, *lists, **options)
        expected = [
            evaluate(algorithm, hypers, p, -g if maximize else g, state, torch.float64)
            for (p, state), g in zip(expected, grads, strict=True)
        ]
        for index, (param, state) in enumerate(expected):
            assert_near(params[index], param)
            for key, column in states.items():
                assert_near(column[index], state[key])


def update_for(algorithm: Algorithm, module: dict[str, Any], name: str, param: Tensor) -> Any:
    """Return the function of a generated file for parameters of this shape."""
    properties = properties_of(param)
    facts = (fact if properties[fact] else f"not_{fact}" for fact in facts_read(algorithm))
    return module["_".join((name, *facts))]


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11, equal_nan=True)


def zeros_of_shape(shape: str, param: Tensor) -> Tensor:
    """Return zeros of a state's shape."""
    assert shape in ("like", "row", "col", "scalar")
    if shape == "scalar":
        return torch.zeros((), dtype=torch.float64)
    sizes = list(param.shape)
    if shape != "like":
        sizes[-1 if shape == "row" else -2] = 1
    return torch.zeros(sizes, dtype=torch.float64)
