"""Measure updates of averaged models on the CPU, against torch's updates and the memory limit.

python benchmarks/averaging.py [SECONDS] [LIST …]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from optgen.bench.measure import Budget, StepTimes, compare
from optgen.bench.roofline import Access, Roofline, Traffic
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import Variant
from optgen.optim import swa_utils

SHAPES = {
    **{name: LISTS[name].shapes for name in ("2.5e7", "1e6", "resnet50", "2000x256")},
    "2x256": [(16, 16)] * 2,
}
MEANS = ("ema", "swa")
TRAFFIC = Traffic(((Access("param", stored=True), Access("grad")),))


class AverageUpdate:
    """An update of a model's average. The benchmark's gradients become the model's weights."""

    def __init__(self, module: Any, mean: str, shapes: Sequence[tuple[int, ...]]) -> None:
        self._model = nn.ParameterList(torch.zeros(shape) for shape in shapes)
        function = module.get_ema_multi_avg_fn(0.999) if mean == "ema" else None
        self._averaged = module.AveragedModel(self._model, multi_avg_fn=function)
        self.step()  # the first update copies the model

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Set the model's weights to copies of these tensors."""
        for param, weight in zip(self._model, gradients, strict=True):
            param.data = weight.clone()

    def step(self) -> None:
        self._averaged.update_parameters(self._model)


class MemoryLimit:
    """The memory limit of an update, which reads two streams and writes one."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self._means = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
        for mean in self._means:
            mean.grad = torch.zeros_like(mean)
        self._roofline = Roofline([TRAFFIC], torch.optim.SGD(self._means))
        self.step = self._roofline.step

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Let further steps read these tensors."""
        for mean, weight in zip(self._means, gradients, strict=True):
            mean.grad = weight.clone()
        self._roofline.update_gradient_addresses()


def measure(shapes: Sequence[tuple[int, ...]], seconds: float) -> dict[str, StepTimes]:
    """Return the milliseconds of an update, for each variant by its title."""
    modules = {"optgen": swa_utils, "torch": torch.optim.swa_utils}
    variants: dict[str, Variant] = {
        f"{title} {mean}": AverageUpdate(module, mean, shapes)
        for title, module in modules.items()
        for mean in MEANS
    }
    variants["limit"] = MemoryLimit(shapes)
    return compare(variants, lambda: [torch.randn(s) for s in shapes], Budget(seconds))


def main(seconds: float, names: Sequence[str]) -> None:
    """Print a table for each list."""
    print(f"{torch.get_num_threads()} thread(s), float32; ms per update: median (minimum)")
    for name in names or SHAPES:
        by_title = measure(SHAPES[name], seconds)
        print(f"{name}: {len(SHAPES[name])} tensors, {sum(map(prod, SHAPES[name])):,} elements")
        for title, figures in by_title.items():
            fraction = by_title["limit"]["median"] / figures["median"]
            print(
                f"  {title:12} {figures['median']:9.3f} ({figures['min']:.3f}), "
                f"{fraction:.2f} of the limit"
            )


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 5.0, sys.argv[2:])
