"""Test fused C++ steps of shards; one process plays all ranks and combines their reductions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from parity.trajectories import random_values, relative_error
from runtime.fused_cpu.test_phases import Shape, load_rule, many_reductions, restore_thread_count
from torch import Tensor
from torch.nn import Parameter

from optgen.contract.states import FACTS
from optgen.ir.algorithm import Algorithm
from optgen.runtime.batch.batch import Batch, DispatchKey
from optgen.runtime.fused_cpu import kernel_loader
from optgen.runtime.fused_cpu.fill_table import fill_table
from optgen.runtime.fused_cpu.suspending_kernel import SuspendingKernel
from optgen.runtime.rule import State
from optgen.runtime.sharded.driver import Update
from optgen.runtime.sharded.reductions import PartialReduction
from optgen.runtime.tensors.sharding import Sharding
from optgen.runtime.toolchain import dtype_variants

__all__ = ["many_reductions", "restore_thread_count"]  # fixtures

Coordinates = tuple[int, ...]
STEPS = 3


@dataclass(frozen=True)
class Placement:
    """The axis of a parameter that one mesh dimension cuts, as in torch's `Shard`."""

    dim: int


@dataclass(frozen=True)
class Mesh:
    """A mesh as one rank sees it: its coordinates, and its process group in each dimension."""

    shape: tuple[int, ...]
    coordinates: Coordinates

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def get_local_rank(self, dim: int) -> int:
        return self.coordinates[dim]

    def get_group(self, dim: int) -> Any:
        return (dim, *self.coordinates[:dim], None, *self.coordinates[dim + 1 :])


class Rank:
    """One rank's shards of parameters, and everything that its steps need."""

    def __init__(self, optimizer: Any, mesh: Mesh, axes: Sequence[int]) -> None:
        self.optimizer, self.group = optimizer, optimizer.param_groups[0]
        self.members: list[Tensor] = self.group["params"]
        self.mesh, self.axes = mesh, axes
        self.params = [self.shard_of(p.detach()) for p in self.members]
        self.states = [self.states_of(p) for p in self.members]

    def sharding_of(self, whole: Tensor) -> Sharding:
        """Return a parameter's sharding; `self.axes` counts from the end: -1 is the last axis."""
        return Sharding(self.mesh, tuple(Placement(whole.dim() + axis) for axis in self.axes))

    def shard_of(self, whole: Tensor, shape: str = "like") -> Tensor:
        """Return this rank's shard of a parameter, or of its row, column or scalar values."""
        if shape == "scalar":
            return whole.clone()
        axis_of_size_one = {"row": -1, "col": -2}.get(shape)
        for cut in self.sharding_of(whole).sharded_axes():
            if cut.dim - whole.dim() != axis_of_size_one:
                whole = whole.split(cut.sizes(whole.size(cut.dim)), cut.dim)[cut.rank]
        return whole.clone()

    def states_of(self, param: Tensor) -> dict[str, Tensor]:
        """Return the expected shards of a parameter's states."""
        shapes = {state.key: state.shape for state in self.optimizer.rule.states}
        states = self.optimizer.state[param].items()
        return {key: self.shard_of(value, shapes.get(key, "scalar")) for key, value in states}

    def update(self, kernel: SuspendingKernel, grads: Sequence[Tensor]) -> Update:
        """Return a step of all parameters, which suspends at each reduction."""
        batches = list(self._batches(kernel, grads))
        table, copied = fill_table(kernel, batches, unscales=False)
        assert not copied
        return kernel.update(table)

    def _batches(self, kernel: SuspendingKernel, grads: Sequence[Tensor]) -> Iterator[Batch]:
        """Yield batches; the parameters of a batch have equal shardings and facts."""
        indices_by_key: dict[DispatchKey, list[int]] = {}
        for index, member in enumerate(self.members):
            facts = tuple(FACTS[fact](member.shape) for fact in kernel.rule.facts)
            indices_by_key.setdefault(
                DispatchKey(facts=facts, sharding=self.sharding_of(member)), []
            ).append(index)
        for dispatch_key, indices in indices_by_key.items():
            members = [self.members[index] for index in indices]
            shards = [self.shard_of(grads[index]) for index in indices]
            states = [self.states[index] for index in indices]
            yield Batch(
                group=self.group,
                members=members,
                params=[self.params[index] for index in indices],
                grads=shards,
                states=[_column(state, states) for state in kernel.rule.states],
                step_counts=[each["step"] for each in states] if kernel.rule.step else [],
                dicts=[],
                fresh={key: [False] * len(indices) for key in kernel.rule.fresh},
                dispatch_keys=[dispatch_key] * len(indices),
                signature=[],
            )


def _column(state: State, states: list[dict[str, Tensor]]) -> list[Tensor]:
    """Return one state of all parameters; an empty list if the parameters do not have it."""
    return [each[state.key] for each in states] if state.key in states[0] else []


def run_together(updates: Sequence[Update]) -> int:
    """Run the updates of all ranks; return how often each suspended to wait for the others."""
    rounds = 0
    while requests := [
        request for update in updates if (request := next(update, None)) is not None
    ]:
        assert len(requests) == len(updates)
        for partials in zip(*requests, strict=True):
            combine(partials)
        rounds += 1
    return rounds


def combine(partials: Sequence[PartialReduction]) -> None:
    """Combine the partial results of all ranks in place, within each process group."""
    for level in range(len(partials[0].groups)):
        members: dict[Any, list[PartialReduction]] = {}
        for partial in partials:
            members.setdefault(partial.groups[level], []).append(partial)
        for partials_of_group in members.values():
            tensors = torch.stack([partial.tensor for partial in partials_of_group])
            combined = tensors.amax(0) if partials_of_group[0].is_maximum else tensors.sum(0)
            for partial in partials_of_group:
                partial.tensor.copy_(combined)


def ranks_and_kernel(
    cls: Any, shapes: Sequence[Shape], mesh: tuple[int, ...], axes: Sequence[int], **options: Any
) -> tuple[list[Rank], SuspendingKernel]:
    """Return ranks, which hold shards of parameters and states after one step, and a kernel."""
    params = [Parameter(value) for value in random_values(shapes, torch.float64, 0)]
    optimizer = cls(params, **options)
    step_whole_parameters(optimizer, 0)
    kernel = kernel_loader.load_kernel(
        optimizer, dtype_variants.bits_of_dtypes([torch.float64]), suspends=True
    )
    assert isinstance(kernel, SuspendingKernel)
    meshes = [Mesh(mesh, coordinates) for coordinates in product(*map(range, mesh))]
    return [Rank(optimizer, mesh_of_rank, axes) for mesh_of_rank in meshes], kernel


def check_against_whole_parameters(
    cls: Any, shapes: Sequence[Shape], mesh: tuple[int, ...], axes: Sequence[int], **options: Any
) -> int:
    """Check that shards equal parts of whole parameters; return the rounds of the last step."""
    ranks, kernel = ranks_and_kernel(cls, shapes, mesh, axes, **options)
    rounds = 0
    for number in range(1, STEPS):
        grads = step_whole_parameters(ranks[0].optimizer, number)
        rounds = run_together([rank.update(kernel, grads) for rank in ranks])
    for rank in ranks:
        for index, param in enumerate(rank.members):
            assert relative_error(rank.params[index], rank.shard_of(param.detach())) < 1e-12, (
                param.shape
            )
            for key, value in rank.states_of(param).items():
                found = rank.states[index][key]
                assert relative_error(found, value) < 1e-12, (param.shape, key)
    return rounds


def step_whole_parameters(optimizer: Any, number: int) -> list[Tensor]:
    """Step whole parameters; return the gradients."""
    params = optimizer.param_groups[0]["params"]
    grads = random_values([tuple(p.shape) for p in params], torch.float64, 100 + number)
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()
    optimizer.step()
    return grads


MATRICES = [(5, 7), (1, 1), (1, 40), (40, 1), (300, 200), (2, 5000), (5000, 2), (700, 900)]
MATRIX_STACKS = [(3, 4, 5), (5, 70, 80), (1, 3, 3), (2, 1, 3), (64, 3, 3)]
CUT_ROWS, CUT_COLUMNS = ((2,), (-2,)), ((2,), (-1,))
# Each cut is the shape of a mesh, and the axis that each mesh dimension cuts.
CUTS = [CUT_ROWS, CUT_COLUMNS, ((3,), (-2,)), ((2, 2), (-2, -1)), ((2, 2), (-2, -2))]


@pytest.mark.parametrize(("mesh", "axes"), CUTS, ids=str)
def test_shards_of_adafactor_step_like_whole_parameters(
    mesh: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    cls, _ = load_rule("adafactor")
    rounds = check_against_whole_parameters(
        cls, [*MATRICES, *MATRIX_STACKS], mesh, axes, weight_decay=0.1
    )
    # Reductions of rows and columns, the mean over all rows, the size of the update.
    assert rounds == (3 if -2 in axes else 2)


@pytest.mark.parametrize(("mesh", "axes"), [((2,), (-3,)), ((2, 2), (-3, -1))], ids=str)
def test_shards_of_matrix_stacks_step_like_whole_parameters(
    mesh: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    assert check_against_whole_parameters(load_rule("adafactor")[0], MATRIX_STACKS, mesh, axes) == 2


@pytest.mark.parametrize("shapes", [[(3, 3, 3)], [(7, 64, 60), (3, 1, 1)]])
def test_ranks_with_small_whole_matrices_wait_once(shapes: list[Shape]) -> None:
    """A rank has all elements of its rows and columns, and waits only for the update's norm."""
    assert check_against_whole_parameters(load_rule("adafactor")[0], shapes, (2,), (-3,)) == 1


@pytest.mark.parametrize("name", ["adafactor", "lamb", "lars"])
def test_ranks_with_parts_of_vectors_wait_once(name: str) -> None:
    shapes = [(1,), (2,), (1025,), (70_001,)]
    assert check_against_whole_parameters(load_rule(name)[0], shapes, (3,), (-1,)) == 1


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("name", ["novograd", "stable_spam", "reduced_scalars"])
@pytest.mark.parametrize(("mesh", "axes"), CUTS, ids=str)
def test_shards_with_scalars_computed_from_reductions_step_like_whole_parameters(
    mesh: tuple[int, ...], axes: tuple[int, ...], name: str
) -> None:
    check_against_whole_parameters(load_rule(name)[0], [*MATRICES, *MATRIX_STACKS], mesh, axes)


@pytest.mark.parametrize(("mesh", "axes"), CUTS, ids=str)
def test_shards_of_came_step_like_whole_parameters(
    mesh: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    check_against_whole_parameters(load_rule("came")[0], MATRICES[1:], mesh, axes, lr=0.01)


@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize(("mesh", "axes"), CUTS, ids=str)
def test_shards_read_old_values_of_rows_and_columns(
    mesh: tuple[int, ...], axes: tuple[int, ...], by_row: bool
) -> None:
    check_against_whole_parameters(
        load_rule("old_factors")[0], [*MATRICES, *MATRIX_STACKS], mesh, axes, by_row=by_row
    )


@pytest.mark.parametrize(("mesh", "axes"), CUTS, ids=str)
def test_shards_of_a_rule_with_many_reductions_step_like_whole_parameters(
    mesh: tuple[int, ...], axes: tuple[int, ...], many_reductions: tuple[Any, Algorithm]
) -> None:
    shapes = [*MATRICES, *MATRIX_STACKS]
    check_against_whole_parameters(
        many_reductions[0], shapes, mesh, axes, momentum=0.9, scaled=True
    )


@pytest.mark.usefixtures("restore_thread_count")
def test_results_have_the_same_bits_for_any_number_of_threads() -> None:
    """The kernel uses several threads from 16 MB on."""
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        ranks, kernel = ranks_and_kernel(
            load_rule("adafactor")[0], [(3000, 1000), (5, 7), (2000, 2)], *CUT_ROWS
        )
        run_together(
            [rank.update(kernel, step_whole_parameters(rank.optimizer, 1)) for rank in ranks]
        )
        states = [value for rank in ranks for each in rank.states for value in each.values()]
        results.append([*states, *(param for rank in ranks for param in rank.params)])
    assert all(map(torch.equal, *results))


def test_an_update_closed_early_leaves_no_partial_sums() -> None:
    """An update ends early if another rank fails."""
    ranks, kernel = ranks_and_kernel(load_rule("adafactor")[0], [(5, 7)], *CUT_ROWS)
    grads = step_whole_parameters(ranks[0].optimizer, 1)
    update = ranks[0].update(kernel, grads)
    next(update)
    update.close()
    assert run_together([rank.update(kernel, grads) for rank in ranks]) == 3
