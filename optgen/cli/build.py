"""Implement `optgen build`. All files are generated before any is written."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from optgen import emit
from optgen.cli.generate import read, render
from optgen.cli.locate_specs import find_checkout, shorten, spec_path


@dataclass(frozen=True)
class Targets:
    """Spec files and their output folder; if `is_whole_folder`, other specs' files are removed."""

    specs: tuple[Path, ...]
    out: Path
    is_whole_folder: bool = False


def targets(specs: Sequence[str], out: Path | None) -> Targets:
    """Return the targets for the arguments of the command line."""
    checkout = find_checkout()
    if not specs:
        if checkout is None:
            raise typer.BadParameter(
                "not in a checkout of optgen: name a spec file, and a folder with --out"
            )
        paths = tuple(p for p in sorted(checkout.specs.glob("*.py")) if p.stem != "__init__")
        return Targets(paths, out or checkout.generated, is_whole_folder=out is None)
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


def write(chosen: Targets) -> None:
    """Update the output folder, and print what changed."""
    start = time.perf_counter()
    changes = _changes(chosen)
    for change in changes:
        change.apply()
        typer.echo(f"{change.verb} {shorten(change.path)}")
    _remove_empty(change.path.parent for change in changes if change.new is None)
    for folder in _orphans(chosen):
        typer.echo(f"note: {_orphan_message(folder)}")
    took = time.perf_counter() - start
    count = len(chosen.specs)
    files = f"{len(changes)} file{'s' * (len(changes) != 1)}" if changes else "nothing"
    typer.echo(f"{count} spec{'s' * (count != 1)} in {took:.1f} s, {files} changed")


def compare(chosen: Targets, *, diff: bool) -> int:
    """Print the stale files, or their diffs, and orphaned folders; return how many there are."""
    changes = _changes(chosen)
    for change in changes:
        path = str(shorten(change.path))
        if diff:
            old, new = (
                text.splitlines(keepends=True) for text in (change.old or "", change.new or "")
            )
            typer.echo("".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")), nl=False)
        else:
            typer.echo(f"stale: {path} ({change.verb})")
    if changes and not diff:
        typer.echo(f"{len(changes)} stale: run optgen build")
    orphans = _orphans(chosen)
    for folder in orphans:
        typer.echo(_orphan_message(folder))
    return len(changes) + len(orphans)


def _changes(chosen: Targets) -> list[emit.Change]:
    """Return all changes, after reading every spec and generating every text."""
    changes = list(_differences(chosen))
    if handwritten := [str(shorten(change.path)) for change in changes if change.is_handwritten]:
        raise typer.BadParameter(
            f"not written by optgen, so not overwritten: {', '.join(handwritten)}; "
            "move these files away, or choose another folder with --out"
        )
    return changes


def _differences(chosen: Targets) -> Iterator[emit.Change]:
    """Yield the difference of each file from its generated text."""
    ruff = emit.require_ruff()
    texts: dict[str, dict[str, str]] = {}
    for algorithm in read(chosen.specs):
        texts.setdefault(algorithm.module, {}).update(render(algorithm, ruff))
    for module, files in texts.items():
        yield from emit.changes(chosen.out / module, files)
    if chosen.is_whole_folder and chosen.out.is_dir():
        for folder in sorted(chosen.out.iterdir()):
            if folder.name not in texts and folder.is_dir():
                yield from emit.leftovers(folder)


def _orphans(chosen: Targets) -> list[Path]:
    """Return the generated folders without a spec, in `chosen` or beside the specs in `chosen`."""
    if chosen.is_whole_folder or not chosen.out.is_dir():
        return []
    requested = {path.stem for path in chosen.specs}
    spec_folders = {path.resolve().parent for path in chosen.specs}
    return [
        folder
        for folder in sorted(chosen.out.iterdir())
        if folder.is_dir() and folder.name not in requested
        if not any((specs / f"{folder.name}.py").is_file() for specs in spec_folders)
        if any(True for _ in emit.leftovers(folder))
    ]


def _orphan_message(folder: Path) -> str:
    return (
        f"orphaned: {shorten(folder)} (there is no {folder.name}.py): remove it, or give its spec"
    )


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders that hold nothing but Python's bytecode."""
    for folder in sorted(set(folders), reverse=True):  # inner folders come first
        remaining = [p for p in folder.rglob("*") if p.is_file()]
        if all(p.suffix == ".pyc" for p in remaining):
            for path in remaining:
                path.unlink()
            for child in sorted(folder.rglob("*"), reverse=True):
                child.rmdir()
            folder.rmdir()
