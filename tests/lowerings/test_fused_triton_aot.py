"""Every generated kernel, compiled without a GPU for three of them, and what the assembly says.

With TRITON_INTERPRET set nothing compiles: the interpreter's tests run in processes of their own.
"""

import importlib
import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import optgen.optim
from optgen.runtime.fused_triton.bucket import exact, options
from optgen.runtime.rule import Rule

pytest.importorskip("triton")

import triton
from triton import language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def elementwise() -> dict[str, str]:
    """The catalogue's rules of one sweep, each with a class that has it; no derived classes."""
    found: dict[str, str] = {}
    for name in optgen.optim.__all__:
        rule = getattr(getattr(optgen.optim, name), "rule", None)
        if isinstance(rule, Rule):
            module = importlib.import_module(f"optgen.generated.{rule.name}.fused_triton")
            if not hasattr(module, "NEEDS"):
                found.setdefault(rule.name, name)
    return found


ALGORITHMS = elementwise()
SM80, SM90 = GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32)
GFX942 = GPUTarget("hip", "gfx942", 64)
POINTERS = {"rows": "*i64", "block_tensor": "*i32", "hypers": "*fp64"}

# Types of parameter and gradient, of states, and how many registers a thread may take at most.
TYPES = {
    "float32": (torch.float32, torch.float32, 80),
    "bfloat16": (torch.bfloat16, torch.bfloat16, 80),
    "mixed": (torch.bfloat16, torch.float32, 80),
    "float64": (torch.float64, torch.float64, 96),
}
VARIANTS = [(name, on) for name in ALGORITHMS for on in (False, True)]


@pytest.fixture(scope="module", autouse=True)
def fresh_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No kernel of an earlier run, and nothing left behind."""
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path_factory.mktemp("triton"))
        yield


def rule_of(name: str) -> Rule:
    module = importlib.import_module(f"optgen.generated.{name}")
    rule: Rule = getattr(module, ALGORITHMS[name]).rule
    return rule


def kernel_of(name: str, part: str) -> Any:
    return getattr(
        importlib.import_module(f"optgen.generated.{name}.fused_triton"), f"{name}_{part}"
    )


def dtypes(name: str, kind: str, on: bool) -> list[torch.dtype | None]:
    """The types of the streams, with all flags that bring states into being on or off."""
    param, state, _ = TYPES[kind]
    like = [s for s in rule_of(name).states if s.shape == "like"]
    return [param, param, *(state if on or s.when is None else None for s in like)]


def compile_sweep(name: str, kind: str, target: GPUTarget, on: bool, amp: bool = False) -> Any:
    """Compile the sweep as the runtime does for a bucket of these types."""
    kernel, streams = kernel_of(name, "step"), dtypes(name, kind, on)
    how = options(streams, amd=target.backend == "hip")
    constants = {key: how.pop(key) for key in ("VECTOR", "BLOCK", "TAIL")}
    types = [n for n in kernel.arg_names if n.endswith("_T")]
    constants |= zip(types, (triton_type(t or streams[0]) for t in streams), strict=True)
    constants |= {n: on for n in kernel.arg_names if n.isupper() and n not in constants}
    return build(kernel, constants, TYPES[kind][0], target, amp, how)


def compile_prologue(name: str, kind: str, target: GPUTarget) -> Any:
    kernel = kernel_of(name, "scalars")
    constants = {n: tl.float32 for n in kernel.arg_names if n.endswith("_T")}
    how = {"num_warps": 1} | exact(amd=target.backend == "hip")
    return build(kernel, constants, TYPES[kind][0], target, True, how)


def triton_type(dtype: torch.dtype | None) -> Any:
    return getattr(tl, str(dtype).removeprefix("torch."))


def build(
    kernel: Any,
    constants: dict[str, Any],
    param: torch.dtype,
    target: GPUTarget,
    amp: bool,
    how: dict[str, Any],
) -> Any:
    if not amp:
        constants |= {n: None for n in ("loss_scale", "found_inf") if n in kernel.arg_names}
    scalars = "*fp64" if param == torch.float64 else "*fp32"
    known = {**POINTERS, "scalars": scalars, "tensors": "i32"}
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


def resources(compiled: Any, folder: Path) -> dict[str, int]:
    """Registers, stack and local memory of a compiled kernel, from NVIDIA's own tool."""
    binary = folder / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    run = subprocess.run(
        [tool, "--dump-resource-usage", binary], capture_output=True, text=True, check=True
    )
    found = re.findall(r"\b(REG|STACK|LOCAL):(\d+)", run.stdout)
    return {key: int(value) for key, value in found}


def wide(ptx: str, access: str) -> int:
    """How many global accesses of 16 bytes there are."""
    return len(re.findall(rf"{access}\.global(?:\.\w+)*?\.(?:v4\.b32|v2\.b64)", ptx))


def assert_lean(compiled: Any, kind: str, folder: Path) -> None:
    """Few registers, nothing spilled, nothing shared, no barrier, and exact arithmetic."""
    used = resources(compiled, folder)
    assert used["REG"] <= TYPES[kind][2]
    assert (used["STACK"], used["LOCAL"], compiled.metadata.shared) == (0, 0, 0)
    for unwanted in (".ftz", "div.full", ".approx", "bar.sync"):
        assert unwanted not in compiled.asm["ptx"]


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("name", "on"), VARIANTS)
def test_sweep_on_hopper(name: str, on: bool, kind: str, amp: bool, tmp_path: Path) -> None:
    compiled = compile_sweep(name, kind, SM90, on, amp)
    assert_lean(compiled, kind, tmp_path)
    streams = dtypes(name, kind, on)
    how = options(streams, amd=False)
    trips = how["BLOCK"] // 128 // how["VECTOR"]
    present = [t for t in streams if t is not None]
    widest = [t.itemsize == max(p.itemsize for p in present) for t in present]
    stored = [w for i, w in enumerate(widest) if i != 1 or amp]  # an unscaled gradient is written
    ptx = compiled.asm["ptx"]
    assert (wide(ptx, "ld"), wide(ptx, "st")) == (sum(widest) * trips, sum(stored) * trips)


@pytest.mark.parametrize("kind", ["float32", "mixed"])
@pytest.mark.parametrize(("name", "on"), VARIANTS)
def test_sweep_on_ampere(name: str, on: bool, kind: str, tmp_path: Path) -> None:
    assert_lean(compile_sweep(name, kind, SM80, on), kind, tmp_path)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "on"), VARIANTS)
def test_sweep_on_amd(name: str, on: bool, kind: str) -> None:
    compiled = compile_sweep(name, kind, GFX942, on)
    text = compiled.asm["amdgcn"]
    assert re.findall(r"(?:vgpr|sgpr)_spill_count:\s+(\d+)", text) == ["0", "0"]
    assert compiled.metadata.shared == 0
    present = [t for t in dtypes(name, kind, on) if t is not None]
    assert len(re.findall(r"(?:global|buffer)_load_dwordx4", text)) >= len(present)
    assert len(re.findall(r"(?:global|buffer)_store_dwordx4", text)) >= len(present) - 1


@pytest.mark.parametrize("target", [SM80, SM90, GFX942], ids=lambda t: str(t.arch))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_prologue(name: str, target: GPUTarget) -> None:
    for kind in ("float32", "float64"):
        compiled = compile_prologue(name, kind, target)
        assert compiled.metadata.shared == 0
        literals = re.findall(r"arith\.constant (\S+) : f32", compiled.asm["ttir"])
        assert set(literals) <= {"0.000000e+00"}  # found_inf's; a rule's numbers are float64


def test_literals_of_a_rule_are_float64() -> None:
    text = compile_prologue("nadam", "float64", SM90).asm["ttir"]
    literals = [float(x) for x in re.findall(r"arith\.constant (-0\S+) : f64", text)]
    assert literals == [math.log2(0.96)]  # of a 0.96 in float32 it would be -0.0588937126
