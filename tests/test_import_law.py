"""Who may import whom, function-level imports included."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TRAINING = {"runtime", "optim", "keyed", "generated"}
LAW: dict[str, set[str]] = {
    "ir": set(),
    "spec": {"ir"},
    "passes": {"ir"},
    "lowerings": {"passes", "ir"},
    "emit": {"lowerings", "passes", "ir", "templates"},
    "jit": {"spec", "emit", "runtime", "ir", "templates", "specs"},
    "bench": TRAINING,
    "cli": {
        *("spec", "ir", "passes", "lowerings", "emit", "jit", "bench", "specs", "__version__"),
        *TRAINING,
    },
    "__main__": {"cli"},
    "specs": {"spec"},
    "templates": set(),
    **dict.fromkeys(TRAINING, TRAINING),
}
# What training may import besides the standard library and optgen.
TRAINING_LIBRARIES = {"torch", "triton"}
GENERATOR_LIBRARIES = {"jinja2", "ruff", "sympy", "typer"}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package: its part ("ir", "cli", …) and its file."""
    for path in sorted((ROOT / "optgen").rglob("*.py")):
        first = path.relative_to(ROOT / "optgen").parts[0]
        if first != "__init__.py":
            yield first.removesuffix(".py"), path
    for part in ("specs", "templates", "generated"):
        for path in sorted((ROOT / part).rglob("*.py")):
            yield part, path


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Every module a file imports, anywhere in it, with the line; import_module("…") as well."""
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


def allowed(part: str, name: str) -> bool:
    """Whether a module of a part may import a name."""
    first, *rest = name.split(".")
    if first in sys.stdlib_module_names:
        return True
    if first == "optgen":
        return bool(rest) and (rest[0] == part or rest[0] in LAW[part])
    if part in TRAINING:
        return first in TRAINING_LIBRARIES
    if part == "bench":
        return first in {"torch", "matplotlib"}
    if part == "cli":
        return first in GENERATOR_LIBRARIES | {"torch", "matplotlib"}
    return first in {"emit": {"jinja2", "ruff"}, "passes": {"sympy"}, "ir": {"torch"}}.get(part, ())


MODULES = [pytest.param(part, path, id=str(path.relative_to(ROOT))) for part, path in modules()]


@pytest.mark.parametrize(("part", "path"), MODULES)
def test_imports(part: str, path: Path) -> None:
    """A part imports what the law grants it, and no file of it more."""
    wrong = [f"{path}:{line}: {name}" for line, name in imported(path) if not allowed(part, name)]

    assert not wrong, f"{part} may not import:\n" + "\n".join(wrong)


def test_every_part_has_a_law() -> None:
    assert {part for part, _ in modules()} <= set(LAW)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("ir", "optgen.passes"),
        ("runtime", "sympy"),
        ("optim", "optgen.jit"),
        ("spec", "numpy"),
        ("runtime", "optgen.bench"),
    ],
)
def test_the_law_refuses(part: str, name: str) -> None:
    """The check itself can fail."""
    assert not allowed(part, name)


def test_import_optgen_is_lazy() -> None:
    """`import optgen` alone imports no torch."""
    code = "import sys, optgen; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert result.stdout.strip() == "False"
