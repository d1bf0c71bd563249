"""Train parameters twice, sharded over two ranks and whole, by rules that reduce."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from distributed.cases import difference, shard
from lowerings.phased_rules import RAGGED
from spec_files import spec_file
from torch import distributed, nn

import optgen
from optgen import use_lowering
from optgen.keyed import RowWiseAdagrad
from optgen.optim import Adafactor, Muon
from optgen.spec import Spec

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
    "StableSPAM": {"update_proj_gap": 3},
    "ReducedScalars": {"swap": True},
    "SM3": {},
    "Peaks": {},
    "Ragged": {},
    "Sized": {},
    "LocalVectors": {},
}
SPEC_FILES = {"ReducedScalars": "reduced_scalars", "StableSPAM": "stable_spam"}
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


@cache
def optimizer_class(name: str) -> Any:
    """Return the class of this name, from this package or from a spec of the tests."""
    for cls in (Adafactor, Muon, RowWiseAdagrad):
        if cls.__name__ == name:
            return cls
    path = spec_file(SPEC_FILES.get(name, name.lower()))
    return optgen.load(path if path.exists() else Spec(name, SPECS[name], f"<{name}>", 1))


class Comparison:
    """Two optimizers of equal parameters: sharded over two ranks, and whole in this process."""

    def __init__(self, cls: Any, options: Any, shapes: Any, dtype: Any, *mesh: int) -> None:
        self.mesh = distributed.init_device_mesh("cpu", mesh or (2,))
        self.shapes = shapes
        drawn = [torch.randn(shape, dtype=dtype) for shape, _ in shapes]
        self.alone = [nn.Parameter(value.clone()) for value in drawn]
        self.sharded = [
            nn.Parameter(shard(value, placement_of(axis), self.mesh))
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
            placement = placement_of(self.shapes[index][1])
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


def states_that_differ(
    rank: int, cls: Any, shapes: Any, lowering: str, last: float | None
) -> list[str]:
    """Take a step whose gradients end in `last`; return the states that differ from one process.

    None: all gradients are ordinary.
    """
    comparison = Comparison(cls, {}, shapes, torch.float64)
    comparison.step(lowering, last_element=last)
    comparison.step(lowering)
    results = []
    for ours, alone in zip(comparison.sharded, comparison.alone, strict=True):
        for key, value in comparison.reference.state[alone].items():
            state = comparison.ours.state[ours][key]
            whole = state.full_tensor() if hasattr(state, "full_tensor") else state
            assert last is None or key == "momentum_buffer" or not value.isfinite().all()
            if not torch.allclose(whole, value, rtol=1e-12, atol=0, equal_nan=True):
                results.append(f"{key} of {tuple(alone.shape)}")
    return results


def placement_of(axis: int | None) -> Any:
    from torch.distributed.tensor import Shard

    return None if axis is None else Shard(axis)


def shapes_of(name: str) -> Any:
    """Return the shapes that a rule can step, and the axes along which they are sharded."""
    shapes = [
        (shape, axis) for shape, axis in SHAPES_AND_AXES if len(shape) == 2 or name not in MATRICES
    ]
    if name == "Muon":
        shapes = [(THIN_SHAPES.get(shape, shape), axis) for shape, axis in shapes]
    return shapes
