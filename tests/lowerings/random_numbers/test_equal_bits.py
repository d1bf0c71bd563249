"""Test that random numbers are equal bits in every lowering, memory layout and resumed run."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from interpreter import outside_interpreter, run_inside
from lowerings.oracle_steps import SHAPE, random_tensors
from lowerings.random_numbers.rule_texts import AXES, THREE_STREAMS, noise_spec
from lowerings.random_numbers.stochastic_adamw import STOCHASTIC_ADAMW, param_after_training
from parity.cases import LOWERINGS
from torch import Tensor

import optgen
from optgen import keyed, use_lowering
from optgen.ir.ops import RANDOM_OPS
from optgen.spec import Spec


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@outside_interpreter
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(5000, 3), (3, 5000), (300, 2100), (70, 9000), (2, 70, 60), (40, 9, 7)], ids=str
)
def test_fused_cpu_draws_the_numbers_of_the_for_loop_beside_rows_and_columns(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    results = []
    for lowering in ("forloop", "fused_cpu"):
        param = torch.zeros(shape, dtype=dtype, requires_grad=True)
        optimizer: Any = optgen.load(Spec("Axes", AXES, "axes.py", 1))([param])
        for _ in range(2):
            param.grad = torch.ones_like(param)
            with use_lowering(lowering):  # type: ignore[arg-type]
                optimizer.step()
        results.append(optimizer.state[param])
    loop_state, cpu_state = results
    assert torch.equal(loop_state["a"], cpu_state["a"])
    torch.testing.assert_close(loop_state["r"], cpu_state["r"])


@pytest.mark.one_case_in(4)
@outside_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(17,), (100,), (333, 1001), (1500, 2000)])
@pytest.mark.parametrize("factor", ["", " * norm(g)"])
def test_strips_draw_the_numbers_of_the_whole_tensor(
    factor: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    text = THREE_STREAMS.replace("lr * g", f"lr * g{factor}")
    averages = []
    for lowering in ("forloop", "fused_cpu"):
        param = torch.zeros(shape, dtype=dtype, requires_grad=True)
        param.grad = torch.zeros_like(param)
        optimizer: Any = optgen.load(Spec("Three", text, "three.py", 1))([param])
        with use_lowering(lowering):  # type: ignore[arg-type]
            optimizer.step()
        averages.append(optimizer.state[param]["m"])
    assert torch.equal(*averages)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@outside_interpreter
def test_bits_are_the_same_for_any_number_of_threads() -> None:
    found_params = []
    for num_threads in (1, 2, 3):
        with torch_threads(num_threads):
            start, grad = random_tensors(2, torch.bfloat16, shape=(700, 1001))
            found_params.append(param_after_training(start, [grad, grad], "fused_cpu"))
    assert torch.equal(found_params[0], found_params[1])
    assert torch.equal(found_params[0], found_params[2])


@outside_interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("op", RANDOM_OPS)
def test_random_numbers_do_not_depend_on_the_memory_layout(op: str, dtype: torch.dtype) -> None:
    """An element's random number depends on its index in the tensor, not on its address."""
    spec = noise_spec(op)
    grad = torch.zeros(6, 70, dtype=dtype)
    for lowering in LOWERINGS:
        expected = None
        for change_layout in (
            Tensor.contiguous,
            lambda x: x.t().contiguous().t(),
            lambda x: x.repeat_interleave(2, 1)[:, ::2],
        ):
            param = torch.nn.Parameter(change_layout(torch.ones(6, 70, dtype=dtype)))
            optimizer = optgen.load(spec)([param])
            param.grad = grad
            with use_lowering(lowering):
                optimizer.step()
            expected = param.detach() if expected is None else expected
            torch.testing.assert_close(param.detach(), expected, rtol=0, atol=0)


def continued_optimizer(optimizer: torch.optim.Optimizer, params: list[Any], method: str) -> Any:
    """Return an optimizer that continues from a checkpoint, or from a copy."""
    if method == "deepcopy":
        return copy.deepcopy(optimizer)
    loaded = optgen.load(STOCHASTIC_ADAMW)(params, seed=9)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file))
    return loaded


@pytest.mark.parametrize("method", ["checkpoint", "deepcopy"])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_resumed_run_has_the_same_bits(lowering: str, method: str) -> None:
    start, *grads = random_tensors(7, torch.bfloat16)
    params = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    optimizer = optgen.load(STOCHASTIC_ADAMW)(params, seed=9)

    def step(optimizer: torch.optim.Optimizer, grad: Tensor) -> None:
        for param in optimizer.param_groups[0]["params"]:
            param.grad = grad
        with use_lowering(lowering):
            optimizer.step()

    for grad in grads[:4]:
        step(optimizer, grad)
    copies = [torch.nn.Parameter(param.detach().clone()) for param in params]
    resumed = continued_optimizer(optimizer, copies, method)
    for grad in grads[4:]:
        step(optimizer, grad)
        step(resumed, grad)

    resumed_params = resumed.param_groups[0]["params"]
    assert all(torch.equal(a, b) for a, b in zip(params, resumed_params, strict=True))
    assert not torch.equal(params[0], params[1])  # only their streams differ


@outside_interpreter
def test_a_parameter_keeps_its_stream() -> None:
    """A stream is the parameter's index among all groups, with or without a gradient."""
    params = [torch.nn.Parameter(torch.ones(SHAPE).bfloat16()) for _ in range(4)]
    optimizer = optgen.load(STOCHASTIC_ADAMW)([{"params": params[:2]}, {"params": params[2:3]}])
    for indices_with_gradient in ((1, 2), (0, 1, 2)):
        for index in indices_with_gradient:
            params[index].grad = torch.ones_like(params[index])
        optimizer.step()
        optimizer.zero_grad()
    optimizer.add_param_group({"params": params[3:]})
    params[3].grad = torch.ones_like(params[3])
    optimizer.step()
    assert [optimizer.state[param]["stream"].item() for param in params] == [0, 1, 2, 3]


@outside_interpreter
def test_state_that_init_state_creates_has_the_same_streams() -> None:
    params = {name: torch.nn.Parameter(torch.ones(3).bfloat16()) for name in "ab"}
    wrapper = keyed.KeyedOptimizerWrapper(params, optgen.load(STOCHASTIC_ADAMW))
    wrapper.init_state()
    state = wrapper.state_dict()["state"]
    assert [state[name]["stream"].item() for name in "ab"] == [0, 1]
