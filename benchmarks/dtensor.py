"""Measure the cost of DTensor for a step: `python benchmarks/dtensor.py [SECONDS]`.

The same 200 parameters are DTensors or plain tensors, in a process group of one rank. Such a group
communicates nothing, so the difference is work of the host. Each row is a class in one form, for
parameters of one shape. For optgen and for torch, a row has the median milliseconds of a step with
plain tensors and with DTensors, the ratio of these medians, and in parentheses the ratio of the
minima. SECONDS is the time for each row, 3 by default.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh

import optgen.optim
from optgen.bench.measure import Budget, StepTimes, compare
from optgen.bench.variants import Variant

TENSORS = 200
SHAPES = ((64, 64), (8, 8))
MOMENTUM = {"momentum": 0.9}
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("AdamW", "default", {}),
    ("AdamW", "fused", {"fused": True}),
    ("AdamW", "foreach", {"foreach": True}),
    ("AdamW", "for-loop", {"foreach": False}),
    ("SGD", "default", MOMENTUM),
    ("SGD", "foreach", {**MOMENTUM, "foreach": True}),
    ("SGD", "for-loop", {**MOMENTUM, "foreach": False}),
)


@contextmanager
def one_rank() -> Iterator[Any]:
    """Yield a mesh of one rank, in a process group of this process only."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            yield init_device_mesh("cpu", (1,))
        finally:
            distributed.destroy_process_group()


class SameShapeStepper:
    """A `Variant` of optgen.bench.variants: an optimizer of parameters of one shape.

    The parameters are DTensors, or without a mesh plain tensors.
    """

    def __init__(self, cls: Any, options: dict[str, Any], shape: tuple[int, ...], mesh: Any):
        from torch.distributed.tensor import Shard, distribute_tensor

        values = [torch.randn(shape) for _ in range(TENSORS)]
        if mesh is not None:
            values = [distribute_tensor(value, mesh, [Shard(0)]) for value in values]
        self._params = [nn.Parameter(value) for value in values]
        self.step = cls(self._params, lr=1e-3, **options).step

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        for param, values in zip(self._params, gradients, strict=True):
            grad = torch.empty_like(param)
            # With one rank, a local shard is the whole gradient.
            (grad.to_local() if hasattr(grad, "to_local") else grad).copy_(values)
            param.grad = grad


def measure(
    name: str, options: dict[str, Any], shape: tuple[int, ...], mesh: Any, seconds: float
) -> dict[str, StepTimes]:
    """Return the step times of our class and of torch's, for plain tensors and DTensors."""
    variants: dict[str, Variant] = {
        f"{source} {'DTensor' if sharded else 'plain'}": SameShapeStepper(
            getattr(module, name), options, shape, mesh if sharded else None
        )
        for source, module in (("optgen", optgen.optim), ("torch", torch.optim))
        for sharded in (False, True)
    }
    return compare(variants, lambda: [torch.randn(shape) for _ in range(TENSORS)], Budget(seconds))


def _cells(by_title: dict[str, StepTimes], source: str) -> str:
    plain, sharded = by_title[f"{source} plain"], by_title[f"{source} DTensor"]
    ratios = [sharded[key] / plain[key] for key in ("median", "min")]
    return f"{plain['median']:.3f} | {sharded['median']:.3f} | x{ratios[0]:.2f} (x{ratios[1]:.2f})"


def main(seconds: float = 3.0) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| class | form | shape | optgen, plain | optgen, DTensor | ratio ", end="")
    print("| torch, plain | torch, DTensor | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    with one_rank() as mesh:
        for shape in SHAPES:
            for name, form, options in CASES:
                by_title = measure(name, options, shape, mesh, seconds)
                size = "x".join(map(str, shape))
                cells = " | ".join(_cells(by_title, source) for source in ("optgen", "torch"))
                print(f"| {name} | {form} | {size} | {cells} |", flush=True)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
