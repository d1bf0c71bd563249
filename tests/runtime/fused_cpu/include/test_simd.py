"""Test the spec language's ops on vectors in C++, against the same ops on single floats."""

import ctypes
import itertools
import platform
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from compiler_flags import command_with_flags
from torch import Tensor

from optgen.runtime.toolchain.library_cache import inline_includes

OPS = {
    "maximum": "maximum(x, y)",
    "minimum": "minimum(x, y)",
    "clamp": "clamp(x, y, z)",
    "sign": "sign(x)",
    "abs": "abs(x)",
    "tanh": "tanh(x)",
    "sin": "sin(x)",
    "cos": "cos(x)",
    "atan2": "atan2(x, y)",
    "floor": "floor(x)",
    "ceil": "ceil(x)",
    "round": "round(x)",
    "round of a product": "round(x * y)",
    "sqrt": "sqrt(x)",
    "quotient": "x / y",
    "where": "where<C>(x > y, y, z)",
    "lerp": "lerp(x, y, C(0.75))",
    "product": "x * y",
    "larger product": "maximum(x * y, y * z)",
    "sum of products": "x * y + z * x",
    "difference of products": "x * y - z * x",
    "product and number": "x * y + z",
    "product minus number": "x * y - z",
    "number minus product": "z - x * y",
}
DRIVER = """
#include "optgen/runtime/fused_cpu/include/simd.h"
using namespace optgen;
template <class C>
static C apply_op(int which, C x, C y, C z) {
    (void)z;
    switch (which) {
CASES
    }
    __builtin_trap();
}
extern "C" void on_floats(
    int which, const float* x, const float* y, const float* z, float* to, i64 n) {
    for (i64 i = 0; i < n; ++i) to[i] = apply_op<float>(which, x[i], y[i], z[i]);
}
static VectorPair vector_at(const float* x) {
    VectorPair vector;
    __builtin_memcpy(&vector, x, sizeof vector);
    return vector;
}
extern "C" void on_vectors(
    int which, const float* x, const float* y, const float* z, float* to, i64 n) {
    for (i64 i = 0; i < n; i += LANES<VectorPair>) {
        const VectorPair result = apply_op<VectorPair>(
            which, vector_at(x + i), vector_at(y + i), vector_at(z + i));
        __builtin_memcpy(to + i, &result, sizeof result);
    }
}
"""
CASES = "\n".join(f"        case {n}: return {text};" for n, text in enumerate(OPS.values()))

X86 = platform.machine().lower() in ("x86_64", "amd64")
INSTRUCTION_SETS = ["", "-mno-avx512f", "-mno-avx512f -mno-fma", "-mno-avx"] if X86 else [""]
RunOp = Callable[[str, str, list[Tensor]], Tensor]


@cache
def compiled_driver(instructions: str, folder: Path) -> ctypes.CDLL:
    source, library = folder / "driver.cpp", folder / "driver.so"
    source.write_text(inline_includes(DRIVER.replace("CASES", CASES)))
    command = [*command_with_flags(), *instructions.split()]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module", params=INSTRUCTION_SETS, ids=lambda flags: flags or "own")
def run_op(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunOp:
    """Return a function that runs an op, compiled with all or some of the CPU's instructions."""
    library = compiled_driver(request.param, tmp_path_factory.mktemp("driver"))

    def run(function: str, op: str, operands: list[Tensor]) -> Tensor:
        result = torch.empty_like(operands[0])
        addresses = (ctypes.c_void_p(t.data_ptr()) for t in (*operands, result))
        count = ctypes.c_longlong(result.numel())
        getattr(library, function)(list(OPS).index(op), *addresses, count)
        return result

    return run


def triples(numbers: list[float]) -> list[Tensor]:
    """Return all triples of the numbers as three columns, padded with copies of the first."""
    rows = torch.tensor(list(itertools.product(numbers, repeat=3)), dtype=torch.float32)
    padding = rows[:1].expand(-len(rows) % 64, 3)
    return [column.contiguous() for column in torch.cat([rows, padding]).unbind(1)]


SPECIAL = [0.0, 1.0, 0.3, 1e-40, 3e38, float("inf"), float("nan")]
EXACT = ["maximum", "minimum", "clamp", "sign", "abs", "sqrt", "quotient", "where"]
EXACT += ["product", "larger product"]
EXACT += ["tanh", "sin", "cos", "atan2", "floor", "ceil", "round", "round of a product"]


@pytest.mark.parametrize("op", EXACT)
def test_a_vector_gives_the_bits_of_single_floats_even_for_special_values(
    run_op: RunOp, op: str
) -> None:
    operands = triples([s * x for x in SPECIAL for s in (1, -1)])
    expected, actual = (run_op(function, op, operands) for function in ("on_floats", "on_vectors"))
    nan = expected.isnan()
    assert torch.equal(actual.isnan(), nan)
    assert torch.equal(actual.view(torch.int32)[~nan], expected.view(torch.int32)[~nan])


@pytest.mark.parametrize("op", [op for op in OPS if op not in EXACT])
def test_sums_of_products_are_at_least_as_exact_in_vectors(run_op: RunOp, op: str) -> None:
    generator = torch.Generator().manual_seed(0)
    operands = list(torch.randn(3, 4096, generator=generator))
    x, y, z = (operand.double() for operand in operands)
    exact = {
        "lerp": x + (y - x) * 0.75,
        "sum of products": x * y + z * x,
        "difference of products": x * y - z * x,
        "product and number": x * y + z,
        "product minus number": x * y - z,
        "number minus product": z - x * y,
    }[op]
    float_errors, vector_errors = (
        (run_op(function, op, operands).double() - exact).abs()
        for function in ("on_floats", "on_vectors")
    )
    terms = x.abs() * y.abs() + z.abs() * (x.abs() + 1) + x.abs() + y.abs()
    assert (vector_errors <= terms * 2.0**-23).all()
    assert vector_errors.sum() <= float_errors.sum() * 1.05


@pytest.mark.parametrize("op", [op for op in OPS if op not in EXACT])
def test_sums_of_products_in_vectors_are_nan_or_infinite_at_the_same_places(
    run_op: RunOp, op: str
) -> None:
    operands = triples([0.0, 2.0, -2.0, float("inf"), -float("inf"), float("nan")])
    expected, actual = (run_op(function, op, operands) for function in ("on_floats", "on_vectors"))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
