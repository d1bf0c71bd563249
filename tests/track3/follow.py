"""Compare the steps of a result with the steps of its script, written in plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from track3.muons import Values, newton_schulz
from track3.scripts import SCRIPTS
from track3.soaps import schatten

from examples.track3.result import Result, set_options
from optgen import use_lowering
from optgen.runtime.newton_schulz import Iterations

ITERATE = "optgen.runtime.newton_schulz.iterate"
ZERO_SHAPE, SMALL_GRADIENT_SHAPE = (5, 5), (7, 7)
"""Shapes of matrices that start at zero, as in track 3, and of matrices with small gradients."""
MODEL: dict[str, tuple[int, ...]] = {
    "embed.weight": (12, 5),
    "blocks.0.norm1.gains": (9,),
    "blocks.0.attn.q.weight": (6, 6),
    "blocks.0.attn.q.bias": (5,),
    "blocks.0.attn.v.weight": (9, 4),
    "blocks.0.attn.proj.weight": ZERO_SHAPE,
    "blocks.0.mlp.fc.weight": (9, 4),
    "blocks.0.mlp.proj.weight": (4, 9),
    "blocks.1.attn.k.weight": (4, 9),
    "blocks.1.attn.v.weight": (6, 6),
    "blocks.1.attn.proj.weight": (6, 6),
    "blocks.1.mlp.fc.weight": SMALL_GRADIENT_SHAPE,
    "blocks.1.mlp.proj.weight": ZERO_SHAPE,
    "proj.weight": (12, 5),
    "proj.bias": (),
}
"""The parameters of two small blocks."""


class ResultTraining:
    """Parameters and the result's optimizers, which step them through one lowering."""

    def __init__(self, result: Result, lowering: Any, start: dict[str, Tensor]) -> None:
        self.lowering = lowering
        self.params = {name: torch.nn.Parameter(p.clone()) for name, p in start.items()}
        self.optimizers = result.optimizers(self.params.items())

    def step(
        self,
        logged_step: int,
        grads: dict[str, Tensor],
        inputs: dict[str, tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        """Take a step, with the options of a step of the logged training.

        Args:
            logged_step: the number of this step.
            grads: the random parts of the gradients.
            inputs: the covariance of the inputs of each matrix, and the means of their blocks.
        """
        set_options(self.optimizers, logged_step)
        for name, param in self.params.items():
            param.grad = gradient(param.detach(), grads[name])
        with use_lowering(self.lowering), mock.patch(ITERATE, iterate_in_own_dtype):
            of_matrices, *others = self.optimizers
            of_matrices.step(**self.arguments(of_matrices, inputs))
            for optimizer in others:
                optimizer.step()

    def arguments(
        self, optimizer: torch.optim.Optimizer, inputs: dict[str, tuple[Tensor, Tensor]] | None
    ) -> dict[str, list[Tensor]]:
        """Return the extra inputs of a step."""
        if not inputs:
            return {}
        names = {param: name for name, param in self.params.items()}
        params = [param for group in optimizer.param_groups for param in group["params"]]
        pairs = [inputs[names[param]] for param in params]
        return {"input_covariance": [x for x, _ in pairs], "input_blocks": [y for _, y in pairs]}

    def largest_difference(self, expected: dict[str, Tensor]) -> float:
        """Return the largest difference of an element from the expected parameters."""
        pairs = ((self.params[name].detach(), p) for name, p in expected.items())
        return max((p - q).abs().max().item() for p, q in pairs)


def largest_differences(
    result: Result, lowerings: Sequence[Any], only_square: bool = False
) -> list[float]:
    """Return the largest difference of an element of a parameter in any step, per lowering."""
    script = SCRIPTS[result.number]
    generator = torch.Generator().manual_seed(3)
    shapes = {
        name: shape
        for name, shape in MODEL.items()
        if not (only_square and "blocks" in name and len(shape) == 2 and shape[0] != shape[1])
    }

    def random_tensors() -> dict[str, Tensor]:
        options = {"generator": generator, "dtype": torch.float64}
        return {name: torch.randn(shape, **options) for name, shape in shapes.items()}

    expected = {name: p * (shapes[name] != ZERO_SHAPE) for name, p in random_tensors().items()}
    trainings = [ResultTraining(result, lowering, expected) for lowering in lowerings]
    matrices = [name for name, shape in shapes.items() if "blocks." in name and len(shape) > 1]
    memory: dict[str, Values] = {name: {"start": p} for name, p in expected.items()}
    for index, name in enumerate(matrices):
        memory[name]["index"] = index
    largest = [0.0] * len(trainings)
    for index in range(script.test_steps):
        logged_step, grads = index * script.steps // script.test_steps, random_tensors()
        inputs = {}
        if script.reads_inputs and index % 4 == 2:
            inputs = {name: random_inputs(shapes[name][1], generator) for name in matrices}
        for name, pair in inputs.items():
            memory[name]["inputs"] = pair
        for name, p in expected.items():
            step, options = script.step_and_options(name, shapes[name])
            p = step(p, gradient(p, grads[name]), memory[name], options(logged_step))
            expected[name] = (
                script.after_step(p, memory[name], logged_step) if script.after_step else p
            )
        for training in trainings:
            training.step(logged_step, grads, inputs)
        largest = [
            max(earlier, training.largest_difference(expected))
            for earlier, training in zip(largest, trainings, strict=True)
        ]
    return largest


def random_inputs(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a covariance of inputs, of nine inputs in three blocks, and the means of blocks."""
    block = 3 if size == 9 else size
    ones = torch.ones(block, block, dtype=torch.float64)
    means = torch.block_diag(*[ones / block] * (size // block))
    x = torch.randn(20, size, generator=generator, dtype=torch.float64).relu()
    return torch.where(means > 0, x.T @ x / 20, 0), means


def gradient(p: Tensor, noise: Tensor) -> Tensor:
    """Return a gradient that depends on the parameter, so that a difference would persist."""
    return (noise + 0.5 * p) * (1e-8 if p.shape == SMALL_GRADIENT_SHAPE else 1.0)


def iterate_in_own_dtype(tensors: Sequence[Tensor], iterations: Iterations) -> list[Tensor]:
    """Make matrices orthogonal in the dtype that they have."""
    assert iterations.steps == 12
    divisors = {
        "norm": lambda x: x.norm().clamp(min=iterations.eps),
        "spectral": lambda x: schatten(x, iterations.eps),
        "none": lambda x: 1.0,
    }
    divisor, triples = divisors[iterations.divisor], iterations.triples()
    return [newton_schulz(x / divisor(x), triples) for x in tensors]


@contextmanager
def steady_decompositions() -> Iterator[None]:
    """Let torch decompose the sum of a matrix and a fixed one.

    The first covariances of a tall or wide matrix have less than full rank. Then rounding chooses
    some of their eigenvectors, in a script as in a spec. The eigenvectors of the sum do not depend
    on rounding.
    """
    eigh, qr = torch.linalg.eigh, torch.linalg.qr
    with (
        mock.patch("torch.linalg.eigh", lambda x: eigh(x + fixed_matrix(x) + fixed_matrix(x).mT)),
        mock.patch("torch.linalg.qr", lambda x: qr(x + fixed_matrix(x))),
    ):
        yield


def fixed_matrix(x: Tensor) -> Tensor:
    """Return a matrix that only depends on the size of the square matrices of a batch."""
    generator = torch.Generator().manual_seed(x.size(-1))
    return torch.randn(x.shape[-2:], generator=generator, dtype=x.dtype) * 0.1
