"""Test that rules on whole matrices step each sharded parameter as a whole, on one of its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from distributed import pair
from distributed.collectives import count_collectives
from distributed.shards import difference, shard
from distributed.whole_matrices import (
    CASES,
    MESHES,
    differences,
    differences_after_checkpoints,
    differences_after_full_states,
    differences_on_mesh,
    full_tensor,
    optimizer_class,
)
from torch import distributed, nn

from optgen import explain
from optgen.runtime.eager import tensor_lists

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Callable[..., list[Any]]]:
    for name in CASES:
        optimizer_class(name)  # writes the generated files, which the four processes then read
    with pair.processes(4) as run:
        yield run


@pytest.mark.one_case_in(5)
@pytest.mark.parametrize("mesh", MESHES)
def test_ranks_follow_one_process(mesh: str, four_ranks: Callable[..., list[Any]]) -> None:
    for found in four_ranks(differences_on_mesh, mesh, limit=600):
        assert found == {}


def test_training_continues_on_another_number_of_ranks(
    tmp_path: Path, four_ranks: Callable[..., list[Any]]
) -> None:
    for rule in ("shampoo", "dion"):
        for found in four_ranks(differences_after_checkpoints, rule, str(tmp_path / rule)):
            assert found == {}


@pytest.mark.parametrize("rule", ["shampoo", "dion"])
def test_training_continues_from_full_states_of_rank_0(rule: str) -> None:
    for found in pair.run(differences_after_full_states, rule):
        assert found == {}


def _sharded_and_whole_optimizer(
    rule: str, shape: tuple[int, ...], **group: Any
) -> tuple[Any, Any]:
    """Return an optimizer of two parameters sharded over two ranks, and one of equal whole ones."""
    from torch.distributed.tensor import Shard

    mesh = distributed.init_device_mesh("cpu", (2,))
    drawn = [torch.randn(shape, dtype=torch.float64) for _ in range(2)]
    sharded = [nn.Parameter(shard(value, Shard(0), mesh)) for value in drawn]
    alone = [nn.Parameter(value) for value in drawn]
    return tuple(optimizer_class(rule)([{"params": each, **group}]) for each in (sharded, alone))  # type: ignore[return-value]


def _step(*optimizers: Any) -> None:
    """Take a step of each optimizer, without batched calls, which round differently."""
    with mock.patch.object(tensor_lists, "BATCHED_ELEMENTS", 0):
        for optimizer in optimizers:
            for param in optimizer.param_groups[0]["params"]:
                param.grad = torch.cos(param.detach())
            optimizer.step()


def _collectives(rank: int, shape: tuple[int, ...], group: dict[str, Any]) -> Any:
    ours, reference = _sharded_and_whole_optimizer("shampoo", shape, **group)
    _step(ours, reference)
    with count_collectives() as calls:
        _step(ours, reference)
    states = ours.state[ours.param_groups[0]["params"][0]]
    sizes = {key: tuple(states[key].to_local().shape) for key in ("gram_left", "gram_right")}
    return calls, sizes, differences(ours, reference), explain(ours)


def test_matrices_are_sent_and_their_shards_come_back() -> None:
    for calls, sizes, differing, text in pair.run(_collectives, (8, 4), {}):
        assert calls == Counter(all_reduce=1, all_to_all_single=2)  # and the ranks agree
        assert sizes == {"gram_left": (4, 8), "gram_right": (2, 4)}
        assert differing == {}
        assert "each whole parameter on one of the ranks that hold its shards" in text


@pytest.mark.parametrize(("shape", "view"), [((2, 4, 3), None), ((8, 3), (2, 4, 3))])
def test_matrices_of_one_rank_stay_there(shape: Any, view: Any) -> None:
    group = {} if view is None else {"view": view}
    for calls, sizes, differing, text in pair.run(_collectives, shape, group):
        assert "; in lists; each whole matrix on the rank that holds it" in text
        assert calls == Counter(all_reduce=1)
        assert sizes == {"gram_left": (1, 4, 4), "gram_right": (1, 3, 3)}
        assert differing == {}


def test_a_view_of_rows_equals_one_process() -> None:
    for _, sizes, differing, _ in pair.run(_collectives, (4, 2, 3), {"view": (4, 6)}):
        assert sizes == {"gram_left": (2, 4), "gram_right": (3, 6)}
        assert differing == {}


def _errors_in_other_dtypes(rank: int) -> list[float]:
    """Return errors of bfloat16 parameters, and of float32 parameters with bfloat16 gradients."""
    from torch.distributed.tensor import Shard

    mesh, found = distributed.init_device_mesh("cpu", (2,)), []
    for dtype, grad_dtype in [(torch.bfloat16, None), (torch.float32, torch.bfloat16)]:
        value = torch.randn(5, 4).to(dtype)
        sharded, alone = nn.Parameter(shard(value, Shard(0), mesh)), nn.Parameter(value)
        optimizers = [optimizer_class("one_sided_shampoo")([param]) for param in (sharded, alone)]
        for param, optimizer in zip((sharded, alone), optimizers, strict=True):
            param.grad_dtype = grad_dtype
            for step in range(3):
                param.grad = torch.cos(param.detach() * step).to(grad_dtype or dtype)
                optimizer.step()
        found.append(difference(full_tensor(sharded.detach()), alone.detach()))
    return found


def test_parameters_and_gradients_of_other_dtypes_equal_one_process() -> None:
    for found in pair.run(_errors_in_other_dtypes):
        assert max(found) < 1e-6


def _error_of_spoilt_step(rank: int, case: str) -> str:
    """Spoil the second step on rank 1; return the error and check that nothing has changed."""
    ours, _ = _sharded_and_whole_optimizer("dion", (5, 4), rank=2)
    (group,) = ours.param_groups
    _step(ours)
    first = group["params"][0]
    states = ours.state[first]
    if rank == 1:
        if case == "plain":
            states["Q"] = states["Q"].to_local()
        elif case == "rank":
            group["rank"] = 3
        elif case == "seed":
            group["seed"] = 1
    if case == "differentiable":
        group["differentiable"] = True
    before = first.detach().to_local().clone()
    with pytest.raises(RuntimeError) as caught:
        ours.step()
    assert torch.equal(first.detach().to_local(), before)
    return str(caught.value)


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        ("plain", "another rank could not", "Q is a plain tensor, but beside its parameter"),
        ("rank", "another rank could not", "rank=3 and the shape (5, 4) of its parameter"),
        ("seed", "different steps", "different steps"),
        ("differentiable", "needs whole parameters", "needs whole parameters"),
    ],
)
def test_all_ranks_step_or_none(case: str, first: str, second: str) -> None:
    for message, expected in zip(
        pair.run(_error_of_spoilt_step, case), (first, second), strict=True
    ):
        assert expected in message
