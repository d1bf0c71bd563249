"""foreach: fewest calls, least traffic, little extra memory; and what its text looks like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowerings.memory import Peak, Traffic
from lowerings.rules import RULES, function
from torch.optim import Optimizer

import optgen.optim
from optgen.lowerings.foreach import FOREACH
from optgen.runtime import slices

TRAFFIC: list[tuple[str, dict[str, Any], tuple[int, float], tuple[int, float]]] = [
    ("SGD", {}, (1, 3), (1, 3)),
    ("SGD", {"weight_decay": 0.1}, (2, 6), (2, 6)),
    ("SGD", {"momentum": 0.9}, (3, 8), (3, 8)),
    ("SGD", {"momentum": 0.9, "nesterov": True}, (4, 11), (4, 11)),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}, (4, 11), (4, 11)),
    (
        "SGD",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
        (6, 16),
        (6, 16),
    ),
    ("Adam", {}, (7, 18), (6, 16)),
    ("Adam", {"weight_decay": 0.1}, (8, 21), (7, 19)),
    ("Adam", {"amsgrad": True}, (8, 21), (7, 19)),
    ("Adam", {"maximize": True}, (8, 20), (7, 18)),
    ("AdamW", {}, (8, 20), (7, 18)),
    ("AdamW", {"amsgrad": True}, (9, 23), (8, 21)),
    ("NAdam", {}, (8, 22), (7, 20)),
    ("NAdam", {"weight_decay": 0.1}, (9, 25), (8, 23)),
    ("RAdam", {}, (9, 22), (6, 16)),
    ("RAdam", {"weight_decay": 0.1}, (10, 25), (7, 19)),
    ("Adamax", {}, (6, 16), (6, 16)),
    ("Adamax", {"weight_decay": 0.1}, (7, 19), (7, 19)),
    ("Adadelta", {}, (11, 27), (11, 27)),
    ("Adadelta", {"weight_decay": 0.1}, (12, 30), (12, 30)),
    ("RMSprop", {}, (5, 13), (5, 13)),
    ("RMSprop", {"weight_decay": 0.1}, (6, 16), (6, 16)),
    ("RMSprop", {"momentum": 0.9}, (7, 18), (7, 18)),
    ("RMSprop", {"centered": True}, (7, 19), (7, 19)),
    (
        "RMSprop",
        {"centered": True, "momentum": 0.9, "weight_decay": 0.1},
        (10, 27),
        (10, 27),
    ),
]
"""Calls, and elements read and written for each of a parameter's: torch's foreach, then ours."""
ELEMENTS = (100, 300, 200)


def traffic(optimizer: Optimizer) -> tuple[int, float]:
    """Of one step late enough for RAdam to be rectified; calls on step counts alone left out."""
    params = optimizer.param_groups[0]["params"]
    for _ in range(8):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    with Traffic() as seen:
        optimizer.step()
    return seen.calls, (seen.read + seen.written) / sum(ELEMENTS)


def params() -> list[torch.Tensor]:
    return [torch.nn.Parameter(torch.ones(size)) for size in ELEMENTS]


@pytest.mark.parametrize(("name", "options", "theirs", "ours"), TRAFFIC, ids=str)
def test_calls_and_traffic(
    name: str, options: dict[str, Any], theirs: tuple[int, float], ours: tuple[int, float]
) -> None:
    reference = getattr(torch.optim, name)(params(), foreach=True, **options)
    found = traffic(getattr(optgen.optim, name)(params(), foreach=True, **options))

    assert traffic(reference) == theirs
    assert found == ours
    assert found[0] <= theirs[0]
    assert found[1] <= theirs[1]


LIMIT = 64 * 2**20
CASES = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
    "Adam": {"weight_decay": 0.1, "amsgrad": True, "maximize": True},
    "AdamW": {"amsgrad": True, "maximize": True},
    "RMSprop": {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "maximize": True},
    "RAdam": {"weight_decay": 0.1, "maximize": True},
    "NAdam": {"weight_decay": 0.1, "maximize": True},
    "Adamax": {"weight_decay": 0.1, "maximize": True},
    "Adadelta": {"weight_decay": 0.1, "maximize": True},
}
"""Every option that could want another temporary."""


def extra(optimizer: Optimizer) -> int:
    """Bytes a second step needs beside parameters, gradients and state."""
    for param in optimizer.param_groups[0]["params"]:
        param.grad = torch.ones_like(param)
    optimizer.step()
    with Peak() as seen:
        optimizer.step()
    return seen.most


def large() -> list[torch.Tensor]:
    """80 MB in tensors of every size: one that must be sliced, and many that are taken in parts."""
    sizes = [2**23 + 5, 2**22 - 1, 2**21, *[2**20] * 5, *[1000] * 50]
    return [torch.nn.Parameter(torch.ones(size)) for size in sizes]


@pytest.mark.parametrize("piece", ["CPU", "GPU"])
@pytest.mark.parametrize("name", CASES)
def test_extra_memory_is_limited(name: str, piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the pieces of a CPU, and with the larger ones that are right for a GPU."""
    if piece == "GPU":
        monkeypatch.setattr(slices, "SLICE", slices.CUT)

    needed = extra(getattr(optgen.optim, name)(large(), foreach=True, **CASES[name]))

    assert 0 < needed <= LIMIT


def test_the_limit_is_not_met_by_whole_lists() -> None:
    """Torch's foreach takes the list at once: what is measured above would show it."""
    reference = torch.optim.Adam(large(), foreach=True, **CASES["Adam"])

    assert extra(reference) > LIMIT


@pytest.mark.parametrize("name", RULES)
def test_text(name: str, golden: Any) -> None:
    golden.check(function(RULES[name], FOREACH, "update"))
