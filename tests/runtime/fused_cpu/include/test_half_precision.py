"""Test 16-bit floats in C++: they are widened, and floats are rounded to them, as by torch."""

import ctypes
import platform
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
from compiler_flags import command_with_flags
from torch import Tensor

import optgen.optim
from optgen.runtime.toolchain.library_cache import inline_includes

# Convert floats one by one, as tiles do, and in vectors, as sweeps do. The elements of a vector are
# not in memory order: `lane` loads small whole numbers to find the place of each element.
DRIVER = """
#include "optgen/runtime/fused_cpu/include/loads_and_stores.h"
using namespace optgen;
constexpr int N = LANES<VectorPair>;
template <class S>
static float& lane(VectorPair& x, int element) {
    S codes[N];
    for (int i = 0; i < N; ++i) codes[i] = encode<S>(float(i));
    const VectorPair found = load(codes, 0);
    for (int k = 0; k < N / 2; ++k) {
        if (found.a[k] == float(element)) return reinterpret_cast<float*>(&x.a)[k];
        if (found.b[k] == float(element)) return reinterpret_cast<float*>(&x.b)[k];
    }
    __builtin_trap();
}
template <class S>
static void widen(const S* from, float* to, i64 n) {
    float* lanes[N];
    VectorPair x;
    for (int e = 0; e < N; ++e) lanes[e] = &lane<S>(x, e);
    for (i64 i = 0; i < n; i += N) {
        x = load(from + i, 0);
        for (int e = 0; e < N; ++e) to[i + e] = *lanes[e];
    }
}
template <class S>
static void narrow(const float* from, S* to, i64 n) {
    float* lanes[N];
    VectorPair x;
    for (int e = 0; e < N; ++e) lanes[e] = &lane<S>(x, e);
    for (i64 i = 0; i < n; i += N) {
        for (int e = 0; e < N; ++e) *lanes[e] = from[i + e];
        store(to + i, x);
    }
}
extern "C" void sweep_load(int type, const void* from, float* to, i64 n) {
    if (type == BFLOAT16) widen(static_cast<const bfloat16*>(from), to, n);
    else widen(static_cast<const float16*>(from), to, n);
}
extern "C" void sweep_store(int type, const float* from, void* to, i64 n) {
    if (type == BFLOAT16) narrow(from, static_cast<bfloat16*>(to), n);
    else narrow(from, static_cast<float16*>(to), n);
}
extern "C" void tile_load(int type, const void* from, float* to, i64 n) {
    read(u32(type), from, 0, n, to);
}
extern "C" void tile_store(int type, const float* from, void* to, i64 n) {
    write(u32(type), from, to, 0, n);
}
"""

X86 = platform.machine().lower() in ("x86_64", "amd64")
INSTRUCTION_SETS = ["", "-mno-avx512bf16", "-mno-avx512f", "-mno-avx512f -mno-f16c", "-mno-avx"]
HALVES = [torch.bfloat16, torch.float16]
LOOPS = ["sweep", "tile"]


@cache
def compiled_driver(instructions: str, folder: Path) -> ctypes.CDLL:
    source, library = folder / "driver.cpp", folder / "driver.so"
    source.write_text(inline_includes(DRIVER))
    command = [*command_with_flags(), *instructions.split()]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(
    scope="module", params=INSTRUCTION_SETS if X86 else [""], ids=lambda flags: flags or "own"
)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    """Return the driver, compiled with all or some of the CPU's vector instructions."""
    return compiled_driver(request.param, tmp_path_factory.mktemp("driver"))


def load_in_cpp(library: ctypes.CDLL, loop: str, x: Tensor) -> Tensor:
    wide = torch.empty(x.shape)
    _call(library, f"{loop}_load", x.dtype, x, wide)
    return wide


def store_in_cpp(library: ctypes.CDLL, loop: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    narrow = torch.empty(x.shape, dtype=dtype)
    _call(library, f"{loop}_store", dtype, x, narrow)
    return narrow


def _call(library: ctypes.CDLL, name: str, dtype: torch.dtype, a: Tensor, b: Tensor) -> None:
    dtype_code = {torch.bfloat16: 15, torch.float16: 5}[dtype]
    addresses = (ctypes.c_void_p(t.data_ptr()) for t in (a, b))
    getattr(library, name)(dtype_code, *addresses, ctypes.c_longlong(a.numel()))


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Check that both tensors are NaN at the same indices and have equal bits elsewhere."""
    bits = {2: torch.int16, 4: torch.int32}[actual.element_size()]
    nan = expected.isnan()
    assert torch.equal(actual.isnan(), nan)
    assert torch.equal(actual.view(bits)[~nan], expected.view(bits)[~nan])


def bit_patterns(dtype: torch.dtype) -> Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def numbers(dtype: torch.dtype) -> Tensor:
    """Return every number of the dtype, the midpoints and their neighbours, and random numbers."""
    exact = bit_patterns(dtype).float()
    following = (bit_patterns(dtype).view(torch.int16) + 1).view(dtype).float()
    midpoints = ((exact.double() + following.double()) / 2).float()
    bits = midpoints.view(torch.int32)
    near_midpoints = [(bits + k).view(torch.float32) for k in (-1, 0, 1)]
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(-(2**31), 2**31, (2**18,), generator=generator, dtype=torch.int64)
    infinity, last_nan = 0x7F800000, 0x7FFFFFFF  # as bits of a float32
    near_infinity = torch.arange(infinity - 64, infinity + 192, dtype=torch.int64)
    nans = torch.full((64,), last_nan, dtype=torch.int64)
    others = torch.cat([random, near_infinity, nans]).to(torch.int32).view(torch.float32)
    return torch.cat([exact, *near_midpoints, others, -others])


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_bit_pattern_is_widened_exactly(
    library: ctypes.CDLL, dtype: torch.dtype, loop: str
) -> None:
    assert_same(load_in_cpp(library, loop, bit_patterns(dtype)), bit_patterns(dtype).float())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_numbers_are_rounded_as_torch_does(
    library: ctypes.CDLL, dtype: torch.dtype, loop: str
) -> None:
    ordered = numbers(dtype)
    shuffled = ordered[torch.randperm(len(ordered), generator=torch.Generator().manual_seed(0))]
    for x in (ordered, shuffled):
        assert_same(store_in_cpp(library, loop, x, dtype), x.to(dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_an_element_does_not_depend_on_its_neighbours(
    library: ctypes.CDLL, dtype: torch.dtype
) -> None:
    """Even the bits of NaN are the same. A denormal neighbour sends a vector on a slower path."""
    x = numbers(dtype)
    shift = 37
    moved = store_in_cpp(library, "sweep", x.roll(shift), dtype).view(torch.int16).roll(-shift)
    assert torch.equal(store_in_cpp(library, "sweep", x, dtype).view(torch.int16), moved)
    one_by_one = store_in_cpp(library, "tile", x, dtype).view(torch.int16)
    nan = x.isnan()
    assert torch.equal(one_by_one[~nan], moved[~nan])


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "options"), [("SGD", {"momentum": 0.9}), ("AdamW", {})])
def test_an_element_does_not_depend_on_its_position(
    dtype: torch.dtype, name: str, options: dict[str, float]
) -> None:
    """Short tensors of many lengths at odd addresses get the bits of one long tensor."""
    generator = torch.Generator().manual_seed(0)
    sizes = [*range(71), 257, 1023]
    starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
    values = torch.randn(starts[-1], generator=generator, dtype=torch.float64).to(dtype)
    grads = torch.randn(starts[-1], generator=generator, dtype=torch.float64).to(dtype)
    grads[::5] *= torch.finfo(dtype).tiny / 3  # denormal
    values[::7] = 0
    whole = values.clone().requires_grad_()
    parts = list(values.clone().split(sizes))
    for part in parts:
        part.requires_grad_()
    cls = getattr(optgen.optim, name)
    whole_optimizer, parts_optimizer = cls([whole], **options), cls(parts, **options)
    for _ in range(3):
        whole.grad = grads.clone()
        for part, grad in zip(parts, grads.clone().split(sizes), strict=True):
            part.grad = grad
        with optgen.use_lowering("fused_cpu"):
            whole_optimizer.step()
            parts_optimizer.step()
    assert torch.equal(torch.cat([p.detach() for p in parts]), whole.detach())
