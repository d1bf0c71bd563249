"""Run `optgen import`: a class's step becomes a spec, in a child process."""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import resource
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import typer

from optgen.importer import Imported, NotImportedError, import_optimizer


@dataclass(frozen=True)
class Request:
    """An import that is asked for; `seconds` and `gibibytes` limit the child process."""

    name: str
    settings: list[str]
    out: Path | None
    seconds: float
    gibibytes: float


def run(request: Request) -> bool:
    """Import a class in a child process, and print the spec and the proof.

    Returns:
        True if the class was imported.
    """
    module, _, name = request.name.partition(":")
    if not name:
        raise typer.BadParameter("write MODULE:CLASS, as in my_code.optim:Mine")
    settings = dict(map(_setting, request.settings))
    typer.echo(f"running the code of {request.name} in a process of its own", err=True)
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    arguments = (module, name, settings, request.gibibytes, sender)
    child = spawn.Process(target=_import, args=arguments, daemon=True)
    child.start()
    sender.close()
    try:
        answer = receiver.recv() if receiver.poll(request.seconds) else None
    except EOFError:
        answer = (False, "the process ended without an answer: it may lack memory", "")
    child.kill()
    child.join()
    is_imported, text, proof = answer or (False, f"no answer after {request.seconds:g} s", "")
    if not is_imported:
        typer.echo(text, err=True)
        return False
    if request.out is None:
        typer.echo(text, nl=False)
    else:
        request.out.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {request.out}")
    typer.echo(proof, err=request.out is None)
    return True


def _setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of `name=value`; a value that is no literal is a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"write --set {name}=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def _import(
    module: str, name: str, settings: dict[str, Any], gibibytes: float, pipe: Connection
) -> None:
    """Import a class in this process, and send the spec and the proof, or the reason."""
    limit = int(gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    sys.path.insert(0, "")
    try:
        cls = getattr(importlib.import_module(module), name)
    except Exception as error:
        pipe.send((False, f"optgen: {module}:{name}: {type(error).__name__}: {error}", ""))
        return
    try:
        made = import_optimizer(cls, **settings)
    except NotImportedError as error:
        pipe.send((False, str(error), ""))
    else:
        pipe.send((True, made.text, _report(name, made)))


def _report(name: str, made: Imported) -> str:
    """Return the proof in a few lines, as `optgen verify` prints it."""
    proof = made.proof
    shapes = ", ".join(map(str, proof.shapes))
    exchange = (
        "are exchanged in both directions"
        if proof.keys
        else "are not exchanged: the original keeps its count or a number in the param group"
    )
    return "\n".join(
        [
            f"{name} agrees with its import",
            f"  30 steps in float64; each side has the gradients at its own parameters: {shapes}",
            f"  {proof.num_settings} settings of the arguments ({proof.num_refused} more are "
            f"refused by the original), {made.num_runs} recorded runs",
            f"  the largest difference of an element is {proof.largest:.1e}; the bound is 1e-12",
            f"  state dicts {exchange}",
        ]
    )
