"""Test the launches of fused Triton without a GPU.

Triton's own wrapper and compiler take buckets, arguments and options. A driver records each launch
and runs no kernel.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lowerings.phased_rules import class_of

import optgen.optim

pytest.importorskip("triton")

from benchmarks.triton_aot import classes
from benchmarks.triton_aot_compile import Launch, compiling_for

Launches = list[Launch]


@pytest.fixture
def launches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launches]:
    """Return a list that gets every launch: its grid, and its kernel, compiled but not run."""
    with compiling_for("sm_90", str(tmp_path_factory.getbasetemp() / "triton")) as recorded:
        yield recorded


def parameters(*sizes: Any, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    params = [torch.ones(size, dtype=dtype, requires_grad=True) for size in sizes]
    for param in params:
        param.grad = torch.ones_like(param)
    return params


def test_a_step_makes_two_launches_for_any_number_of_tensors(launches: Launches) -> None:
    optimizer = optgen.optim.AdamW([{"params": parameters(5, 0, 2000)}, {"params": parameters(7)}])
    optimizer.step()
    assert [(name, grid) for name, grid, *_ in launches] == [
        ("adam_scalars", (4,)),  # a program for each tensor
        ("adam_step", (4,)),  # a program for each 1024 elements of a tensor
    ]


def test_a_step_makes_two_launches_for_each_dtype(launches: Launches) -> None:
    mixed = parameters(5, 6), parameters(5, dtype=torch.float64)
    optgen.optim.SGD([p for params in mixed for p in params]).step()
    assert [name for name, *_ in launches] == ["sgd_scalars", "sgd_step"] * 2


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("SGD", torch.bfloat16, torch.float32),
        ("SGD", torch.float64, torch.float64),
        ("LAMB", torch.bfloat16, torch.float64),
    ],
)
def test_scalars_are_in_the_compute_dtype_unless_a_finish_reads_them(
    name: str, dtype: torch.dtype, expected: torch.dtype, launches: Launches
) -> None:
    getattr(optgen.optim, name)(parameters(5, dtype=dtype)).step()
    prologue = launches[0]
    assert prologue.name == f"{name.lower()}_scalars"
    assert prologue.arguments[2].dtype == expected


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("name", classes())
def test_other_values_compile_no_other_kernel(name: str, launches: Launches) -> None:
    """Other numbers of tensors, other hyperparameters and further steps use the same kernels."""
    cls = classes()[name]
    for num_params in (1, 3, 16, 64):
        params = parameters(*[(5, 20)] * num_params)
        if cls.rule.gradient == "sparse_only":
            for param in params:
                param.grad = torch.ones(5, 20).to_sparse(1)
        optimizer = cls(params, lr=0.1 * num_params)
        for _ in range(2):
            optimizer.step()
            new_values = {
                "lr": 1.0,
                "weight_decay": 0.5,
                "eps": 1.0,
                "betas": (0, 0),
                "maximize": True,
            }
            group = optimizer.param_groups[0]
            group.update({k: v for k, v in new_values.items() if isinstance(group.get(k), type(v))})
    launched_kernels = {(launch.name, id(launch.compiled)) for launch in launches}
    assert len(launched_kernels) == len({name for name, _ in launched_kernels})


def test_an_optional_state_compiles_another_kernel(launches: Launches) -> None:
    optgen.optim.SGD(parameters(5)).step()
    optgen.optim.SGD(parameters(5), momentum=0.9).step()
    assert len({id(launch.compiled) for launch in launches if launch.name == "sgd_step"}) == 2


def test_a_gradient_scaler_compiles_another_kernel(launches: Launches) -> None:
    optimizer = optgen.optim.NAdam(parameters(5))
    optimizer.step()
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    optimizer.step()
    assert len({id(launch.compiled) for launch in launches if launch.name == "nadam_step"}) == 2
    assert all(launch.compiled.metadata.maxnreg in (None, 128) for launch in launches)


def test_the_launches_do_not_depend_on_the_number_of_tensors(launches: Launches) -> None:
    shapes = [(40, 200), (30, 20, 3, 3), (300,)]
    for num_copies in (1, 5):
        params = parameters(*shapes * num_copies)
        groups = [{"params": params[::2]}, {"params": params[1::2]}]
        optgen.optim.Adafactor(groups if num_copies > 1 else params).step()
    names = [launch.name for launch in launches]
    matrices = ["scalars", "step1", "finish1", "step2", "finish2", "step3"]
    vectors = ["scalars", "step1", "finish1", "step2"]
    assert [name.rsplit("_", 1)[-1] for name in names] == (matrices + vectors) * 2
    kernels = [id(launch.compiled) for launch in launches]
    assert set(kernels) == set(kernels[: len(kernels) // 2])  # more tensors compile nothing anew


@pytest.mark.parametrize(("name", "num_launches"), [("LAMB", 4), ("LARS", 4), ("Muon", 3)])
def test_a_step_makes_the_listed_number_of_launches(
    name: str, num_launches: int, launches: Launches, tmp_path: Path
) -> None:
    class_of(name, tmp_path)(parameters((40, 20), (5, 3), (7, 9))).step()
    assert len(launches) == num_launches
