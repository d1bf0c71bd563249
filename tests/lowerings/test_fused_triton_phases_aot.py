"""The kernels of rules with phases, compiled without a GPU, and what the assembly says."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lowerings.phased_rules import module_of
from lowerings.test_fused_triton_aot import GFX942, SM80, SM90, resources, triton_type, wide

from optgen.runtime.fused_triton.bucket import exact, options
from optgen.runtime.fused_triton.workspace import CHUNK, LINES, Tile

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

POINTERS = {
    **dict.fromkeys(("rows", "shapes", "chunks"), "*i64"),
    **dict.fromkeys(("block_tensor", "group_tensor", "chunk_tensor"), "*i32"),
    **dict.fromkeys(("hypers", "scalars", "partials"), "*fp64"),
    "tensors": "i32",
}
LARGE, SMALL = Tile(1, 16, 128), Tile(128, 4, 4)
REGISTERS = {torch.float32: 80, torch.bfloat16: 80, torch.float64: 128}
"""What a thread of a sweep may take: 256 threads a tile, 128 a block of elements."""
SWEEPS = [
    ("Adafactor", "factored_step1", LARGE),
    ("Adafactor", "factored_step2", LARGE),
    ("Adafactor", "factored_step3", LARGE),
    ("Adafactor", "factored_step3", SMALL),
    ("Adafactor", "not_factored_step1", None),
    ("LAMB", "step1", None),
    ("LAMB", "step2", None),
    ("Muon", "step1", None),
]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Finds a kernel by its rule and its name; nothing of an earlier run, nothing left behind."""
    modules: dict[str, str] = {}

    def kernel(rule: str, part: str) -> Any:
        if rule not in modules:
            modules[rule] = module_of(rule, tmp_path_factory.mktemp(rule)).__name__
        __import__(f"{modules[rule]}.fused_triton")
        return getattr(sys.modules[f"{modules[rule]}.fused_triton"], f"{rule.lower()}_{part}")

    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path_factory.mktemp("triton"))
        yield kernel


def compiled(
    kernel: Any, dtype: torch.dtype, target: GPUTarget, how: dict[str, Any], amp: bool = True
) -> Any:
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    constants = {n: how.pop(n) for n in list(how) if n.isupper()}
    constants |= {n: triton_type(dtype) for n in kernel.arg_names if n.endswith("_T")}
    constants |= {"COMPUTE_T": triton_type(compute), "STEP_T": triton_type(torch.float32)}
    constants = {n: value for n, value in constants.items() if n in kernel.arg_names}
    if not amp:
        constants |= {n: None for n in ("loss_scale", "found_inf") if n in kernel.arg_names}
    known = {**POINTERS, "values": "*fp64" if compute == torch.float64 else "*fp32"}
    signature = {
        n: "constexpr" if n in constants else known.get(n, "*fp32") for n in kernel.arg_names
    }
    pointers = [i for i, n in enumerate(signature) if signature[n][0] == "*"]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in pointers},
    )
    return triton.compile(source, target=target, options=how)


def assert_exact(found: Any) -> None:
    for unwanted in (".ftz", "div.full", ".approx", ".atom"):
        assert unwanted not in found.asm["ptx"]


def assert_unspilled(found: Any, registers: int, folder: Path) -> None:
    used = resources(found, folder)
    assert (used["STACK"], used["LOCAL"]) == (0, 0)
    assert used["REG"] <= registers


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("dtype", REGISTERS)
@pytest.mark.parametrize(("rule", "part", "tile"), SWEEPS)
def test_sweeps_on_hopper(
    rule: str,
    part: str,
    tile: Tile | None,
    dtype: torch.dtype,
    amp: bool,
    kernels: Any,
    tmp_path: Path,
) -> None:
    if amp and (dtype != torch.float32 or not part.endswith("step1")):
        pytest.skip("only the first sweep unscales")
    kernel = kernels(rule, part)
    found = compiled(kernel, dtype, SM90, options([dtype], amd=False, tile=tile), amp)
    assert_exact(found)
    assert_unspilled(found, REGISTERS[dtype], tmp_path)
    streams = sum(n.endswith("_T") for n in kernel.arg_names) - 1  # without COMPUTE_T
    whole = options([dtype], amd=False, tile=tile)
    elements = 2048 // 256 if tile else whole["BLOCK"] // 128
    loaded = streams - (rule == "Muon")  # u is stored only
    if tile != SMALL or dtype != torch.bfloat16:  # rows of 4 have not 16 bytes
        assert wide(found.asm["ptx"], "ld") >= loaded * elements // whole["VECTOR"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tile", [LARGE, SMALL])
def test_finishes_on_hopper(tile: Tile, dtype: torch.dtype, kernels: Any, tmp_path: Path) -> None:
    lines = {"DEPTH": 1, "HEIGHT": LINES, "WIDTH": LINES}
    if tile == SMALL:
        lines = dict(zip(("DEPTH", "HEIGHT", "WIDTH"), tile, strict=True))
    how = lines | {"num_warps": 8} | exact(amd=False)
    found = compiled(kernels("Adafactor", "factored_finish1"), dtype, SM90, how)
    assert_exact(found)
    assert_unspilled(found, 128, tmp_path)


@pytest.mark.parametrize("part", ["finish1", "scalars"])
def test_numbers_on_hopper(part: str, kernels: Any, tmp_path: Path) -> None:
    how = {"num_warps": 1 if part == "scalars" else 4} | exact(amd=False)
    found = compiled(kernels("LAMB", part), torch.float32, SM90, how)
    assert_exact(found)
    assert_unspilled(found, 80, tmp_path)


def test_what_combines_partial_sums(tmp_path: Path, kernels: Any) -> None:
    from optgen.runtime.fused_triton.reductions import combine

    counts = {"FIRST": 9, "SUMS": 2, "LARGEST": 2, "ROW_SUMS": 1, "COLUMN_SUMS": 1, "SCALARS": 11}
    sizes = {"ROW_VALUES": 3, "HEIGHT": 16, "WIDTH": 128, "PER_PROGRAM": CHUNK}
    how = counts | sizes | {"num_warps": 4} | exact(amd=False)
    found = compiled(combine, torch.float32, SM90, how)
    assert_exact(found)
    assert_unspilled(found, 96, tmp_path)


@pytest.mark.parametrize("part", ["factored_step1", "factored_step2", "factored_step3"])
def test_tiles_on_ampere(part: str, kernels: Any, tmp_path: Path) -> None:
    how = options([torch.float32], amd=False, tile=LARGE)
    found = compiled(kernels("Adafactor", part), torch.float32, SM80, how)
    assert_exact(found)
    assert_unspilled(found, 80, tmp_path)


@pytest.mark.parametrize("part", ["factored_step1", "factored_step3", "factored_finish1"])
def test_tiles_on_amd(part: str, kernels: Any) -> None:
    how = options([torch.float32], amd=True, tile=LARGE)
    how = {n: value for n, value in how.items() if n != "VECTOR" or "step" in part}
    text = compiled(kernels("Adafactor", part), torch.float32, GFX942, how).asm["amdgcn"]
    assert re.findall(r"(?:vgpr|sgpr)_spill_count:\s+(\d+)", text) == ["0", "0"]
    if "step" in part:
        assert re.search(r"(?:global|buffer)_load_dwordx4", text)
