"""Test which kernels a step launches in the interpreter, for every class of torch and torchrec."""

from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside

from optgen import use_lowering

pytest.importorskip("triton")

from triton.runtime.interpreter import InterpretedFunction

from benchmarks.classes import accepted_parameters
from benchmarks.triton_aot import classes

SHAPES = [(5, 40), (300,), (), (3, 2, 3, 3), (20, 130), (8, 4, 1, 1), (7,), (40, 3)]
ELEMENTWISE = ["scalars", "step"]
"""Kernels of an elementwise rule: the scalar program, then the sweep."""
FACTORED = ["scalars", "step1", "finish1", "step2", "finish2", "step3"]
"""Kernels of a factored step. The first sweep sums rows and columns, the second a tensor."""
NOT_FACTORED = ["scalars", "step1", "finish1", "step2"]
"""Kernels of a step that is not factored, in which the first sweep makes all reductions."""
LAUNCHES = {
    **dict.fromkeys(classes(), ELEMENTWISE),
    "Adafactor": [*FACTORED, *NOT_FACTORED],
    "RowWiseAdagrad": ["scalars", "step1", "finish1", "step2"],
    "Muon": ["scalars", "step1", "step2"],  # the matrix op runs between the two sweeps
}


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@inside_interpreter
@pytest.mark.parametrize("num_copies", [1, 3])
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_step_launches_the_listed_kernels(
    name: str, num_copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of launches does not depend on the numbers of tensors and of groups."""
    launched_kernels: list[str] = []
    original_getitem = InterpretedFunction.__getitem__

    def record_launch(kernel: Any, grid: Any) -> Any:
        launched_kernels.append(kernel.fn.__name__)
        return original_getitem(kernel, grid)

    monkeypatch.setattr(InterpretedFunction, "__getitem__", record_launch)
    cls = classes()[name]
    params = accepted_parameters(
        cls, [torch.ones(size, requires_grad=True) for size in SHAPES * num_copies]
    )
    if cls.rule.gradient == "sparse_only":
        params = [param for param in params if param.ndim]
    for param in params:
        ones = torch.ones_like(param)
        param.grad = ones.to_sparse(1) if cls.rule.gradient == "sparse_only" else ones
    optimizer = cls([{"params": params[::2]}, {"params": params[1::2], "lr": 0.5}])
    with use_lowering("fused_triton"):
        for _ in range(2):
            launched_kernels.clear()
            optimizer.step()
    assert [kernel.rsplit("_", 1)[-1] for kernel in launched_kernels] == LAUNCHES[name]
