"""Test the wheel, the editable install and an uninstalled checkout in fresh environments.

A fresh virtual environment has nothing of optgen but the installed package. Torch and the libraries
that a test names are symlinked from the environment that runs the tests, so nothing is downloaded.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import optgen

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv*", "build", "*.egg-info", "__pycache__", ".*_cache"
)
GENERATOR = ("jinja2", "sympy", "typer", "ruff")
DEMO = ("scikit-learn", "matplotlib", "triton")
TRAIN = """
import torch, optgen.optim
parameter = torch.nn.Parameter(torch.ones(3))
for name in ("SGD", "Adam", "Adafactor"):
    for lowering in ("forloop", "foreach", "fused_cpu"):
        optimizer = getattr(optgen.optim, name)([parameter], lr=0.01)
        parameter.grad = torch.ones(3)
        with optgen.use_lowering(lowering):
            optimizer.step()
print(optgen.__file__)
"""


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout, which builds may write into."""
    folder = tmp_path_factory.mktemp("source") / "checkout"
    shutil.copytree(ROOT, folder, ignore=NOT_SOURCE)
    return folder


@pytest.fixture(scope="session")
def wheel(source: Path) -> Path:
    """Return the wheel of the checkout."""
    dist = source.parent / "dist"
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(dist), str(source))
    (path,) = dist.glob("*.whl")
    return path


def pip(*arguments: str) -> None:
    """Run this environment's pip, without any index."""
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--no-index"]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)


def with_requirements(*names: str) -> Iterator[importlib.metadata.Distribution]:
    """Yield the named distributions of this environment and all that they require."""
    seen: set[str] = set()
    pending = list(names)
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # required on other systems or Pythons only
        yield distribution
        for requirement in distribution.requires or ():
            if "extra ==" not in requirement:
                pending += re.findall(r"^[\w.-]+", requirement)


def environment(folder: Path, *libraries: str) -> Path:
    """Make a virtual environment that sees torch and the named libraries; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    links = folder / "links"
    links.mkdir()
    for distribution in with_requirements("torch", "numpy", *libraries):
        # A file below ".." is a script of the environment.
        for entry in {Path(file).parts[0] for file in distribution.files or ()} - {
            "..",
            "__pycache__",
        }:
            # Several distributions may have files in one namespace package.
            (links / entry).unlink(missing_ok=True)
            (links / entry).symlink_to(Path(str(distribution.locate_file(entry))))
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    (packages / "links.pth").write_text(f"{links}\n")
    if "ruff" in libraries:  # the formatter is a program, distribution beside Python
        shutil.copy(
            shutil.which("ruff", path=str(Path(sys.executable).parent)) or "", folder / "bin"
        )
    return folder / "bin" / "python"


def run(program: Path, *arguments: str, cwd: Path, status: int = 0) -> str:
    """Run a program without this environment's variables; return what it prints."""
    clean_env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    result = subprocess.run(
        [program, *arguments], cwd=cwd, env=clean_env, capture_output=True, text=True, check=False
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.fixture(scope="session")
def training_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with the wheel and what training needs: torch and numpy only."""
    python = environment(tmp_path_factory.mktemp("trainer") / "venv")
    pip("--python", str(python), "install", "--no-deps", str(wheel))
    return python


@pytest.fixture(scope="session")
def generating_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with the wheel and the libraries of the generator and of the demo."""
    python = environment(tmp_path_factory.mktemp("inventor") / "venv", *GENERATOR, *DEMO)
    pip("--python", str(python), "install", "--no-deps", str(wheel))
    return python


def files_to_ship() -> set[str]:
    """Return every file of the checkout that belongs in the wheel, by its path there."""
    files = {f"optgen/{p.relative_to(ROOT / 'optgen')}" for p in (ROOT / "optgen").rglob("*")}
    for name in ("specs", "templates", "generated"):
        files |= {f"optgen/{name}/{p.relative_to(ROOT / name)}" for p in (ROOT / name).rglob("*")}
    return {f for f in files if Path(f).suffix in (".py", ".jinja", ".cpp", ".h", ".typed", ".pyi")}


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """The wheel holds specs, templates and generated code in the package; no top-level `specs`."""
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}

    assert names == files_to_ship()


def test_wheel_says_its_version_and_licence(wheel: Path) -> None:
    """The metadata folder holds no unexpected files."""
    info = f"optgen-{optgen.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" in n}
        metadata = archive.read(f"{info}/METADATA").decode().splitlines()

    expected = (
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "top_level.txt",
    )
    assert names == {f"{info}/{name}" for name in expected}
    assert f"Version: {optgen.__version__}" in metadata
    assert "License-Expression: MIT" in metadata


def test_wheel_trains_without_the_generator(training_python: Path, tmp_path: Path) -> None:
    assert "site-packages" in run(training_python, "-c", TRAIN, cwd=tmp_path)
    run(training_python, "-c", "import specs", cwd=tmp_path, status=1)


def test_command_without_the_generator_says_what_to_install(
    training_python: Path, tmp_path: Path
) -> None:
    printed = run(training_python.parent / "optgen", "list", cwd=tmp_path, status=4)

    assert "is not installed: python -m pip install 'jinja2" in printed


@pytest.mark.thorough
def test_wheel_generates_a_new_rule(generating_python: Path, tmp_path: Path) -> None:
    """No checkout is needed to generate, load, compose and train with a new spec."""
    command = generating_python.parent / "optgen"
    run(command, "new", "my_rule", cwd=tmp_path)
    run(command, "build", "my_rule.py", "--out", "mine", cwd=tmp_path)
    code = """
import torch, optgen, mine.my_rule
composed = optgen.compose("my_rule.py", optgen.modifiers.clip_value(9.0))
for cls in (mine.my_rule.MyRule, optgen.load("my_rule.py"), composed):
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    cls([parameter], lr=0.5).step()
    print(parameter.tolist())
"""

    printed = run(generating_python, "-c", code, cwd=tmp_path).split("\n")
    assert printed[:3] == ["[0.5, 0.5, 0.5]"] * 3


@pytest.mark.thorough
def test_wheel_runs_the_demo(generating_python: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "demo.py", tmp_path)

    options = ("--epochs", "1", "--only", "SGD", "--triton")
    printed = run(generating_python, "demo.py", *options, "--plot", "demo.png", cwd=tmp_path)

    assert "fused_cpu" in printed
    assert "not here" not in printed  # the demo prints this for a variant that cannot run
    assert "fused_triton" in printed
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_editable_install_sees_a_new_algorithm(source: Path, tmp_path: Path) -> None:
    """An editable install trains; a new algorithm needs no second install."""
    python = environment(tmp_path / "venv", *GENERATOR)
    pip("--python", str(python), "install", "--no-deps", "--no-build-isolation", "-e", str(source))

    assert str(source) in run(python, "-c", TRAIN, cwd=tmp_path)
    run(python, "-c", "import specs", cwd=tmp_path, status=1)
    run(python.parent / "optgen", "new", "my_rule", cwd=source)
    run(python.parent / "optgen", "build", "specs/my_rule.py", cwd=source)
    run(python, "-c", "from optgen.generated.my_rule import MyRule", cwd=tmp_path)


def test_uninstalled_checkout_on_the_path_trains(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")

    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + TRAIN
    assert str(ROOT) in run(python, "-c", code, cwd=tmp_path)


def test_the_pins_of_the_formatter_agree() -> None:
    """pyproject.toml, the constraints and the generator name one version of the formatter."""
    from optgen.emit import RUFF

    pin = f"ruff=={RUFF}"
    assert f'"{pin}"' in (ROOT / "pyproject.toml").read_text()
    assert pin in (ROOT / "constraints.txt").read_text().splitlines()


def test_the_linked_libraries_do_not_include_optgen() -> None:
    """Otherwise the tests of the wheel would prove nothing."""
    names = {d.name for d in with_requirements("torch", "numpy", *GENERATOR, *DEMO)}

    assert "optgen" not in names
