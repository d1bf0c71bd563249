"""Test every generated kernel: compiled without a GPU for three GPUs, and checked in assembly.

With TRITON_INTERPRET set, nothing compiles. So tests in the interpreter run in other processes.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lowerings.phased_rules import class_of
from spec_files import TORCH_SPECS

import optgen.optim

pytest.importorskip("triton")

import triton

from benchmarks.triton_aot import RECORD, SLACK, cases, classes, entry_name
from benchmarks.triton_aot_assembly import Figures
from benchmarks.triton_aot_compile import (
    TARGETS,
    TYPES,
    Case,
    compiling_for,
    figures_of,
    flags_of,
    take_step,
)

RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
WITH_REDUCTIONS = ("Adafactor", "RowWiseAdagrad")
TYPES_OF_LARGE_KERNELS = {
    "sm_80": ("mixed",),
    "sm_90": ("float32", "bfloat16"),
    "gfx942": ("float32",),
}
"""Dtypes for which kernels that take long to compile are tested, by target."""
TYPES_OF_OTHER_TARGETS = {"sm_80": ("mixed",), "gfx942": ("float32",)}
COMPILED_ONCE = ("RowWiseAdagrad",)  # its template is tested with Adafactor


@pytest.fixture(scope="module")
def cache() -> str:
    """Return a folder for Triton's files. Triton finds a kernel there by its source and target."""
    return str(Path(__file__).parents[2] / "build" / "triton")


def cases_to_compile(name: str, target: str) -> Iterator[Case]:
    """Yield the cases of a class that these tests compile.

    Most cases have both flags and a gradient scaler, or neither, because each adds its own lines
    to a kernel. Targets other than sm_90 have few dtypes, because a kernel's text is the same for
    all targets. Classes with many kernels have few cases. `python benchmarks/triton_aot.py`
    compiles all cases.
    """
    cls = classes()[name]
    for case in cases(cls, target):
        if target != "sm_90" and case.types not in TYPES_OF_OTHER_TARGETS[target]:
            continue
        if name in COMPILED_ONCE:
            if (target, case.types, case.scaled) == ("sm_90", "float32", True):
                yield case
        elif name in WITH_REDUCTIONS:
            if case.types in TYPES_OF_LARGE_KERNELS[target] and case.scaled == (
                case.types == "float32"
            ):
                yield case
        elif case.scaled == (case.flags or not flags_of(cls)):
            yield case


def check_figures(found: dict[str, Figures], case: Case) -> None:
    """Check that kernels are exact, spill nothing, and access whole blocks 16 bytes at a time.

    Spills are checked only with the recorded version of Triton: version 3.9 spills 16 bytes in
    one kernel of Adafactor.
    """
    for kernel, figures in found.items():
        assert (kernel, figures.inexact_instructions) == (kernel, ())
        if triton.__version__ == RECORDED["triton"]:
            assert (kernel, figures.spilled_bytes) == (kernel, 0)
        assert figures.has_widest_accesses, (kernel, case, figures)


@pytest.mark.one_case_in(16)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", classes())
def test_kernels_need_no_more_registers_and_memory_than_recorded(
    name: str, target: str, cache: str
) -> None:
    for case in cases_to_compile(name, target):
        found = figures_of(classes()[name], case, cache)
        check_figures(found, case)
        for kernel, figures in found.items():
            if name not in WITH_REDUCTIONS:
                assert figures.shared_bytes == 0
            registers, shared = RECORDED[kernel][target][entry_name(case)]
            if triton.__version__ == RECORDED["triton"]:
                assert figures.registers <= registers + SLACK, (kernel, case)
                assert figures.shared_bytes <= shared, (kernel, case)


def test_the_record_has_exactly_the_kernels_of_torch_and_torchrec() -> None:
    folders = (Path("generated") / path.stem for path in TORCH_SPECS)
    files = (p.read_text() for folder in folders for p in folder.glob("fused_triton.py"))
    names = {n for text in files for n in re.findall(r"specialize.*\ndef (\w+)\(", text)}
    assert set(RECORDED) - {"triton", "entries"} == names
    for kernel in names:
        assert set(RECORDED[kernel]) == set(TARGETS)
        entries = (entry for found in RECORDED[kernel].values() for entry in found)
        assert {entry.split()[0] for entry in entries} == set(TYPES)


@pytest.mark.one_case_in(5)
@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("LAMB", "float32"),
        ("CAME", "bfloat16"),
        ("Ragged", "float32"),
        ("KahanAdamW", "bfloat16"),
        ("StochasticAdamW", "float16"),
    ],
)
def test_sweeps_of_other_rules_are_exact_and_spill_nothing(
    name: str, types: str, tmp_path: Path, cache: str
) -> None:
    cls = class_of(name, tmp_path)
    case = Case("sm_90", types, scaled=types == "float32")
    found = figures_of(cls, case, cache)
    check_figures({kernel: figures for kernel, figures in found.items() if "_step" in kernel}, case)


def test_a_whole_block_is_read_and_written_sixteen_bytes_at_a_time(cache: str) -> None:
    found = figures_of(optgen.optim.AdamW, Case("sm_90", "mixed", scaled=True), cache)["adam_step"]
    assert found.expected_accesses == {
        ("load", 8): 4,
        ("load", 16): 4,
        ("store", 8): 4,
        ("store", 16): 4,
    }
    found = figures_of(optgen.optim.AdamW, Case("sm_90", "float32"), cache)["adam_step"]
    assert found.expected_accesses == {("load", 16): 8, ("store", 16): 6}


def test_literals_of_a_rule_are_float64(cache: str) -> None:
    with compiling_for("sm_90", cache) as launches:
        take_step(optgen.optim.NAdam, Case("sm_90", "float64", scaled=True))
    text = launches[0].compiled.asm["ttir"]
    literals = [float(x) for x in re.findall(r"arith\.constant (-0\S+) : f64", text)]
    assert literals == [math.log2(0.96)]  # log2 of a float32 0.96 would be -0.0588937126
    literals = re.findall(r"arith\.constant (\S+) : f32", text)
    assert set(literals) <= {
        "0.000000e+00"
    }  # compared with found_inf; a rule's numbers are float64
