"""Test that rules with reductions step shards as one process steps whole parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from distributed import pair
from distributed.cases import difference, shard
from lowerings.phased_rules import RAGGED
from spec_files import spec_file
from torch import distributed, nn

import optgen
from optgen import use_lowering
from optgen.keyed import RowWiseAdagrad
from optgen.optim import Adafactor, Muon
from optgen.runtime.fused_cpu.kernel_loader import load_kernel
from optgen.runtime.fused_cpu.toolchain.dtype_variants import bits_of_dtypes
from optgen.spec import Spec

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

SIZED = '''
from optgen.spec import *

@optimizer(paper="https://example.org")
def Sized(p, g, /, r=state("row", when="factored", shape="row"), *, lr=hyper(1e-2)):
    """A rule that divides by sums for matrices, and by the size for vectors."""
    if factored(p):
        r = 0.5 * r + row_mean(g**2)
        p = p - lr * g / sqrt(r + 1)
    else:
        p = p - lr * g / sqrt(numel(p))
'''
TALL = '''
from optgen.spec import *

@optimizer(paper="https://example.org")
def Tall(
    p, g, /, m=state("m", when="tall"), r=state("row", shape="row", when="tall"),
    *, lr=hyper(1e-2)
):
    """A rule with momentum for tall parameters, whose shards may not be tall."""
    if tall(p):
        m = 0.5 * m + g
        r = 0.5 * r + row_mean(g**2)
        p = p - lr * m / sqrt(r + 1)
    else:
        p = p - lr * g
'''
SPECS = {
    "Ragged": RAGGED,
    "Tall": TALL,
    "Sized": SIZED,
    "LocalVectors": SIZED.replace("Sized", "LocalVectors").replace(" / sqrt(numel(p))", ""),
}
"""Specs of these tests. LocalVectors steps vectors without communication."""
OPTIONS: dict[str, dict[str, Any]] = {
    "Adafactor": {"weight_decay": 0.1, "maximize": True},
    "Muon": {},
    "RowWiseAdagrad": {"weight_decay": 0.1},
    "LAMB": {"lr": 0.02},
    "LARS": {"nesterov": True, "momentum": 0.9, "weight_decay": 0.1},
    "CAME": {"lr": 0.01},
    "NovoGrad": {"weight_decay": 0.1},
    "Amos": {},
    "StableSPAM": {"reset_every": 3},
    "ReducedScalars": {"swap": True},
    "SM3": {},
    "Peaks": {},
    "Ragged": {},
    "Sized": {},
    "LocalVectors": {},
}
SPEC_FILES = {"ReducedScalars": "reduced_scalars"}
"""Names of spec files that are not their class's name in lower case."""
MATRICES = ("Muon", "RowWiseAdagrad", "CAME")
SHAPES_AND_AXES: tuple[tuple[tuple[int, ...], int | None], ...] = (
    ((8, 4), 0),
    ((5, 3), 0),  # unevenly
    ((1, 6), 0),  # one rank has nothing
    ((3, 5), 1),
    ((6, 1), 1),  # one rank has all rows, without elements
    ((8, 4), 0),
    ((7,), 0),
    ((1,), 0),
    ((3, 4, 5), 0),  # matrix by matrix
    ((3, 4, 5), 1),
    ((3, 4, 5), 2),
    ((5, 3), None),  # whole on both ranks
    ((600, 700), 0),  # larger than a block
)
"""Shapes, and the axis along which they are sharded over two ranks."""
THIN_SHAPES = {(600, 700): (8, 52_500)}
"""Replacements for large shapes whose matrix products are slow in bfloat16 on some CPUs."""
LOWERINGS = ("forloop", "foreach", "fused_cpu")
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


@cache
def optimizer_class(name: str) -> Any:
    """Return the class of this name, from this package or from a spec of the tests."""
    for cls in (Adafactor, Muon, RowWiseAdagrad):
        if cls.__name__ == name:
            return cls
    path = spec_file(SPEC_FILES.get(name, name.lower()))
    return optgen.load(path if path.exists() else Spec(name, SPECS[name], f"<{name}>", 1))


class _Comparison:
    """Two optimizers of equal parameters: sharded over two ranks, and whole in this process."""

    def __init__(self, cls: Any, options: Any, shapes: Any, dtype: Any, *mesh: int) -> None:
        self.mesh = distributed.init_device_mesh("cpu", mesh or (2,))
        self.shapes = shapes
        drawn = [torch.randn(shape, dtype=dtype) for shape, _ in shapes]
        self.alone = [nn.Parameter(value.clone()) for value in drawn]
        self.sharded = [
            nn.Parameter(shard(value, _placement(axis), self.mesh))
            for value, (_, axis) in zip(drawn, shapes, strict=True)
        ]
        half = len(drawn) // 2
        self.ours, self.reference = (
            cls([{"params": params[:half]}, {"params": params[half:], "lr": 0.005}], **options)
            for params in (self.sharded, self.alone)
        )

    def step(
        self, lowering: str, without_grad: int | None = None, last_element: float | None = None
    ) -> None:
        """Take a step of both optimizers.

        `without_grad` is the index of a parameter that gets no gradient. The other gradients end
        with `last_element`.
        """
        for index, alone in enumerate(self.alone):
            grad = torch.randn_like(alone) if index != without_grad else None
            if grad is not None and last_element is not None:
                grad.view(-1)[-1] = last_element
            alone.grad = grad
            placement = _placement(self.shapes[index][1])
            self.sharded[index].grad = None if grad is None else shard(grad, placement, self.mesh)
        with use_lowering(lowering):
            self.ours.step()
        with use_lowering("fused_cpu" if lowering == "fused_cpu" else "forloop"):
            self.reference.step()  # CAME and Muon amplify a difference of lowerings in the last bit

    def error(self) -> float:
        """Return the largest difference of a parameter or a state to one process."""
        results = [0.0]
        for ours, alone in zip(self.sharded, self.alone, strict=True):
            results.append(difference(ours.detach(), alone.detach()))
            states, expected = self.ours.state[ours], self.reference.state[alone]
            assert list(states) == list(expected)
            results += [difference(states[key], value) for key, value in expected.items()]
        return max(results)


def _placement(axis: int | None) -> Any:
    from torch.distributed.tensor import Shard

    return None if axis is None else Shard(axis)


def _shapes_of(name: str) -> Any:
    """Return the shapes that a rule can step, and the axes along which they are sharded."""
    shapes = [
        (shape, axis) for shape, axis in SHAPES_AND_AXES if len(shape) == 2 or name not in MATRICES
    ]
    if name == "Muon":
        shapes = [(THIN_SHAPES.get(shape, shape), axis) for shape, axis in shapes]
    return shapes


def _errors_after_training(
    rank: int, cls: Any, options: Any, shapes: Any, lowering: str
) -> dict[str, float]:
    """Return errors, in units of their bounds, by dtype and mesh.

    In fused C++ one kernel for both dtypes is built first. Adafactor's is built for one dtype and
    then for both.
    """
    results = {}
    dtypes_and_meshes: list[Any] = [(torch.float64, ()), (torch.float32, ())]
    if cls is Adafactor:
        dtypes_and_meshes.append((torch.float64, (1, 2)))
    for dtype, mesh in dtypes_and_meshes:
        comparison = _Comparison(cls, options, shapes, dtype, *mesh)
        if lowering == "fused_cpu" and cls is not Adafactor:
            for is_sharded in (False, True):
                load_kernel(comparison.ours, bits_of_dtypes(TOLERANCE), is_sharded)
        for _ in range(4):
            comparison.step(lowering, without_grad=int(torch.randint(len(shapes), ())))
        results[f"{dtype} {mesh}"] = comparison.error() / TOLERANCE[dtype]
    return results


# The for-loop runs foreach's sharded function: one rule is enough to test this.
COMBINATIONS = [
    (name, way) for name in OPTIONS for way in LOWERINGS if way != "forloop" or name == "Muon"
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "lowering"), COMBINATIONS)
def test_two_ranks_step_as_one_process(name: str, lowering: str) -> None:
    for found in pair.run(
        _errors_after_training, optimizer_class(name), OPTIONS[name], _shapes_of(name), lowering
    ):
        assert {way: error for way, error in found.items() if error > 1} == {}


def test_facts_are_those_of_the_whole_parameters_shape() -> None:
    shapes = [((6, 4), 0), ((4, 6), 1)]
    for found in pair.run(_errors_after_training, optimizer_class("Tall"), {}, shapes, "foreach"):
        assert max(found.values()) <= 1


def _states_that_differ(rank: int, cls: Any, shapes: Any, lowering: str, last: float) -> list[str]:
    """Take a step whose gradients end in `last`; return the states that differ from one process."""
    comparison = _Comparison(cls, {}, shapes, torch.float64)
    comparison.step(lowering, last_element=last)
    comparison.step(lowering)
    results = []
    for ours, alone in zip(comparison.sharded, comparison.alone, strict=True):
        for key, value in comparison.reference.state[alone].items():
            state = comparison.ours.state[ours][key]
            whole = state.full_tensor() if hasattr(state, "full_tensor") else state
            assert key == "momentum_buffer" or not value.isfinite().all()
            if not torch.allclose(whole, value, rtol=1e-12, atol=0, equal_nan=True):
                results.append(f"{key} of {tuple(alone.shape)}")
    return results


@pytest.mark.parametrize("last", [math.nan, -math.inf], ids=str)
@pytest.mark.parametrize("lowering", ["foreach", "fused_cpu"])
def test_maxima_of_all_ranks_keep_nan_and_infinity(lowering: str, last: float) -> None:
    for found in pair.run(
        _states_that_differ, optimizer_class("SM3"), _shapes_of("SM3"), lowering, last
    ):
        assert found == []


def _explain_and_error_of_triton(rank: int) -> list[str]:
    """Return `explain` for a sharded parameter and a whole one, and the error of fused Triton."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    params = [nn.Parameter(shard(torch.ones(3, 4), _placement(axis), mesh)) for axis in (0, None)]
    optimizer = Adafactor(params)
    for param, axis in zip(params, (0, None), strict=True):
        param.grad = shard(torch.ones(3, 4), _placement(axis), mesh)
    texts = [optgen.explain(optimizer)]
    optimizer.step()
    optimizer.param_groups[0]["foreach"] = True
    texts.append(optgen.explain(optimizer))
    with use_lowering("fused_triton"), pytest.raises(RuntimeError) as caught:
        optimizer.step()
    return [*texts, str(caught.value)]


def test_explain_distinguishes_sharded_and_whole_parameters() -> None:
    for fused, foreach, triton in pair.run(_explain_and_error_of_triton):
        reason = "phase by phase with the ranks that hold the other shards"
        assert fused.splitlines() == [
            f"group 0: fused C++: CPU tensors, float32; {reason}",
            "group 0: fused C++: CPU tensors, float32",
        ]
        assert foreach.splitlines() == [
            f"group 0: foreach: foreach=True; in lists; {reason}",
            "group 0: foreach: foreach=True",
        ]
        assert "the rule needs whole parameters, and these are sharded: (Shard(dim=0),)" in triton


def _shapes_and_axes_of_states(rank: int) -> list[tuple[Any, ...]]:
    """Return shapes and sharded axes of row and column states; check that they begin with zeros."""
    from torch.distributed.tensor import DTensor

    results = []
    for shape, axis in [((5, 3), 0), ((5, 3), 1), ((3, 4, 5), 0)]:
        comparison = _Comparison(Adafactor, {}, [(shape, axis)], torch.bfloat16)
        comparison.ours.init_state()
        states = comparison.ours.state[comparison.sharded[0]]
        for key in ("row_var", "col_var"):
            state = states[key]
            assert isinstance(state, DTensor)
            assert state.dtype == torch.bfloat16
            assert not state.full_tensor().any()
            assert state.to_local().shape == torch.Size(
                _local_shape(state.shape, _axis(state.placements[0]), rank)
            )
            results.append((tuple(state.shape), _axis(state.placements[0])))
        assert type(states["step"]) is torch.Tensor
    return results


def _axis(placement: Any) -> int | None:
    return None if placement.is_replicate() else int(placement.dim)


def _local_shape(shape: Sequence[int], axis: int | None, rank: int) -> list[int]:
    sizes = list(shape)
    if axis is not None:
        first = math.ceil(sizes[axis] / 2)
        sizes[axis] = first if rank == 0 else sizes[axis] - first
    return sizes


def test_states_of_rows_and_columns_are_sharded_as_their_parameter() -> None:
    for found in pair.run(_shapes_and_axes_of_states):
        assert found == [
            *(((5, 1), 0), ((1, 3), None)),
            *(((5, 1), None), ((1, 3), 1)),
            *(((3, 4, 1), 0), ((3, 1, 5), 0)),
        ]


def _collectives(rank: int, cls: Any, options: Any, shapes: Any) -> list[Counter[str]]:
    """Return the collectives of one step, through each lowering."""
    comparison, found = _Comparison(cls, options, shapes, torch.float32), []
    comparison.step("foreach")
    for lowering in LOWERINGS:
        with count_collectives() as calls:
            comparison.step(lowering)
        found.append(calls)
    return found


@contextmanager
def count_collectives() -> Iterator[Counter[str]]:
    """Yield the counts of the collectives that the block calls, by name."""
    calls: Counter[str] = Counter()
    with ExitStack() as stack:
        for name in ("all_reduce", "all_to_all_single", "all_gather_into_tensor", "broadcast"):
            real = getattr(distributed, name)

            def call(*args: Any, _name: str = name, _real: Any = real, **kwargs: Any) -> Any:
                calls[_name] += 1
                return _real(*args, **kwargs)

            stack.enter_context(mock.patch.object(distributed, name, call))
        yield calls


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("Adafactor", {"all_reduce": 3}),  # sums of squares, of the rows' means, of the update
        ("LAMB", {"all_reduce": 1}),
        ("CAME", {"all_reduce": 5}),
        ("Muon", {"all_to_all_single": 2}),  # matrices out, their shards back
    ],
)
def test_a_step_has_as_many_collectives_as_phases(name: str, calls: dict[str, int]) -> None:
    expected = Counter(calls) + Counter(all_reduce=1)  # the ranks also agree to step
    five_parameters = [
        *_shapes_of(name)[:3],
        *_shapes_of(name)[4:6],
    ]  # all but one are sharded along the first axis

    for shapes in ([((8, 4), 0)], five_parameters, five_parameters * 4):
        for found in pair.run(_collectives, optimizer_class(name), OPTIONS[name], shapes):
            assert found == [expected] * len(LOWERINGS)


def _column_major_error(rank: int, dtype: torch.dtype) -> float:
    """Return the error of shards in column-major memory; the whole parameters are row-major."""
    from torch.distributed.tensor import DTensor

    shapes: Any = [((8, 4), 0), ((9, 8), 1), ((40, 70), 0)]
    comparison = _Comparison(Adafactor, {}, shapes, dtype)
    for index, param in enumerate(comparison.sharded):
        column_major = param.to_local().mT.contiguous().mT
        transposed = nn.Parameter(
            DTensor.from_local(column_major, comparison.mesh, param.placements)
        )
        assert not transposed.to_local().is_contiguous()
        comparison.sharded[index] = transposed
    comparison.ours = Adafactor(comparison.sharded, lr=0.005)
    comparison.reference = Adafactor(comparison.alone, lr=0.005)
    for _ in range(3):
        comparison.step("fused_cpu")
    return comparison.error()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.bfloat16, 2**-7)])
def test_column_major_shards_equal_one_process(dtype: torch.dtype, bound: float) -> None:
    for error in pair.run(_column_major_error, dtype):
        assert error <= bound
