"""Test which modules may import which, function-level imports included."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TRAINING = {"runtime", "optim", "keyed", "generated", "contract"}
LAW: dict[str, set[str]] = {
    "contract": set(),
    "ir": {"contract"},
    "spec": {"ir", "contract"},
    "passes": {"ir", "contract"},
    "lowerings": {"passes", "ir", "contract"},
    "emit": {"lowerings", "passes", "ir", "templates"},
    "jit": {"spec", "emit", "runtime", "ir", "templates", "specs"},
    "compositions": {"jit", "spec", "runtime", "ir", "specs"},
    "modifiers": {"compositions", "spec"},
    "offloading": {"compositions", "jit", "keyed", "runtime", "spec", "ir", "contract"},
    "prebuilt_kernels": {"jit", "runtime", "spec"},
    "amp": {"runtime"},
    "frameworks": {"offloading", "optim", "runtime"},
    "bench": TRAINING,
    "verification": {"ir", "spec", "jit", "__version__", *TRAINING},
    "importer": {"ir", "spec", "jit", "verification", *TRAINING},
    "cli": {
        *("importer", "prebuilt_kernels"),
        *("spec", "ir", "passes", "lowerings", "emit", "jit", "compositions", "modifiers"),
        *("bench", "verification", "specs", "__version__"),
        *TRAINING,
    },
    "__main__": {"cli"},
    "specs": {"spec"},
    "templates": set(),
    **dict.fromkeys(TRAINING - {"contract"}, TRAINING),
    "optim": {"jit", "spec", *TRAINING},  # create_optimizer loads a spec that it is given
}
# pydantic comes with axolotl.
FRAMEWORKS = {"axolotl", "lightning", "pydantic", "timm", "torch", "torchtitan", "transformers"}
# Libraries that training may import besides the standard library and optgen.
TRAINING_LIBRARIES = {"torch", "triton"}
GENERATOR_LIBRARIES = {"jinja2", "ruff", "typer"}


def modules() -> Iterator[tuple[str, Path]]:
    """Yield every module of the package: its part ("ir", "cli", …) and its file."""
    for path in sorted((ROOT / "optgen").rglob("*.py")):
        first = path.relative_to(ROOT / "optgen").parts[0]
        if first != "__init__.py":
            yield first.removesuffix(".py"), path
    for part in ("specs", "templates", "generated"):
        for path in sorted((ROOT / part).rglob("*.py")):
            yield part, path


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every module that a file imports, with the line; import_module("…") counts too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=0):
                assert module is not None
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)
            case ast.ImportFrom():
                yield node.lineno, "a relative import"
            case ast.Call(
                func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str() as name)]
            ):
                yield node.lineno, name


def may_import(part: str, name: str) -> bool:
    """Tell whether a module of a part may import a name."""
    first, *rest = name.split(".")
    if first in sys.stdlib_module_names:
        return True
    if first == "optgen":
        return bool(rest) and (rest[0] == part or rest[0] in LAW[part])
    if part in TRAINING - {"contract"}:
        return first in TRAINING_LIBRARIES
    if part in {"amp", "importer", "prebuilt_kernels", "offloading", "verification"}:
        return first == "torch"
    if part == "frameworks":
        return first in FRAMEWORKS
    if part == "bench":
        return first in {"torch", "matplotlib"}
    if part == "cli":
        return first in GENERATOR_LIBRARIES | {"torch", "matplotlib"}
    others = {"emit": {"jinja2", "ruff"}, "ir": {"torch"}, "passes": {"sympy"}}
    return first in others.get(part, ())


LAYERS: tuple[tuple[str, ...], ...] = (
    ("torch_private",),
    ("rule", "cache"),
    ("light_optimizer", "tensors"),
    ("state",),
    ("batch",),
    ("toolchain",),
    ("newton_schulz_kernel", "float32_products", "symmetric_products"),
    ("newton_schulz_cost",),
    ("newton_schulz",),
    ("matrix_ops", "sharded"),
    ("reader",),
    ("eager", "fused_cpu", "fused_triton"),
    ("backends",),
    ("choose_lowering",),
    ("take_step", "elementwise"),
    ("joint_step", "optimizer"),
    ("__init__", "explain", "extra_inputs", "programs"),
)
"""The layers of optgen/runtime, the lowest first: a folder or module imports from lower layers."""
FUSED_CPU: tuple[tuple[str, ...], ...] = (
    ("kernel",),
    ("fill_table", "cached_step", "suspending_kernel"),
    ("first_step", "sparse_gradients"),
    ("kernel_loader",),
    ("gathered_step",),
    ("backend", "__init__"),
)
"""The layers of optgen/runtime/fused_cpu."""

MODULES = [pytest.param(part, path, id=str(path.relative_to(ROOT))) for part, path in modules()]


@pytest.mark.parametrize(("part", "path"), MODULES)
def test_a_part_imports_only_what_the_law_allows(part: str, path: Path) -> None:
    wrong = [
        f"{path}:{line}: {name}" for line, name in imports_of(path) if not may_import(part, name)
    ]

    assert not wrong, f"{part} may not import:\n" + "\n".join(wrong)


def members(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield every module below a folder, with the folder's file or subfolder that contains it."""
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(folder).parts[0].removesuffix(".py"), path


def is_upward(layers: tuple[tuple[str, ...], ...], member: str, name: str) -> bool:
    """Tell whether an import goes to another member of the same layer or a higher one."""
    layer = {each: number for number, names in enumerate(layers) for each in names}
    return member != name and layer[name] >= layer[member]


@pytest.mark.parametrize(
    ("package", "layers"), [("runtime", LAYERS), ("runtime.fused_cpu", FUSED_CPU)], ids=str
)
def test_runtime_imports_go_to_lower_layers(
    package: str, layers: tuple[tuple[str, ...], ...]
) -> None:
    """Imports in functions and for type checkers count as well."""
    prefix = f"optgen.{package}."
    layered = {member for names in layers for member in names}
    wrong = []
    for member, path in members(ROOT / "optgen" / package.replace(".", "/")):
        assert member in layered, f"{path} is in no layer"
        for line, name in imports_of(path):
            target = name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else ""
            if target in layered and is_upward(layers, member, target):
                wrong.append(f"{path}:{line}: {name}")

    assert not wrong, "these imports go to an equal or higher layer:\n" + "\n".join(wrong)


def test_runtime_imports_have_no_cycle() -> None:
    """Imports in functions and for type checkers count as well."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / "optgen/runtime").rglob("*.py"))
    }
    needs = {
        module: {n if n in files else n.rpartition(".")[0] for _, n in imports_of(path)}
        & set(files)
        for module, path in files.items()
    }

    list(TopologicalSorter({m: needed - {m} for m, needed in needs.items()}).static_order())


def test_an_upward_import_is_found() -> None:
    """The check itself can fail."""
    assert is_upward(LAYERS, "batch", "optimizer")
    assert is_upward(LAYERS, "eager", "fused_cpu")
    assert not is_upward(LAYERS, "batch", "tensors")


def test_every_part_has_a_law() -> None:
    assert {part for part, _ in modules()} <= set(LAW)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("ir", "optgen.passes"),
        ("ir", "optgen.runtime"),
        ("contract", "torch"),
        ("contract", "optgen.ir"),
        ("runtime", "sympy"),
        ("keyed", "optgen.jit"),
        ("optim", "optgen.emit"),
        ("spec", "numpy"),
        ("runtime", "optgen.bench"),
    ],
)
def test_the_law_refuses_an_import(part: str, name: str) -> None:
    """The check itself can fail."""
    assert not may_import(part, name)


def test_import_optgen_is_lazy() -> None:
    """`import optgen` alone does not import torch."""
    code = "import sys, optgen; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert result.stdout.strip() == "False"
