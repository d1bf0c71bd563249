"""Find spec files, in a checkout or in the package; read them, and list and show what they hold."""

from __future__ import annotations

import difflib
import importlib.resources
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

import typer

from optgen import emit
from optgen.ir.algorithm import Algorithm, State
from optgen.ir.print_ir import to_text
from optgen.lowerings import LOWERINGS, Lowering
from optgen.passes.latex import to_latex
from optgen.passes.outline_sweeps import with_sweeps
from optgen.passes.plan_rule import plan
from optgen.passes.prepare_rule import derive
from optgen.spec.errors import SpecError, spec_errors
from optgen.spec.read_spec import read_base, read_spec, read_specs
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


def read(paths: Iterable[Path]) -> tuple[Algorithm, ...]:
    """Return the algorithms of the files, after checking that no two share an output folder."""
    algorithms = read_specs(paths)
    first_by_module: dict[str, Algorithm] = {}
    for algorithm in algorithms:
        first = first_by_module.setdefault(algorithm.module, algorithm)
        if first is not algorithm and not (first.is_function and algorithm.is_function):
            raise SpecError(
                algorithm.place,
                f"`{algorithm.name}` and `{first.name}` would both be generated into "
                f"{algorithm.module}/",
                "a spec file holds one optimizer, or functions; "
                f"`{first.name}` is at {first.place}",
                algorithm.source,
            )
    return algorithms


def complete(algorithm: Algorithm) -> Algorithm:
    """Return an algorithm with the states and the rule of its base, if it has one."""
    base = read_base(algorithm, specs_folder())
    with spec_errors(algorithm):
        return derive(algorithm, base) if base else algorithm


def render(algorithm: Algorithm, ruff: str | None) -> dict[str, str]:
    """Return the text of every file of an algorithm."""
    base = read_base(algorithm, specs_folder())
    with spec_errors(algorithm):
        return emit.render_all(algorithm, ruff, base, catalogued=is_catalogued(algorithm))


_OPTIMIZER_HEADER = ("name", "class", "state", "paper")
_FUNCTION_HEADER = ("name", "function", "lists")
_MODIFIER_HEADER = ("modifier", "stage", "hyperparameters")


def table() -> str:
    """Return three tables: of the optimizers, of the functions over lists, of the modifiers."""
    from optgen.compositions import list_modifiers  # imports torch, and only the list needs it

    algorithms = read_specs(catalogue().values())
    tables = [
        columns([_OPTIMIZER_HEADER, *(_optimizer_row(a) for a in algorithms if not a.is_function)])
    ]
    functions = [(a.module, a.name, ", ".join(a.lists)) for a in algorithms if a.is_function]
    tables += [columns([_FUNCTION_HEADER, *functions])] if functions else []
    tables.append(columns([_MODIFIER_HEADER, *map(_modifier_row, list_modifiers())]))
    return "\n\n".join(tables)


def _modifier_row(name: str) -> tuple[str, ...]:
    from optgen.compositions import modifier
    from optgen.spec.composition.check_parts import modifier_part

    chosen_modifier = modifier(name)
    hypers = ", ".join(
        str(p).replace("=", " = ") for p in signature(chosen_modifier).parameters.values()
    )
    return (name, modifier_part(chosen_modifier.spec).stage, hypers or "-")


def _optimizer_row(algorithm: Algorithm) -> tuple[str, ...]:
    states = textwrap.shorten(
        ", ".join(_state_text(s) for s in algorithm.checkpoint_states()) or "-",
        100,
        placeholder=" …",
    )
    if algorithm.base:
        states = f"as {algorithm.base}"
    return (algorithm.module, algorithm.name, states, algorithm.paper)


def _state_text(state: State) -> str:
    return f"{state.key} (if {state.condition})" if state.condition else state.key


def columns(rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows as aligned text columns, with a line of dashes below the first row."""
    lines = list(rows)
    widths = [max(len(row[i]) for row in lines) for i in range(len(lines[0]))]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    )


def source(name: str) -> str:
    """Return the spec as it was written."""
    return _read(name)[0].source


def latex(name: str) -> str:
    """Return the rule in LaTeX, as the docstring of the class has it."""
    texts: list[str] = []
    for algorithm in _with_base_rules(name):
        with spec_errors(algorithm):
            texts.append(to_latex(algorithm))
    return "\n\n".join(texts)


def ir(name: str) -> str:
    """Return the text of each algorithm of a spec, and of its plan."""
    texts: list[str] = []
    for algorithm in _with_base_rules(name):
        with spec_errors(algorithm):
            texts += [to_text(algorithm), to_text(plan(algorithm))]
    return "\n\n".join(texts)


def generated(name: str, lowering_name: str) -> str:
    """Return the text of the file that a lowering generates from a spec."""
    lowerings_by_name = {entry.name: entry for entry in LOWERINGS}
    if lowering_name not in lowerings_by_name:
        message = f"{lowering_name!r} is not one of {', '.join(lowerings_by_name)}"
        raise typer.BadParameter(message, param_hint="--lowering")
    lowering = lowerings_by_name[lowering_name]
    spec_algorithms = _read(name)
    candidates = (
        each for algorithm in spec_algorithms for each in _algorithms_for(algorithm, lowering)
    )
    algorithms = list(filter(lowering.applies, candidates))
    for algorithm in spec_algorithms:
        if not any(map(lowering.applies, _algorithms_for(algorithm, lowering))):
            raise typer.BadParameter(_why_no_file(algorithm, lowering))
    ruff = emit.find_ruff()
    texts: list[str] = []
    for algorithm in algorithms:
        base, catalogued = read_base(algorithm, specs_folder()), is_catalogued(algorithm)
        with spec_errors(algorithm):
            texts.append(emit.render(algorithm, lowering, ruff, base, catalogued=catalogued))
    return "\n".join(texts)


def _why_no_file(algorithm: Algorithm, lowering: Lowering) -> str:
    """Return why a lowering writes no file for an algorithm, and what to show instead."""
    name, base = algorithm.name, algorithm.base
    if reason := lowering.refusal(algorithm):
        rules = (each for each in LOWERINGS if each.content == "rule")
        others = " or ".join(each.name for each in rules if each.applies(algorithm))
        return f"{name} has no {lowering.name}: {reason}; show {others} instead"
    if lowering.content == "optimizer":
        return f"{name} is a function, so it has no optimizer: use --lowering function"
    if lowering.content == "function":
        return f"{name} is an optimizer, so it has no function: use --lowering optimizer"
    return f"{name} runs {base}'s {lowering.name}: show {base} instead"


def _with_base_rules(name: str) -> Iterator[Algorithm]:
    """Yield the algorithms of a spec with the rules of their bases, each before its programs."""
    for algorithm in _read(name):
        yield from complete(algorithm).with_functions


def _algorithms_for(algorithm: Algorithm, lowering: Lowering) -> tuple[Algorithm, ...]:
    """Return an algorithm, the functions of its programs, and for C++ those of its sweeps."""
    return with_sweeps(algorithm) if lowering.name == "fused_cpu" else algorithm.with_functions


def _read(name: str) -> tuple[Algorithm, ...]:
    return read_spec(spec_path(name))
