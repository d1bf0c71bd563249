"""Fused C++ steps: what is read of the optimizer in each step, and what is written."""

import importlib
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import optgen
from optgen.optim import SGD, Adam, NAdam, RAdam, RMSprop
from optgen.runtime import fused_cpu
from optgen.runtime.fused_cpu import compiler
from optgen.runtime.fused_cpu.table import gather

TOLERANCE = 1e-12
repeat = importlib.import_module("optgen.runtime.fused_cpu.repeat")  # beside a function so called
Prepare = Callable[[Any, list[Tensor]], None]


@pytest.fixture(params=["read in C++", "gathered in Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a step can find its tensors."""
    if request.param == "gathered in Python":
        monkeypatch.setattr(repeat, "reader", lambda: None)
    return str(request.param)


def parameters(seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(shape, dtype=torch.float64).to(dtype))
        for shape in ((3, 4), (600,), (), (0, 2), (2, 3, 4))
    ]


def give_gradients(params: list[Tensor], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for param in params:
        grad = torch.randn(param.shape, dtype=torch.float64, generator=generator)
        param.grad = grad.to(param.dtype)


def pair(cls: Any = Adam, **options: Any) -> tuple[Any, list[Tensor], Any, list[Tensor]]:
    """An optimizer of ours and torch's for equal parameters."""
    ours, theirs = parameters(), parameters()
    reference = getattr(torch.optim, cls.__name__)
    return cls(ours, **options), ours, reference(theirs, **options, foreach=False), theirs


def deviation(found: list[Tensor], expected: list[Tensor]) -> float:
    pairs = [(a.detach(), b.detach()) for a, b in zip(found, expected, strict=True) if b.numel()]
    return max((float((a - b).abs().max() / b.abs().max()) for a, b in pairs), default=0.0)


def follows(cls: Any, change: Prepare, steps: int = 6, **options: Any) -> None:
    """Both optimizers go the same way, also when something is changed before the fourth step."""
    ours, our_params, torchs, torchs_params = pair(cls, **options)
    for step in range(steps):
        give_gradients(our_params, step)
        give_gradients(torchs_params, step)
        if step == 3:
            change(ours, our_params)
            change(torchs, torchs_params)
        ours.step()
        torchs.step()
        assert "fused C++" in optgen.explain(ours)
    assert deviation(our_params, torchs_params) < TOLERANCE
    for a, b in zip(ours.state.values(), torchs.state.values(), strict=True):
        assert list(a) == list(b)
        assert deviation(list(a.values()), list(b.values())) < TOLERANCE


def nothing(optimizer: Any, params: list[Tensor]) -> None:
    pass


def drop_some_gradients(optimizer: Any, params: list[Tensor]) -> None:
    params[0].grad = params[2].grad = None


def transpose_a_gradient(optimizer: Any, params: list[Tensor]) -> None:
    grad = params[0].grad
    assert grad is not None
    params[0].grad = grad.t().contiguous().t()


def expand_a_gradient(optimizer: Any, params: list[Tensor]) -> None:
    params[0].grad = torch.ones(4, dtype=torch.float64).expand(3, 4)


def negate_a_gradient(optimizer: Any, params: list[Tensor]) -> None:
    for param in params:
        assert param.grad is not None
        param.grad = torch._neg_view(param.grad)


def move_the_parameters(optimizer: Any, params: list[Tensor]) -> None:
    for param in params:
        param.data = param.data.clone()


def permute_a_parameter(optimizer: Any, params: list[Tensor]) -> None:
    params[4].data = params[4].data.permute(2, 0, 1).contiguous().permute(1, 2, 0)


def make_holes_in_a_parameter(optimizer: Any, params: list[Tensor]) -> None:
    params[1].data = params[1].data.repeat_interleave(2)[::2]


def replace_a_state(optimizer: Any, params: list[Tensor]) -> None:
    state = optimizer.state[params[1]]
    key = list(state)[-1]
    state[key] = torch.full_like(state[key], 0.5)


def replace_the_states(optimizer: Any, params: list[Tensor]) -> None:
    for param in params:
        optimizer.state[param] = {k: v.clone() for k, v in optimizer.state[param].items()}


def move_a_state(optimizer: Any, params: list[Tensor]) -> None:
    for value in optimizer.state[params[1]].values():
        value.data = value.data.clone()


def reorder_the_states(optimizer: Any, params: list[Tensor]) -> None:
    state = optimizer.state.pop(params[0])
    optimizer.state[params[0]] = dict(reversed(state.items()))
    optimizer.state[params[0]] = state


def change_hyperparameters(optimizer: Any, params: list[Tensor]) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5
    optimizer.param_groups[0]["weight_decay"] = 0.1


def climb(optimizer: Any, params: list[Tensor]) -> None:
    optimizer.param_groups[0]["maximize"] = True


def reload(optimizer: Any, params: list[Tensor]) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


CHANGES = [
    nothing,
    drop_some_gradients,
    transpose_a_gradient,
    expand_a_gradient,
    negate_a_gradient,
    move_the_parameters,
    permute_a_parameter,
    make_holes_in_a_parameter,
    replace_a_state,
    replace_the_states,
    move_a_state,
    reorder_the_states,
    change_hyperparameters,
    climb,
    reload,
]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    ("cls", "options"),
    [(Adam, {"amsgrad": True}), (SGD, {"momentum": 0.9}), (NAdam, {})],
    ids=["Adam", "SGD", "NAdam"],
)
def test_changes_between_steps_are_seen(cls: Any, options: dict[str, Any], change: Prepare) -> None:
    follows(cls, change, **options)


@pytest.mark.usefixtures("way")
def test_a_rule_without_any_state() -> None:
    follows(SGD, drop_some_gradients, weight_decay=0.1)


@pytest.mark.usefixtures("way")
def test_a_branch_on_the_step_count() -> None:
    follows(RAdam, drop_some_gradients, steps=12)  # rho passes 5 in step 6


@pytest.mark.usefixtures("way")
def test_two_flags_for_streams() -> None:
    for momentum, centered in itertools.product((0, 0.9), (False, True)):
        follows(RMSprop, nothing, momentum=momentum, centered=centered)


def test_a_step_like_the_last_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    params = parameters()
    optimizer = Adam(params)
    for step in range(2):
        give_gradients(params, step)
        optimizer.step()
    monkeypatch.setattr(fused_cpu, "gather", None)

    for step in range(2, 5):
        give_gradients(params, step)
        params[step].grad = None
        optimizer.param_groups[0]["lr"] = 0.1 / step
        optimizer.step()

    assert [float(optimizer.state[p]["step"]) for p in params] == [5, 5, 4, 4, 4]


def test_groups_that_come_and_grow() -> None:
    def grow(optimizer: Any, params: list[Tensor]) -> None:
        new = [torch.nn.Parameter(torch.ones(n, dtype=torch.float64)) for n in (2, 3)]
        params += new
        give_gradients(params, 3)
        optimizer.add_param_group({"params": [new[0]], "lr": 0.5})
        optimizer.param_groups[0]["params"].append(new[1])

    follows(Adam, grow)


def test_a_group_without_gradients_gets_some() -> None:
    both = []
    for cls in (Adam, torch.optim.Adam):
        params = parameters()
        optimizer = cls([{"params": params[:2]}, {"params": params[2:], "lr": 0.1}])
        for step in range(6):
            give_gradients(params[: 2 if step < 3 else 5], step)
            optimizer.step()
        both.append(params)

    assert deviation(*both) < TOLERANCE


def test_a_changed_choice_of_lowering_is_seen() -> None:
    def unfused(optimizer: Any, params: list[Tensor]) -> None:
        optimizer.param_groups[0]["foreach"] = False

    params = parameters()
    optimizer = Adam(params)
    for step in range(3):
        give_gradients(params, step)
        optimizer.step()
    unfused(optimizer, params)

    assert not fused_cpu.repeat(optimizer)


def test_autograd_sees_that_parameters_change() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    other = torch.nn.Parameter(torch.ones(3))
    optimizer = SGD([param, other])
    for _ in range(3):
        loss = (param * param + other * other).sum()
        param.grad, other.grad = torch.ones(3), None
        versions = param._version, other._version
        optimizer.step()
        assert (param._version, other._version) == (versions[0] + 1, versions[1])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scaled_gradients_are_unscaled_in_place(dtype: torch.dtype) -> None:
    ours, theirs = parameters(dtype=dtype), parameters(dtype=dtype)
    optimizers = Adam(ours, fused=True), torch.optim.Adam(theirs, fused=True)
    for step, overflow in enumerate([0.0, 0.0, 1.0, 0.0]):
        for optimizer, params in zip(optimizers, (ours, theirs), strict=True):
            give_gradients(params, step)
            for param in params:
                assert param.grad is not None
                param.grad *= 1024
            optimizer.grad_scale = torch.tensor(1024.0)
            optimizer.found_inf = torch.tensor(overflow)
            before = [param.detach().clone() for param in params]
            optimizer.step()
            assert all(map(torch.equal, before, params)) is bool(overflow)
        if not overflow:
            assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))

    tolerance = 1e-6 if dtype is torch.float32 else 1e-2
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        assert optimizers[0].state[a]["step"] == optimizers[1].state[b]["step"] == 3


def test_an_overflow_in_the_first_step_leaves_momentum_fresh() -> None:
    param = torch.nn.Parameter(torch.zeros(3))
    optimizer = SGD([param], lr=1.0, momentum=0.9, dampening=0.5, fused=True)
    for found in (1.0, 0.0):
        param.grad = torch.ones(3)
        optimizer.found_inf = torch.tensor(found)
        optimizer.step()

    assert param.tolist() == [-1.0] * 3  # dampening does not apply to the first


def test_infinities_stay_where_they_are() -> None:
    """What a hyperparameter of 0 switches off must not be multiplied by 0."""
    param = torch.nn.Parameter(torch.tensor([float("inf"), 1.0]))
    param.grad = torch.ones(2)
    optimizer = SGD([param], lr=0.5)
    optimizer.step()

    assert param.tolist() == [float("inf"), 0.5]


def copied_by_a_step(stored: Tensor, like: torch.dtype) -> Tensor:
    """What a momentum buffer of another type holds after its first step: the gradient, stored."""
    param = torch.zeros_like(stored, dtype=like)
    buffer = torch.zeros_like(param)
    work = SimpleNamespace(
        params=[torch.zeros_like(stored)],
        grads=[stored],
        states=[[buffer]],
        steps=[],
        fresh={"momentum_buffer": [True]},
        any_fresh=True,
        facts={},
        group=SGD([torch.nn.Parameter(param)], momentum=0.5).param_groups[0],
    )
    kernel = fused_cpu._kernel(SGD)
    assert not isinstance(kernel, str)
    table, _ = gather(kernel, [work], scaled=False)  # type: ignore[list-item]
    kernel.run(table, SimpleNamespace())  # type: ignore[arg-type]
    return buffer


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_number_of_a_short_type_is_read_as_it_is(dtype: torch.dtype) -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)

    read = copied_by_a_step(every, torch.float32)

    torch.testing.assert_close(read, every.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_are_rounded_to_a_short_type_as_torch_does(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    exponents = torch.randint(-150, 128, (100_000,))
    numbers = torch.randn(100_000) * torch.exp2(exponents.double()).float()
    every = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype).float()
    ties = torch.cat([every, torch.nextafter(every, torch.tensor(torch.inf)), every * 1.001])
    halfway = (every[:-1].double() + every[1:].double()).div(2).float()
    numbers = torch.cat([numbers, ties, halfway])

    stored = copied_by_a_step(numbers, dtype)

    torch.testing.assert_close(stored, numbers.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("way")
def test_types_may_be_mixed() -> None:
    """Each stream is read and stored in its own type."""
    params = parameters(dtype=torch.bfloat16)
    optimizer = SGD(params, lr=0.5, momentum=0.5)
    expected = [torch.zeros(param.shape) for param in params]
    for step in range(4):
        give_gradients(params, step)
        if step == 1:
            for state in optimizer.state.values():
                state["momentum_buffer"] = state["momentum_buffer"].float()
        optimizer.step()
        for param, buffer in zip(params, expected, strict=True):
            assert param.grad is not None
            buffer.mul_(0.5).add_(param.grad.float())

    found = [optimizer.state[param]["momentum_buffer"] for param in params]
    assert [buffer.dtype for buffer in found] == [torch.float32] * len(params)
    assert all(map(torch.equal, found, expected))


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


THREADS = """
import os, torch, optgen.optim
from optgen.runtime.fused_cpu import threads
assert threads.current().parallel, "no OpenMP was found in the process"
def step(count):
    torch.set_num_threads(count)
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(n)) for n in (1_000_003, 17, 500_001)]
    optimizer = optgen.optim.Adam(params, weight_decay=0.1, amsgrad=True)
    for _ in range(3):
        for param in params:
            param.grad = torch.randn_like(param)
        optimizer.step()
    return params
one, three = step(1), step(3)
assert all(map(torch.equal, one, three))
"""


def test_any_number_of_threads_gives_the_same_bits() -> None:
    run(THREADS)


FORK = """
import os, torch, optgen.optim
torch.set_num_threads(3)
param = torch.nn.Parameter(torch.zeros(3_000_000))
param.grad = torch.ones_like(param)
optimizer = optgen.optim.SGD([param], lr=0.5)
optimizer.step()
child = os.fork()
if child == 0:
    try:
        optimizer.step()
    finally:
        os._exit(param[-1].item() != -1.0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_steps_alone() -> None:
    """It has none of its parent's threads, and would wait for them for ever."""
    run(FORK)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Nothing is compiled yet, and nothing is cached."""
    monkeypatch.setattr(fused_cpu, "_kernels", {})
    monkeypatch.setattr(fused_cpu, "_warned", set())
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("no_kernels")
def test_without_a_compiler_steps_are_unfused_and_one_warning_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "find", lambda: None)
    params = parameters()
    give_gradients(params, 0)
    with pytest.warns(UserWarning, match=r"slow.*no C\+\+ compiler.*install g\+\+"):
        Adam(params).step()
    Adam(params).step()
    SGD(params).step()

    assert "no C++ compiler" in optgen.explain(Adam(params))
    with pytest.raises(RuntimeError, match=r"no C\+\+ compiler"):
        Adam(params, fused=True).step()


@pytest.mark.usefixtures("no_kernels")
def test_a_kernel_that_cannot_be_built_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning has the compiler's words; what explain says is one whole sentence."""
    monkeypatch.setattr(fused_cpu, "complete", lambda source: "this is no C++\n")
    params = parameters()
    give_gradients(params, 0)
    way_out = r"could not build fused_cpu\.cpp; set CXX to a compiler that knows C\+\+17"
    with pytest.warns(UserWarning, match=rf"(?s)slow: .*{way_out}\n.*error"):
        Adam(params).step()
    SGD(params).step()  # cannot be built either: the same is not said twice

    assert "could not build" in optgen.explain(SGD(params))
    assert re.fullmatch(rf"group 0: [^:\n]+: \S+ {way_out}", optgen.explain(Adam(params)))


def test_a_state_that_the_flags_promise_must_be_there() -> None:
    """The kernel would follow a null address."""
    param = torch.nn.Parameter(torch.ones(3))
    work = SimpleNamespace(
        params=[param],
        grads=[torch.ones(3)],
        states=[[]],
        steps=[],
        fresh={"momentum_buffer": [False]},
        group=SGD([param], momentum=0.5).param_groups[0],
    )
    kernel = fused_cpu._kernel(SGD)
    assert not isinstance(kernel, str)

    with pytest.raises(RuntimeError, match="sgd needs 'momentum_buffer'"):
        gather(kernel, [work], scaled=False)  # type: ignore[list-item]
