"""List cases, which are classes with arguments, to compare every lowering with torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED
from parity.classes import (
    CLOSURE_CLASSES,
    DENSE_CLASSES,
    INFOS,
    NAMES,
    SPARSE_CLASSES,
    torch_has_flag,
)
from torch.optim import Optimizer
from torch_versions import HAS_2_14

import optgen.optim

Options = Mapping[str, Any]

LR = torch.tensor(0.01, dtype=torch.float64)
OWN_OPTIONS: dict[str, list[Options]] = {
    "Adadelta": [
        {"rho": 0.5, "eps": 1e-3, "lr": 0.1},
        {"rho": 0, "lr": 0.1},
        {"rho": 1},
        {"weight_decay": 0.1, "maximize": True},
        {"lr": LR},
    ],
    "Adafactor": [
        {"eps": (1e-8, 1e-2), "d": 2.0, "weight_decay": 0.1, "maximize": True},
        {"beta2_decay": 0, "lr": 1.0},
        {"lr": LR, "weight_decay": 0.1},
    ],
    "Adagrad": [
        {"initial_accumulator_value": 0.5, "lr_decay": 0.1, "weight_decay": 0.1, "maximize": True},
        {"eps": 0.1, "lr_decay": 2},
        {"lr": LR, "lr_decay": 0.1},
    ],
    "Adam": [
        {"amsgrad": True, "betas": (0.5, 0.6)},
        {"weight_decay": 0.1, "decoupled_weight_decay": True, "amsgrad": True, "maximize": True},
        {"betas": (0.0, 0.0), "eps": 1e-3},
        {"decoupled_weight_decay": True},
        {"lr": 0, "weight_decay": 0.1},
        {"lr": LR, "betas": (torch.tensor(0.8).double(), torch.tensor(0.9).double())},
    ],
    "Adamax": [
        {"betas": (0.5, 0.6), "eps": 0.5},  # eps decides which operand of the maximum is larger
        {"weight_decay": 0.1, "maximize": True},
        {"lr": LR},
    ],
    "AdamW": [
        {"weight_decay": 0},
        {"weight_decay": 0.3, "amsgrad": True, "maximize": True, "betas": (0.5, 0.9), "lr": 0.1},
    ],
    "ASGD": [
        {"t0": 10, "lambd": 0.1, "alpha": 0.5, "weight_decay": 0.1, "maximize": True, "lr": 0.1},
        {"t0": 0, "alpha": 0},
        {"lr": LR, "t0": 20},
    ],
    "LBFGS": [
        {"max_iter": 5, "history_size": 3},
        {"max_iter": 6, "max_eval": 4, "lr": 0.5},
        {"max_iter": 5, "line_search_fn": "strong_wolfe", "history_size": 2},
        {"lr": LR, "max_iter": 3},
    ],
    "Muon": [
        {"nesterov": False, "lr": 0.02},
        {"adjust_lr_fn": "match_rms_adamw", "weight_decay": 0},
        {"adjust_lr_fn": "original", "momentum": 0, "ns_steps": 3, "eps": 1e-3},
        *([{"adjust_lr_fn": "spectral_unclamped"}] if HAS_2_14 else []),
        {"lr": LR, "weight_decay": 0.2},
    ],
    "NAdam": [
        {"momentum_decay": 0},
        {"betas": (0.5, 0.6), "momentum_decay": 0.5, "eps": 1e-3},
        {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
        {"lr": LR},
    ],
    "RAdam": [
        {"betas": (0.9, 0.5)},  # rho never exceeds 5, so no step is rectified
        {"betas": (0.5, 0.9), "weight_decay": 0.1, "maximize": True},
        {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True, "eps": 1e-3},
        {"lr": LR},
    ],
    "RMSprop": [
        {"momentum": 0.9, "alpha": 0.5},
        {"centered": True, "momentum": 0.9, "weight_decay": 0.1, "maximize": True, "eps": 1e-3},
        {"momentum": 0.9, "weight_decay": 0.1, "maximize": True},
        {"alpha": 0, "eps": 0.1},
        {"lr": LR, "momentum": 0.9},
    ],
    "Rprop": [
        {"etas": (0.3, 1.7), "step_sizes": (1e-3, 0.1), "maximize": True},
        {"lr": LR},
    ],
    "SGD": [
        {"lr": LR, "momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1, "maximize": True},
        {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1, "maximize": True, "lr": 0.1},
        {"dampening": 0.5},
        {"weight_decay": torch.tensor(0.5, dtype=torch.float64)},
    ],
    "SparseAdam": [
        {"betas": (0.5, 0.6), "eps": 1e-3, "lr": 0.1, "maximize": True},
        {"lr": LR},
    ],
}
"""Inputs that torch's tests lack: several flags at once, numbers at the limits of their range."""

LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
"""Lowerings that this process tests. test_triton.py starts a process for Triton's interpreter."""


@dataclass(frozen=True, eq=False)
class Case:
    """The name of a class, which torch and optgen have, and constructor arguments."""

    name: str
    options: Options = field(default_factory=dict)

    @property
    def torch_class(self) -> type[Optimizer]:
        """Return torch's class."""
        cls: type[Optimizer] = getattr(torch.optim, self.name)
        return cls

    def ours(self, params: Any, **more: Any) -> Optimizer:
        """Return optgen's optimizer."""
        optimizer: Optimizer = getattr(optgen.optim, self.name)(params, **self.options, **more)
        return optimizer

    def theirs(self, params: Any, **more: Any) -> Optimizer:
        """Return torch's optimizer; it uses its for-loop, unless `more` has other flags."""
        if torch_has_flag(self.name, "foreach") and not more.get("fused"):
            more = {"foreach": False, **more}
        return self.torch_class(params, **self.options, **more)  # type: ignore[arg-type]

    def with_float64_tensors(self) -> Case:
        """Return the case with float64 in place of other dtypes of tensor arguments.

        With a float32 tensor, torch's for-loop rounds to float32, and a forced lowering does not.
        tests/optim/test_tensor_hypers.py tests this difference.
        """
        tensors = [value for value in self.options.values() if isinstance(value, torch.Tensor)]
        if all(tensor.dtype == torch.float64 for tensor in tensors):
            return self
        return replace(self, options={key: _double(v) for key, v in self.options.items()})

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={_short(v)}" for k, v in self.options.items())])


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({' '.join(map(_short, value))})"
    return f"tensor({value.item():g})" if isinstance(value, torch.Tensor) else f"{value}"


def _cases_of_torchs_tests(name: str) -> Iterator[Case]:
    for optim_input in INFOS[name].optim_inputs_func(device="cpu"):
        yield Case(name, optim_input.kwargs).with_float64_tensors()


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) else value


_OPTIONS_WITH_ALL_STATES: dict[str, Options] = {
    "Adadelta": {"weight_decay": 0.1},
    "Adafactor": {"weight_decay": 0.1},
    "Adagrad": {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1},
    "Adam": {"weight_decay": 0.1, "amsgrad": True},
    "Adamax": {"weight_decay": 0.1},
    "AdamW": {"amsgrad": True},
    "ASGD": {"t0": 5, "lambd": 0.1, "weight_decay": 0.1},
    "LBFGS": {"max_iter": 4},
    "Muon": {},
    "NAdam": {"weight_decay": 0.1},
    "RAdam": {"weight_decay": 0.1},
    "RMSprop": {"centered": True, "momentum": 0.9, "weight_decay": 0.1},
    "Rprop": {"step_sizes": (1e-3, 0.1)},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "SparseAdam": {},
}
CASE_OF_CLASS = {name: Case(name, _OPTIONS_WITH_ALL_STATES[name]) for name in NAMES}
"""One case for each class, with every state that it can have."""
CASE_OF_DENSE_CLASS = {name: CASE_OF_CLASS[name] for name in DENSE_CLASSES}
"""The cases of classes that take a dense gradient of any shape."""

_TORCHS_CASES = [case for name in NAMES for case in _cases_of_torchs_tests(name)]
_OWN_CASES = [
    *(Case(name, options) for name in NAMES for options in OWN_OPTIONS[name]),
    *CASE_OF_CLASS.values(),
]
CASES = list({str(case): case for case in [*_TORCHS_CASES, *_OWN_CASES]}.values())
"""Every input of torch's own tests and of ours, each once."""
INTERPRETED_CASES = list({str(case): case for case in _OWN_CASES}.values())
"""Only our own inputs, because an interpreter is slow. They set every flag that torch's set."""


def forcible_lowerings(name: str) -> tuple[str, ...]:
    """Return the lowerings that this process tests and a class can be forced to use."""
    if name in CLOSURE_CLASSES:
        return ()
    return tuple(
        x for x in LOWERINGS if name not in SPARSE_CLASSES or x in ("forloop", "fused_cpu")
    )


def cases_and_lowerings(cases: Iterable[Case], also_unforced: bool = False) -> list[Any]:
    """Return a test's arguments `case, lowering`; None lets the optimizer choose its lowering."""
    return [
        pytest.param(case, lowering, id=f"{case}-{lowering}")
        for case in cases
        for lowering in ([None] * also_unforced + [*forcible_lowerings(case.name)])
    ]


def step_count(case: Case) -> int:
    """Return how many steps to compare: fewer if a step is slow."""
    if case.name in CLOSURE_CLASSES:
        return 4  # each step has up to 20 iterations
    if INTERPRETED:
        return 10 if case.name == "RAdam" else 5  # RAdam's sixth step is the first rectified one
    return 50
