"""Test optimizers with states of 8 bits: their steps, checkpoints and errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from composition.training import LOWERINGS, difference, give_gradients, parameters
from interpreter import outside_interpreter, run_inside
from spec_texts import read, spec
from torch import Tensor

import optgen
from optgen import compose, modifiers, optim, use_lowering
from optgen.keyed import KeyedOptimizerWrapper
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.spec import Spec
from optgen.verification.references.eight_bits import round_to_8_bits

SHAPES = ((40, 33), (130,), (20, 4, 3, 3), (7,))
"""The last has fewer than `MIN_ELEMENTS` elements, so its states are not quantized."""
MIN_ELEMENTS = 100
BLOCK = 64
STEPS = 4
LION = '''
from optgen.spec import hyper, optimizer, sign, state

@optimizer(paper="https://arxiv.org/abs/2302.06675")
def Lion(
    p, g, /, m=state("exp_avg", dtype="8bit", block=64, min_elements=100),
    *, lr=hyper(1e-3, ge=0), betas=hyper((0.9, 0.99), ge=0, lt=1),
):
    """Step by the sign of a mean of gradients (Chen et al., 2023)."""
    beta1, beta2 = betas
    p = p - lr * sign(beta1 * m + (1 - beta1) * g)
    m = beta2 * m + (1 - beta2) * g
'''


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__, "fused_triton")


def quantized_class(base: Any, code_map: str = "dynamic", **dtypes: str) -> Any:
    """Return a composition with states of 8 bits. `dtypes` has the dtypes of other states."""
    modifier = modifiers.quantized(block=BLOCK, map=code_map, min_elements=MIN_ELEMENTS, **dtypes)
    return compose(base, modifier)


def step(optimizer: Any, params: Iterable[Tensor], seed: int, lowering: str = "foreach") -> None:
    give_gradients(params, seed)
    with use_lowering(lowering):
        optimizer.step()


def decoded(state: Tensor) -> Tensor:
    return state.dequantize() if isinstance(state, QuantizedTensor) else state


def round_states(states: dict[str, Tensor], code_map: str) -> None:
    """Round the states of a plain optimizer to 8 bits, in place."""
    for key, value in states.items():
        if key != "step":
            large = value.numel() >= MIN_ELEMENTS
            value.copy_(round_to_8_bits(value, BLOCK, code_map) if large else value.float())


BASES: dict[str, dict[str, Any]] = {
    "AdamW": {"lr": 1e-2, "amsgrad": True},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
}
CASES = [("AdamW", "dynamic"), ("AdamW", "linear"), ("SGD", "dynamic")]


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(("base", "code_map"), CASES)
def test_steps_equal_those_with_states_rounded_by_hand(
    base: str, code_map: str, lowering: str
) -> None:
    """Torch's optimizer takes each step, then the test rounds the states."""
    params, theirs = parameters(SHAPES), parameters(SHAPES)
    optimizer = quantized_class(getattr(optim, base), code_map)(params, **BASES[base])
    by_hand = getattr(torch.optim, base)(theirs, **BASES[base])
    for seed in range(STEPS):
        step(optimizer, params, seed, lowering)
        give_gradients(theirs, seed)
        by_hand.step()
        for states in by_hand.state.values():
            round_states(states, code_map)
        assert difference(params, theirs) < 1e-6
    for param, other in zip(params, theirs, strict=True):
        for key, value in by_hand.state[other].items():
            state = optimizer.state[param][key]
            assert key == "step" or isinstance(state, QuantizedTensor) == (param is not params[-1])
            assert difference([decoded(state)], [value]) < 1e-6


@outside_interpreter
@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_8_bit_classes_equal_their_compositions(name: str) -> None:
    """Parameters and states have equal bits."""
    results = []
    for cls in (optim.optimizer_class(f"{name}_8bit"), compose(name, modifiers.quantized())):
        params = parameters(((70, 70), (7,)), torch.float32)
        optimizer: Any = cls(params, weight_decay=0.1)
        for seed in range(STEPS):
            step(optimizer, params, seed)
        states = [*optimizer.state[params[0]].values()]
        assert any(isinstance(state, QuantizedTensor) for state in states)
        saved = optimizer.state_dict()["state"]
        results.append([*params, *(x for each in saved.values() for x in each.values())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_spec_with_a_state_of_8_bits_by_hand(lowering: str) -> None:
    params = parameters(SHAPES)
    optimizer = optgen.load(Spec("Lion", LION, "lion.py", 1))(params)
    theirs = [param.detach().clone() for param in params]
    means = [torch.zeros_like(param) for param in params]
    for seed in range(STEPS):
        step(optimizer, params, seed, lowering)
        for index, param in enumerate(params):
            assert param.grad is not None
            mean = means[index]
            theirs[index] -= 1e-3 * (0.9 * mean + 0.1 * param.grad).sign()
            mean.mul_(0.99).add_(param.grad, alpha=0.01)
            round_states({"exp_avg": mean}, "dynamic")
        assert difference(params, theirs) < 1e-12


def test_muon_steps_in_lists_and_equals_muon_with_states_rounded_by_hand() -> None:
    shapes = ((40, 33), (20, 6), (5, 3))
    params, theirs = parameters(shapes), parameters(shapes)
    optimizer = quantized_class(optim.Muon)(params)
    plain = compose(optim.Muon, modifiers.state_dtype("float32"))(theirs)
    for seed in range(STEPS):
        give_gradients(params, seed)
        optimizer.step()
        step(plain, theirs, seed)
        for states in plain.state.values():
            round_states(states, "dynamic")
        assert difference(params, theirs) < 1e-6
    assert "states of 8 bits in a rule on rows, columns or matrices" in optgen.explain(optimizer)


CHAINS_WITH_REDUCTIONS: dict[str, tuple[Any, ...]] = {
    "norm of all parameters": (modifiers.clip_norm(0.5),),
    "norm of each parameter": (modifiers.trust_ratio,),
    "norm and random numbers": (modifiers.clip_norm(0.5), modifiers.stochastic_rounding),
}


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("chain", CHAINS_WITH_REDUCTIONS.values(), ids=CHAINS_WITH_REDUCTIONS)
def test_rules_that_reduce_to_numbers_by_hand(chain: tuple[Any, ...], lowering: str) -> None:
    """Compare with float32 states that the test rounds after each step."""
    shapes = (*SHAPES, (1500,), (3, 401))  # some have several tiles, and a block that is not full
    params, theirs = parameters(shapes), parameters(shapes)
    optimizer = quantized_class(compose("adamw", *chain))(params, lr=1e-2)
    plain = compose("adamw", *chain, modifiers.state_dtype("float32"))(theirs, lr=1e-2)
    for seed in range(STEPS):
        step(optimizer, params, seed, lowering)
        step(plain, theirs, seed, "forloop")
        for states in plain.state.values():
            moments = {key: states[key] for key in ("exp_avg", "exp_avg_sq")}
            round_states(moments, "dynamic")
        assert difference(params, theirs) < 1e-6
    for param, other in zip(params, theirs, strict=True):
        for key in ("exp_avg", "exp_avg_sq"):
            state = optimizer.state[param][key]
            assert isinstance(state, QuantizedTensor) == (param.numel() >= MIN_ELEMENTS)
            assert difference([decoded(state)], [plain.state[other][key]]) < 1e-6


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lowerings_agree_with_a_run_in_float64(dtype: torch.dtype, lowering: str) -> None:
    """Compare with float64. Rounding changes few codes: those of numbers halfway between two."""
    params, exact = parameters(SHAPES, dtype), parameters(SHAPES)
    with torch.no_grad():
        for one, other in zip(params, exact, strict=True):
            other.copy_(one)
    optimizer, exact_optimizer = (quantized_class("adamw")(each) for each in (params, exact))
    for seed in range(STEPS):
        step(optimizer, params, seed, lowering)
        give_gradients(exact, seed)
        for one, other in zip(params, exact, strict=True):
            assert one.grad is not None
            other.grad = one.grad.double()
        exact_optimizer.step()
    assert difference(params, exact) < (1e-2 if dtype == torch.bfloat16 else 1e-4)
    for one, other in zip(params[:3], exact[:3], strict=True):
        for key in ("exp_avg", "exp_avg_sq"):
            codes = optimizer.state[one][key].codes
            exact_codes = exact_optimizer.state[other][key].codes
            assert (codes != exact_codes).float().mean() < 0.01


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


def train(cls: Any, **options: Any) -> tuple[Any, list[Tensor]]:
    """Return an optimizer after some steps, and its parameters."""
    params = parameters(SHAPES, torch.float32)
    optimizer = cls(params, **options)
    for seed in range(STEPS):
        give_gradients(params, seed)
        optimizer.step()
    return optimizer, params


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
def test_a_checkpoint_holds_float32_and_restores_all_bits() -> None:
    cls = quantized_class("adamw")
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
def test_plain_and_8_bit_optimizers_exchange_checkpoints() -> None:
    plain, params = train(optim.AdamW)
    loaded = quantized_class("adamw")(clones(params))
    loaded.load_state_dict(plain.state_dict())
    for param, other in zip(params, loaded.param_groups[0]["params"], strict=True):
        for key in ("exp_avg", "exp_avg_sq"):
            value = plain.state[param][key].clone()
            round_states({key: value}, "dynamic")
            torch.testing.assert_close(decoded(loaded.state[other][key]), value, rtol=1e-6, atol=0)
    back = torch.optim.AdamW(clones(params))
    back.load_state_dict(loaded.state_dict())
    for param, other in zip(back.param_groups[0]["params"], loaded.state, strict=True):
        assert torch.equal(back.state[param]["exp_avg"], decoded(loaded.state[other]["exp_avg"]))
    linear = quantized_class("adamw", "linear")(clones(params))
    linear.load_state_dict(loaded.state_dict())
    assert all(each["exp_avg"].isfinite().all() for each in linear.state.values())


@outside_interpreter
@pytest.mark.parametrize("foreach", [True, None])
def test_maximize_steps_by_negative_gradients(foreach: bool | None) -> None:
    _, params = train(quantized_class("sgd"), momentum=0.9, maximize=True, foreach=foreach)
    theirs = parameters(SHAPES, torch.float32)
    plain = quantized_class("sgd")(theirs, momentum=0.9, foreach=foreach)
    for seed in range(STEPS):
        give_gradients(theirs, seed)
        for param in theirs:
            assert param.grad is not None
            param.grad.neg_()
        plain.step()
    assert all(map(torch.equal, params, theirs))


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
    assert "states of 8 bits in another order of memory" in optgen.explain(optimizers[0])
    assert difference([param], [unchanged]) < 1e-6


@outside_interpreter
def test_a_rule_with_random_numbers_refuses_codes_in_another_memory_order() -> None:
    transposed = torch.ones(40, 50).t().requires_grad_()
    cls: Any = quantized_class(compose("adamw", modifiers.stochastic_rounding))
    optimizer = cls([transposed], fused=True)
    transposed.grad = torch.ones_like(transposed)
    with pytest.raises(RuntimeError, match="states of 8 bits in another order of memory"):
        optimizer.step()


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
    both = dtypes(modifiers.quantized(compensation="8bit"), modifiers.kahan)
    assert both["compensation"] == both["exp_avg"] == codes


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


@outside_interpreter
def test_scaled_gradients_are_unscaled() -> None:
    params, theirs = parameters(SHAPES, torch.float32), parameters(SHAPES, torch.float32)
    scaled, plain = quantized_class("adamw")(params, fused=True), quantized_class("adamw")(theirs)
    scaled.grad_scale, scaled.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    for seed in range(2):
        give_gradients([*params], seed)
        give_gradients([*theirs], seed)
        for param in params:
            assert param.grad is not None
            param.grad.mul_(4)
        scaled.step()
        plain.step()
    assert all(map(torch.equal, params, theirs))


@outside_interpreter
def test_cpp_of_rules_without_states_of_8_bits_has_no_codes() -> None:
    text = spec("m = m + g", "p = p - lr * m", states='m=state("m", dtype="float32")')
    assert "CODES" not in printed_codes(text)
    assert "CODES" in printed_codes(text.replace("float32", "8bit"))


def printed_codes(text: str) -> str:
    from optgen.lowerings.fused_cpu import lower

    return str(lower(read(text)).get("codes", ""))
