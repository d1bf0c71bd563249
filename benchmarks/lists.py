"""The lists of tensors that every benchmark steps: their shapes, and their numbers of elements."""

from math import prod

Shape = tuple[int, ...]


def _bottleneck(width: int, inner: int) -> list[Shape]:
    convolutions = [(inner, width, 1, 1), (inner, inner, 3, 3), (width, inner, 1, 1)]
    return [s for c in convolutions for s in (c, (c[0],), (c[0],))]


_STAGES = ((256, 64, 3), (512, 128, 4), (1024, 256, 6), (2048, 512, 3))
_STEM: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
RESNET50 = [*_STEM, *(s for w, inner, n in _STAGES for s in _bottleneck(w, inner) * n)]
_LAYER: list[Shape] = [(768,), (768,), (2304, 768), (2304,), (768, 768), (768,)]
_LAYER += [(768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)]
GPT2: list[Shape] = [(50257, 768), (1024, 768), *_LAYER * 12]
SHAPES: dict[str, list[Shape]] = {
    "one of 25,000,000": [(5000, 5000)],
    "one of 1,000,000": [(1000, 1000)],
    "like ResNet-50": RESNET50,
    "like GPT-2 small": GPT2,
    "2,000 of 256": [(16, 16)] * 2000,
}
LISTS = {title: [prod(shape) for shape in shapes] for title, shapes in SHAPES.items()}
