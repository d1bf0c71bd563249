"""Test that foreach has few calls, little traffic, and little extra memory for any model size."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lowerings.memory import Traffic, peak_bytes
from parity.classes import CLOSURE_CLASSES, MATRIX_CLASSES, NAMES, SPARSE_CLASSES, torch_has_flag
from torch.optim import Optimizer
from torch_versions import HAS_2_15

import optgen.optim
from optgen.runtime import newton_schulz
from optgen.runtime.eager import parts

Cost = tuple[int, float]
"""`_foreach_` calls, and 4-byte numbers read and written for each element of a parameter."""

COSTS: dict[str, list[tuple[dict[str, Any], Cost, Cost]]] = {
    "Adadelta": [
        ({}, (11, 27), (10, 25)),
        ({"weight_decay": 0.1}, (12, 30), (11, 28)),
        ({"maximize": True}, (12, 29), (11, 27)),
    ],
    "Adafactor": [
        # Many calls, because each of the three shapes is a bucket.
        ({}, (12, 19.471), (27, 15.866)),
        ({"weight_decay": 0.1}, (13, 21.471), (30, 17.866)),
    ],
    "Adagrad": [
        ({}, (5, 13), (4, 11)),
        ({"weight_decay": 0.1}, (6, 16), (5, 14)),
        ({"maximize": True}, (6, 15), (5, 13)),
    ],
    "Adam": [
        ({}, (7, 18), (6, 16)),
        ({"weight_decay": 0.1}, (8, 21), (7, 19)),
        ({"amsgrad": True}, (8, 21), (7, 19)),
        ({"maximize": True}, (8, 20), (7, 18)),
    ],
    "Adamax": [
        ({}, (6, 16), (6, 16)),
        ({"weight_decay": 0.1}, (7, 19), (7, 19)),
        ({"maximize": True}, (7, 18), (7, 18)),
    ],
    "AdamW": [({}, (8, 20), (7, 18)), ({"amsgrad": True}, (9, 23), (8, 21))],
    "ASGD": [
        ({}, (4, 12), (3, 7)),
        ({"weight_decay": 0.1}, (5, 15), (4, 10)),
        ({"maximize": True}, (5, 14), (4, 9)),
        ({"t0": 2}, (4, 12), (3, 8)),
    ],
    "Muon": [({}, (0, 30.742), (12, 30.742)), ({"nesterov": False}, (0, 27.742), (9, 27.742))],
    "NAdam": [({}, (8, 22), (7, 20)), ({"weight_decay": 0.1}, (9, 25), (8, 23))],
    "RAdam": [({}, (9, 22), (6, 16)), ({"weight_decay": 0.1}, (10, 25), (7, 19))],
    "RMSprop": [
        ({}, (5, 13), (5, 13)),
        ({"weight_decay": 0.1}, (6, 16), (6, 16)),
        ({"momentum": 0.9}, (7, 18), (7, 18)),
        ({"centered": True}, (7, 19), (7, 19)),
        ({"centered": True, "momentum": 0.9, "weight_decay": 0.1}, (10, 27), (10, 27)),
    ],
    "Rprop": [
        # Calls for single tensors are not counted: 11 for each tensor in torch, and 5 in optgen.
        ({}, (5, 31 if HAS_2_15 else 34), (7, 24.417)),
        ({"maximize": True}, (7, 35 if HAS_2_15 else 38), (8, 26.417)),
    ],
    "SGD": [
        ({}, (1, 3), (1, 3)),
        ({"weight_decay": 0.1}, (2, 6), (2, 6)),
        ({"momentum": 0.9}, (3, 8), (3, 8)),
        ({"momentum": 0.9, "nesterov": True}, (4, 11), (4, 11)),
        ({"momentum": 0.9, "weight_decay": 0.1}, (4, 11), (4, 11)),
        (
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
            (6, 16),
            (6, 16),
        ),
    ],
}
"""Options of each class, with the cost of torch's foreach (for Muon, its only loop) and of ours."""
DENSE_CLASSES = [name for name in NAMES if name not in (*SPARSE_CLASSES, *CLOSURE_CLASSES)]
SHAPES: list[tuple[int, ...]] = [(100,), (300,), (200,)]
MATRIX_SHAPES: list[tuple[int, ...]] = [(64, 48), (20, 30), (10, 20)]


def cost_of_ninth_step(optimizer: Optimizer) -> Cost:
    """Return calls and traffic of the ninth step, in which RAdam is rectified."""
    params = optimizer.param_groups[0]["params"]
    for _ in range(8):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    with Traffic() as traffic:
        optimizer.step()
    elements = sum(param.numel() for param in params)
    return traffic.foreach_calls, round(
        (traffic.numbers_read + traffic.numbers_written) / elements, 3
    )


def params(name: str) -> list[torch.Tensor]:
    shapes = MATRIX_SHAPES if name in (*MATRIX_CLASSES, "Adafactor") else SHAPES
    return [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]


def configurations() -> Iterator[Any]:
    for name in DENSE_CLASSES:
        for options, torch_cost, optgen_cost in COSTS[name]:
            label = "-".join([name, *(f"{key}={value}" for key, value in options.items())])
            yield pytest.param(name, options, torch_cost, optgen_cost, id=label)


@pytest.mark.parametrize(("name", "options", "torch_cost", "optgen_cost"), list(configurations()))
def test_calls_and_traffic_are_as_listed(
    name: str, options: dict[str, Any], torch_cost: Cost, optgen_cost: Cost
) -> None:
    foreach = {"foreach": True} if torch_has_flag(name, "foreach") else {}
    reference = cost_of_ninth_step(getattr(torch.optim, name)(params(name), **foreach, **options))
    with newton_schulz.force_way("batched"):  # `Traffic` sees torch's products only
        found = cost_of_ninth_step(
            getattr(optgen.optim, name)(params(name), foreach=True, **options)
        )

    assert reference == torch_cost
    assert found == optgen_cost
    assert found[1] <= torch_cost[1]


def sparse_traffic(module: Any) -> float:
    """Return the 4-byte numbers that unfused SparseAdam reads and writes per selected element."""
    weight = torch.nn.Parameter(torch.ones(1000, 8))
    optimizer = module.SparseAdam([weight], **({} if module is torch.optim else {"fused": False}))
    rows = torch.tensor([[1, 5, 9, 5, 700, 3]])  # five different ones
    traffic = Traffic()
    for step in range(3):
        values = torch.ones(6, 8)
        weight.grad = torch.sparse_coo_tensor(rows, values, (1000, 8), check_invariants=True)
        with traffic if step == 2 else contextlib.nullcontext():
            optimizer.step()
    return (traffic.numbers_read + traffic.numbers_written) / (5 * 8)


def lbfgs_traffic(module: Any, options: dict[str, Any]) -> float:
    """Return the 4-byte numbers that 10 iterations of LBFGS read and write per element.

    The loss is an ill-conditioned quadratic function.
    """
    param = torch.nn.Parameter(torch.linspace(-1, 1, 1000))
    weights = torch.linspace(1, 100, 1000)
    optimizer = module.LBFGS([param], max_iter=10, **options)

    def closure() -> torch.Tensor:
        param.grad = weights * param.detach()
        return (param.grad * param.detach()).sum() / 2

    optimizer.step(closure)
    with Traffic() as traffic:
        optimizer.step(closure)
    return (traffic.numbers_read + traffic.numbers_written) / 1000


def test_sparse_adam_moves_less_memory_than_torchs() -> None:
    assert sparse_traffic(optgen.optim) < sparse_traffic(torch.optim)


@pytest.mark.parametrize(
    "options", [{}, {"line_search_fn": "strong_wolfe"}, {"history_size": 3}], ids=str
)
def test_lbfgs_moves_less_memory_than_torchs(options: dict[str, Any]) -> None:
    assert lbfgs_traffic(optgen.optim, options) < 0.85 * lbfgs_traffic(torch.optim, options)


def test_most_classes_move_less_memory_than_torchs() -> None:
    """COSTS lists the dense classes. The tests above compare all other classes."""
    with_less_traffic = [
        name
        for name in DENSE_CLASSES
        if all(our_cost[1] < torch_cost[1] for _, torch_cost, our_cost in COSTS[name])
    ]

    assert len([*with_less_traffic, *SPARSE_CLASSES, *CLOSURE_CLASSES]) > len(NAMES) / 2
    assert sorted(set(DENSE_CLASSES) - set(with_less_traffic)) == [
        "Adamax",
        "Muon",
        "RMSprop",
        "SGD",
    ]


LIMIT_BYTES = 64 * 2**20
"""Slices are chosen for temporaries of 60 MiB; the limit allows a little more."""
ALL_OPTIONS: dict[str, dict[str, Any]] = {
    "Adadelta": {"weight_decay": 0.1, "maximize": True},
    "Adafactor": {"weight_decay": 0.1, "maximize": True},
    "Adagrad": {"weight_decay": 0.1, "maximize": True},
    "Adam": {"weight_decay": 0.1, "amsgrad": True, "maximize": True},
    "AdamW": {"amsgrad": True, "maximize": True},
    "Adamax": {"weight_decay": 0.1, "maximize": True},
    "ASGD": {"weight_decay": 0.1, "maximize": True},
    "NAdam": {"weight_decay": 0.1, "maximize": True},
    "RAdam": {"weight_decay": 0.1, "maximize": True},
    "RMSprop": {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "maximize": True},
    "Rprop": {"maximize": True},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
}
"""Every option that may need another temporary."""
# The memory of a matrix op is not limited.
NAMES_WITH_LIMIT = [name for name in DENSE_CLASSES if name not in MATRIX_CLASSES]


def extra_bytes(optimizer: Optimizer) -> int:
    """Return the bytes that a second step needs beside parameters, gradients and state."""
    for param in optimizer.param_groups[0]["params"]:
        param.grad = torch.ones_like(param)
    optimizer.step()
    return peak_bytes(optimizer.step)


SIZES = [2**23 + 8, 2**22 - 8, 2**21, *[2**20] * 5, *[1000] * 50]
"""Elements of each tensor, 80 MB in all: the largest is sliced, the small ones share a chunk."""


def large_parameters() -> list[torch.Tensor]:
    """Return parameters of 80 MB, one of each of SIZES."""
    return [torch.nn.Parameter(torch.ones(size)) for size in SIZES]


def use_device_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process CPU tensors in blocks as large as those of other devices."""

    def block_elements(_tensor: torch.Tensor, itemsize: int, live_lists: int) -> int:
        return parts.device_elements(itemsize, live_lists)

    monkeypatch.setattr(parts, "block_elements", block_elements)


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("device", ["CPU", "GPU"])
@pytest.mark.parametrize("name", NAMES_WITH_LIMIT)
def test_extra_memory_is_limited(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for the slices of a CPU, and for the larger slices of a GPU."""
    if device == "GPU":
        use_device_blocks(monkeypatch)

    needed = extra_bytes(
        getattr(optgen.optim, name)(large_parameters(), foreach=True, **ALL_OPTIONS[name])
    )

    assert 0 < needed <= LIMIT_BYTES


@pytest.mark.parametrize("device", ["CPU", "GPU"])
@pytest.mark.parametrize("rows", [8, 1000])
def test_extra_memory_is_limited_for_factored_parameters(
    rows: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "GPU":
        use_device_blocks(monkeypatch)
    matrices = [torch.nn.Parameter(torch.ones(rows, size // rows)) for size in SIZES]

    needed = extra_bytes(optgen.optim.Adafactor(matrices, foreach=True, **ALL_OPTIONS["Adafactor"]))

    assert 0 < needed <= LIMIT_BYTES


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("name", NAMES_WITH_LIMIT)
def test_extra_memory_is_limited_whatever_the_strides(name: str) -> None:
    transposed = [torch.nn.Parameter(torch.ones(2**10, 2**14).T)]

    needed = extra_bytes(getattr(optgen.optim, name)(transposed, foreach=True, **ALL_OPTIONS[name]))

    assert 0 < needed <= LIMIT_BYTES


def test_torchs_foreach_exceeds_the_limit() -> None:
    """Torch's foreach has temporaries for whole lists. So the tests above can fail."""
    reference = torch.optim.Adam(large_parameters(), foreach=True, **ALL_OPTIONS["Adam"])

    assert extra_bytes(reference) > LIMIT_BYTES
