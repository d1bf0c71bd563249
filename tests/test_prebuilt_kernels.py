"""Test kernels that are built ahead, in processes that find no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import optgen
from optgen import optim
from optgen.prebuilt_kernels import build_kernels
from optgen.runtime.toolchain import processors

STEPS = """
import warnings
warnings.simplefilter("error")
import torch
import optgen
torch.manual_seed(0)
params = [torch.nn.Parameter(torch.randn({shape}).to(dtype)) for dtype in {dtypes}]
optimizer = {optimizer}
for _ in range(3):
    for param in params:
        param.grad = torch.randn({shape}).to(param.dtype)
    optimizer.step()
print(optgen.explain(optimizer))
print([param.double().sum().item().hex() for param in params])
"""
ADAMW = "optgen.optim.AdamW(params, lr=1e-2)"


def run(
    folder: Path,
    optimizer: str = ADAMW,
    dtypes: str = "[torch.float32]",
    shape: str = "(5, 7)",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Take steps in a new process without a compiler and with an empty cache."""
    without = {"PATH": "", "OPTGEN_CACHE_DIR": str(folder / "cache"), **environment}
    kept = {key: value for key, value in os.environ.items() if key not in ("CXX", "OPTGEN_KERNELS")}
    program = textwrap.dedent(STEPS).format(optimizer=optimizer, dtypes=dtypes, shape=shape)
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=kept | without, cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def adamw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with AdamW's kernels for float32."""
    folder = tmp_path_factory.mktemp("kernels")
    built = build_kernels([optim.AdamW], folder, dtypes=[torch.float32])
    assert {path.parent for path in built} == {folder}
    return folder


def test_steps_are_fused_without_a_compiler(adamw: Path, tmp_path: Path) -> None:
    done = run(tmp_path, OPTGEN_KERNELS=f"{tmp_path / 'empty'}{os.pathsep}{adamw}")

    assert done.returncode == 0, done.stderr
    assert "fused C++" in done.stdout
    assert not list((tmp_path / "cache").rglob("*.so"))


@pytest.mark.thorough
@pytest.mark.skipif(not processors.IS_X86, reason="one level")
def test_levels_have_equal_bits(adamw: Path, tmp_path: Path) -> None:
    """Lower levels are found once the higher ones are gone."""
    results = set()
    here = processors.levels_here()
    for level in (each for each in processors.SHARED_LEVELS if each in here):
        done = run(tmp_path, OPTGEN_KERNELS=str(adamw))
        assert "fused C++" in done.stdout, done.stderr
        results.add(done.stdout)
        hidden = tmp_path / level.name
        hidden.mkdir()
        for path in [*adamw.glob(f"*{processors.tag(level)}.so*")]:
            path.rename(hidden / path.name)
    without = run(tmp_path, OPTGEN_KERNELS=str(adamw))
    for path in [*tmp_path.glob("x86-64*/*")]:
        path.rename(adamw / path.name)

    assert len(results) == 1
    assert "no folder of prebuilt kernels has adam of this version" in without.stderr


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "or build its kernels on another machine with `optgen build-kernels`"),
        ({"OPTGEN_KERNELS": "/nowhere/at/all"}, "/nowhere/at/all, which is no folder"),
    ],
)
def test_a_machine_without_kernels_says_the_way_out(
    environment: dict[str, str], message: str, tmp_path: Path
) -> None:
    done = run(tmp_path, **environment)

    assert done.returncode  # the warning is an error here
    assert message in done.stderr


def test_other_dtypes_are_said_to_be_missing(adamw: Path, tmp_path: Path) -> None:
    done = run(tmp_path, dtypes="[torch.float64]", OPTGEN_KERNELS=str(adamw))

    assert "no folder of prebuilt kernels has adam" in done.stderr


def test_a_damaged_library_is_not_loaded(adamw: Path, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    for path in adamw.iterdir():
        data = path.read_bytes()
        (copies / path.name).write_bytes(data[:-8] if path.suffix == ".so" else data)

    done = run(tmp_path, OPTGEN_KERNELS=str(copies))

    assert done.returncode == 1
    assert "no folder of prebuilt kernels has adam" in done.stderr


@pytest.mark.thorough
def test_a_package_carries_its_kernels(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "optgen", "build", "lion", "--out", "rules"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    build_kernels(["lion"], tmp_path / "rules" / "kernels", dtypes=[torch.float32])

    assert_lion_is_fused(tmp_path)


@pytest.mark.thorough
def test_a_wheel_carries_the_kernels_of_its_package(tmp_path: Path) -> None:
    project, machine = tmp_path / "project", tmp_path / "machine"
    (project / "rules").mkdir(parents=True)
    (project / "rules" / "__init__.py").touch()
    (project / "pyproject.toml").write_text(PROJECT)
    commands = [
        ["-m", "optgen", "build", "lion", "--out", "rules"],
        ["-m", "optgen", "build-kernels", "lion", "--out", "rules/kernels", "--dtype", "float32"],
        ["-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", "dist", "."],
    ]
    for command in commands:
        subprocess.run([sys.executable, *command], cwd=project, check=True, capture_output=True)
    (wheel,) = (project / "dist").glob("*.whl")
    install = ["-m", "pip", "install", "--no-deps", "--target", str(machine), str(wheel)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)

    assert_lion_is_fused(machine)


PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "rules"
version = "1"

[tool.setuptools]
packages = ["rules", "rules.lion"]
package-data = { "*" = ["*.cpp", "kernels/*"] }
"""


def assert_lion_is_fused(folder: Path) -> None:
    """Check that the package `rules` of a folder takes fused steps without a compiler."""
    imported = "__import__('rules.lion').lion.Lion(params)"
    done = run(folder, imported, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    assert "fused C++" in done.stdout, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        'load("muon")',
        'load("adafactor")',
        'load("prodigy")',
        'compose("lion", optgen.modifiers.quantized())',
    ],
)
def test_rules_of_any_kind(text: str, tmp_path: Path) -> None:
    cls = eval(f"optgen.{text}", {"optgen": optgen})
    build_kernels([cls], tmp_path / "kernels", dtypes=[torch.float32], levels=["native"])

    done = run(tmp_path, f"optgen.{text}(params)", OPTGEN_KERNELS=str(tmp_path / "kernels"))

    assert "fused C++" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("cls", "level", "library", "shape"),
    [
        (optim.Muon, processors.BFLOAT16, "newton_schulz", "(64, 96)"),
        pytest.param(
            *(optim.SOAP, processors.V4, "float32_products", "(192, 256)"),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_functions_on_whole_matrices_are_compiled(
    cls: Any, level: processors.Level, library: str, shape: str, tmp_path: Path
) -> None:
    """Products by torch have other bits."""
    if level not in processors.levels_here():
        pytest.skip(f"the processor is not of {level.name}")
    kernels, text = tmp_path / "kernels", f"optgen.optim.{cls.__name__}(params, lr=1e-2)"
    levels = [processors.V4.name]
    built = build_kernels([cls], kernels, dtypes=[torch.float32], levels=levels)
    (of_matrices,) = (path for path in built if path.name.startswith(library))

    compiled = run(tmp_path, text, shape=shape, OPTGEN_KERNELS=str(kernels))
    of_matrices.unlink()
    by_torch = run(tmp_path, text, shape=shape, OPTGEN_KERNELS=str(kernels))

    assert "fused C++" in compiled.stdout, compiled.stderr
    assert "fused C++" in by_torch.stdout, by_torch.stderr
    assert compiled.stdout != by_torch.stdout


def test_mistakes_are_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no processor level 'zen4': choose from native"):
        build_kernels([optim.SGD], tmp_path, levels=["zen4"])
    with pytest.raises(ValueError, match=r"do not compute with torch\.int8"):
        build_kernels([optim.SGD], tmp_path, dtypes=[torch.int8])
    with pytest.raises(TypeError, match="no generated optimizer: pass a class"):
        build_kernels([torch.optim.SGD], tmp_path)  # type: ignore[list-item]
    assert not list(tmp_path.iterdir())
