"""Test the blocks of states of 8 bits: their order in memory, threads, NaN, and the C++ code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from composition.quantized.eight_bits import BLOCK, MIN_ELEMENTS, STEPS, quantized_class, step
from composition.training import LOWERINGS, difference, give_gradients, parameters
from interpreter import outside_interpreter
from spec_texts import read, spec
from torch import Tensor

import optgen
from optgen import compose, modifiers, use_lowering
from optgen.contract.quantization import CODE_MAPS
from optgen.runtime.state.create import quantize
from optgen.runtime.tensors.quantized import QuantizedTensor


@outside_interpreter
def test_the_number_of_threads_changes_no_bits() -> None:
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            generator = torch.Generator().manual_seed(1)
            param = torch.randn(1_500_001, generator=generator)
            optimizer = quantized_class("adamw", exp_avg="float32")([param])
            for _ in range(2):
                param.grad = torch.randn(param.shape, generator=generator)
                with use_lowering("fused_cpu"):
                    optimizer.step()
        finally:
            torch.set_num_threads(1)
        results.append((param, optimizer.state[param]["exp_avg_sq"].codes))
    assert all(map(torch.equal, *results))


@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_blocks_follow_memory_order_and_ignore_views(lowering: str) -> None:
    """Compare with steps on the elements in memory order, and with steps on a group's view."""
    base = parameters([(20, 8, 3, 3)])[0].detach()
    formats: dict[str, Callable[[Tensor], Tensor]] = {
        "channels last": lambda x: x.to(memory_format=torch.channels_last),
        "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        "with holes": lambda x: torch.stack([x, x], dim=-1)[..., 0],
    }
    for change_format in formats.values():
        param = change_format(base.clone())
        dense = torch.empty_like(param).copy_(param)
        flat = dense.as_strided((dense.numel(),), (1,))
        optimizer, flat_optimizer = (quantized_class("adamw")([each]) for each in (param, flat))
        for seed in range(2):
            give_gradients([param], seed)
            assert param.grad is not None
            dense_grad = torch.empty_like(dense).copy_(param.grad)
            flat.grad = dense_grad.as_strided((dense.numel(),), (1,))
            with use_lowering(lowering):
                optimizer.step()
                flat_optimizer.step()
        assert difference([param], [dense]) < 1e-6
    param, viewed = base.clone(), base.clone()
    group = {"params": [viewed], "view": (20, 72)}
    optimizers = [quantized_class("adamw")([param]), quantized_class("adamw")([group])]
    for seed in range(2):
        for optimizer, each in zip(optimizers, (param, viewed), strict=True):
            step(optimizer, [each], seed, lowering)
    assert torch.equal(param, viewed)


@outside_interpreter
@pytest.mark.parametrize(
    "chain", [(), (modifiers.clip_norm(1.0),)], ids=["one sweep", "two sweeps"]
)
def test_a_parameter_can_change_its_memory_order(chain: tuple[Any, ...]) -> None:
    """Codes keep their order, so the step is taken in lists, with equal results."""
    (param,) = parameters([(20, 8, 3, 3)])
    unchanged = param.detach().clone()
    optimizers = [quantized_class(compose("adamw", *chain))([each]) for each in (param, unchanged)]
    for seed in range(STEPS):
        if seed == 2:
            assert "fused C++" in optgen.explain(optimizers[0])
            param.data = param.data.to(memory_format=torch.channels_last)
        give_gradients([unchanged], seed)
        assert unchanged.grad is not None
        param.grad = torch.empty_like(param).copy_(unchanged.grad)
        optimizers[0].step()
        with use_lowering("forloop"):
            optimizers[1].step()
    assert "quantized states in another order of memory" in optgen.explain(optimizers[0])
    assert difference([param], [unchanged]) < 1e-6


def transposed(param: Tensor) -> Tensor:
    """Return a copy with the strides of a transposed matrix."""
    return param.transpose(0, 1).clone(memory_format=torch.contiguous_format).transpose(0, 1)


def channels_last(param: Tensor) -> Tensor:
    return param.to(memory_format=torch.channels_last)


@outside_interpreter
@pytest.mark.parametrize("layout", [transposed, channels_last])
@pytest.mark.parametrize("saved_from", ["adamw", "8 bits", "codes"])
def test_loaded_codes_have_the_memory_order_of_their_parameter(
    saved_from: str, layout: Callable[[Tensor], Tensor]
) -> None:
    """The checkpoint is one of parameters in torch's usual order."""
    cls: Any = quantized_class("adamw", "e4m3", exp_avg_sq="float32")
    (usual,) = parameters(((20, 4, 3, 3),), torch.float32)
    source = (compose("adamw") if saved_from == "adamw" else cls)([usual])
    give_gradients([usual], 0)
    source.step()
    saved = source.state_dict()
    if saved_from == "codes":
        saved["state"][0] = dict(source.state[usual])
    param = layout(usual.detach()).requires_grad_()
    optimizer = cls([param], fused=True)
    optimizer.load_state_dict(saved)
    optimizer.param_groups[0].update(fused=True, foreach=None)
    for key, value in optimizer.state[param].items():
        assert key == "step" or value.stride() == param.stride()
    numbers = optimizer.state[param]["exp_avg"].dequantize()
    theirs = source.state[usual]["exp_avg"]
    encoded = quantize(layout(theirs.float() if saved_from != "adamw" else theirs), BLOCK, "e4m3")
    assert torch.equal(numbers, encoded.dequantize())
    assert torch.equal(optimizer.state[param]["exp_avg_sq"], source.state[usual]["exp_avg_sq"])

    again, other = cls([layout(param.detach())]), cls([layout(param.detach())])
    again.load_state_dict(optimizer.state_dict())
    params = [each.param_groups[0]["params"][0] for each in (optimizer, again)]
    assert torch.equal(
        again.state[params[1]]["exp_avg"].codes, optimizer.state[param]["exp_avg"].codes
    )
    other.load_state_dict(saved)
    other.param_groups[0].update(fused=None)
    (by_default,) = other.param_groups[0]["params"]
    for each, its_param in ((optimizer, param), (other, by_default)):
        its_param.grad = torch.ones_like(its_param)
        each.step()
        assert "fused C++" in optgen.explain(each)
    assert torch.equal(param, by_default)


@outside_interpreter
def test_a_rule_with_random_numbers_refuses_codes_in_another_memory_order() -> None:
    param = torch.ones(40, 50).t().requires_grad_()
    cls: Any = quantized_class(compose("adamw", modifiers.stochastic_rounding))
    optimizer = cls([param], fused=True)
    param.grad = torch.ones_like(param)
    with pytest.raises(RuntimeError, match="quantized states in another order of memory"):
        optimizer.step()


@outside_interpreter
@pytest.mark.parametrize("code_map", CODE_MAPS)
def test_a_fused_step_decodes_no_whole_tensor(
    code_map: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of tensors once asked a question that decoded them; steps took ten times as long."""
    param = torch.ones(1000, requires_grad=True)
    optimizer = quantized_class("adamw", code_map)([param], fused=True)
    step(optimizer, [param], 0, "fused_cpu")
    decoded: list[int] = []
    dequantize = QuantizedTensor.dequantize
    monkeypatch.setattr(
        QuantizedTensor, "dequantize", lambda self: decoded.append(1) or dequantize(self)
    )
    step(optimizer, [param], 1, "fused_cpu")
    assert not decoded
    optimizer.state[param]["exp_avg"].sum()
    assert decoded


@outside_interpreter
@pytest.mark.parametrize("code_map", CODE_MAPS)
@pytest.mark.parametrize("lowering", ["foreach", "fused_cpu"])
def test_a_step_writes_nothing_beside_its_codes_and_scales(lowering: str, code_map: str) -> None:
    """The memory of the states is a slice of a larger one, at each offset that scales allow."""
    for count, offset in ((1, 64), (63, 4), (65, 12), (513, 20), (1031, 68)):
        param = torch.ones(count, requires_grad=True)
        optimizer = quantized_class("adamw", code_map)([param])
        step(optimizer, [param], 0, lowering)
        if count < MIN_ELEMENTS:
            continue
        larger = []
        for key in ("exp_avg", "exp_avg_sq"):
            state = optimizer.state[param][key]
            memory = torch.full((state.nbytes + 256,), 77, dtype=torch.int8)
            inner = memory[offset : offset + state.nbytes]
            inner.copy_(state._memory)
            optimizer.state[param][key] = state._with_memory(inner)
            larger.append((memory, state.nbytes))
        step(optimizer, [param], 1, lowering)
        for memory, size in larger:
            assert (memory[:offset] == 77).all()
            assert (memory[offset + size :] == 77).all()


@outside_interpreter
def test_a_nan_in_a_gradient_spoils_only_its_block() -> None:
    param = torch.zeros(300, requires_grad=True)
    optimizer = quantized_class("sgd")([param], momentum=0.9)
    for grad in (torch.nan, 1.0):
        param.grad = torch.ones(300)
        param.grad[100] = grad
        optimizer.step()
    nan = optimizer.state[param]["momentum_buffer"].isnan()
    assert nan.nonzero().flatten().tolist() == [*range(64, 128)]


@outside_interpreter
def test_cpp_of_rules_without_states_of_8_bits_has_no_codes() -> None:
    text = spec("m = m + g", "p = p - lr * m", states='m=state("m", dtype="float32")')
    assert "CODES" not in printed_codes(text)
    assert "CODES" in printed_codes(text.replace("float32", "8bit"))


def printed_codes(text: str) -> str:
    from optgen.lowerings.fused_cpu import lower

    return str(lower(read(text)).get("codes", ""))
