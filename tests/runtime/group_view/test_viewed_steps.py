"""Test that a rule sees a parameter with a view as if it had the view's shape."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from runtime.group_view.viewed_and_plain import (
    LOWERINGS,
    MATRIX_RULES,
    OPTIONS,
    STEPS,
    ViewedAndPlain,
    check_close,
    class_named,
)
from torch import Tensor
from torch.nn import Parameter

from optgen import use_lowering
from optgen.optim import Adafactor, AdamW, optimizer_class
from optgen.runtime import newton_schulz
from optgen.verification.compare_with_evaluator import iterate_exactly


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@pytest.fixture
def float64_matrix_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep matrix ops in float64."""
    monkeypatch.setattr(newton_schulz, "iterate", iterate_exactly)


VIEWS = [  # a parameter's shape, and its view
    ((48, 16), (3, 4, -1, 16)),
    ((48, 16), (12, 4, 16)),
    ((6, 4, 3, 3), (6, -1)),
    ((60,), (5, 12)),
    ((5, 12), (2, 1, 30, 1)),
]
DTYPES = [torch.float32] if INTERPRETED else [torch.float64, torch.float32, torch.bfloat16]


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_with_a_view_equals_a_step_of_reshaped_parameters(
    name: str, lowering: str, dtype: torch.dtype
) -> None:
    views = [(shape, view) for shape, view in VIEWS if name not in MATRIX_RULES or len(view) == 2]
    for shape, view in views[:1] if INTERPRETED else views:
        run = ViewedAndPlain(class_named(name), OPTIONS[name], [shape, shape], view, dtype)
        for step in range(2 if INTERPRETED else STEPS):
            run.step(lowering, missing=1 if step == 1 else None)
        run.check()


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_matrix_seen_as_a_vector_takes_the_plan_for_vectors(lowering: str) -> None:
    run = ViewedAndPlain(Adafactor, {}, [(3, 4), (2, 5)], (-1,))
    for _ in range(STEPS):
        run.step(lowering)
    run.check()
    assert [list(run.optimizer.state[param]) for param in run.ours] == [["step", "variance"]] * 2


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_parameters_of_several_shapes_share_a_view(lowering: str) -> None:
    """A -1 stands for another size in each parameter, and for 0 in one without elements."""
    shapes = [(48, 16), (24, 2), (12, 0), (2, 6, 4)]
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    ours = [Parameter(value.clone()) for value in drawn]
    plain = [Parameter(value.reshape(3, value.numel() // 6, 2)) for value in drawn]
    optimizer = Adafactor([{"params": ours, "view": (3, -1, 2)}], lr=0.1)
    reference = Adafactor(plain, lr=0.1)
    for _ in range(STEPS):
        for param, plain_param in zip(ours, plain, strict=True):
            param.grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
            plain_param.grad = param.grad.reshape(plain_param.shape)
        with use_lowering(lowering):
            optimizer.step()
            reference.step()
    for param, plain_param in zip(ours, plain, strict=True):
        assert torch.equal(param.detach().reshape(plain_param.shape), plain_param.detach())


def results_by_view_and_by_head(cls: Any, lowering: str, dtype: torch.dtype) -> list[list[Tensor]]:
    """Train a QKV weight by a view, and each head as a parameter; return pairs of their results."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(48, 16, generator=generator, dtype=dtype)
    qkv = Parameter(weight.clone())
    heads = [Parameter(head.clone()) for head in weight.view(12, 4, 16)]
    by_view = cls([{"params": [qkv], "view": (3, 4, -1, 16)}], lr=0.1)
    by_head = cls(heads, lr=0.1)
    for _ in range(10):
        grad = torch.randn(48, 16, generator=generator, dtype=dtype)
        qkv.grad = grad.clone()
        for head, head_grad in zip(heads, grad.view(12, 4, 16), strict=True):
            head.grad = head_grad.clone()
        with use_lowering(lowering):
            by_view.step()
            by_head.step()
    states, states_of_heads = by_view.state[qkv], [by_head.state[head] for head in heads]
    assert states["row_sq"].shape == (3, 4, 4, 1)
    assert states["momentum_buffer"].shape == qkv.shape
    return [
        [qkv.detach(), torch.cat([head.detach() for head in heads])],
        *(
            [
                states[key].reshape(-1),
                torch.cat([each[key].reshape(-1) for each in states_of_heads]),
            ]
            for key in states
        ),
    ]


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_viewed_heads_step_as_parameters_of_their_own_in_float64(
    lowering: str, float64_matrix_ops: None
) -> None:
    for found, expected in results_by_view_and_by_head(
        class_named("HeadMuon"), lowering, torch.float64
    ):
        check_close(found, expected, 1e-12)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_viewed_heads_step_as_parameters_of_their_own_in_float32(lowering: str) -> None:
    """With a view too, `orthogonalize` multiplies the matrices of single heads, in bfloat16."""
    for found, expected in results_by_view_and_by_head(
        class_named("HeadMuon"), lowering, torch.float32
    ):
        check_close(found, expected, 1e-6)


BATCH_RULES: dict[str, dict[str, Any]] = {"muon": {}, "muon_clip": {}}
if not INTERPRETED:  # it has no lowering to Triton
    BATCH_RULES["kl_soap"] = {"precondition_frequency": 2}


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", BATCH_RULES)
def test_a_rule_for_matrices_steps_a_viewed_batch_as_single_matrices(
    name: str, lowering: str, float64_matrix_ops: None
) -> None:
    """The matrices are square, since KLSOAP's bases of a matrix without full rank are arbitrary."""
    cls: Any = optimizer_class(name)
    generator = torch.Generator().manual_seed(3)
    batch = Parameter(torch.randn(3, 5, 5, generator=generator, dtype=torch.float64))
    matrices = [Parameter(each.clone()) for each in batch.detach()]
    by_view = cls([{"params": [batch], "view": (3, 5, -1)}], lr=0.1, **BATCH_RULES[name])
    by_matrix = cls(matrices, lr=0.1, **BATCH_RULES[name])
    for _ in range(5):
        batch.grad = torch.randn(batch.shape, generator=generator, dtype=torch.float64)
        for matrix, grad in zip(matrices, batch.grad.clone(), strict=True):
            matrix.grad = grad
        with use_lowering(lowering):
            by_view.step()
            by_matrix.step()

    check_close(batch.detach(), torch.stack([each.detach() for each in matrices]), 1e-12)


@pytest.mark.parametrize("name", ["normuon", "adamuon", "muon_h", "polar_muon", "came", "kron"])
def test_a_rule_with_numbers_of_the_whole_parameter_refuses_a_viewed_batch(name: str) -> None:
    cls: Any = optimizer_class(name)
    with pytest.raises(ValueError, match=r"group 0: view=\(3, 4, -1\) of a parameter of shape"):
        cls([{"params": [Parameter(torch.zeros(3, 4, 6))], "view": (3, 4, -1)}])


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_an_elementwise_rule_ignores_the_view(lowering: str) -> None:
    run = ViewedAndPlain(AdamW, {"lr": 0.1, "amsgrad": True}, [(4, 6), (2, 12)], (3, -1, 2))
    for _ in range(STEPS):
        run.step(lowering)
    run.check()


def test_complex_parameters_of_an_elementwise_rule_ignore_the_view() -> None:
    results = []
    for group in ({"view": (3, -1)}, {}):
        param = Parameter(torch.full((4, 6), 1 + 2j))
        optimizer = AdamW([{"params": [param], **group}], lr=0.1)
        for _ in range(3):
            param.grad = torch.full_like(param, 2 - 1j)
            optimizer.step()
        results.append(param.detach())
    assert torch.equal(*results)


@pytest.mark.skipif(INTERPRETED, reason="the error comes before any lowering runs")
def test_complex_parameters_of_another_rule_are_refused() -> None:
    param = Parameter(torch.full((4, 6), 1 + 2j))
    param.grad = torch.ones_like(param)
    optimizer = Adafactor([{"params": [param], "view": (3, -1)}])
    with pytest.raises(RuntimeError, match="Adafactor does not support complex parameters"):
        optimizer.step()
    assert not optimizer.state


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_view_of_none_is_no_view(lowering: str) -> None:
    params = [Parameter(torch.arange(12.0).reshape(3, 4)) for _ in range(2)]
    with use_lowering(lowering):
        for param, group in zip(params, ({"view": None}, {}), strict=True):
            param.grad = torch.ones_like(param)
            Adafactor([{"params": [param], **group}]).step()
    assert torch.equal(*params)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_deepcopy_keeps_the_view(lowering: str) -> None:
    run = ViewedAndPlain(Adafactor, {"lr": 0.1}, [(6, 8)], (2, 3, -1))
    run.step(lowering)
    run.ours, run.optimizer = copy.deepcopy((run.ours, run.optimizer))
    assert run.optimizer.param_groups[0]["view"] == (2, 3, -1)
    run.step(lowering)
    run.check()
