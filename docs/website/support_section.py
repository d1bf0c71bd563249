"""Show the features that surround a step: sharding, checkpoints, gradient scalers, offloading.

Each row says how rules of this kind are handled, and whether a test runs this class itself.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from optgen.ir.execution import updates_matrices_independently
from optgen.passes.plan_rule import why_uncut
from website.entries import ROOT, Entry
from website.tables import table

_PAGE = "../distributed.md"
_CHECKPOINT_TESTS = (
    "distributed/cases.py",
    "distributed/whole_matrices.py",
    "distributed/test_programs.py",
)
"""Files of tests that save and resume checkpoints on several ranks."""


def support(entry: Entry) -> str:
    """Return the table of features, and what it means."""
    header = ("with", "", f"tested with {entry.title} itself")
    return "\n\n".join(
        [
            table(header, _rows(entry)),
            "Where the last column says no, tests run other rules of the same kind. Distributed "
            "tests run on CPUs that communicate through gloo. NCCL and GPUs have not run. "
            "Offloading is tested with AdamW, and with no device but a CPU.",
        ]
    )


def _rows(entry: Entry) -> Iterator[tuple[str, str, str]]:
    yield (
        f"[FSDP2, DTensor]({_PAGE}#fsdp2)",
        _sharded(entry),
        _yes_if_tested(entry, "distributed"),
    )
    yield (
        f"[DDP]({_PAGE}#ddp), [ZeRO-1]({_PAGE}#zero-1)",
        "each rank that steps a parameter has the whole of it",
        _yes_if_tested(entry, "distributed/test_ddp.py", "distributed/cases.py"),
    )
    yield (
        f"[checkpoints]({_PAGE}#checkpoints)",
        _checkpoints(entry),
        _yes_if_tested(entry, *_CHECKPOINT_TESTS),
    )
    yield (
        "[AMP, `GradScaler`](../what-runs-where.md#lowerings-and-features)",
        "every lowering unscales gradients, and leaves a step out if a gradient overflows",
        "yes" if entry.in_torch else "no",
    )
    yield (
        "[offloading](../offload.md)",
        "optgen does not move states by itself. Parameters on the CPU take CPU steps",
        "yes" if entry.title == "AdamW" else "no",
    )


def _sharded(entry: Entry) -> str:
    algorithm = entry.algorithm
    if algorithm.gradient == "sparse_only":
        return "refused: gradients of DTensors are dense"
    if why_uncut(algorithm):
        about_matrices = (
            "; batches of matrices that are sharded along a batch axis stay where they are"
            if updates_matrices_independently(algorithm)
            else ""
        )
        return (
            f"each parameter is stepped whole, by a rank that holds a shard of it{about_matrices}"
        )
    if algorithm.elementwise:
        return "each rank steps its shards, in every lowering"
    return "ranks complete the sums together; for-loop steps run as foreach"


def _checkpoints(entry: Entry) -> str:
    if entry.in_torch:
        return f"`state_dict()` loads into `torch.optim.{entry.title}`, and the other way round"
    codes = "; states of 8 bits are saved as float32" if entry.algorithm.has_codes else ""
    return f"`state_dict()` has the keys of the table of states{codes}"


def _yes_if_tested(entry: Entry, *paths: str) -> str:
    """Return "yes" if one of these tests names the class or its spec, else "no"."""
    test_words = {word for each in paths for word in words(ROOT / "tests" / each)}
    return "yes" if {entry.title, entry.name} & test_words else "no"


@functools.cache
def words(path: Path) -> frozenset[str]:
    """Return attribute names and words of strings in a test file, or in a folder of tests."""
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    return frozenset(word for file in files for word in _words(file.read_text(encoding="utf-8")))


def _words(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Constant(value=str() as text_):
                yield from text_.split()
            case ast.Attribute(attr=name):
                yield name
