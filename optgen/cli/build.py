"""Implement `optgen new` and `optgen build`, which write a first spec and generated code."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from optgen import emit
from optgen.cli.catalogue import find_checkout, read, render, shorten, spec_path
from optgen.emit import write_atomically
from optgen.spec.reserved_names import is_snake_case


@dataclass(frozen=True)
class Targets:
    """Spec files and their output folder; if `is_whole_folder`, other specs' files are removed."""

    specs: tuple[Path, ...]
    out: Path
    is_whole_folder: bool = False


def find_targets(specs: Sequence[str], out: Path | None) -> Targets:
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


def write(targets: Targets) -> None:
    """Update the output folder, and print what changed."""
    start = time.perf_counter()
    changes, orphans = _changes(targets), _orphans(targets)
    for change in changes:
        change.apply()
        typer.echo(f"{change.verb} {shorten(change.path)}")
    _remove_empty_folders(change.path.parent for change in changes if change.new is None)
    for folder in orphans:
        typer.echo(f"note: {_orphan_message(folder)}")
    seconds = time.perf_counter() - start
    count = len(targets.specs)
    changed_files = f"{len(changes)} file{'s' * (len(changes) != 1)}" if changes else "nothing"
    typer.echo(f"{count} spec{'s' * (count != 1)} in {seconds:.1f} s, {changed_files} changed")


def compare(targets: Targets, *, diff: bool) -> int:
    """Print the stale files, or their diffs, and orphaned folders; return how many there are."""
    changes = _changes(targets)
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
    orphans = _orphans(targets)
    for folder in orphans:
        typer.echo(_orphan_message(folder))
    return len(changes) + len(orphans)


def _changes(targets: Targets) -> list[emit.Change]:
    """Return all changes, after reading every spec and generating every text."""
    changes = list(_differences(targets))
    if handwritten := [str(shorten(change.path)) for change in changes if change.is_handwritten]:
        raise typer.BadParameter(
            f"not written by optgen, so not overwritten: {', '.join(handwritten)}; "
            "move these files away, or choose another folder with --out"
        )
    return changes


def _differences(targets: Targets) -> Iterator[emit.Change]:
    """Yield each file that differs from its generated text, and each file to remove."""
    ruff = emit.require_ruff()
    texts_by_module: dict[str, dict[str, str]] = {}
    for algorithm in read(targets.specs):
        texts_by_module.setdefault(algorithm.module, {}).update(render(algorithm, ruff))
    for module, texts_by_file in texts_by_module.items():
        yield from emit.changes(targets.out / module, texts_by_file)
    if targets.is_whole_folder and targets.out.is_dir():
        for folder in sorted(targets.out.iterdir()):
            if folder.name not in texts_by_module and folder.is_dir():
                yield from emit.leftovers(folder)


def _orphans(targets: Targets) -> list[Path]:
    """Return the generated folders without a spec, in the targets or beside the targets' specs."""
    if targets.is_whole_folder or not targets.out.is_dir():
        return []
    spec_names = {path.stem for path in targets.specs}
    spec_folders = {path.resolve().parent for path in targets.specs}
    return [
        folder
        for folder in sorted(targets.out.iterdir())
        if folder.is_dir() and folder.name not in spec_names
        if not any((specs_folder / f"{folder.name}.py").is_file() for specs_folder in spec_folders)
        if emit.is_generated_folder(folder)
    ]


def _orphan_message(folder: Path) -> str:
    return (
        f"orphaned: {shorten(folder)} (there is no {folder.name}.py): remove it, or give its spec"
    )


def _remove_empty_folders(folders: Iterable[Path]) -> None:
    """Remove folders that hold nothing but Python's bytecode."""
    for folder in sorted(set(folders), reverse=True):  # inner folders come first
        remaining = [p for p in folder.rglob("*") if p.is_file()]
        if all(p.suffix == ".pyc" for p in remaining):
            for path in remaining:
                path.unlink()
            for child in sorted(folder.rglob("*"), reverse=True):
                child.rmdir()
            folder.rmdir()


_SKELETON = '''"""{name}: say here where it comes from, and how the rule differs from the paper."""

from optgen.spec import hyper, optimizer, state


@optimizer(paper="https://arxiv.org/abs/")
def {name}(
    p,
    g,
    t,
    /,
    m=state("exp_avg"),
    *,
    lr=hyper(1e-3, ge=0),
    beta=hyper(0.9, ge=0, lt=1),
):
    """Gradient descent along a running mean of the gradients, corrected for its start at zero."""
    m = beta * m + (1 - beta) * g
    p = p - lr * m / (1 - beta**t)
'''

# For files outside of a checkout. Inside, pyproject.toml has this exception.
_NOQA = "# ruff: noqa: B008 (a declaration is read and never run)\n"


def write_skeleton(name: str) -> Path:
    """Write the skeleton of a new spec and return its path. An existing file is an error."""
    if not is_snake_case(name):
        raise typer.BadParameter(f"{name} is not in snake_case, as the name of a spec file must be")
    checkout = find_checkout()
    path = shorten((checkout.specs if checkout else Path.cwd()) / f"{name}.py")
    if path.exists():
        raise typer.BadParameter(f"{path} exists; choose another name")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    text = _SKELETON.format(name=class_name)
    write_atomically(path, text if checkout else _NOQA + text)
    return path
