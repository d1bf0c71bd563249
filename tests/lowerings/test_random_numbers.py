"""Test rules that draw random numbers: the same bits in every lowering, order and sharding."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from lowerings.oracle_steps import SHAPE, random_tensors, steps_beside_the_oracle
from lowerings.test_phases import orthogonalize_in_own_dtype
from parity.cases import LOWERINGS
from spec_files import spec_file
from torch import Tensor

import optgen
from optgen import keyed, use_lowering
from optgen.ir.ops import RANDOM_OPS
from optgen.ir.random_numbers import positions, random16
from optgen.spec import Spec

FORMS = LOWERINGS if INTERPRETED else (*LOWERINGS, "differentiable", "capturable")
STOCHASTIC = spec_file("stochastic_adamw")
NARROW_DTYPES = (torch.bfloat16, torch.float16)

NOISE = '''from optgen.spec import *

def noise(seed, k):
    """Uniform in [-1, 1)."""
    return 2 * random(seed, k) - 1

@optimizer()
def Noise(
    p, g, t, /, a=state("a"), b=state("b"), k=state("stream", shape="scalar", init="index"),
    *, lr=hyper(0.5), seed=hyper(7),
):
    """Several calls, in a helper and in a branch too."""
    a = random(seed, k)
    if t > 1:
        b = random(seed, k)
    else:
        b = noise(seed + 0.5, k)
    p = p - lr * noise(seed, k) * random(3 * seed - 2**24, 5) - where(a < 0 or b < -1, g, 0)
'''


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


def noise_spec(op: str) -> Spec:
    """Return the spec of `Noise` with this random op."""
    return Spec("Noise", NOISE.replace("random(", f"{op}("), "noise.py", 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("op", RANDOM_OPS)
def test_random_numbers_equal_those_of_the_oracle(op: str, dtype: torch.dtype, form: str) -> None:
    spec = noise_spec(op)
    for seed in (7, 2**24 + 3):
        for step in steps_beside_the_oracle(spec, form, dtype, count=3, seed=seed):
            for key in "ab":
                assert torch.equal(step.state[key].double(), step.expected_state[key])
            torch.testing.assert_close(
                step.param.double(), step.expected_param, rtol=2 * torch.finfo(dtype).eps, atol=1e-6
            )


REDUCING = '''from optgen.spec import *

@optimizer()
def Reducing(
    p, g, t, /, m=state("m"), a=state("a"), largest=state("largest", shape="scalar"),
    k=state("stream", shape="scalar", init="index"), *, lr=hyper(0.1), seed=hyper(3),
):
    """Numbers that a sum reads, numbers after it, and both in one sweep."""
    a = random(seed, k)
    largest = maximum(0.5 * largest, max_abs(g * a))
    g = g * minimum(1 / norm(g * random16(seed, 5), over="all"), 1)
    m = 0.5 * m + g / largest * (random16(seed, k) + 0.5)
    p = rounded_at_random(p - lr * g / rms(g), random16(seed, k))
'''


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rule_that_draws_may_reduce(dtype: torch.dtype, form: str) -> None:
    spec, eps = Spec("Reducing", REDUCING, "reducing.py", 1), torch.finfo(dtype).eps
    for step in steps_beside_the_oracle(spec, form, dtype, count=3):
        assert torch.equal(step.state["a"].double(), step.expected_state["a"])
        for key in ("m", "largest"):
            found, expected = step.state[key].double(), step.expected_state[key]
            torch.testing.assert_close(found, expected, rtol=2 * eps, atol=1e-6)
        equal_fraction = (step.param.double() == step.expected_param).double().mean()
        assert equal_fraction > (0.998 if dtype == torch.bfloat16 else 0.0)
        torch.testing.assert_close(
            step.param.double(), step.expected_param, rtol=2 * eps, atol=1e-6
        )


AXES = '''from optgen.spec import *

@optimizer()
def Axes(
    p, g, t, /, r=state("r", shape="row", when="factored"), a=state("a"),
    k=state("stream", shape="scalar", init="index"), *, lr=hyper(0.1), seed=hyper(3),
):
    """Numbers beside rows and columns: before their sums, after them, and in a branch."""
    a = random(seed, k)
    if factored(p):
        r = lerp(r, row_mean((g * a) ** 2), 0.5)
        g = g * random16(seed, 5) / (sqrt(r) + col_norm(g) + 1)
    p = rounded_at_random(p - lr * g / rms(g), random16(seed, k))
'''
WORD = '''from optgen.spec import *

@optimizer()
def Word(
    p, g, t, /, a=state("a"), b=state("momentum_buffer"),
    k=state("stream", shape="scalar", init="index"),
    *, lr=hyper(0.1), seed=hyper(3), ns=hyper((1.5, -0.5, 0.0)),
):
    """Numbers before a matrix op, and after it."""
    require(ndim(p) == 2, "matrices only: {shape}")
    a = random(seed, k)
    b = 0.5 * b + g * (a + 0.5)
    o = orthogonalize(b, ns, 2, 1e-3)
    p = rounded_at_random(p - lr * o * random(seed, 5), random16(seed, k))
'''
WHOLE = '''from optgen.spec import *

@optimizer()
def Whole(
    p, g, t, /, L=state("left", shape=("rows", "rows")), a=state("a"), c=state("lost"),
    k=state("stream", shape="scalar", init="index"), *, lr=hyper(0.1), seed=hyper(3),
):
    """Numbers and roundings beside products of matrices."""
    require(ndim(p) == 2, "matrices only: {shape}")
    a = random(seed, k)
    L = 0.5 * L + (g * a) @ transpose(g)
    if t > 1:
        g = g * (random(seed + 1, k) + 0.5)
    u = c - lr * (L @ g) / (1 + norm(L))
    q = rounded(p + u)
    c = u - (q - p)
    p = rounded_at_random(q + lr * a, random16(seed, 5))
'''
RULES_WITH_MATRICES = {"Axes": AXES, "Word": WORD, "Whole": WHOLE}
RULES_AND_DTYPES = [
    (name, dtype)
    for name in RULES_WITH_MATRICES
    # Fused kernels round the operand of a matrix op to the parameter's dtype.
    for dtype in (torch.float64, torch.float32 if name == "Word" else torch.bfloat16)
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "dtype"), RULES_AND_DTYPES, ids=str)
def test_a_rule_that_draws_may_have_rows_and_matrices(
    name: str, dtype: torch.dtype, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (name, form) in (("Whole", "fused_triton"), ("Word", "capturable")):
        pytest.skip("no Triton kernel has whole matrices; the exact op reads a tensor on the host")
    monkeypatch.setattr("optgen.runtime.matrix_ops.orthogonalize", orthogonalize_in_own_dtype)
    spec, eps = Spec(name, RULES_WITH_MATRICES[name], f"{name}.py", 1), torch.finfo(dtype).eps
    for step in steps_beside_the_oracle(spec, form, dtype, count=3, shape=(21, 34)):
        assert torch.equal(step.state["a"].float(), step.expected_state["a"].float())
        for key in step.state.keys() - {"a", "step", "stream"}:
            found, expected = step.state[key].double(), step.expected_state[key]
            torch.testing.assert_close(found, expected, rtol=4 * eps, atol=4 * eps)
        equal_fraction = (step.param.double() == step.expected_param).double().mean()
        assert equal_fraction > (0.99 if dtype == torch.bfloat16 else 0.0)
        torch.testing.assert_close(
            step.param.double(), step.expected_param, rtol=2 * eps, atol=1e-6
        )


@outside_interpreter
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "size", [(5000, 3), (3, 5000), (300, 2100), (70, 9000), (2, 70, 60), (40, 9, 7)], ids=str
)
def test_fused_cpu_draws_the_numbers_of_the_for_loop_beside_rows_and_columns(
    size: tuple[int, ...], dtype: torch.dtype
) -> None:
    results = []
    for lowering in ("forloop", "fused_cpu"):
        param = torch.zeros(size, dtype=dtype, requires_grad=True)
        optimizer: Any = optgen.load(Spec("Axes", AXES, "axes.py", 1))([param])
        for _ in range(2):
            param.grad = torch.ones_like(param)
            with use_lowering(lowering):  # type: ignore[arg-type]
                optimizer.step()
        results.append([optimizer.state[param][key] for key in "ar"])
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


STATEMENTS_THAT_ONCE_FAILED = {
    "a sum of random numbers alone": ("p = p - lr * g * mean(random(seed, 2))",),
    "a sweep over random numbers before another": (
        *("x = random(seed, t)", "low = a <= m", "a = 0.5 * a", "e = mean(x)", "m = 0.5 * m"),
        "p = p - lr * where(low, e + x, g)",
    ),
    "numbers of 16 bits as operands of one function": (
        *("r = random16(seed, 2)", "s = minimum(r, random16(3, 2)) * lerp(r, r, r)"),
        "p = p - lr * g * s * clamp(r, r, r)",
    ),
    "a rounding at a fixed chance": ("p = rounded_at_random(p - lr * g, 0.5)",),
}
"""Statements that once failed, by what is unusual in them."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", STATEMENTS_THAT_ONCE_FAILED)
def test_statements_that_once_failed_agree_with_the_oracle(
    case: str, dtype: torch.dtype, form: str
) -> None:
    body = "\n    ".join(STATEMENTS_THAT_ONCE_FAILED[case])
    states = [f'{name}=state("{name}")' for name in "am" if re.search(rf"\b{name}\b", body)]
    inputs = ", ".join(["p, g, t, /", *states, "*, lr=hyper(0.1)", "seed=hyper(3)"])
    if "seed" not in body:
        inputs = inputs.replace("t, /", "/").removesuffix(", seed=hyper(3)")
    text = (
        f'from optgen.spec import *\n\n@optimizer()\ndef Odd({inputs}):\n    """."""\n    {body}\n'
    )
    for step in steps_beside_the_oracle(Spec("Odd", text, "odd.py", 1), form, dtype, count=2):
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(
            step.param.double(), step.expected_param, rtol=2 * eps, atol=1e-5
        )


THREE_STREAMS = '''from optgen.spec import *

@optimizer()
def Three(p, g, t, /, m=state("m"), *, lr=hyper(0.1)):
    """A loop over three streams prefetches strips of a large tensor."""
    m = lerp(m, random(3, 2) + random16(3, 2), 0.25)
    p = p - lr * g
'''


@pytest.mark.sampled(4)
@outside_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(17,), (100,), (333, 1001), (1500, 2000)])
@pytest.mark.parametrize("factor", ["", " * norm(g)"])
def test_strips_draw_the_numbers_of_the_whole_tensor(
    factor: str, size: tuple[int, ...], dtype: torch.dtype
) -> None:
    text = THREE_STREAMS.replace("lr * g", f"lr * g{factor}")
    averages = []
    for lowering in ("forloop", "fused_cpu"):
        param = torch.zeros(size, dtype=dtype, requires_grad=True)
        param.grad = torch.zeros_like(param)
        optimizer: Any = optgen.load(Spec("Three", text, "three.py", 1))([param])
        with use_lowering(lowering):  # type: ignore[arg-type]
            optimizer.step()
        averages.append(optimizer.state[param]["m"])
    assert torch.equal(*averages)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_stochastic_adamw_steps_as_its_rule(dtype: torch.dtype, form: str) -> None:
    for step in steps_beside_the_oracle(STOCHASTIC, form, dtype, lr=1e-3, seed=3):
        equal_fraction = (step.param.double() == step.expected_param).double().mean()
        # Float32 arithmetic moves a few values across a boundary of rounding.
        assert equal_fraction > 0.999
        assert step.param.dtype == dtype


def plain_stochastic_adamw(param: Tensor, grads: list[Tensor], lr: float, seed: int) -> Tensor:
    """Return a bfloat16 parameter after AdamW with stochastic rounding.

    Written as torchao has it: a random number below 2**16 is added to the bits of the float32
    value, and the lower half is cut off.
    """
    m, v = torch.zeros_like(param), torch.zeros_like(param)
    for count, grad in enumerate(grads, 1):
        g, w = grad.float(), param.float()
        mean = m.float() * 0.9 + g * 0.1
        square = v.float() * 0.999 + g * g * 0.001
        root = (square / (1 - 0.999**count)).sqrt() + 1e-8
        exact = w - lr * 0.01 * w - lr * (mean / (1 - 0.9**count) / root)
        number = random16(positions(w), *map(torch.tensor, (seed, 0, count, 0)))
        added = 0xFFFF - (number * 2**16).int()  # a small number rounds away from zero
        bits = (exact.view(torch.int32) + added) & -0x10000
        param, m, v = bits.view(torch.float32).bfloat16(), mean.bfloat16(), square.bfloat16()
    return param


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_stochastic_adamw_equals_the_published_algorithm(lowering: str) -> None:
    start, *grads = random_tensors(5 if INTERPRETED else 16, torch.bfloat16)
    start = start + start.sign()
    param = param_after_training(start, grads, lowering, lr=1e-3, weight_decay=0.01, seed=5)

    plain = plain_stochastic_adamw(start, grads, 1e-3, 5)

    assert (param == plain).double().mean() > 0.99
    torch.testing.assert_close(param, plain, rtol=2**-7, atol=0)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_stochastic_rounding_is_unbiased(lowering: str) -> None:
    """The mean of many equal parameters moves as one float32 parameter does.

    The numbers are a function of the seed, so the result is the same in every run.
    """
    steps = 4 if INTERPRETED else 20
    start, grad = torch.ones(20_000).bfloat16(), torch.ones(20_000).bfloat16()
    param = param_after_training(start, [grad] * steps, lowering, lr=1e-4, weight_decay=0.0, seed=1)

    # Each step moves by 1e-4, a fortieth of the distance to the number below.
    exact, spacing = 1 - steps * 1e-4, 2**-8
    standard_deviation = ((1 - exact) * spacing) ** 0.5  # of one parameter
    assert len(param.unique()) > 1
    assert abs(param.double().mean().item() - exact) < 4 * standard_deviation / 20_000**0.5


def param_after_training(
    start: Tensor, grads: list[Tensor], lowering: str, **hypers: Any
) -> Tensor:
    """Return StochasticAdamW's parameter after one step for each gradient."""
    param = torch.nn.Parameter(start.clone())
    optimizer = optgen.load(STOCHASTIC)([param], **hypers)
    for grad in grads:
        param.grad = grad
        with use_lowering(lowering):
            optimizer.step()
    return param.detach()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@outside_interpreter
def test_bits_are_the_same_for_any_number_of_threads() -> None:
    found = []
    for count in (1, 2, 3):
        with torch_threads(count):
            start, grad = random_tensors(2, torch.bfloat16, shape=(700, 1001))
            found.append(param_after_training(start, [grad, grad], "fused_cpu"))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@outside_interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("op", RANDOM_OPS)
def test_numbers_do_not_depend_on_the_order_of_memory(op: str, dtype: torch.dtype) -> None:
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
    loaded = optgen.load(STOCHASTIC)(params, seed=9)
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
    optimizer = optgen.load(STOCHASTIC)(params, seed=9)

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
    optimizer = optgen.load(STOCHASTIC)([{"params": params[:2]}, {"params": params[2:3]}])
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
    wrapper = keyed.KeyedOptimizerWrapper(params, optgen.load(STOCHASTIC))
    wrapper.init_state()
    state = wrapper.state_dict()["state"]
    assert [state[name]["stream"].item() for name in "ab"] == [0, 1]


@outside_interpreter
def test_an_infinite_seed_draws_as_seed_0() -> None:
    found = []
    for seed in (0, torch.inf):
        for lowering in LOWERINGS:
            start, grad = random_tensors(2, torch.bfloat16)
            found.append(param_after_training(start, [grad], lowering, seed=seed))
    for index, param in enumerate(found[: len(LOWERINGS)]):
        assert torch.equal(param, found[index + len(LOWERINGS)])


ENDS = (0, 2**-133, 3 * 2**-133, 2**-126, 2**-125, 1, 3 * 2**125, 2**128 - 2**120, torch.inf)
"""Numbers of bfloat16, among them subnormal ones, the least normal one and the largest one."""
ROUNDING_ALONE = '''from optgen.spec import *

@optimizer()
def Step(p, g, t, /, k=state("stream", shape="scalar", init="index"), *, lr=hyper(1.0)):
    """Nothing but a step and a rounding."""
    p = rounded_at_random(p - lr * g, random16(3, k))
'''


@pytest.mark.parametrize("text", ["lr * g", "lr * g / (1 + 0 * abs(g))"])
def test_numbers_at_the_ends_of_the_range_round_alike(text: str) -> None:
    """A loop with a division stores its values later than a loop without."""
    ends = torch.tensor(ENDS, dtype=torch.float64).bfloat16()
    start = torch.cat([ends, -ends, torch.tensor([torch.nan]).bfloat16()]).repeat(50)
    grad = torch.where(start.isfinite(), start / 700, 1)
    grad[::3] *= -1  # so some of the largest numbers grow
    spec = Spec("Step", ROUNDING_ALONE.replace("lr * g", text), "step.py", 1)
    found = []
    for lowering in LOWERINGS:
        param = torch.nn.Parameter(start.clone())
        param.grad = grad
        optimizer = optgen.load(spec)([param])
        with use_lowering(lowering):
            optimizer.step()
        found.append(param.detach())
    for param in found:
        torch.testing.assert_close(param, found[0], rtol=0, atol=0, equal_nan=True)
        assert torch.equal(param.isfinite(), start.isfinite())
    assert ((found[0] != start) & ~start.isnan()).double().mean() > 0.05


@outside_interpreter
def test_complex_parameters_are_refused() -> None:
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = optgen.load(STOCHASTIC)([param])
    param.grad = torch.ones_like(param)
    with pytest.raises(RuntimeError, match="does not support complex parameters"):
        optimizer.step()
    assert torch.equal(param.detach(), torch.ones_like(param))
    assert not optimizer.state[param]
