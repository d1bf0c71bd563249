"""Test that vectors of 16-bit random numbers equal their definition, also at large positions."""

import ctypes
import platform
import subprocess
from pathlib import Path

import pytest
import torch
from compiler_flags import command_with_flags

from optgen.ir.random_numbers import random16
from optgen.runtime.toolchain import compiler
from optgen.runtime.toolchain.library_cache import inline_includes

DRIVER = """
#include "optgen/runtime/fused_cpu/include/random_numbers.h"
using namespace optgen;
extern "C" void draw(i64 first, i64 n, float* to) {
    draw_numbers(RandomKey16(9, 7, 8, 2), first, n, to);
}
"""
COUNT = 1000
X86 = platform.machine().lower() in ("x86_64", "amd64")
INSTRUCTION_SETS = ["", "-mno-avx512f", "-mno-avx"] if X86 else [""]


@pytest.fixture(scope="module", params=INSTRUCTION_SETS)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    """Return the driver, compiled with all or some of the CPU's vector instructions."""
    if compiler.find() is None:
        pytest.skip("no compiler")
    folder: Path = tmp_path_factory.mktemp("random_numbers")
    source, library_path = folder / "draw.cpp", folder / "draw.so"
    source.write_text(inline_includes(DRIVER))
    command = [*command_with_flags(), *request.param.split()]
    subprocess.run([*command, str(source), "-o", str(library_path)], check=True)
    return ctypes.CDLL(str(library_path))


@pytest.mark.parametrize("first", [0, 1, 62, 2**33 - 512, 2**33 - 511, 2**34 - 512, 2**40])
def test_a_loop_draws_the_numbers_of_its_positions(library: ctypes.CDLL, first: int) -> None:
    """The index of a pair of positions may need more than 32 bits."""
    found = torch.empty(COUNT)
    draw = library.draw
    draw.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    draw(first, COUNT, found.data_ptr())
    expected = random16(first + torch.arange(COUNT), *map(torch.tensor, (9, 7, 8, 2)))
    assert torch.equal(found.double(), expected)
