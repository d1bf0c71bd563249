"""List the cells to measure: combinations of settings, or all that are published for a machine."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from optgen.bench.results import Cell
from optgen.bench.tensor_lists import LISTS, LISTS_FOR_ALL
from optgen.bench.variants import CLASSES, FACTORED, accepted_tensors

_MANY_ELEMENTS = 5_000_000  # elements; with more, a step that multiplies matrices takes seconds
_BUSY_CLASSES = ("SGD", "AdamW", "Adafactor")  # measured while another process keeps a core busy
# Pairs of a class and a list of tensors.
_COMPILED_STEPS = (("SGD", "1e6"), ("AdamW", "1e6"), ("AdamW", "2.5e7"), ("AdamW", "resnet50"))
_FIRST_STEPS = (("AdamW", "1e6"), ("AdamW", "resnet50"), ("Adafactor", "resnet50"))

IsMemoryBound = Callable[[str], bool]
"""Tells whether memory limits a class's step: it does unless the step multiplies matrices."""


def combinations(
    part: str,
    names: Sequence[str],
    lists: Sequence[str],
    is_memory_bound: IsMemoryBound,
    dtypes: Sequence[str] = ("float32",),
    thread_counts: Sequence[int] = (1,),
) -> Iterator[Cell]:
    """Yield every combination, except lists that are too large or have no tensor for a class."""
    for count, dtype, tensors, name in product(thread_counts, dtypes, lists, names):
        accepted = accepted_tensors(name, LISTS[tensors])
        if accepted.shapes and (is_memory_bound(name) or accepted.num_elements <= _MANY_ELEMENTS):
            yield Cell(part, name, tensors, dtype, count)


def published_cells(is_memory_bound: IsMemoryBound) -> Iterator[Cell]:
    """Yield all cells that are published for a machine, the most important ones first."""
    memory_bound = [name for name in CLASSES if is_memory_bound(name)]
    for threads, dtype in product((1, 2), ("float32", "bfloat16")):
        yield from combinations("step", CLASSES, LISTS_FOR_ALL, is_memory_bound, [dtype], [threads])
        yield from combinations("step", FACTORED, ["thin"], is_memory_bound, [dtype], [threads])
    yield from combinations("first step", CLASSES, ["2000x256"], is_memory_bound)
    yield from (Cell("first step", *each) for each in _FIRST_STEPS)
    yield from combinations("memory", memory_bound, ["resnet50", "2.5e7"], is_memory_bound)
    yield from combinations("memory", FACTORED, ["thin"], is_memory_bound)
    yield from combinations(
        "busy", _BUSY_CLASSES, ["2000x256"], is_memory_bound, thread_counts=(1, 2)
    )
    yield from combinations("bits", memory_bound, ["resnet50"], is_memory_bound, thread_counts=(2,))
    yield from (Cell("compile", *each) for each in _COMPILED_STEPS)
