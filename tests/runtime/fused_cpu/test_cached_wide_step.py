"""Test cached steps of wide rules: they have the bits of gathered steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from spec_files import spec_file
from torch import Tensor

import optgen
from optgen import compose, modifiers, optim
from optgen.runtime import take_step

SHAPES = ((3, 4), (7,), (), (2, 3, 5), (0, 4), (1, 9))


@pytest.fixture(scope="module")
def odd_wide() -> Any:
    return optgen.load(spec_file("odd_wide"))


class Twins:
    """Two equal optimizers; the steps of the second are always gathered."""

    def __init__(self, cls: Any, dtypes: tuple[torch.dtype, ...], **options: Any) -> None:
        self.optimizers = tuple(cls(groups(dtypes), **options) for _ in range(2))
        self.cached_steps = 0  # the number of cached steps of the first optimizer

    def step(self, seed: int, without: tuple[int, ...] = ()) -> None:
        """Step both optimizers; the parameters with the indices `without` have no gradients."""
        for optimizer in self.optimizers:
            generator = torch.Generator().manual_seed(seed)
            for index, param in enumerate(all_params(optimizer)):
                grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
                param.grad = None if index in without else grad.to(param.dtype)
            optimizer.step()

    def change_both(self, change: Callable[[Any], object]) -> None:
        for optimizer in self.optimizers:
            change(optimizer)

    def check(self) -> None:
        """Check that parameters, their states and the states of groups are equal."""
        cached, gathered = map(named_tensors, self.optimizers)
        assert cached.keys() == gathered.keys()
        for name, tensor in cached.items():
            assert torch.equal(tensor, gathered[name]), name


def groups(dtypes: tuple[torch.dtype, ...]) -> list[dict[str, Any]]:
    """Return two groups of parameters, whose dtypes alternate."""
    generator = torch.Generator().manual_seed(0)
    params = [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtypes[i % len(dtypes)])
        for i, shape in enumerate(SHAPES * 2)
    ]
    return [{"params": params[:5]}, {"params": params[5:], "lr": 0.05}]


def all_params(optimizer: Any) -> Iterator[Tensor]:
    return (param for group in optimizer.param_groups for param in group["params"])


def named_tensors(optimizer: Any) -> dict[str, Tensor]:
    """Return parameters, their states and the states of groups, by name."""
    results = {}
    for index, group in enumerate(optimizer.param_groups):
        results |= {f"{k} of group {index}": v for k, v in group.items() if isinstance(v, Tensor)}
    for index, param in enumerate(all_params(optimizer)):
        results[f"parameter {index}"] = param
        results |= {f"{k} of {index}": v for k, v in optimizer.state[param].items()}
    return results


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Twins]:
    """Return a function that makes twins and counts the cached steps of the first."""

    def make(*arguments: Any, **options: Any) -> Twins:
        pair = Twins(*arguments, **options)
        take_fast_path = take_step._take_fast_path

        def count_cached_steps(optimizer: Any) -> bool:
            if optimizer is pair.optimizers[1]:
                return False
            is_cached = take_fast_path(optimizer)
            pair.cached_steps += is_cached
            return is_cached

        monkeypatch.setattr(take_step, "_take_fast_path", count_cached_steps)
        return pair

    return make


@pytest.mark.parametrize(
    "dtypes", [(torch.float64,), (torch.float32, torch.bfloat16, torch.float64)], ids=["64", "all"]
)
def test_cached_steps_of_every_kind_of_reduction_equal_gathered_steps(
    twins: Callable[..., Twins], odd_wide: Any, dtypes: tuple[torch.dtype, ...]
) -> None:
    """The second group clips and has no momentum; some steps lack some gradients."""
    pair = twins(odd_wide, dtypes)
    pair.change_both(lambda o: o.param_groups[1].update(clip=0.5, heavy=False))
    for seed, without in enumerate([(), (), (1, 6), (), (0, 1, 2, 3, 4), (), ()]):
        pair.step(seed, without)
        pair.check()
    assert pair.cached_steps >= 2


def test_cached_steps_see_changes_between_steps(twins: Callable[..., Twins], odd_wide: Any) -> None:
    pair = twins(odd_wide, (torch.float32,))

    def add_group(optimizer: Any) -> None:
        optimizer.add_param_group({"params": [torch.ones(4, 3), torch.ones(2)]})

    def load(optimizer: Any) -> None:
        optimizer.load_state_dict(optimizer.state_dict())

    changes: list[Callable[[Any], object]] = [
        lambda o: o.param_groups[0].update(lr=0.01),
        lambda o: o.param_groups[0].update(k=torch.tensor(3.0, dtype=torch.float64)),
        lambda o: o.param_groups[0].update(k=2.5),
        lambda o: o.param_groups[0].update(size=torch.tensor(0.5)),
        lambda o: o.param_groups[1]["k"].fill_(1.5),
        add_group,
        load,
    ]
    for seed, change in enumerate(changes):
        for repeat in range(2):
            pair.step(2 * seed + repeat)
            pair.check()
        pair.change_both(change)
    pair.step(100)
    pair.check()
    assert pair.cached_steps >= len(changes)


def test_infinite_gradients_give_the_norm_of_a_gathered_step(twins: Callable[..., Twins]) -> None:
    """The total norm becomes infinite, or NaN, as it does in a gathered step."""
    pair = twins(compose(optim.SGD, modifiers.clip_norm(1.0)), (torch.float32,), lr=0.1)
    pair.step(0)
    for value in (torch.inf, torch.nan):
        pair.step(1)

        def step_with_value(optimizer: Any, value: float = value) -> None:
            first = next(all_params(optimizer))
            assert first.grad is not None
            first.grad[0, 0] = value
            optimizer.step()

        pair.change_both(step_with_value)
        totals = [o.param_groups[0]["grad_norm"].item() for o in pair.optimizers]
        assert str(totals[0]) == str(totals[1]) == str(value)
    assert pair.cached_steps >= 4


def test_a_gradient_scaler_works_as_in_gathered_steps(twins: Callable[..., Twins]) -> None:
    """Gradients are unscaled before the norm is taken; a step with an infinity is left out."""
    pair = twins(compose(optim.SGD, modifiers.clip_norm(1.0)), (torch.float32,), fused=True, lr=0.1)
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0) for _ in pair.optimizers]
    for factor in (1.0, 1.0, torch.inf, 1.0):
        for optimizer, scaler in zip(pair.optimizers, scalers, strict=True):
            params = list(all_params(optimizer))
            for param in params:
                param.requires_grad_()
            optimizer.zero_grad()
            scaler.scale(sum((p * factor).sum() for p in params)).backward()
            scaler.step(optimizer)
            scaler.update()
        pair.check()


def test_any_number_of_threads_gives_the_same_bits(odd_wide: Any) -> None:
    """One parameter is so large that several threads step it."""
    results = []
    old_count = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            generator = torch.Generator().manual_seed(3)
            params = [torch.randn(shape, generator=generator) for shape in ((700, 900), (9,))]
            optimizer = odd_wide(params)
            for _ in range(2):
                for param in params:
                    param.grad = torch.randn(param.shape, generator=generator)
                optimizer.step()
            results.append(params)
    finally:
        torch.set_num_threads(old_count)
    assert all(map(torch.equal, *results))
