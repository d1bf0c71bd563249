"""The lists of tensors by their titles: their shapes, and their numbers of elements."""

from math import prod

from optgen.bench.lists import LISTS as _LISTS
from optgen.bench.lists import Shape

__all__ = ["LISTS", "SHAPES", "Shape"]

_NAMES = ("2.5e7", "1e6", "resnet50", "gpt2", "2000x256")
SHAPES = {_LISTS[name].title: list(_LISTS[name].shapes) for name in _NAMES}
LISTS = {title: [prod(shape) for shape in shapes] for title, shapes in SHAPES.items()}
