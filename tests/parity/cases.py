"""The algorithms, and the arguments every lowering of them is compared with torch for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from interpreter import INTERPRETED
from torch.optim import Optimizer
from torch.testing._internal.common_optimizers import optim_db

import optgen.optim

Options = Mapping[str, Any]

LR = torch.tensor(0.01, dtype=torch.float64)
OWN: dict[str, list[Options]] = {
    "SGD": [
        {"lr": LR, "momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1, "maximize": True},
        {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1, "maximize": True, "lr": 0.1},
        {"dampening": 0.5},
        {"weight_decay": torch.tensor(0.5, dtype=torch.float64)},
    ],
    "Adam": [
        {"amsgrad": True, "betas": (0.5, 0.6)},
        {"weight_decay": 0.1, "decoupled_weight_decay": True, "amsgrad": True, "maximize": True},
        {"betas": (0.0, 0.0), "eps": 1e-3},
        {"decoupled_weight_decay": True},
        {"lr": 0, "weight_decay": 0.1},
        {"lr": LR, "betas": (torch.tensor(0.8).double(), torch.tensor(0.9).double())},
    ],
    "AdamW": [
        {"weight_decay": 0},
        {"weight_decay": 0.3, "amsgrad": True, "maximize": True, "betas": (0.5, 0.9), "lr": 0.1},
    ],
    "RMSprop": [
        {"momentum": 0.9, "alpha": 0.5},
        {"centered": True, "momentum": 0.9, "weight_decay": 0.1, "maximize": True, "eps": 1e-3},
        {"momentum": 0.9, "weight_decay": 0.1, "maximize": True},
        {"alpha": 0, "eps": 0.1},
        {"lr": LR, "momentum": 0.9},
    ],
    "RAdam": [
        {"betas": (0.9, 0.5)},  # rho never exceeds 5: not rectified at any step
        {"betas": (0.5, 0.9), "weight_decay": 0.1, "maximize": True},
        {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True, "eps": 1e-3},
        {"lr": LR},
    ],
    "NAdam": [
        {"momentum_decay": 0},
        {"betas": (0.5, 0.6), "momentum_decay": 0.5, "eps": 1e-3},
        {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
        {"lr": LR},
    ],
    "Adamax": [
        {"betas": (0.5, 0.6), "eps": 0.5},  # what eps adds decides which of the two is larger
        {"weight_decay": 0.1, "maximize": True},
        {"lr": LR},
    ],
    "Adadelta": [
        {"rho": 0.5, "eps": 1e-3, "lr": 0.1},
        {"rho": 0, "lr": 0.1},
        {"rho": 1},
        {"weight_decay": 0.1, "maximize": True},
        {"lr": LR},
    ],
}
"""Beside the inputs of torch's own tests: flags together, numbers at the ends of their ranges."""

NAMES = tuple(OWN)
LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
"""Triton's interpreter is for a whole process: test_triton.py starts one for the tests here."""


@dataclass(frozen=True, eq=False)
class Case:
    """One class, ours and torch's, with constructor arguments."""

    name: str
    options: Options = field(default_factory=dict)

    def ours(self, params: Any, **more: Any) -> Optimizer:
        optimizer: Optimizer = getattr(optgen.optim, self.name)(params, **self.options, **more)
        return optimizer

    def theirs(self, params: Any, **more: Any) -> Optimizer:
        """Torch's for-loop, unless `more` says otherwise."""
        more = {"foreach": False, **more} if not more.get("fused") else more
        optimizer: Optimizer = getattr(torch.optim, self.name)(params, **self.options, **more)
        return optimizer

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={_short(v)}" for k, v in self.options.items())])


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({' '.join(map(_short, value))})"
    return f"tensor({value.item():g})" if isinstance(value, torch.Tensor) else f"{value}"


def _of_torchs_tests() -> Iterator[Case]:
    for info in optim_db:
        if info.optim_cls.__name__ in NAMES:
            for tested in info.optim_inputs_func(device="cpu"):
                options = {key: _double(value) for key, value in tested.kwargs.items()}
                yield Case(info.optim_cls.__name__, options)


def _double(value: Any) -> Any:
    """Forced lowerings read a float32 tensor as a number, and torch rounds: test_unfused.py."""
    return value.double() if isinstance(value, torch.Tensor) else value


FULL = {
    "SGD": Case("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "Adam": Case("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    "AdamW": Case("AdamW", {"amsgrad": True}),
    "RMSprop": Case("RMSprop", {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    "RAdam": Case("RAdam", {"weight_decay": 0.1}),
    "NAdam": Case("NAdam", {"weight_decay": 0.1}),
    "Adamax": Case("Adamax", {"weight_decay": 0.1}),
    "Adadelta": Case("Adadelta", {"weight_decay": 0.1}),
}
"""One case a class, with every state it can have."""

CASES = sorted(
    [
        *_of_torchs_tests(),
        *(Case(name, options) for name in NAMES for options in OWN[name]),
    ],
    key=lambda case: NAMES.index(case.name),
)
"""Every input of torch's own tests, and ours."""


def steps(case: Case) -> int:
    """How many to compare: fewer of our own where an interpreter takes them."""
    own = any(case.options is options for options in OWN[case.name])
    return 10 if own and INTERPRETED else 50
