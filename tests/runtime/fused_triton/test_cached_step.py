"""Test that repeated fused Triton steps gather nothing and see every change; interpreted."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from torch import Tensor

import optgen
import optgen.modifiers
import optgen.optim
from optgen import use_lowering
from optgen.runtime import take_step
from optgen.runtime.fused_triton import cached_step, sort_into_buckets, table
from optgen.runtime.fused_triton.cached_step import CachedLaunches

pytest.importorskip("triton")


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


class Gathering:
    """Counts the steps that gather their batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        gather = take_step.gather_batches

        def count(*args: Any) -> Any:
            self.steps += 1
            return gather(*args)

        monkeypatch.setattr(take_step, "gather_batches", count)


@pytest.fixture
def gathering(monkeypatch: pytest.MonkeyPatch) -> Gathering:
    return Gathering(monkeypatch)


@pytest.fixture(autouse=True)
def force_fused_triton() -> Iterator[None]:
    with use_lowering("fused_triton"):
        yield


def parameters(dtype: torch.dtype = torch.float64, matrices: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((3, 4), (4, 3), (2, 2)) if matrices else ((3, 4), (5,), (), (2, 3, 2), (700,))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def give_gradients(params: list[Tensor], step: int, scale: float = 1.0) -> None:
    torch.manual_seed(100 + step)
    for param in params:
        param.grad = torch.randn_like(param) * scale


def two_groups(params: list[Tensor]) -> list[dict[str, Any]]:
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.02}]


Change = Callable[[Any, list[Tensor], int], None]


def train(cls: Any, params: list[Tensor], change: Change, steps: int = 6, **options: Any) -> Any:
    """Take steps, with a change before each from the third on; return the optimizer."""
    optimizer = cls(two_groups(params), lr=0.1, **options)
    for step in range(steps):
        give_gradients(params, step)
        if step > 1:
            change(optimizer, params, step)
        optimizer.step()
    return optimizer


def nothing(optimizer: Any, params: list[Tensor], step: int) -> None:
    pass


def other_rates(optimizer: Any, params: list[Tensor], step: int) -> None:
    optimizer.param_groups[step % 2]["lr"] *= 0.5


def other_memory(optimizer: Any, params: list[Tensor], step: int) -> None:
    params[step % len(params)].data = params[step % len(params)].data.clone()
    for values in optimizer.state.values():
        values |= {key: value.clone() for key, value in values.items()}


def gradients_take_turns(optimizer: Any, params: list[Tensor], step: int) -> None:
    for index, param in enumerate(params[1:]):
        if index % 2 == step % 2:
            param.grad = None
    other_rates(optimizer, params, step)


def assert_equal_to_the_forloop(
    params: list[Tensor], cls: Any, change: Change, **options: Any
) -> None:
    expected = parameters(matrices=cls.rule.name in ("muon", "came"))
    with use_lowering("forloop"):
        train(cls, expected, change, **options)
    for ours, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


NAMES = ["SGD", "AdamW", "Lion", "NAdam", "Adafactor", "LAMB", "Muon", "CAME"]


@inside_interpreter
@pytest.mark.parametrize("change", [nothing, other_rates, other_memory], ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_repeated_steps_gather_nothing(name: str, change: Change, gathering: Gathering) -> None:
    cls = getattr(optgen.optim, name)
    params = parameters(matrices=name in ("Muon", "CAME"))
    optimizer = train(cls, params, change)

    assert gathering.steps == 1
    assert type(optimizer._context.cached_step) is CachedLaunches
    assert_equal_to_the_forloop(params, cls, change)


@inside_interpreter
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adafactor"])
def test_sets_of_gradients_take_turns_without_gathering(name: str, gathering: Gathering) -> None:
    """The rates change in each step, so each plan must upload what changed since its last step."""
    cls = getattr(optgen.optim, name)
    params = parameters()
    train(cls, params, gradients_take_turns, steps=8)

    assert gathering.steps == 3  # all parameters, then each of the two sets
    expected = parameters()
    with use_lowering("forloop"):
        train(cls, expected, gradients_take_turns, steps=8)
    for ours, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


def steps_by_group(
    optimizer: Any, params: list[Tensor], steps: Iterable[tuple[Tensor, Tensor | None, float]]
) -> None:
    """Take steps with these gradients of two parameters, and this rate of the first one's group."""
    for first, second, lr in steps:
        params[0].grad, params[1].grad = first, second
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()


@inside_interpreter
def test_a_plan_that_gathered_steps_have_used_is_brought_up_to_date() -> None:
    """Sparse steps use the plan of the dense group, with another gradient and another rate."""
    dense, other = torch.ones(2, 3, dtype=torch.float64), torch.full((2, 3), 7.0).double()
    rows = torch.sparse_coo_tensor([[1]], torch.ones(1, 3).double(), (2, 3), check_invariants=True)
    params = [torch.zeros(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    optimizer = optgen.optim.SGD([{"params": [param]} for param in params], lr=1.0)
    alone = [(dense, None, 1.0), (dense, None, 1.0)]
    sparse = [(other, rows, 1.0), (other, rows, 2.0)]
    steps_by_group(optimizer, params, [*alone, *sparse, (dense, dense, 1.0), *alone])

    assert params[0].tolist() == [[-26.0] * 3] * 2


@inside_interpreter
def test_a_rate_that_changed_before_a_refused_group_reaches_all_plans() -> None:
    grad = torch.ones(3, dtype=torch.float64)
    params = [torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    optimizer = optgen.optim.SGD([{"params": [param]} for param in params], lr=1.0)
    alone, both = (grad, None), (grad, grad)
    steps_by_group(optimizer, params, [(*both, 1.0), (*both, 1.0), (*alone, 1.0), (*alone, 1.0)])
    optimizer.param_groups[1]["lr"] = "text"
    with pytest.raises(TypeError, match="must be a number"):
        steps_by_group(optimizer, params, [(*both, 5.0)])
    optimizer.param_groups[1]["lr"] = 1.0
    steps_by_group(optimizer, params, [(*both, 5.0), (*alone, 5.0)])

    assert params[0].tolist() == [-14.0] * 3


@inside_interpreter
def test_a_view_repeats_its_launches(gathering: Gathering) -> None:
    ours, theirs = (
        torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    for param, lowering in ((ours, "fused_triton"), (theirs, "forloop")):
        group = {"params": [param.requires_grad_()], "view": (2, 3, 4)}
        optimizer = optgen.optim.Muon([group], lr=0.1)
        with use_lowering(lowering):
            for step in range(4):
                give_gradients([param], step)
                optimizer.step()
                if step == 2 and lowering == "fused_triton":
                    assert gathering.steps == 1

    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@inside_interpreter
def test_a_rate_on_the_device_is_read_in_every_step(gathering: Gathering) -> None:
    lr, param = torch.tensor(1.0, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    param.requires_grad_()
    optimizer = optgen.optim.SGD([param], lr=lr)
    for rate in (1.0, 2.0, 4.0, 8.0):
        lr.fill_(rate)
        param.grad = torch.ones(3, dtype=torch.float64)
        optimizer.step()

    assert (gathering.steps, param.tolist()) == (1, [-15.0] * 3)


@inside_interpreter
def test_a_scaler_is_obeyed_without_waiting(
    gathering: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    param = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = optgen.optim.AdamW([param], lr=1.0, betas=(0.0, 0.0), eps=0.0, weight_decay=0.0)
    flags = iter([0.0, 0.0, 1.0, 0.0])
    for index, flag in enumerate(flags):
        param.grad = torch.full((3,), 8.0, dtype=torch.float64)
        optimizer.grad_scale = torch.tensor(4.0)  # type: ignore[attr-defined]
        optimizer.found_inf = torch.tensor(flag)  # type: ignore[attr-defined]
        if index == 1:
            monkeypatch.setattr(take_step, "is_skipped", None)  # it would wait
        optimizer.step()
        assert param.grad.tolist() == [8.0 if flag else 2.0] * 3

    assert (gathering.steps, param.tolist()) == (1, [-3.0] * 3)


@inside_interpreter
def test_a_state_that_is_given_after_a_skipped_first_step_is_read() -> None:
    """The table of the skipped step says that the momentum is unused."""
    param = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = optgen.optim.SGD([param], lr=1.0, momentum=0.5, dampening=0.5)
    optimizer.grad_scale = torch.tensor(1.0)  # type: ignore[attr-defined]
    for flag in (1.0, 0.0, 0.0):
        param.grad = torch.ones(3, dtype=torch.float64)
        optimizer.found_inf = torch.tensor(flag)  # type: ignore[attr-defined]
        optimizer.step()
        if flag:
            assert not optimizer.state[param]
            optimizer.state[param]["momentum_buffer"] = torch.full((3,), 8.0, dtype=torch.float64)

    assert param.tolist() == [-(4.5 + 2.75)] * 3


@inside_interpreter
def test_unchanged_tensors_upload_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    params = parameters()
    optimizer = optgen.optim.AdamW(two_groups(params))
    give_gradients(params, 0)
    optimizer.step()
    optimizer.step()
    uploads: list[Any] = []
    upload = table.upload

    def record(target: Tensor, values: Any, memory: Any) -> None:
        uploads.append(tuple(target.shape))
        upload(target, values, memory)

    monkeypatch.setattr(table, "upload", record)
    optimizer.step()
    assert uploads == []
    params[3].grad = torch.ones(2, 3, 2, dtype=torch.float64)
    optimizer.step()
    assert uploads == [(5,)]


@inside_interpreter
def test_a_plan_serves_its_streams_only(
    gathering: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = [1]
    monkeypatch.setattr(sort_into_buckets, "current_streams", lambda devices: ((0, current[0]),))
    params = parameters()
    optimizer = optgen.optim.AdamW(params)
    for step, stream in enumerate((1, 1, 2, 2, 1, 2)):
        current[0] = stream
        give_gradients(params, step)
        optimizer.step()

    assert gathering.steps == 2
    assert_equals_adamw(params, 6)


def assert_equals_adamw(params: list[Tensor], steps: int) -> None:
    expected = parameters()
    reference = torch.optim.AdamW(expected, foreach=False)
    for step in range(steps):
        give_gradients(expected, step)
        reference.step()
    for ours, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


@inside_interpreter
def test_a_capture_takes_no_cached_step(
    gathering: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph keeps the tables that it was captured with."""
    params = parameters()
    optimizer = optgen.optim.AdamW(params)
    for step in range(4):
        give_gradients(params, step)
        monkeypatch.setattr(cached_step, "capturing", lambda step=step: step == 2)
        optimizer.step()

    assert gathering.steps == 2
    assert_equals_adamw(params, 4)


@inside_interpreter
def test_devices_are_compared_if_there_are_several(
    gathering: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_step, "_has_several_devices", lambda: True)
    params = parameters()
    optimizer = optgen.optim.AdamW(params)
    give_gradients(params, 0)
    optimizer.step()
    cached: Any = optimizer._context.cached_step
    assert not cached.check(optimizer)  # torch numbers the CPU -1, the plan 0
    cached._planned[0]._devices[:] = type(cached._planned[0]._devices)("i", [-1] * len(params))
    assert cached.check(optimizer)


@inside_interpreter
def test_a_check_changes_nothing() -> None:
    params = parameters()
    optimizer = optgen.optim.AdamW(params)
    for step in range(2):
        give_gradients(params, step)
        optimizer.step()
    give_gradients(params, 2)
    cached: Any = optimizer._context.cached_step
    before, versions = [p.detach().clone() for p in params], [p._version for p in params]
    assert cached.check(optimizer)
    assert all(map(torch.equal, params, before))
    assert [p._version for p in params] == versions
    optimizer.step()
    assert [p._version for p in params] == [version + 1 for version in versions]
    assert_equals_adamw(params, 3)


@inside_interpreter
def test_members_of_a_chain_repeat_their_launches(gathering: Gathering) -> None:
    params, expected = parameters(), parameters()
    chained = optgen.optim.ChainedOptimizer(
        [optgen.optim.Lion(params[:2], lr=0.1), optgen.optim.AdamW(params[2:], lr=0.1)]
    )
    with use_lowering("forloop"):
        alone = [optgen.optim.Lion(expected[:2], lr=0.1), optgen.optim.AdamW(expected[2:], lr=0.1)]
    for step in range(4):
        give_gradients(params, step)
        give_gradients(expected, step)
        chained.step()
        steps_before = gathering.steps
        with use_lowering("forloop"):
            for optimizer in alone:
                optimizer.step()
        gathering.steps = steps_before

    assert gathering.steps == 2
    for ours, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


@inside_interpreter
def test_experts_of_one_shape_take_turns_without_gathering(gathering: Gathering) -> None:
    """The sets of parameters have one plan; their tensors have other places in the optimizer."""
    ours, theirs = (
        [torch.zeros(4, dtype=torch.float64, requires_grad=True) for _ in range(3)] for _ in "ab"
    )
    optimizer, reference = optgen.optim.AdamW(ours), torch.optim.AdamW(theirs, foreach=False)
    for step in range(12):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        for params in (ours, theirs):
            params[step % 3].grad = None
        optimizer.step()
        reference.step()

    assert gathering.steps == 3
    for param, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-11, atol=1e-13)


@inside_interpreter
def test_a_gathered_step_between_repeated_ones_leaves_no_wrong_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gathered step writes other addresses into the table of the plan that repeats."""
    params, expected = parameters(), parameters()
    optimizer, reference = optgen.optim.AdamW(params), torch.optim.AdamW(expected, foreach=False)
    memories = [[torch.zeros_like(p) for p in params] for _ in range(2)]
    for step in range(6):
        give_gradients(params, step)
        give_gradients(expected, step)
        for param, memory in zip(params, memories[step == 2], strict=True):
            memory.copy_(param.grad)  # type: ignore[arg-type]
            param.grad = memory
        cached: Any = optimizer._context.cached_step
        with monkeypatch.context() as patch:
            if step == 2:
                patch.setattr(CachedLaunches, "run", lambda *_: False)
                patch.setattr(CachedLaunches, "is_worth_keeping", lambda _: False)
            optimizer.step()
        if step == 2:
            optimizer._context.cached_step = cached
        reference.step()

    for param, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(param, theirs, rtol=1e-11, atol=1e-13)


@inside_interpreter
def test_plans_that_are_never_repeated_are_soon_not_tried(
    gathering: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = []
    add = CachedLaunches.add
    monkeypatch.setattr(CachedLaunches, "add", lambda *args: added.append(add(*args)))
    monkeypatch.setattr(CachedLaunches, "run", lambda *_: False)
    params = parameters()
    optimizer = optgen.optim.SGD(params)
    for step in range(40):
        give_gradients(params, step)
        optimizer.step()

    assert (gathering.steps, len(added)) == (40, 16 + 1)


@inside_interpreter
def test_gradients_are_left_at_zero_and_may_not_be_shared(gathering: Gathering) -> None:
    params = parameters()
    optimizer = optgen.compose(optgen.optim.AdamW, optgen.modifiers.zero_grad)(params)
    for step in range(4):
        give_gradients(params, step)
        optimizer.step()
        assert not any(param.grad is None or param.grad.any() for param in params)
    assert gathering.steps == 1
    assert_equals_adamw(params, 4)

    params[0].data = params[0].data.clone()
    params.append(params[0].detach().clone().requires_grad_())
    optimizer = optgen.compose(optgen.optim.AdamW, optgen.modifiers.zero_grad)(params)
    give_gradients(params, 0)
    optimizer.step()
    params[-1].grad = params[0].grad
    with pytest.raises(RuntimeError, match="two parameters share a gradient"):
        optimizer.step()
