"""Newton-Schulz iterations in bfloat16 as one compiled function, for CPUs with AVX512_BF16.

It takes half of the operations for symmetric products, and no call of torch: small matrices gain
most. Without a C++ compiler, the iterations are torch's products (`newton_schulz`).
"""

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import c_double, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from optgen.runtime.toolchain import compiler, library_cache
from optgen.runtime.torch_private import data_ptr, thread_pool

DTYPES = (torch.float32, torch.bfloat16)
"""The dtypes of operands."""


class FirstProduct(NamedTuple):
    """The product that begins the first iteration of a square matrix x."""

    shifted: Tensor  # x x' - shift I in bfloat16
    shift: float


class _Work(ctypes.Structure):
    """`Work` of newton_schulz.cpp, field by field."""

    _fields_ = [
        ("matrix_count", c_int64),
        *((name, c_void_p) for name in ("operands", "results")),
        *(
            (name, c_int64)
            for name in ("operands_are_float32", "rows", "columns", "is_tall", "steps")
        ),
        ("coefficients", c_void_p),
        *((name, c_double) for name in ("divisor", "least")),
        ("first", c_void_p),
        ("shift", c_double),
        ("workspace", c_void_p),
        *((name, c_int64) for name in ("workspace_size", "teams")),
    ]


class NewtonSchulzKernel:
    """The compiled function."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library["optgen_newton_schulz"]
        self._run.argtypes, self._run.restype = (c_void_p, c_void_p), None
        self._workspace_bytes = library["optgen_workspace_bytes"]
        self._workspace_bytes.argtypes = (c_int64, c_int64, c_int)
        self._workspace_bytes.restype = c_int64

    def iterate(
        self,
        tensors: Sequence[Tensor],
        triples: Sequence[Sequence[float]],
        divisor: float | None = None,
        least: float = 0,
        first: FirstProduct | None = None,
    ) -> list[Tensor]:
        """Run the iterations on tensors of one shape and dtype.

        Args:
            tensors: matrices in the last two axes, of one of `DTYPES`; in plain memory.
            triples: a, b and c of each iteration.
            divisor: of all matrices; None is the norm of each.
            least: a lower bound of a norm that divides.
            first: for one square matrix.

        Returns:
            The last iterate of each tensor, in bfloat16.
        """
        operands = [x.resolve_neg().contiguous() for x in tensors]
        results = [x.new_empty(x.shape, dtype=torch.bfloat16) for x in operands]
        height, width = operands[0].shape[-2:]
        rows, columns = min(height, width), max(height, width)
        inputs, outputs = _addresses(operands), _addresses(results)
        coefficients = array("d", [number for triple in triples for number in triple])
        threads = thread_pool()
        teams = threads.count if len(inputs) >= 2 * threads.count else 1
        size = self._workspace_bytes(rows, columns, threads.count // teams)
        workspace = torch.empty(teams * size, dtype=torch.uint8)
        padded = None if first is None else pad(first.shifted, (0, -rows % 32))
        work = _Work(
            matrix_count=len(inputs),
            operands=_start(inputs),
            results=_start(outputs),
            operands_are_float32=operands[0].dtype == torch.float32,
            rows=rows,
            columns=columns,
            is_tall=height > width,
            steps=len(triples),
            coefficients=_start(coefficients),
            divisor=divisor or 0.0,
            least=least,
            first=None if padded is None else padded.data_ptr(),
            shift=first.shift if first else 0.0,
            workspace=workspace.data_ptr(),
            workspace_size=size,
            teams=teams,
        )
        self._run(ctypes.addressof(work), ctypes.addressof(threads))
        return results


def _addresses(tensors: Sequence[Tensor]) -> "array[int]":
    """Return the address of each matrix."""
    height, width = tensors[0].shape[-2:]
    size = height * width * tensors[0].element_size()
    firsts = map(data_ptr, tensors)
    if tensors[0].dim() == 2:
        return array("q", firsts)
    count = tensors[0].numel() // (height * width)
    return array("q", [first + i * size for first in firsts for i in range(count)])


def _start(memory: "array[Any]") -> int:
    return memory.buffer_info()[0]


def library_source() -> tuple[str, str]:
    """Return the name and the source of the library."""
    source = Path(__file__).with_name("newton_schulz.cpp").read_text()
    return "newton_schulz", library_cache.inline_includes(source)


@cache
def load() -> NewtonSchulzKernel | None:
    """Return the compiled function; None if this CPU or the lack of a compiler forbids it.

    With AMX, torch's products are faster.
    """
    if not torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return None
    try:
        return NewtonSchulzKernel(ctypes.CDLL(str(library_cache.library(*library_source()))))
    except (library_cache.NoCompilerError, compiler.CompileError, OSError):
        return None  # the loader of the rule's kernel warns about the compiler
