"""Test that scalar functions agree with torch's on floats, on tensors, and on one of each."""

import math

import pytest
import torch
from torch_versions import HAS_2_14

from optgen.runtime.eager import scalars
from optgen.runtime.eager.tensor_lists import TensorList

FLOATS = [-2.5, -0.0, 0.0, 0.3, 1.0, 800.0, math.inf, -math.inf, math.nan]
UNARY = ["sqrt", "exp", "log", "sign", "tanh", "sin", "cos", "floor", "ceil", "round"]
BINARY = ["maximum", "minimum", "atan2"]


def agree(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return math.isclose(a, b, rel_tol=1e-14) and math.copysign(1, a) == math.copysign(1, b)


@pytest.mark.parametrize("x", FLOATS)
@pytest.mark.parametrize("word", UNARY)
def test_floats_behave_as_torch_behaves_on_tensors(word, x):
    on_float = getattr(scalars, word)(x)
    on_tensor = getattr(scalars, word)(torch.tensor(x, dtype=torch.float64))

    assert isinstance(on_float, float)
    assert isinstance(on_tensor, torch.Tensor)
    assert agree(on_float, on_tensor.item())


@pytest.mark.parametrize("b", FLOATS)
@pytest.mark.parametrize("a", FLOATS)
@pytest.mark.parametrize("word", BINARY)
def test_two_floats_behave_as_two_tensors_or_one_of_each(word, a, b):
    function = getattr(scalars, word)
    x, y = (torch.tensor(v, dtype=torch.float64) for v in (a, b))

    expected = getattr(torch, word)(x, y).item()

    assert agree(function(a, b), expected)
    assert agree(function(x, b).item(), expected)
    assert agree(function(a, y).item(), expected)


def inputs_with_hard_roots(dtype: torch.dtype) -> torch.Tensor:
    """Return numbers: on an Intel CPU torch.sqrt rounds some 70 of 10,000 roots wrongly."""
    return torch.rand(10_000, dtype=dtype, generator=torch.Generator().manual_seed(0)) * 10


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_roots_of_numbers_are_correctly_rounded(needs_gradient):
    x = inputs_with_hard_roots(torch.float64).requires_grad_(needs_gradient)
    expected = torch.tensor([math.sqrt(v) for v in x.tolist()], dtype=torch.float64)

    assert torch.equal(scalars.sqrt(x), expected)
    assert torch.equal(torch.stack([scalars.sqrt(v) for v in x]), expected)
    with torch.no_grad():
        assert torch.equal(torch.stack([scalars.sqrt(v) for v in x]), expected)
        assert torch.equal(torch.stack(scalars.sqrt(TensorList(list(x))).tensors), expected)
        assert torch.equal(torch.vmap(scalars.sqrt)(x), expected)


def test_roots_of_float32_scalar_states_are_correctly_rounded():
    x = inputs_with_hard_roots(torch.float32)
    expected = torch.tensor([math.sqrt(v) for v in x.tolist()], dtype=torch.float32)

    assert torch.equal(torch.stack([scalars.sqrt(v) for v in x]), expected)


def test_the_derivative_of_a_root_is_torchs():
    x = torch.tensor([2.091778857119335, 0.0, 3.0], dtype=torch.float64, requires_grad=True)

    (found,) = torch.autograd.grad(scalars.sqrt(x).sum(), x)

    assert torch.equal(found, torch.autograd.grad(x.sqrt().sum(), x)[0])
    assert torch.autograd.gradgradcheck(scalars.sqrt, x[:1])


@pytest.mark.parametrize("word", ["exp", "log", "tanh", "sin", "cos"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_functions_of_a_number_are_those_of_a_float(word, dtype):
    function, x = getattr(scalars, word), inputs_with_hard_roots(dtype)[:500]
    expected = torch.tensor([function(v) for v in x.tolist()], dtype=torch.float64).to(dtype)

    with torch.no_grad():
        assert torch.equal(torch.stack([function(v) for v in x]), expected)


def test_where_takes_a_bool_or_a_tensor():
    one, two = torch.tensor(1.0), torch.tensor(2.0)

    assert scalars.where(True, 1.0, 2.0) == 1.0
    assert scalars.where(False, 1.0, 2.0) == 2.0
    assert scalars.where(torch.tensor(False), one, two).item() == 2.0


def test_clamp_and_lerp_take_floats():
    assert scalars.clamp(5.0, 0.0, 1.0) == 1.0
    assert scalars.clamp(-5.0, 0.0, 1.0) == 0.0
    assert scalars.lerp(1.0, 3.0, 0.25) == 1.5


def test_advance_counts_for_every_tensor_and_returns_the_count():
    steps = [torch.tensor(3.0), torch.tensor(3.0)]

    assert scalars.advance(steps) == 4.0
    assert [step.item() for step in steps] == [4.0, 4.0]


def test_store_returns_the_rounded_value():
    states = [torch.ones(()), torch.ones(())]

    stored = scalars.store(states, 0.1)

    assert stored == torch.tensor(0.1).item() != 0.1
    assert states[0] == states[1] == stored


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_where_of_two_numbers_has_the_dtype_of_the_elements(dtype):
    x = torch.tensor([-1.0, 2.0], dtype=dtype)
    number = scalars.in_dtype_of(x, 0.1)
    tensor = scalars.in_dtype_of(x, torch.tensor(0.1, dtype=torch.float64))

    for value in (number, tensor):
        chosen = scalars.where(x > 0, value, 1)
        assert torch.equal(chosen, torch.tensor([1, 0.1], dtype=dtype))
        assert chosen.dtype == dtype


def test_autograd_takes_a_bound_as_torchs_clamp_does():
    """At a bound the gradient is 1, as between the bounds; since torch 2.14 it is 0."""
    x = torch.tensor([0.0, 1.0, 1.5, 2.0, 3.0], requires_grad=True)
    scalars.clamp(x, 1.0, 2.0).sum().backward()

    at_a_bound = 0 if HAS_2_14 else 1
    assert x.grad.tolist() == [0, at_a_bound, 1, at_a_bound, 0]


def test_a_captured_step_count_stays_a_tensor():
    step, product = torch.tensor(1.0), torch.tensor(1.0)

    count = scalars.advance_one(step, capturable=True)
    assert isinstance(count, torch.Tensor)
    assert (count, count.dtype) == (step, torch.float64)
    assert scalars.advance_one(step, capturable=False) == 3.0
    assert isinstance(scalars.store_one(product, 0.5, capturable=True), torch.Tensor)
    assert scalars.store_one(product, 0.5, capturable=False) == product.item() == 0.5
