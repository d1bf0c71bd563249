"""Implement `optgen build` and `optgen check`. All files are generated before any is written."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from optgen import emit, modifiers
from optgen.cli.locate_specs import (
    find_checkout,
    is_catalogued,
    shorten,
    spec_path,
    specs_folder,
)
from optgen.compositions import composed, errors_of_parts
from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Place, assigns
from optgen.spec.base_spec import read_base
from optgen.spec.composition.names import CompositionError
from optgen.spec.composition.parts import is_modifier
from optgen.spec.declare import Spec, hypers_of
from optgen.spec.errors import InternalError, SpecError, spec_errors
from optgen.spec.read_spec import read_spec, read_specs

_PLAIN = '''from optgen.spec import optimizer, sqrt, state, hyper


@optimizer(paper="https://example.org")
def Checked(
    own_p, own_g, own_t, /, own_v=state("own_v", role="second_moment"), *, lr=hyper(1e-3, ge=0)
):
    """A rule that any modifier can join."""
    own_v = own_v + own_g**2
    own_p = own_p - lr * own_g / (own_t + sqrt(own_v))
'''
"""The rule that a modifier is checked with."""


@dataclass(frozen=True)
class Targets:
    """Spec files and their output folder. If `whole`, files of other specs are removed."""

    specs: tuple[Path, ...]
    out: Path
    whole: bool = False


def targets(specs: Sequence[str], out: Path | None) -> Targets:
    """Return the targets for the arguments of the command line."""
    checkout = find_checkout()
    if not specs:
        if checkout is None:
            raise typer.BadParameter(
                "not in a checkout of optgen: name a spec file, and a folder with --out"
            )
        paths = tuple(p for p in sorted(checkout.specs.glob("*.py")) if p.stem != "__init__")
        return Targets(paths, out or checkout.generated, whole=out is None)
    paths = tuple(spec_path(name) for name in specs)
    if out is None:
        for path in paths:
            if checkout is None or path.resolve().parent != checkout.specs:
                raise typer.BadParameter(
                    f"{path} is not in specs/ of a checkout around this folder: "
                    "choose a folder with --out DIR"
                )
        assert checkout is not None
        out = checkout.generated
    return Targets(paths, out)


def write(wanted: Targets) -> None:
    """Update the output folder, and print what changed."""
    start = time.perf_counter()
    found = _changes(wanted)
    for change in found:
        change.apply()
        typer.echo(f"{change.verb} {shorten(change.path)}")
    _remove_empty(change.path.parent for change in found if change.new is None)
    for folder in _orphans(wanted):
        typer.echo(f"note: {_orphan_message(folder)}")
    took = time.perf_counter() - start
    count = len(wanted.specs)
    changed = f"{len(found)} file{'s' * (len(found) != 1)} changed" if found else "nothing changed"
    typer.echo(f"{count} spec{'s' * (count != 1)} in {took:.1f} s, {changed}")


def compare(wanted: Targets, *, diff: bool) -> int:
    """Print the stale files, or their diffs, and orphaned folders; return how many there are."""
    found = _changes(wanted)
    for change in found:
        path = str(shorten(change.path))
        if diff:
            old, new = (
                text.splitlines(keepends=True) for text in (change.old or "", change.new or "")
            )
            typer.echo("".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")), nl=False)
        else:
            typer.echo(f"stale: {path} ({change.verb})")
    if found and not diff:
        typer.echo(f"{len(found)} stale: run optgen build")
    orphans = _orphans(wanted)
    for folder in orphans:
        typer.echo(_orphan_message(folder))
    return len(found) + len(orphans)


def verify(names: Sequence[str]) -> Iterator[str | SpecError | InternalError]:
    """Read and generate specs without writing anything.

    Yield a line for each correct algorithm, the first error of each wrong file, and at the end an
    error if two files do not go together.
    """
    correct = []
    for path in dict.fromkeys(spec_path(name) for name in names):
        try:
            if is_modifier(path):
                yield _checked_modifier(path)
                continue
            algorithms = _read([path])
            for algorithm in algorithms:
                _render(algorithm, emit.find_ruff())
        except (SpecError, InternalError) as error:
            yield error
            continue
        correct.append(path)
        for algorithm in algorithms:
            yield f"{algorithm.name}: ok ({_summary(algorithm)})"
    try:
        _read(correct)
    except SpecError as error:
        yield error


def _checked_modifier(path: Path) -> str:
    """Generate a plain rule with the modifier of a file; return a line about the modifier."""
    modifier = modifiers.load(path)
    try:
        spec = composed(Spec("Checked", _PLAIN, "checked.py", 1), (modifier,), "Checked")
    except CompositionError as error:
        raise SpecError(Place(str(path), 1, 1), str(error), "choose other names") from None
    with errors_of_parts(spec, names_parts=False):
        (algorithm,) = read_spec(spec)
        _render(algorithm, emit.find_ruff())
    hypers = ", ".join(name for name, _ in hypers_of(modifier.spec)) or "none"
    return f"{modifier.name}: ok (a modifier; hyperparameters: {hypers})"


def _summary(algorithm: Algorithm) -> str:
    """Return the states, or the written lists, so that an author can check them."""
    if algorithm.is_function:
        written = {stmt.target.name for stmt in assigns(algorithm.rule)}
        return f"writes: {', '.join(name for name in algorithm.lists if name in written)}"
    states = ", ".join(state.key for state in algorithm.kept_states()) or "none"
    programs = ", ".join(f"{p.mode} by {p.function.name}" for p in algorithm.programs)
    return f"state: {states}; {programs}" if programs else f"state: {states}"


def _render(algorithm: Algorithm, ruff: str | None) -> dict[str, str]:
    base = read_base(algorithm, specs_folder())
    with spec_errors(algorithm):
        return emit.render_all(algorithm, ruff, base, catalogued=is_catalogued(algorithm))


def _changes(wanted: Targets) -> list[emit.Change]:
    """Return all changes, after reading every spec and generating every text."""
    found = list(_differences(wanted))
    if others := [str(shorten(change.path)) for change in found if change.is_handwritten]:
        raise typer.BadParameter(
            f"not written by optgen, so not overwritten: {', '.join(others)}; "
            "move these files away, or choose another folder with --out"
        )
    return found


def _differences(wanted: Targets) -> Iterator[emit.Change]:
    ruff = emit.require_ruff()
    texts: dict[str, dict[str, str]] = {}
    for algorithm in _read(wanted.specs):
        texts.setdefault(algorithm.module, {}).update(_render(algorithm, ruff))
    for module, files in texts.items():
        yield from emit.changes(wanted.out / module, files)
    if wanted.whole and wanted.out.is_dir():
        for folder in sorted(wanted.out.iterdir()):
            if folder.name not in texts and folder.is_dir():
                yield from emit.leftovers(folder)


def _orphans(wanted: Targets) -> list[Path]:
    """Return generated folders whose spec is neither given nor in a folder of a given spec."""
    if wanted.whole or not wanted.out.is_dir():
        return []
    given = {path.stem for path in wanted.specs}
    spec_folders = {path.resolve().parent for path in wanted.specs}
    return [
        folder
        for folder in sorted(wanted.out.iterdir())
        if folder.is_dir() and folder.name not in given
        if not any((specs / f"{folder.name}.py").is_file() for specs in spec_folders)
        if any(True for _ in emit.leftovers(folder))
    ]


def _orphan_message(folder: Path) -> str:
    return (
        f"orphaned: {shorten(folder)} (there is no {folder.name}.py): remove it, or give its spec"
    )


def _read(paths: Iterable[Path]) -> tuple[Algorithm, ...]:
    """Return the algorithms of the files, after checking that no two share an output folder."""
    algorithms = read_specs(paths)
    seen: dict[str, Algorithm] = {}
    for algorithm in algorithms:
        other = seen.setdefault(algorithm.module, algorithm)
        if other is not algorithm and not (other.is_function and algorithm.is_function):
            raise SpecError(
                algorithm.place,
                f"`{algorithm.name}` and `{other.name}` would both be generated into "
                f"{algorithm.module}/",
                "a spec file holds one optimizer, or functions; "
                f"`{other.name}` is at {other.place}",
                algorithm.source,
            )
    return algorithms


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders without generated files, with the bytecode that Python left there."""
    for folder in sorted(set(folders), reverse=True):  # inner folders come first
        left = [p for p in folder.rglob("*") if p.is_file()]
        if all(p.suffix == ".pyc" for p in left):
            for path in left:
                path.unlink()
            for child in sorted(folder.rglob("*"), reverse=True):
                child.rmdir()
            folder.rmdir()
