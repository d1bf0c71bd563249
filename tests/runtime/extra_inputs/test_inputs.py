"""Test which tensors may be extra inputs: any dtype and layout, if they fit their parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import outside_interpreter, run_inside
from runtime.extra_inputs.rules_with_inputs import (
    ADA_HESSIAN,
    ELEMENTWISE,
    LOWERINGS,
    SOPHIA,
    class_of,
    estimate,
    gradient,
    parameters,
)
from torch import Tensor

import optgen


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_an_input_may_have_any_dtype(dtype: torch.dtype, lowering: str) -> None:
    """A step does not write to an input, and reads it as precisely as a gradient."""
    torch.manual_seed(0)
    text = ELEMENTWISE.replace("Elementwise", "Plain").replace("1 + s", "2 + s")
    param = torch.nn.Parameter(torch.randn(5, 3).to(dtype))
    start, grad = param.detach().clone(), torch.randn(5, 3).to(dtype)
    inputs = [torch.randn(5, 3).to(dtype)]
    param.grad = grad.clone()
    optimizer = class_of(text)([param], lr=0.5)
    before = inputs[0].clone()
    with optgen.use_lowering(lowering):
        optimizer.step(first=inputs)

    double = torch.complex128 if dtype.is_complex else torch.float64
    expected = start.to(double) - 0.5 * (grad.to(double) + before.to(double)) / 3
    tolerance = 2**-6 if dtype == torch.bfloat16 else 1e-6
    found = param.detach().to(double)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(inputs[0], before)


@outside_interpreter
def test_a_missing_input_is_an_error_before_anything_changes() -> None:
    params = parameters()
    optimizer: Any = ADA_HESSIAN([{"params": params[:2]}, {"params": params[2:]}])
    for param in params:
        param.grad = gradient(param, 0)
    start = [param.detach().clone() for param in params]
    incomplete: list[Tensor | None] = [estimate(param, 0) for param in params]
    incomplete[3] = None
    for hessian in (incomplete, None):
        with pytest.raises(ValueError, match=r"needs hessian for each parameter .* of shape \("):
            optimizer.step(hessian=hessian)
        assert all(map(torch.equal, params, start))
        assert not optimizer.state
    params[3].grad = None  # a parameter without a gradient needs no input
    optimizer.step(hessian=incomplete)
    assert params[3] not in optimizer.state
    assert optgen.explain(optimizer).startswith("group 0: fused C++")


class OverridingTensor(Tensor):
    """A tensor class that overrides operations."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs)


UNFIT_INPUTS: dict[str, tuple[Any, type[Exception], str]] = {
    "too short": ([None], ValueError, "hessian has 1 entries for 2 parameters"),
    "no list": (3, TypeError, "hessian is a list with a tensor or None per parameter, not 3"),
    "a tensor": (torch.ones(2, 3), TypeError, "hessian is a list with a tensor or None per"),
    "a number": ([1.0, None], TypeError, r"hessian\[0\] is a float, not a tensor or None"),
    "another shape": ([None, torch.ones(3, 2)], ValueError, r"hessian\[1\] has the shape \(3, 2\)"),
    "another dtype": ([torch.ones(2, 3).double(), None], TypeError, "has the dtype torch.float64"),
    "whole numbers": ([torch.ones(2, 3).int(), None], TypeError, "has the dtype torch.int32"),
    "another device": (
        [torch.ones(2, 3, device="meta"), None],
        RuntimeError,
        "has the device meta",
    ),
    "sparse": (
        [torch.ones(2, 3).to_sparse(), None],
        TypeError,
        "is sparse: extra inputs are dense",
    ),
}


@outside_interpreter
@pytest.mark.parametrize("name", UNFIT_INPUTS)
def test_an_input_that_does_not_fit_its_parameter_is_refused(name: str) -> None:
    hessian, error, message = UNFIT_INPUTS[name]
    params = [torch.nn.Parameter(torch.ones(2, 3)) for _ in range(2)]
    optimizer: Any = SOPHIA(params)
    for param in params:
        param.grad = torch.ones(2, 3)
    with pytest.raises(error, match=message):
        optimizer.step(hessian=hessian)

    assert not optimizer.state
    assert all(torch.equal(param, torch.ones(2, 3)) for param in params)
    optimizer.step()


@outside_interpreter
def test_unknown_arguments_are_refused() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(TypeError, match=r"Sophia\.step\(\) got an unexpected keyword.*'hess'"):
        SOPHIA([param]).step(hess=[None])
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        optgen.optim.AdamW([param]).step(hessian=[None])  # type: ignore[call-overload]


@outside_interpreter
def test_an_input_in_the_memory_of_its_parameter_is_refused() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    param.grad = torch.ones(2)
    for view in (param, param.data, param.detach()):
        with pytest.raises(ValueError, match=r"hessian\[0\] is in the parameter's memory"):
            SOPHIA([param]).step(hessian=[view])
    buffer = torch.ones(4)  # holds a parameter, and behind it an input
    param = torch.nn.Parameter(buffer[:2])
    param.grad = torch.ones(2)
    SOPHIA([param]).step(hessian=[buffer[2:]])
    assert param.tolist() != [1, 1]


@outside_interpreter
def test_a_sparse_gradient_is_refused() -> None:
    param = torch.nn.Parameter(torch.ones(4, 2))
    param.grad = torch.ones(4, 2).to_sparse(1)
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        SOPHIA([param]).step(hessian=[torch.ones(4, 2)])


@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_an_input_may_have_any_layout(lowering: str) -> None:
    """An input may have another memory order than its parameter, or elements that share memory."""
    results = []
    for extra_input in (torch.rand(4, 6).t(), torch.tensor(0.5).expand(6, 4)):
        for each in (extra_input, extra_input.contiguous()):
            param = torch.nn.Parameter(torch.ones(6, 4))
            param.grad = torch.ones(6, 4)
            optimizer = class_of(ELEMENTWISE)([param])
            with optgen.use_lowering(lowering):
                optimizer.step(first=[each])
            results.append(param.detach())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[2], results[3])


@outside_interpreter
def test_an_input_may_be_a_conjugate_view() -> None:
    results = []
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    for each in (conjugate, conjugate.resolve_conj()):
        param = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
        param.grad = torch.ones(3, dtype=torch.complex64)
        class_of(ELEMENTWISE)([param]).step(first=[each])
        results.append(param.detach())

    assert torch.equal(*results)


@outside_interpreter
def test_an_input_of_a_class_with_operations_of_its_own_takes_the_for_loop() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = class_of(ELEMENTWISE)([param], lr=0.5)
    optimizer.step(first=[torch.ones(3).as_subclass(OverridingTensor)])

    assert param.tolist() == [0.5] * 3
