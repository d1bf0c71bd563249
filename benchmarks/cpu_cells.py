"""The cells that are published for a machine's CPU, and what measures each part of them."""

from collections.abc import Iterator, Mapping
from itertools import product

from benchmarks.cpu_contention import quiet_and_busy_times
from benchmarks.cpu_first_step import first_steps
from benchmarks.cpu_peak_memory import extra_memory
from benchmarks.cpu_thread_determinism import count_different_tensors
from optgen.bench import suite
from optgen.bench.results import Cell
from optgen.bench.suite import IsMemoryBound, Measure, combinations
from optgen.bench.tensor_lists import LISTS_FOR_ALL
from optgen.bench.variants import CLASSES, FACTORED

PARTS: Mapping[str, Measure] = {
    "step": suite.PARTS["step"],
    "first step": lambda suite, cell: first_steps(cell),
    "memory": lambda suite, cell: extra_memory(cell),
    "busy": lambda suite, cell: quiet_and_busy_times(cell),
    "bits": lambda suite, cell: count_different_tensors(cell),
    "compile": suite.PARTS["compile"],
}

_BUSY_CLASSES = ("SGD", "AdamW", "Adafactor")  # measured while another process keeps a core busy
# Pairs of a class and a list of tensors.
_COMPILED_STEPS = (("SGD", "1e6"), ("AdamW", "1e6"), ("AdamW", "2.5e7"), ("AdamW", "resnet50"))
_FIRST_STEPS = (("AdamW", "1e6"), ("AdamW", "resnet50"), ("Adafactor", "resnet50"))


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
