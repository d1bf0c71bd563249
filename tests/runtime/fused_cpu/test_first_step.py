"""Test a first step of ordinary tensors, which the C++ reader gathers directly."""

from typing import Any

import pytest
import torch
from runtime.training import error, parameters, states, train
from torch import Tensor
from torch.nn import Parameter

import optgen.optim
from optgen.runtime.fused_cpu.backend import FusedCpuBackend
from optgen.runtime.reader.tensor_reader import reader

needs_reader = pytest.mark.skipif(reader() is None, reason="no C++ reader")
OPTIONS: dict[str, dict[str, Any]] = {
    "AdamW": {"amsgrad": True},
    "SGD": {"momentum": 0.9, "dampening": 0.5},
    "NAdam": {},
    "ASGD": {},
    "Adagrad": {"initial_accumulator_value": 0.5},
    "Adafactor": {},
}


def new_optimizer(name: str) -> tuple[list[Tensor], Any]:
    """Return contiguous parameters, and an optimizer that has them in two groups."""
    params = [param for param in parameters(torch.float32) if param.is_contiguous()]
    groups = [{"params": params[:2], "lr": 0.5}, {"params": params[2:]}]
    return params, getattr(optgen.optim, name)(groups, **OPTIONS[name])


@needs_reader
@pytest.mark.parametrize("name", OPTIONS)
def test_a_first_step_gathered_in_cpp_equals_one_gathered_in_python(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later steps agree too; some parameters get their first gradient in one of them."""
    params, optimizer = new_optimizer(name)
    train(optimizer, params, 1)
    assert optimizer._context.cached_step is not None
    assert not optimizer._context.batches
    train(optimizer, params, 6, seed=2)

    expected, reference = new_optimizer(name)
    monkeypatch.setattr(FusedCpuBackend, "begin", lambda self, optimizer, takes: None)
    train(reference, expected, 1)
    assert reference._context.batches
    train(reference, expected, 6, seed=2)

    assert all(map(torch.equal, params + states(optimizer), expected + states(reference)))


def transposed_gradient(param: Tensor) -> Tensor:
    """Return a gradient with other strides than its parameter."""
    return torch.ones(param.shape[::-1]).t()


def test_a_first_step_with_a_transposed_gradient_equals_torchs() -> None:
    finals = []
    for cls in (optgen.optim.SGD, torch.optim.SGD):
        params = [Parameter(torch.ones(2, 3)), Parameter(torch.ones(4))]
        optimizer = cls(params, lr=0.1, momentum=0.9, dampening=0.5)
        for _ in range(3):
            params[0].grad, params[1].grad = transposed_gradient(params[0]), torch.ones(4)
            optimizer.step()
        finals.append([param.detach() for param in params])

    assert error(*finals) < 1e-6


def test_a_first_step_of_a_parameter_listed_twice_equals_torchs() -> None:
    finals = []
    for cls in (optgen.optim.SGD, torch.optim.SGD):
        param = Parameter(torch.ones(2, 3))
        optimizer = cls([param], lr=0.1, momentum=0.9, dampening=0.5)
        optimizer.param_groups[0]["params"].append(param)
        for _ in range(3):
            param.grad = torch.ones(2, 3)
            optimizer.step()
        finals.append([param.detach()])

    assert error(*finals) < 1e-6


def give_sparse_gradient(param: Parameter) -> None:
    param.grad = torch.ones(param.shape).to_sparse()


def give_gradient_of_another_size(param: Parameter) -> None:
    param.grad = torch.ones_like(param)
    param.data = torch.ones(5, 3)


@pytest.mark.parametrize("give_gradient", [give_sparse_gradient, give_gradient_of_another_size])
def test_a_refused_gradient_leaves_no_state(give_gradient: Any) -> None:
    param = Parameter(torch.ones(2, 3))
    optimizer = optgen.optim.Adam([param])
    give_gradient(param)

    with pytest.raises(RuntimeError):
        optimizer.step()

    assert not optimizer.state


def test_states_have_memory_of_their_own() -> None:
    """A checkpoint of a state that shared memory with others would contain all of that memory."""
    params, optimizer = new_optimizer("Adafactor")
    train(optimizer, params, 1)

    unused_bytes = {value.untyped_storage().nbytes() - value.nbytes for value in states(optimizer)}
    addresses = [value.data_ptr() for value in states(optimizer) if value.numel()]
    assert unused_bytes == {0}
    assert len(set(addresses)) == len(addresses)


@needs_reader
def test_a_step_size_is_rounded_to_its_parameters_dtype() -> None:
    """Rprop's step size starts as the learning rate, rounded to the parameter's dtype."""
    params = [Parameter(torch.ones(2, 3, dtype=dtype)) for dtype in (torch.bfloat16, torch.float64)]
    optimizer = optgen.optim.Rprop(params, lr=1 / 3)
    optimizer.init_state()

    step_sizes = [optimizer.state[param]["step_size"] for param in params]
    assert all(map(torch.equal, step_sizes, (torch.full_like(p, 1 / 3) for p in params)))


@needs_reader
def test_a_parameter_without_a_gradient_gets_no_state() -> None:
    params = [Parameter(torch.ones(2, 3)), Parameter(torch.ones(4)), Parameter(torch.ones(5))]
    optimizer = optgen.optim.AdamW([{"params": params[:1]}, {"params": params[1:]}])
    params[1].grad = torch.ones(4)
    optimizer.step()

    assert optimizer._context.cached_step is not None
    assert list(optimizer.state) == [params[1]]
