"""Find spec files and the folder of generated files: in a checkout, or in the package."""

from __future__ import annotations

import difflib
import importlib.resources
import tomllib
from dataclasses import dataclass
from pathlib import Path

import typer

from optgen.ir.algorithm import Algorithm
from optgen.spec.source import catalogue_name, module_name


@dataclass(frozen=True)
class Checkout:
    """A working copy of optgen: `specs/` and `generated/` side by side."""

    root: Path

    @property
    def specs(self) -> Path:
        """The folder of the catalogue's spec files."""
        return self.root / "specs"

    @property
    def generated(self) -> Path:
        """The folder of the generated files."""
        return self.root / "generated"


def find_checkout() -> Checkout | None:
    """Return the checkout that contains the current folder, or None."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        project = folder / "pyproject.toml"
        if project.is_file() and (folder / "specs").is_dir():
            metadata = tomllib.loads(project.read_text(encoding="utf-8"))
            if metadata.get("project", {}).get("name") == "optgen":
                return Checkout(folder)
    return None


def specs_folder() -> Path:
    """Return the checkout's folder of specs, or the installed package's if there is no checkout."""
    checkout = find_checkout()
    return checkout.specs if checkout else Path(str(importlib.resources.files("optgen.specs")))


def catalogue() -> dict[str, Path]:
    """Return the catalogue's spec files by name."""
    return {p.stem: p for p in sorted(specs_folder().glob("*.py")) if p.stem != "__init__"}


def is_catalogued(algorithm: Algorithm) -> bool:
    """Tell whether an algorithm's spec file is in the catalogue."""
    return Path(algorithm.place.file).resolve().parent == specs_folder().resolve()


def spec_path(name: str) -> Path:
    """Return a spec file, given its path, or the name of its module or class in the catalogue.

    Raises:
        typer.BadParameter: there is no such file or name.
    """
    if name.endswith(".py"):
        if Path(name).is_file():
            return Path(name)
        raise typer.BadParameter(f"no such file: {name}")
    if Path(name).exists():
        raise typer.BadParameter(f"{name} is not a spec file, whose name ends in .py")
    spec_files = catalogue()
    module = catalogue_name(name, spec_files)
    if module is not None:
        return shorten(spec_files[module])
    if Path(f"{name}.py").is_file():
        raise typer.BadParameter(f"no algorithm is called {name}; did you mean {name}.py?")
    close_names = difflib.get_close_matches(module_name(name), spec_files, n=1)
    hint = (
        f"did you mean {close_names[0]}?" if close_names else f"there are {', '.join(spec_files)}"
    )
    raise typer.BadParameter(f"no algorithm is called {name}; {hint}")


def shorten(path: Path) -> Path:
    """Return a path relative to the current folder if it lies there, else the absolute path."""
    path, here = path.resolve(), Path.cwd().resolve()
    return path.relative_to(here) if path.is_relative_to(here) else path
