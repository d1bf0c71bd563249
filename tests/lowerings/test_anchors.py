"""Test anchors: states that a rule only reads. No lowering writes them."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from sharded_step import step_on_shards
from spec_texts import spec
from torch import Tensor

import optgen
from optgen import emit, use_lowering
from optgen.ir.evaluate import evaluate
from optgen.lowerings.foreach import FOREACH
from optgen.passes.plan_rule import plans
from optgen.passes.prepare_rule import add_maximize
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
FORMS = LOWERINGS if INTERPRETED else (*LOWERINGS, "functional")
"""The lowerings, and the out-of-place form of the for-loop, which differentiable steps take."""
SPARSE_ROWS = '@optimizer(gradient="rows")'
STATES = 'm=state("m"), x0=state("x0", init="p")'
HYPERS = "lr=hyper(0.1, ge=0), decay=hyper(0.3)"
PULL = "p = p - lr * m - decay * (p - x0)"
RULES = {
    "a copy": spec("m = 0.9 * m + g", PULL, states=STATES, hypers=HYPERS, decorator=SPARSE_ROWS),
    "under a flag": spec(
        "if near:",
        "    p = p - decay * (p - x0)",
        "p = p - lr * g",
        states='x0=state("x0", init="p", when="near")',
        hypers=f"{HYPERS}, near=flag(True)",
    ),
    "a number": spec(
        "p = p - first * g - lr * (p - start)",
        states='first=state("first", init="lr", shape="scalar"), start=state("x0", init="decay")',
        hypers=HYPERS,
    ),
    "rows and columns": spec(
        "if factored(p):",
        "    g = g * r + row_mean(g * g) * c",
        "p = p - lr * g",
        states='r=state("r", init="lr", shape="row", when="factored"), '
        'c=state("c", init="decay", shape="col", when="factored")',
        hypers=HYPERS,
    ),
    "the distance": spec(
        "m = 0.9 * m + g",
        "p = p - lr * m * (1 + norm(p - x0)) - decay * (p - x0)",
        states=STATES,
        hypers=HYPERS,
    ),
    "times one": spec(
        "x0 = 1 * x0",
        "p = p - lr * g * (1 + norm(p - x0))",
        states='x0=state("x0", init="p")',
        hypers=HYPERS,
    ).replace(", decay=hyper(0.3)", ""),
}
ASSIGNMENTS_WITHOUT_EFFECT = (
    "a = a + 0",
    "a = 3 * a - 2 * a",
    "a = -(-a)",
    "b = a\n    a = b",
    "if sure:\n        a = 1 * a\n    else:\n        a = a - 0",
)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__, keyword="oracle or bits")


@functools.cache
def optimizer_class(text: str) -> Any:
    return optgen.load(Spec("Made", text, "made.py", 1))


def random_tensors(seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=dtype) for s in ((5, 7), (9,), ())]


def params_after_steps(
    text: str, form: str, steps: int = 3, dtype: torch.dtype = torch.float64
) -> Any:
    """Return the parameters after some steps, and their optimizer."""
    params = [torch.nn.Parameter(value) for value in random_tensors(0, dtype)]
    optimizer = optimizer_class(text)(params, differentiable=form == "functional")
    for param in params if form == "functional" else ():
        param.requires_grad_(False)  # a leaf that requires grad cannot be changed in place
    take_steps(optimizer, params, form, range(1, steps + 1))
    return params, optimizer


def take_steps(optimizer: Any, params: list[Any], form: str, seeds: Any) -> None:
    """Take one step for each seed, which the step's gradients are drawn from."""
    for seed in seeds:
        for param, grad in zip(params, random_tensors(seed, params[0].dtype), strict=True):
            param.grad = grad
        with use_lowering("forloop" if form == "functional" else form):
            optimizer.step()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", RULES)
def test_steps_agree_with_the_oracle(name: str, form: str) -> None:
    params, optimizer = params_after_steps(RULES[name], form)
    algorithm = add_maximize(read_spec(Spec("Made", RULES[name], "made.py", 1))[0])
    hypers = {h.name: h.default for h in algorithm.hypers}
    for index, value in enumerate(random_tensors(0)):
        state: dict[str, Any] = {}
        for seed in (1, 2, 3):
            value, state = evaluate(algorithm, hypers, value, random_tensors(seed)[index], state)
        torch.testing.assert_close(params[index].detach(), value, rtol=1e-7, atol=1e-7)
        found = optimizer.state[params[index]]
        assert found.keys() == state.keys()
        for key, expected in state.items():
            torch.testing.assert_close(
                found[key].double(), torch.as_tensor(expected).double(), rtol=1e-7, atol=1e-7
            )


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", ["a copy", "the distance", "times one"])
def test_a_copy_keeps_its_bits(name: str, lowering: str, dtype: torch.dtype) -> None:
    params, optimizer = params_after_steps(RULES[name], lowering, dtype=dtype)
    for param, value in zip(params, random_tensors(0, dtype), strict=True):
        assert torch.equal(optimizer.state[param]["x0"], value)
        assert param.numel() == 0 or not torch.equal(param, value)


@pytest.mark.parametrize("name", RULES)
def test_no_sweep_stores_an_anchor(name: str) -> None:
    (algorithm,) = read_spec(Spec("Made", RULES[name], "made.py", 1))
    for plan in plans(algorithm):
        stored = {s.name for sweep in plan.sweeps for s in sweep.streams if s.stored}
        assert stored <= {"param", "m"}


@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_steps_write_nothing_to_an_anchor(lowering: str) -> None:
    params, optimizer = params_after_steps(RULES["a copy"], lowering, 1)
    anchors = [optimizer.state[p]["x0"] for p in params]
    versions = [x._version for x in anchors]
    take_steps(optimizer, params, lowering, (2, 3))
    assert [x._version for x in anchors] == versions


@outside_interpreter
@pytest.mark.parametrize("assignment", ASSIGNMENTS_WITHOUT_EFFECT)
def test_an_assignment_without_effect_does_not_change_the_step(assignment: str) -> None:
    lines = [
        *assignment.split("\n    "),
        "p = p - lr * g * norm(p - a)",
        "if sure:",
        "    p = 0.9 * p",
    ]
    hypers = "lr=hyper(0.1), sure=flag(True)"
    assigning_text = spec(*lines, states='a=state("x0", init="p")', hypers=hypers)
    plain_text = spec(*lines[-3:], states='a=state("x0", init="p")', hypers=hypers)
    for lowering in ("forloop", "foreach"):
        (found, _), (expected, _) = (
            params_after_steps(text, lowering) for text in (assigning_text, plain_text)
        )
        assert all(map(torch.equal, found, expected))


@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_sparse_gradient_does_not_change_an_anchor(lowering: str) -> None:
    weights = torch.randn(6, 20, dtype=torch.float64)
    sparse, dense = (torch.nn.Parameter(weights.clone()) for _ in range(2))
    sparse_optimizer = optimizer_class(RULES["a copy"])([sparse])
    dense_optimizer = optimizer_class(RULES["a copy"])([dense])
    for seed in (1, 2):
        grad = torch.randn(
            2, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        sparse.grad = torch.sparse_coo_tensor(
            torch.tensor([[4, 1]]), grad, (6, 20), check_invariants=True
        )
        dense.grad = sparse.grad.to_dense()
        with use_lowering(lowering):
            sparse_optimizer.step()
        dense_optimizer.step()
    rows_with_grad = [1, 4]
    torch.testing.assert_close(
        sparse[rows_with_grad], dense[rows_with_grad], rtol=1e-12, atol=1e-12
    )
    assert torch.equal(sparse[[0, 2, 3, 5]], weights[[0, 2, 3, 5]])
    assert torch.equal(sparse_optimizer.state[sparse]["x0"], weights)


@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_complex_parameter_steps_as_pairs_of_real_numbers(lowering: str) -> None:
    start = torch.randn(4, 3, dtype=torch.complex128)
    complex_param = torch.nn.Parameter(start.clone())
    real_param = torch.nn.Parameter(torch.view_as_real(start).clone())
    complex_grad = torch.randn(4, 3, dtype=torch.complex128)
    for param, grad in (
        (complex_param, complex_grad),
        (real_param, torch.view_as_real(complex_grad)),
    ):
        optimizer = optimizer_class(RULES["a copy"])([param])
        for _ in range(3):
            param.grad = grad.clone()
            with use_lowering(lowering):
                optimizer.step()
    torch.testing.assert_close(torch.view_as_real(complex_param.detach()), real_param.detach())


@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_checkpoint_stores_anchors(lowering: str) -> None:
    expected, _ = params_after_steps(RULES["the distance"], lowering, 4)
    params, optimizer = params_after_steps(RULES["the distance"], lowering, 2)
    copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
    resumed = optimizer_class(RULES["the distance"])(copies)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_steps(resumed, copies, lowering, (3, 4))
    for param, value in zip(copies, expected, strict=True):
        torch.testing.assert_close(param, value, rtol=0, atol=0)


@outside_interpreter
@pytest.mark.parametrize("axis", [0, 1])
def test_shards_take_the_step_of_the_whole_parameter(axis: int) -> None:
    (algorithm,) = read_spec(Spec("Made", RULES["the distance"], "made.py", 1))
    namespace: dict[str, Any] = {}
    exec(compile(emit.render(algorithm, FOREACH, None), "foreach.py", "exec"), namespace)
    whole = [[random_tensors(seed)[0]] for seed in (0, 1)]
    sharded = [[tensor.clone() for tensor in column] for column in whole]
    columns = [
        [*lists, [torch.zeros(5, 7).double()], [random_tensors(2)[0]], [torch.zeros(())]]
        for lists in (whole, sharded)
    ]
    hypers = {"lr": 0.1, "decay": 0.3, "maximize": False}
    namespace["update"](*columns[0], **hypers)
    shapes = ("like", "like", "like", "like", "scalar")
    step_on_shards(namespace["update_sharded"], axis, shapes, columns[1], **hypers)
    for expected, found in zip(*columns, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(columns[1][3][0], random_tensors(2)[0])


@outside_interpreter
def test_a_state_that_begins_as_a_number_must_be_written() -> None:
    text = spec(PULL.replace("m", "g"), states='x0=state("x0", init=1)', hypers=HYPERS)
    with pytest.raises(SpecError, match="state `x0` is never written") as caught:
        read_spec(Spec("Made", text, "made.py", 1))
    assert 'init="p"' in caught.value.hint


@outside_interpreter
def test_the_symbol_of_an_anchor_has_no_time_index() -> None:
    doc = optimizer_class(RULES["a copy"]).__doc__
    assert r"(\theta_{t-1} - x_0)" in doc
    assert ":math:`x_0`, like the parameter, a copy of it before its first step" in doc


@outside_interpreter
@pytest.mark.parametrize("form", FORMS)
def test_a_parameter_assigned_to_itself_keeps_its_bits(form: str) -> None:
    """The norm makes the rule have two sweeps."""
    body = ("p = 1 * p", "m = m + lr * g * norm(g)")
    params, optimizer = params_after_steps(
        spec(*body, states='m=state("m")', hypers="lr=hyper(0.1)"), form
    )
    for param, value in zip(params, random_tensors(0), strict=True):
        assert torch.equal(param, value)
        assert optimizer.state[param]["m"].any()


@outside_interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_copied_rows_are_not_written_back_to_an_anchor(lowering: str, dtype: torch.dtype) -> None:
    """A lowering may update copies of short rows. It does not write an anchor's copy back."""
    weights = torch.randn(6, 3, dtype=dtype)
    param = torch.nn.Parameter(weights.clone())
    optimizer = optimizer_class(RULES["a copy"])([param])
    for _ in range(2):
        values = torch.ones(2, 3, dtype=dtype)
        param.grad = torch.sparse_coo_tensor(
            torch.tensor([[4, 1]]), values, (6, 3), check_invariants=True
        )
        with use_lowering(lowering):
            optimizer.step()
    assert torch.equal(optimizer.state[param]["x0"], weights)
    assert not torch.equal(param[4], weights[4])
