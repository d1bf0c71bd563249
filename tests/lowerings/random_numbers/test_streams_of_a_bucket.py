"""Test that parameters with streams of their own step in one call, and draw as each does alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from lowerings.oracle_steps import steps_beside_the_oracle
from lowerings.random_numbers.rule_texts import RULES_WITH_MATRICES, noise_spec
from parity.cases import LOWERINGS

import optgen
from optgen.ir.ops import RANDOM_OPS
from optgen.optim import Dion, Kron
from optgen.runtime.batch.gather import gather_batches
from optgen.runtime.eager import random_numbers
from optgen.runtime.eager.call import buckets
from optgen.runtime.eager.tensor_lists import TensorList
from optgen.spec import Spec
from optgen.verification.compare_with_evaluator import iterate_exactly

FORMS = LOWERINGS if INTERPRETED else (*LOWERINGS, "differentiable", "capturable")

STREAM_AS_NUMBER = '''from optgen.spec import *

@optimizer()
def StreamAsNumber(
    p, g, t, /, a=state("a"), k=state("stream", shape="scalar", init="index"),
    *, lr=hyper(0.5), seed=hyper(7),
):
    """The number of a parameter names a stream, and scales the step."""
    a = random(seed, k)
    p = p - lr * (k + 1) * g * a
'''
GAUSSIAN = '''from optgen.spec import *

@optimizer()
def Gaussian(
    p, g, t, /, a=state("a"), k=state("stream", shape="scalar", init="index"),
    *, lr=hyper(0.5), seed=hyper(7),
):
    """Other numbers in the first step than later."""
    require(ndim(p) == 2, "matrices only: {shape}")
    if t > 1:
        a = gaussian(g, seed, k)
    else:
        a = a + gaussian(a, seed + 1, k)
    p = p - lr * g @ transpose(a) @ a
'''
SPECS = {
    **{op: noise_spec(op) for op in RANDOM_OPS},
    **{name: Spec(name, text, f"{name}.py", 1) for name, text in RULES_WITH_MATRICES.items()},
    "StreamAsNumber": Spec("StreamAsNumber", STREAM_AS_NUMBER, "number.py", 1),
    "Gaussian": Spec("Gaussian", GAUSSIAN, "gaussian.py", 1),
}
NOT_IN_TRITON = ("WholeMatrices", "Gaussian")
NOT_CAPTURABLE = ("MatrixOp",)  # the exact matrix op reads a tensor on the host


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SPECS)
def test_a_parameter_beside_others_steps_as_the_oracle(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "fused_triton" and name in NOT_IN_TRITON:
        pytest.skip("no Triton kernel has whole matrices")
    if form == "capturable" and name in NOT_CAPTURABLE:
        pytest.skip("the exact matrix op reads a tensor on the host")
    monkeypatch.setattr("optgen.runtime.newton_schulz.iterate", iterate_exactly)
    steps = steps_beside_the_oracle(
        SPECS[name], form, torch.float64, num_steps=2, shape=(21, 34), num_others=2
    )
    for step in steps:
        assert step.state["stream"].item() == 2
        torch.testing.assert_close(
            step.state["a"], step.expected_state["a"], rtol=1e-12, atol=1e-12
        )
        torch.testing.assert_close(step.param, step.expected_param, rtol=1e-12, atol=1e-12)


def _random(op: str) -> Callable[..., list[torch.Tensor]]:
    if op != "gaussian":
        return getattr(random_numbers, op)  # type: ignore[no-any-return]
    return lambda params, *keys: random_numbers.gaussian(TensorList(params), *keys).tensors


@outside_interpreter
@pytest.mark.parametrize("elements", [2**18, 1000, 40])
@pytest.mark.parametrize("shape", [(21, 33), (8, 5), (0, 3), (2, 9, 4)], ids=str)
@pytest.mark.parametrize("op", [*RANDOM_OPS, "gaussian"])
def test_a_vector_of_streams_draws_as_each_stream(
    op: str, shape: tuple[int, ...], elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [5.0, 0.0, 2.0**24 - 1, 5.0, 77.0]
    params = [torch.empty(shape, dtype=torch.bfloat16) for _ in streams]
    alone = [_random(op)([params[0]], 9, stream, 3, 1)[0] for stream in streams]
    monkeypatch.setattr(random_numbers, "CPU_ELEMENTS", elements)
    together = _random(op)(params, 9, torch.tensor(streams, dtype=torch.float64), 3, 1)
    assert [x.dtype for x in together] == [torch.float32] * len(streams)
    assert all(map(torch.equal, together, alone))


@outside_interpreter
@pytest.mark.parametrize("optimizer_class", [Kron, Dion])
def test_matrices_of_one_shape_step_in_one_call(optimizer_class: Any) -> None:
    params = [torch.nn.Parameter(torch.eye(6)) for _ in range(5)]
    optimizer = optimizer_class(params)
    for param in params:
        param.grad = torch.ones(6, 6)
    optimizer.step()
    (batch,) = gather_batches(optimizer)
    sizes = [len(bucket.indices) for bucket in buckets(optimizer.rule, batch, equal_scalars=True)]
    assert sizes == [5]


@outside_interpreter
def test_a_stream_that_the_rule_also_reads_as_a_number_divides_buckets() -> None:
    assert optgen.load(SPECS["StreamAsNumber"]).rule.streams == ()
    assert optgen.load(SPECS["Gaussian"]).rule.streams == ("stream",)
