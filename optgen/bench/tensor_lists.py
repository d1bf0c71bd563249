"""Define the lists of tensors that benchmarks use."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TensorList:
    """Shapes under a short name. Several param groups have different learning rates."""

    name: str
    title: str  # the number of tensors, and the elements of each: "2,000 of 256"
    shapes: Sequence[Shape]
    num_groups: int = 1

    @property
    def num_elements(self) -> int:
        """The number of elements of all tensors."""
        return sum(map(prod, self.shapes))


def _bottleneck(width: int, inner: int) -> list[Shape]:
    """Return the shapes of a block: convolutions, each with a batch norm's weight and bias."""
    convolutions = [(inner, width, 1, 1), (inner, inner, 3, 3), (width, inner, 1, 1)]
    return [shape for kernel in convolutions for shape in (kernel, (kernel[0],), (kernel[0],))]


# Of each stage: the width of its blocks, their inner width, and the number of blocks.
_STAGES = ((256, 64, 3), (512, 128, 4), (1024, 256, 6), (2048, 512, 3))
_STEM: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
RESNET50 = [
    *_STEM,
    *(shape for width, inner, n in _STAGES for shape in _bottleneck(width, inner) * n),
]
_LAYER: list[Shape] = [(768,), (768,), (2304, 768), (2304,), (768, 768), (768,)]
_LAYER += [(768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)]
GPT2: list[Shape] = [(50257, 768), (1024, 768), *_LAYER * 12]
_THIN: list[Shape] = [(40, 300_000), (300_000, 40), (3, 1_000_000), (1_000_000, 3)]
_TINY: list[Shape] = [(16, 16)] * 2000

LISTS = {
    each.name: each
    for each in (
        TensorList("2.5e7", "one of 25,000,000", [(5000, 5000)]),
        TensorList("1e6", "one of 1,000,000", [(1000, 1000)]),
        TensorList("resnet50", "like ResNet-50", RESNET50),
        TensorList("gpt2", "like GPT-2 small", GPT2),
        TensorList("2000x256", "2,000 of 256", _TINY),
        TensorList("20groups", "2,000 of 256 in 20 groups", _TINY, num_groups=20),
        TensorList("2000x1", "2,000 of 1: the host's time", [(1, 1)] * 2000),
        TensorList("thin", "four long thin matrices", _THIN),
    )
}
LISTS_FOR_ALL = tuple(name for name in LISTS if name != "thin")
"""Lists for every class. Thin matrices matter only to rules with rows and columns."""
