"""Test reductions of matrices without elements: sums are 0, and means are NaN, as 0/0 is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

TEXT = '''
from optgen.spec import *

@optimizer()
def Reduced(
    p, g, /,
    row_sums=state("row_sums", shape="row"),
    row_means=state("row_means", shape="row"),
    column_sums=state("column_sums", shape="col"),
    column_means=state("column_means", shape="col"),
    all_sum=state("all_sum", shape="scalar"),
    all_mean=state("all_mean", shape="scalar"),
    largest=state("largest", shape="scalar"),
    *, lr=hyper(0.5),
):
    """Each reduction is added to a state."""
    require(ndim(p) > 1, "matrices only, not {shape}")
    row_sums = row_sums + row_sum(g)
    row_means = row_means + row_mean(g)
    column_sums = column_sums + col_sum(g)
    column_means = column_means + col_mean(g * g)
    all_sum = all_sum + sum(g)
    all_mean = all_mean + mean(g)
    largest = largest + max_abs(row_sum(g)) + max_abs(g)
    p = p - lr * g
'''
SPEC = Spec("Reduced", TEXT, "<reduced>", 1)
SHAPES = ((3, 0), (0, 4), (0, 0), (2, 3, 0), (2, 0, 4), (0, 3, 4))
NONEMPTY_SHAPE = (60, 50)
"""Shape of a matrix whose step leaves values in the memory that the lowerings reuse."""


def assert_agreement_with_evaluator(lowering: str) -> None:
    """Compare two steps of empty matrices with the evaluator."""
    (algorithm,) = read_spec(SPEC)
    with use_lowering(lowering):
        optimizer_after_two_steps([torch.nn.Parameter(torch.ones(NONEMPTY_SHAPE))])
        params = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        optimizer = optimizer_after_two_steps(
            [torch.nn.Parameter(torch.ones(NONEMPTY_SHAPE)), *params]
        )
    for param in params:
        empty, states = param.detach().double(), {}
        for _ in range(2):
            _, states = evaluate(algorithm, {"lr": 0.5}, empty, empty, states)
        for key, value in optimizer.state[param].items():
            expected = torch.as_tensor(states[key], dtype=torch.float64)
            torch.testing.assert_close(value.double(), expected, equal_nan=True, msg=key)


def optimizer_after_two_steps(params: list[torch.nn.Parameter]) -> Any:
    """Return an optimizer after two steps."""
    optimizer = optgen.load(SPEC)(params)
    for _ in range(2):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    return optimizer


@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_cpu_lowerings_agree_with_the_rule(lowering: str) -> None:
    assert_agreement_with_evaluator(lowering)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


@inside_interpreter
def test_triton_agrees_with_the_rule() -> None:
    assert_agreement_with_evaluator("fused_triton")
