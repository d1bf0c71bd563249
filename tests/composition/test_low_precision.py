"""Test modifiers for parameters in 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from composition.by_hand import ByHand
from composition.training import (
    LOWERINGS,
    STEPS,
    check_same_path,
    difference,
    give_gradients,
    parameters,
    params_and_lrs,
    two_groups,
)
from interpreter import INTERPRETED, outside_interpreter, run_inside
from torch import Tensor

import optgen
from optgen import optim, use_lowering
from optgen.compositions import compose, list_modifiers, modifier, state_dtype
from optgen.generated.kahan_adamw import KahanAdamW
from optgen.spec import Spec
from optgen.spec.declare import Modifier
from optgen.spec.errors import SpecError

FLOAT32_BOUND = 2e-6
"""Bound on relative differences of numbers that are computed in float32."""
NUMBERS, COPIES = 40, 25
"""Number of values that are rounded stochastically, and copies of each value in a parameter."""


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__, "fused_triton")


def torchs_optimizer(base: str, params: Sequence[Tensor], **options: Any) -> Any:
    return getattr(torch.optim, base)(two_groups(params), **options)


def states(optimizer: Any, key: str) -> list[Tensor]:
    return [optimizer.state[param][key] for param, _ in params_and_lrs(optimizer)]


BASES: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}}
if not INTERPRETED:
    BASES |= {"AdamW": {"weight_decay": 0}, "RMSprop": {}}


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("base", BASES)
def test_master_weights_by_hand(base: str, dtype: torch.dtype, lowering: str) -> None:
    """Torch's optimizer steps float32 copies, and every parameter is its copy, rounded."""
    cls: Any = compose(base.lower(), modifier("master"), state_dtype("float32"))
    params = parameters(dtype=dtype)
    optimizer = cls(two_groups(params), **BASES[base])
    copies = [param.detach().float() for param in params]
    by_hand = torchs_optimizer(base, copies, **BASES[base])
    for seed in range(STEPS):
        give_gradients(params, seed)
        for copy, param in zip(copies, params, strict=True):
            assert param.grad is not None
            copy.grad = param.grad.float()
        with use_lowering(lowering):
            optimizer.step()
        by_hand.step()
        masters = states(optimizer, "master")
        assert difference(masters, copies) < FLOAT32_BOUND
        assert all(map(torch.equal, params, [master.to(dtype) for master in masters]))


def assigned(param: Tensor, values: Tensor) -> None:
    param.data = values.clone()


CHANGES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "in place": lambda param, values: param.copy_(values),
    "through data": lambda param, values: param.data.copy_(values),
    "of data": assigned,
}
"""Ways to change a weight between two steps; torch's version counter sees the first only."""


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("base", BASES)
def test_masters_follow_weights_that_were_changed(
    base: str, change: str, dtype: torch.dtype, lowering: str
) -> None:
    """A changed element goes on from its new value, and its neighbours from their masters."""
    cls: Any = compose(base.lower(), modifier("master"), state_dtype("float32"))
    params = parameters(dtype=dtype)
    optimizer = cls(two_groups(params), **BASES[base])
    copies = [param.detach().to(torch.float32, copy=True) for param in params]
    by_hand = torchs_optimizer(base, copies, **BASES[base])
    for seed in range(STEPS):
        give_gradients(params, seed)
        for copy, param in zip(copies, params, strict=True):
            assert param.grad is not None
            copy.grad = param.grad.float()
            if seed == 2:
                copy.view(-1)[::3] = 3.0
                with torch.no_grad():
                    values = param.detach().clone()
                    values.view(-1)[::3] = 3.0
                    CHANGES[change](param, values)
        with use_lowering(lowering):
            optimizer.step()
        by_hand.step()
    masters = states(optimizer, "master")
    assert difference(masters, copies) < FLOAT32_BOUND
    assert all(map(torch.equal, params, [master.to(dtype) for master in masters]))


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("name", ["master", "kahan"])
def test_a_run_goes_on_whichever_checkpoint_is_loaded_first(name: str, lowering: str) -> None:
    """Weights that were saved with the optimizer keep the digits that rounding took from them."""
    cls: Any = compose(optim.AdamW, modifier(name))
    results = []
    for order in ("", "weights optimizer", "optimizer weights"):
        params = parameters(dtype=torch.bfloat16)
        optimizer = cls(two_groups(params))
        saved: dict[str, Any] = {}
        for seed in range(STEPS):
            if order and seed == 3:
                for name_of_part in order.split():
                    if name_of_part == "weights":
                        for param, values in zip(params, saved["weights"], strict=True):
                            param.data.copy_(values)
                    elif name_of_part == "optimizer":
                        optimizer.load_state_dict(saved["optimizer"])
            give_gradients(params, seed)
            with use_lowering(lowering):
                optimizer.step()
            if seed == 2:
                saved["weights"] = [param.detach().clone() for param in params]
                saved["optimizer"] = deepcopy(optimizer.state_dict())
                if order:  # the run goes astray, until the checkpoints are loaded
                    give_gradients(params, 100)
                    optimizer.step()
        results.append([*params, *states(optimizer, {"kahan": "compensation"}.get(name, name))])
    assert all(all(map(torch.equal, each, results[0])) for each in results[1:])


def test_a_modifier_that_follows_names_its_weights() -> None:
    text = (
        "from optgen.spec import modifier, state\n\n"
        '@modifier(stage="store", follows=True)\n'
        'def mine(p, u, /, x=state("x", init="p")):\n'
        '    """Keep weights."""\n'
        "    x = x + u\n    p = x\n"
    )
    with pytest.raises(SpecError, match="follows= without weights"):
        compose(optim.SGD, Modifier(Spec("mine", text, "mine.py", 1)))


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("kind", ["modifier", "class"])
def test_kahan_drops_a_compensation_that_is_not_of_these_weights(kind: str, lowering: str) -> None:
    """Weights near 1,000 lose more to rounding than weights near 1 can."""
    cls: Any = compose(optim.SGD, modifier("kahan")) if kind == "modifier" else KahanAdamW
    param = torch.full((8,), 1000.0, dtype=torch.bfloat16, requires_grad=True)
    optimizer = cls([param], lr=1.0, weight_decay=0.0)
    for weight in (1000.0, 1.0):
        if weight == 1.0:
            assert optimizer.state[param]["compensation"].abs().min() > 0.5
            param.data.fill_(weight)
            optimizer.param_groups[0]["lr"] = 0.0
        param.grad = torch.ones_like(param)
        with use_lowering(lowering):
            optimizer.step()
    assert (param == 1).all()
    assert (optimizer.state[param]["compensation"] == 0).all()


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_kahan_by_hand(lowering: str) -> None:
    """The update includes the compensation, which then becomes the parameter's rounding error."""
    params = parameters(dtype=torch.bfloat16)
    theirs = [param.detach().clone() for param in params]
    optimizer: Any = compose(optim.SGD, modifier("kahan"))(two_groups(params))
    compensations = [torch.zeros_like(param) for param in theirs]
    for seed in range(STEPS):
        give_gradients(params, seed)
        with use_lowering(lowering):
            optimizer.step()
        for index, (param, lr) in enumerate(params_and_lrs(optimizer)):
            assert param.grad is not None
            old = theirs[index].float()
            update = compensations[index].float() - lr * param.grad.float()
            theirs[index] = (old + update).bfloat16()
            compensations[index] = (update - (theirs[index].float() - old)).bfloat16()
        assert difference(params, theirs) < FLOAT32_BOUND
        assert difference(states(optimizer, "compensation"), compensations) < 0.01


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("base", BASES)
def test_kahan_compensates_for_the_rounding_of_bfloat16(base: str, lowering: str) -> None:
    """The sum of parameter and compensation is closer to a run in float64 than the parameter."""
    params = parameters(dtype=torch.bfloat16)
    cls: Any = compose(base.lower(), modifier("kahan"), state_dtype("float32"))
    optimizer = cls(two_groups(params), **BASES[base])
    float64_params = [param.detach().double() for param in params]
    by_hand = torchs_optimizer(base, float64_params, **BASES[base])
    for seed in range(30 if INTERPRETED else 100):
        give_gradients(params, seed)
        for param, copy in zip(params, float64_params, strict=True):
            assert param.grad is not None
            copy.grad = param.grad.double()
        with use_lowering(lowering):
            optimizer.step()
        by_hand.step()
    compensations = states(optimizer, "compensation")
    sums = [p.detach().double() + c.double() for p, c in zip(params, compensations, strict=True)]
    assert difference(params, float64_params) < 2**-8
    assert difference(sums, float64_params) < 2**-13


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_small_steps_are_not_lost(lowering: str) -> None:
    """A plain bfloat16 weight of 1 does not move by steps of 1e-3."""
    means = {}
    for name in ("plain", "kahan", "master", "stochastic_rounding"):
        modifiers = [] if name == "plain" else [modifier(name)]
        param = torch.ones(4000, dtype=torch.bfloat16, requires_grad=True)
        optimizer: Any = compose(optim.SGD, *modifiers)([param], lr=1e-3)
        for _ in range(25):
            param.grad = torch.ones_like(param)
            with use_lowering(lowering):
                optimizer.step()
        means[name] = param.detach().double().mean().item()
    assert means["plain"] == 1
    assert means["kahan"] == pytest.approx(0.975, abs=0.002)
    assert means["master"] == pytest.approx(0.975, abs=0.002)
    assert means["stochastic_rounding"] == pytest.approx(0.975, abs=0.002)


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", ["kahan", "low_precision_copy", "master", "stochastic_rounding"])
def test_float64_parameters_step_as_without_the_modifier(
    name: str, base: str, lowering: str
) -> None:
    """In float64, these modifiers change parameters by no more than rounding errors."""
    optimizer: Any = compose(base.lower(), modifier(name))(two_groups(parameters()), **BASES[base])
    by_hand = ByHand(torchs_optimizer(base, parameters(), **BASES[base]))
    check_same_path(optimizer, by_hand, lowering)


@pytest.mark.parametrize("name", list_modifiers())
def test_states_of_float64_parameters_have_their_dtype(name: str) -> None:
    """Only a copy in fewer bits has another dtype. Numbers of a parameter are not meant."""
    optimizer: Any = compose("adamw", modifier(name))([torch.ones(4, 4, dtype=torch.float64)])
    (param,) = optimizer.param_groups[0]["params"]
    param.grad = torch.ones_like(param)
    optimizer.step()
    dtypes = {key: each.dtype for key, each in optimizer.state[param].items() if each.ndim}
    assert set(dtypes.values()) - {torch.float64} == (
        {torch.bfloat16} if name == "low_precision_copy" else set()
    )


@pytest.mark.one_case_in(3)
@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("base", ["Adafactor", "CAME", "Muon", "SOAP"])
@pytest.mark.parametrize("name", ["kahan", "stochastic_rounding"])
def test_rules_with_rows_and_matrices_round(name: str, base: str, lowering: str) -> None:
    """Nothing is rounded in float64. Two steps in bfloat16 end near two steps in float64."""
    for dtype, bound in ((torch.float64, 1e-12), (torch.bfloat16, 2**-6)):
        results = []
        for cls in (getattr(optim, base), compose(getattr(optim, base), modifier(name))):
            start = parameters([(6, 4), (4, 6)], torch.bfloat16)
            unmodified = cls is getattr(optim, base)
            params = [p.detach().to(torch.float64 if unmodified else dtype) for p in start]
            optimizer = cls([p.requires_grad_() for p in params], lr=0.01)
            for seed in range(2):
                give_gradients(params, seed)
                for param in params:
                    assert param.grad is not None
                    param.grad = param.grad.bfloat16().to(param.dtype)
                with use_lowering(lowering):
                    optimizer.step()
            results.append(params)
        assert difference(results[1], results[0]) < bound


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_low_precision_copy_by_hand(lowering: str) -> None:
    params = parameters(dtype=torch.float32)
    cls: Any = compose(optim.AdamW, modifier("low_precision_copy"))
    optimizer = cls(two_groups(params))
    for seed in range(STEPS):
        give_gradients(params, seed)
        with use_lowering(lowering):
            optimizer.step()
        copies = states(optimizer, "low_precision")
        assert all(map(torch.equal, copies, [param.detach().bfloat16() for param in params]))


def stochastic_step(seed: int, lowering: str, start: Tensor, gradients: Tensor) -> list[Tensor]:
    """Return two parameters with equal values after a step with stochastic rounding."""
    params = [start.clone().requires_grad_() for _ in range(2)]
    cls: Any = compose(optim.SGD, modifier("stochastic_rounding"))
    optimizer = cls(params, lr=0.01, seed=seed)
    for param in params:
        param.grad = gradients.clone()
    with use_lowering(lowering):
        optimizer.step()
    return [param.detach() for param in params]


def repeated_random_numbers(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUMBERS, generator=generator).bfloat16().repeat(COPIES)


@pytest.fixture
def start() -> Tensor:
    return repeated_random_numbers(5)


@pytest.fixture
def gradients() -> Tensor:
    return repeated_random_numbers(6)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_stochastic_rounding_is_unbiased(lowering: str, start: Tensor, gradients: Tensor) -> None:
    """Each result is one of the two numbers next to the exact value, and their mean is near."""
    exact = (start.float() - 0.01 * gradients.float())[:NUMBERS]
    nearest = exact.bfloat16()
    direction = torch.where(nearest.float() > exact, -torch.inf, torch.inf).bfloat16()
    second_nearest = torch.nextafter(nearest, direction)
    draws = torch.stack(
        [each for seed in range(6) for each in stochastic_step(seed, lowering, start, gradients)]
    )
    draws = draws.view(-1, NUMBERS)
    assert ((draws == nearest) | (draws == second_nearest)).all()
    gap = (second_nearest.float() - nearest.float()).abs()
    error = (draws.float().mean(dim=0) - exact).abs() / gap
    largest_deviation = 0.5  # standard deviation of one draw, in gaps
    assert error.max() < 4.5 * largest_deviation / len(draws) ** 0.5
    assert (draws != nearest).any()


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_stochastic_rounding_depends_on_the_seed_and_the_parameter(
    lowering: str, start: Tensor, gradients: Tensor
) -> None:
    first, again = (
        stochastic_step(1, lowering, start, gradients),
        stochastic_step(1, lowering, start, gradients),
    )
    assert all(map(torch.equal, first, again))
    assert not torch.equal(*first), "equal parameters are rounded by different random numbers"
    other = stochastic_step(2, lowering, start, gradients)
    assert not any(map(torch.equal, first, other))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_later_sweep_reads_unrounded_values(lowering: str) -> None:
    """The squares of small gradients are 0 in float16; a later sweep reads them unrounded."""
    cls: Any = compose(optim.AdamW, modifier("hyperball"), modifier("stochastic_rounding"))
    param = torch.ones(4, dtype=torch.float16, requires_grad=True)
    param.grad = torch.tensor([1e-3, 2e-3, 1.0, 2.0], dtype=torch.float16)
    with use_lowering(lowering):
        cls([param], lr=0.1).step()
    assert ((param - 1).abs() < 0.2).all()


UNROUNDED_READ = '''
from optgen.spec import mean, optimizer, state

@optimizer(paper="https://example.org")
def Stored(p, g, /, v=state("exp_avg", dtype="float32", min_elements=0)):
    """Keeps the last gradient."""
    v = 0.3 * g
    p = mean(p) * v
'''


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "8bit"])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_later_sweep_reads_no_stored_value(lowering: str, dtype: str) -> None:
    """The new value of a state is stored rounded. A sweep that needs it recomputes it."""
    text = UNROUNDED_READ.replace("float32", dtype)
    if dtype != "8bit":
        text = text.replace(", min_elements=0", "")
    optimizer_class: Any = optgen.load(Spec("Stored", text, "stored.py", 1))
    (param,) = parameters([(7,)])
    give_gradients([param], 1)
    assert param.grad is not None
    expected = param.detach().mean() * (0.3 * param.grad)
    with use_lowering(lowering):
        optimizer_class([param]).step()
    torch.testing.assert_close(param.detach(), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_clipping_at_a_large_norm_does_not_change_the_rounding(lowering: str) -> None:
    rounding = modifier("stochastic_rounding")
    results = []
    for modifiers in ([rounding], [modifier("clip_norm")(1e9), rounding]):
        params = parameters(dtype=torch.bfloat16)
        cls: Any = compose(optim.SGD, *modifiers)
        optimizer = cls(two_groups(params), momentum=0.9)
        for seed in range(STEPS):
            give_gradients(params, seed)
            with use_lowering(lowering):
                optimizer.step()
        results.append(torch.cat([param.detach().flatten() for param in params]))
    assert (results[0] == results[1]).double().mean() > 0.99


@outside_interpreter
def test_stochastic_rounding_has_the_same_bits_in_all_lowerings(
    start: Tensor, gradients: Tensor
) -> None:
    results = [stochastic_step(3, lowering, start, gradients) for lowering in LOWERINGS]
    for each in results[1:]:
        assert all(map(torch.equal, each, results[0]))
