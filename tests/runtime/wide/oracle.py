"""Run wide rules beside the float64 oracle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from interpreter import INTERPRETED
from runtime.wide.rule_texts import SPECS_IN_TEXTS
from spec_files import spec_file
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.ir.evaluate import Member, evaluate_together
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
SPECS_IN_FILES = ("odd_wide", "prodigy", "dadapt_adam", "clipped_lamb")
ODD_WIDE: Any = optgen.load(spec_file("odd_wide"))
PRODIGY: Any = optgen.load(spec_file("prodigy"))
SHAPES = ((3, 4), (5,), (3, 4), (), (2, 2, 3), (0, 3))
LARGE_SHAPES = ((300, 700), (5,), (40_000,), (300, 700), (3, 5000))


def parameters(shapes: Sequence[Any] = SHAPES, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def two_groups(params: list[Tensor], cls: Any = None) -> list[dict[str, Any]]:
    """Return two groups with rates of their own, or with decays if the class has one rate."""
    has_one_lr = cls is not None and "lr" in cls.rule.equal_or_0
    options = {"weight_decay": 0.1} if has_one_lr else {"lr": 0.05}
    return [{"params": params[:2]}, {"params": params[2:], **options}]


def give_gradients(optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)


def step(optimizer: torch.optim.Optimizer, seed: int) -> None:
    give_gradients(optimizer, seed)
    optimizer.step()


class Oracle:
    """The rule in float64, for the parameters of an optimizer."""

    def __init__(self, spec: str | Path | Spec, optimizer: Any) -> None:
        source = spec_file(spec) if isinstance(spec, str) else spec
        (self.algorithm,) = read_spec(source)
        self.optimizer = optimizer
        self.group_states: dict[int, dict[str, Any]] = {}  # by the group's number
        self.states_of_all: dict[str, Any] = {}
        # the value and the states of each parameter
        self.values: list[tuple[Tensor, dict[str, Any]]] = [
            (param.detach().double().clone(), {}) for param, _ in self.members()
        ]

    def members(self) -> Iterator[tuple[Tensor, int]]:
        """Yield each parameter and the number of its group."""
        for number, group in enumerate(self.optimizer.param_groups):
            for param in group["params"]:
                yield param, number

    def step(self) -> None:
        """Step the parameters that have a gradient."""
        members = list(self.members())
        indices = [i for i, (param, _) in enumerate(members) if param.grad is not None]
        results = evaluate_together(self.algorithm, [self._member(i, *members[i]) for i in indices])
        for index, (value, state) in zip(indices, results, strict=True):
            self.values[index] = value, state
            own_states = self.group_states.setdefault(members[index][1], {})
            for each in self.algorithm.group_states():
                (self.states_of_all if each.of_all else own_states)[each.key] = state[each.key]

    def _member(self, index: int, param: Tensor, group: int) -> Member:
        options = self.optimizer.param_groups[group]
        hypers = {h.name: options[h.name] for h in self.algorithm.hypers}
        value, state = self.values[index]
        states = {**state, **self.group_states.get(group, {}), **self.states_of_all}
        assert param.grad is not None
        return Member(hypers, value, param.grad, states, torch.float64, group=group)

    def difference(self) -> float:
        """Return the largest difference of a parameter, relative to its largest element."""
        pairs = zip(self.members(), self.values, strict=True)
        return max(
            ((param.detach().double() - value).abs().max() / value.abs().max()).item()
            for (param, _), (value, _) in pairs
            if value.numel()
        )


def check_against_oracle(spec: Path | Spec, lowering: str, shapes: Any) -> None:
    """Check that parameters equal the oracle's after each of four steps."""
    cls: Any = optgen.load(spec)
    optimizer = cls(two_groups(parameters(shapes), cls))
    oracle = Oracle(spec, optimizer)
    for seed in range(4):
        give_gradients(optimizer, seed)
        oracle.step()
        with use_lowering(lowering):
            optimizer.step()
        assert oracle.difference() < 1e-12


# Triton has no reductions over parameters inside branches, which OddWide has.
WIDE_SPEC = SPECS_IN_TEXTS["together"] if INTERPRETED else spec_file("odd_wide")
WIDE_OPTIMIZER: Any = optgen.load(WIDE_SPEC)
