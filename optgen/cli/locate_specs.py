"""Where specs are found, and where their products go."""

from __future__ import annotations

import difflib
import importlib.resources
import tomllib
from dataclasses import dataclass
from pathlib import Path

import typer

from optgen.ir.algorithm import Algorithm
from optgen.spec.files import module_name


@dataclass(frozen=True)
class Checkout:
    """A working copy of optgen: `specs/` and `generated/` side by side."""

    root: Path

    @property
    def specs(self) -> Path:
        """The catalogue's spec files."""
        return self.root / "specs"

    @property
    def generated(self) -> Path:
        """What is generated from them."""
        return self.root / "generated"


def find_checkout() -> Checkout | None:
    """The checkout around the current folder."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        project = folder / "pyproject.toml"
        if project.is_file() and (folder / "specs").is_dir():
            metadata = tomllib.loads(project.read_text(encoding="utf-8"))
            if metadata.get("project", {}).get("name") == "optgen":
                return Checkout(folder)
    return None


def specs_folder() -> Path:
    """The specs of the checkout around, else those of the installed package."""
    checkout = find_checkout()
    return checkout.specs if checkout else Path(str(importlib.resources.files("optgen.specs")))


def catalogue() -> dict[str, Path]:
    """The catalogue's spec files by name."""
    return {p.stem: p for p in sorted(specs_folder().glob("*.py")) if p.stem != "__init__"}


def is_catalogued(algorithm: Algorithm) -> bool:
    """Whether an algorithm's spec is the catalogue's own, or somebody's, elsewhere."""
    return Path(algorithm.place.file).resolve().parent == specs_folder().resolve()


def spec_path(name: str) -> Path:
    """The spec file a person means by a path, or by a module or class of the catalogue."""
    if name.endswith(".py"):
        if Path(name).is_file():
            return Path(name)
        raise typer.BadParameter(f"no such file: {name}")
    if Path(name).exists():
        raise typer.BadParameter(f"{name} is no spec file: that is Python, and ends in .py")
    known = catalogue()
    module = name if name in known else module_name(name)
    if module in known:
        return shorten(known[module])
    close = difflib.get_close_matches(module, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    raise typer.BadParameter(f"no algorithm is called {name}; {hint}")


def shorten(path: Path) -> Path:
    """The path as seen from the current folder, if it lies below."""
    path, here = path.resolve(), Path.cwd().resolve()
    return path.relative_to(here) if path.is_relative_to(here) else path
