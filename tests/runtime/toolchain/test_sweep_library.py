"""Test libraries of sweeps: which kernels have one, and which share one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

import generated
from optgen import use_lowering
from optgen.optim import Adafactor
from optgen.runtime.fused_cpu import kernel_loader
from optgen.runtime.reader import tensor_reader
from optgen.runtime.toolchain import compiler, dtype_variants, library_cache
from optgen.runtime.toolchain.compiler import FlagSets
from optgen.runtime.toolchain.library_cache import inline_includes

SINGLE, DOUBLE = (
    dtype_variants.bits_of_dtypes([dtype]) for dtype in (torch.float32, torch.float64)
)


def kernel_source(name: str) -> str:
    """Return a kernel's source with its headers inserted."""
    return inline_includes((Path(generated.__file__).parent / name / "fused_cpu.cpp").read_text())


def sweep_library_of(source: str, dtype_bits: int, extra_bits: int = 0) -> Path | None:
    """Return the path of the library that sweeps for a kernel."""
    with ThreadPoolExecutor(1) as executor:
        return dtype_variants.start_sweep_build(executor, source, dtype_bits, extra_bits)()


@pytest.fixture
def compiled_sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compile nothing; return a list that gets the sources that would be compiled."""
    texts: list[str] = []

    def library(name: str, text: str) -> Path:
        texts.append(text)
        return Path(name)

    monkeypatch.setattr(library_cache, "find_built", lambda name, text: None)
    monkeypatch.setattr(library_cache, "library", library)
    return texts


def test_rules_share_a_library_of_sweeps(compiled_sources: list[str]) -> None:
    for name in ("adafactor", "row_wise_adagrad"):
        assert sweep_library_of(kernel_source(name), SINGLE)

    assert len(set(compiled_sources)) == 1


def test_sweeps_read_the_bfloat16_results_of_matrix_ops(compiled_sources: list[str]) -> None:
    """The sweeps of a float64 model of Muon read bfloat16 too, but not float32."""
    sweep_library_of(kernel_source("muon"), DOUBLE, dtype_variants.matrix_op_dtypes([()]))
    bits = DOUBLE | dtype_variants.bits_of_dtypes([torch.bfloat16]) & ~SINGLE

    assert f"#define OPTGEN_TYPES {bits}\n" in compiled_sources[0]


def test_a_rule_of_one_sweep_has_no_library_of_sweeps(compiled_sources: list[str]) -> None:
    assert sweep_library_of(kernel_source("adam"), SINGLE) is None
    assert not compiled_sources


def parameters() -> list[Tensor]:
    params = [torch.nn.Parameter(torch.ones(4, 5))]
    params[0].grad = torch.ones(4, 5)
    return params


def test_a_first_step_builds_each_library_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built = []

    def record_build(command: list[str], source: Path, target: Path, flags: FlagSets) -> None:
        built.append(source.read_text())
        build(command, source, target, flags)

    build = compiler.build
    monkeypatch.setattr(compiler, "build", record_build)
    monkeypatch.setattr(kernel_loader, "_kernels", {})
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path))
    tensor_reader.reader()
    with use_lowering("fused_cpu"):
        optimizer = Adafactor(parameters())
        for _ in range(2):
            optimizer.step()
        optimizer.add_param_group({"params": parameters()})
        optimizer.step()

    adafactor_sources = [text for text in built if f"OPTGEN_TYPES {SINGLE}\n" in text]
    assert sorted("optgen_step" in text for text in adafactor_sources) == [False, True]
    # The reader is built too, unless an earlier test has built it.
    readers = [text for text in built if "optgen_read_step" in text]
    assert len(built) == len(adafactor_sources) + len(readers)


def test_sweeps_that_cannot_be_built_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        dtype_variants, "_sweep_source", lambda: "this is no C++, but knows OPTGEN_TYPES\n"
    )
    monkeypatch.setattr(kernel_loader, "_kernels", {})
    monkeypatch.setattr(kernel_loader, "_warned_reasons", set())
    monkeypatch.setattr(
        library_cache, "library", lambda name, text: build_only_sweeps(name, text, tmp_path)
    )
    monkeypatch.setattr(library_cache, "find_built", lambda name, text: None)
    params = parameters()
    with pytest.warns(UserWarning, match=r"(?s)slow: .*could not build.*error"):
        Adafactor(params).step()

    assert (params[0] < 1).all()  # the step is taken nevertheless


def build_only_sweeps(name: str, text: str, folder: Path) -> Path:
    """Compile the source of the library of sweeps, and an empty source for each other library."""
    source, target = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(text if name == "sweeps" else "")
    command = compiler.find()
    assert command
    compiler.build(command, source, target)
    return target
