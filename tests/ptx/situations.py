"""Steps of the classes of the catalogue with Triton kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fuzz import extra_inputs
from fuzz.build import BuiltRule
from spec_files import CATALOGUE
from torch import Tensor

from benchmarks.classes import accepted_parameters
from benchmarks.triton_catalogue import classes
from optgen import use_lowering
from optgen.ir.algorithm import Algorithm
from optgen.passes.prepare_rule import add_maximize
from optgen.spec.read_spec import read_spec

SHAPES = ((64, 256), (6, 5, 3, 3), (16, 16), (1030,), (3,))
"""Shapes of parameters: whole blocks and short ones, tiles of several shapes, few elements."""

STEPS = 2


def rule_of(name: str) -> BuiltRule:
    """Return a class of the catalogue as the fuzzer runs it, with the checked-in kernels."""
    cls = classes()[name]
    path = CATALOGUE / f"{cls.lowerings.rpartition('.')[2]}.py"
    algorithm = read_spec(path)[0]
    return BuiltRule(path.read_text(encoding="utf-8"), add_maximize(algorithm), cls)


def algorithm_of(cls: Any) -> Algorithm:
    """Return the rule of a class of the catalogue, or of a composition."""
    is_listed = cls.__name__ in classes()
    return rule_of(cls.__name__).algorithm if is_listed else read_spec(cls.spec)[0]


def accepts(cls: Any, shape: tuple[int, ...]) -> bool:
    """Tell whether a class takes parameters of a shape; some take matrices only."""
    return bool(accepted_parameters(cls, [torch.zeros(shape, requires_grad=True)]))


@dataclass(frozen=True)
class Situation:
    """The layout of parameters, and the way that steps are taken."""

    dtype: torch.dtype
    shapes: Sequence[tuple[int, ...]] = SHAPES
    is_misaligned: bool = False  # no tensor begins at a multiple of 16 bytes
    is_scaled: bool = False  # a gradient scaler skips the first step
    options: Mapping[str, Any] = field(default_factory=dict)


def trained(
    cls: Any, situation: Situation, lowering: str, steps: int = STEPS
) -> tuple[list[Tensor], list[Tensor]]:
    """Take steps with a lowering; return the parameters, and the states."""
    generator = torch.Generator().manual_seed(7)

    def draw(shape: Sequence[int]) -> Tensor:
        count = int(torch.tensor(shape).prod())
        start = int(situation.is_misaligned)
        drawn = torch.randn(count + 1, generator=generator, dtype=torch.float64)
        return drawn.to(situation.dtype)[start : start + count].view(*shape)

    drawn = [draw(shape).requires_grad_() for shape in situation.shapes]
    params = accepted_parameters(cls, drawn)
    with use_lowering(lowering):
        optimizer = cls(params, **situation.options)
        for number in range(steps):
            for param in params:
                grad = draw(param.shape)
                is_sparse = cls.rule.gradient == "sparse_only"
                param.grad = grad.to_sparse(1) if is_sparse else grad
            inputs = extra_inputs.draw_inputs(algorithm_of(cls), params, draw, number)
            if situation.is_scaled:
                found_inf = torch.tensor(float(number == 0))
                optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), found_inf
            optimizer.step(**inputs)
    states = [each for param in params for _, each in sorted(optimizer.state[param].items())]
    return [param.detach() for param in params], [x for x in states if isinstance(x, Tensor)]
