"""Test states of 8 bits: their dtypes and checkpoints, and steps that are refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from composition.quantized.eight_bits import (
    SHAPES,
    decoded,
    quantized_class,
    round_states,
    step,
    train,
)
from composition.training import difference, parameters
from interpreter import outside_interpreter
from torch import Tensor

from optgen import compose, modifiers, optim
from optgen.contract.quantization import CODE_MAPS
from optgen.keyed import KeyedOptimizerWrapper
from optgen.runtime.tensors.quantized import QuantizedTensor


def next_steps_are_equal(pairs: Iterable[tuple[Any, list[Tensor]]]) -> bool:
    """Step each optimizer, and tell whether the parameters of all have equal bits."""
    finals = []
    for optimizer, params in pairs:
        step(optimizer, params, 77)
        finals.append([param.detach() for param in params])
    return all(all(map(torch.equal, finals[0], final)) for final in finals)


def clones(params: Iterable[Tensor]) -> list[Tensor]:
    return [param.detach().clone().requires_grad_() for param in params]


@outside_interpreter
@pytest.mark.parametrize("code_map", CODE_MAPS)
def test_a_checkpoint_holds_float32_and_restores_all_bits(code_map: str) -> None:
    cls = quantized_class("adamw", code_map)
    optimizer, params = train(cls)
    saved = optimizer.state_dict()
    assert {v.dtype for s in saved["state"].values() for v in s.values()} == {torch.float32}
    assert {type(v) for s in saved["state"].values() for v in s.values()} == {Tensor}
    assert isinstance(optimizer.state[params[0]]["exp_avg"], QuantizedTensor)
    loaded = cls(clones(params))
    loaded.load_state_dict(copy.deepcopy(saved))
    same_params = loaded.param_groups[0]["params"]
    assert isinstance(loaded.state[same_params[0]]["exp_avg"], QuantizedTensor)
    copies: list[Any] = [
        copy.deepcopy((optimizer, params)),
        pickle.loads(pickle.dumps((optimizer, params))),
        (loaded, same_params),
    ]
    assert next_steps_are_equal([(optimizer, params), *copies])


@outside_interpreter
@pytest.mark.parametrize("code_map", ["dynamic", "e4m3"])
def test_plain_and_8_bit_optimizers_exchange_checkpoints(code_map: str) -> None:
    plain, params = train(optim.AdamW)
    loaded = quantized_class("adamw", code_map)(clones(params))
    loaded.load_state_dict(plain.state_dict())
    for param, other in zip(params, loaded.param_groups[0]["params"], strict=True):
        for key in ("exp_avg", "exp_avg_sq"):
            value = plain.state[param][key].clone()
            round_states({key: value}, code_map)
            torch.testing.assert_close(decoded(loaded.state[other][key]), value, rtol=1e-6, atol=0)
    back = torch.optim.AdamW(clones(params))
    back.load_state_dict(loaded.state_dict())
    for param, other in zip(back.param_groups[0]["params"], loaded.state, strict=True):
        assert torch.equal(back.state[param]["exp_avg"], decoded(loaded.state[other]["exp_avg"]))
    linear = quantized_class("adamw", "linear")(clones(params))
    linear.load_state_dict(loaded.state_dict())
    assert all(each["exp_avg"].isfinite().all() for each in linear.state.values())


@outside_interpreter
def test_each_state_gets_its_declared_dtype() -> None:
    def dtypes(*parts: Any) -> dict[str, Any]:
        optimizer = compose("adamw", *parts)([torch.ones(5000, requires_grad=True)])
        optimizer.init_state()
        (state,) = optimizer.state.values()
        return {key: value.dtype for key, value in state.items() if key != "step"}

    codes, float32 = torch.int8, torch.float32
    assert dtypes(modifiers.quantized()) == {"exp_avg": codes, "exp_avg_sq": codes}
    assert dtypes(modifiers.quantized("8bit", exp_avg_sq="bfloat16")) == {
        "exp_avg": codes,
        "exp_avg_sq": torch.bfloat16,
    }
    assert dtypes(modifiers.quantized(None, exp_avg="8bit"))["exp_avg_sq"] == float32
    assert dtypes(modifiers.quantized(min_elements=5001))["exp_avg"] == float32
    assert dtypes(modifiers.quantized(), modifiers.kahan)["compensation"] == float32
    assert dtypes(modifiers.quantized("fp8", exp_avg_sq="8bit", map="linear")) == {
        "exp_avg": codes,
        "exp_avg_sq": codes,
    }
    both = dtypes(modifiers.quantized(compensation="8bit"), modifiers.kahan)
    assert both["compensation"] == both["exp_avg"] == codes


@outside_interpreter
def test_a_refused_step_changes_nothing() -> None:
    param = torch.ones(300, requires_grad=True)
    optimizer = quantized_class("adamw")([param], differentiable=True)
    param.grad = torch.ones(300)
    with pytest.raises(RuntimeError, match="autograd cannot follow: set differentiable=False"):
        optimizer.step()
    assert not optimizer.state
    assert torch.equal(param, torch.ones(300))
    complex_param = torch.ones(300, dtype=torch.complex64)
    complex_param.grad = complex_param.clone()
    optimizer = quantized_class("adamw")([complex_param])
    with pytest.raises(NotImplementedError, match="complex parameters take states of other dtypes"):
        optimizer.step()
    assert not optimizer.state
    first, second = quantized_class("adamw")([param]), quantized_class("adamw", "linear")([param])
    first.step()
    second.state[param].update(first.state[param])
    before = param.detach().clone()
    with pytest.raises(RuntimeError, match="map 'dynamic', which this optimizer does not declare"):
        second.step()
    assert torch.equal(param, before)


@outside_interpreter
def test_a_float32_tensor_can_replace_a_state_of_8_bits() -> None:
    optimizer, params = train(quantized_class("sgd"), momentum=0.9)
    state = optimizer.state[params[0]]
    state["momentum_buffer"] = state["momentum_buffer"].float() * 0
    optimizer.state[params[1]]["momentum_buffer"].mul_(0.5)
    before = [param.detach().clone() for param in params]
    step(optimizer, params, 5)
    moved = (before[0] - params[0]) / optimizer.param_groups[0]["lr"]
    assert params[0].grad is not None
    assert difference([moved], [params[0].grad]) < 1e-3
    assert type(optimizer.state[params[0]]["momentum_buffer"]) is Tensor


@outside_interpreter
def test_keyed_optimizers_refuse_states_of_8_bits() -> None:
    params = parameters(SHAPES)
    named = {str(index): param for index, param in enumerate(params)}
    with pytest.raises(TypeError, match="has the state momentum_buffer in 8 bits"):
        KeyedOptimizerWrapper(named, lambda given: quantized_class("sgd")(given, momentum=0.9))
