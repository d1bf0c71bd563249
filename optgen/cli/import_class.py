"""Run `optgen import`: a class's step becomes a spec, in a child process."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import math
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from optgen.spec.source import check_file_name

if TYPE_CHECKING:
    from optgen.importer import Imported

MAX_ANSWER = 2**24
"""The bytes of the longest answer that is read."""
MAX_REASON = 2000
"""The characters of the longest reason that is printed."""


@dataclass(frozen=True)
class Request:
    """An import that is asked for; `seconds` and `gibibytes` limit the child process."""

    name: str
    settings: list[str]
    out: Path | None
    seconds: float
    gibibytes: float


@dataclass(frozen=True)
class Answer:
    """The child's answer: the spec and the proof's report, or the reason of a refusal."""

    is_imported: bool
    text: str
    report: str = ""


def run(request: Request) -> bool:
    """Import a class in a child process, and print the spec and the proof.

    Returns:
        True if the class was imported.

    Raises:
        SpecError: `request.out` is no name of a spec file.
    """
    module, _, name = request.name.partition(":")
    if not name:
        raise typer.BadParameter("write MODULE:CLASS, as in my_code.optim:Mine")
    settings = dict(map(_setting, request.settings))
    if request.out is not None:
        check_file_name(request.out)
    typer.echo(f"running the code of {request.name} in a process of its own", err=True)
    answer = _ask(request, module, name, settings)
    if not answer.is_imported:
        typer.echo(answer.text, err=True)
        return False
    if request.out is None:
        typer.echo(answer.text, nl=False)
    else:
        request.out.write_text(answer.text, encoding="utf-8")
        typer.echo(f"wrote {request.out}")
    typer.echo(answer.report, err=request.out is None)
    return True


def _ask(request: Request, module: str, name: str, settings: dict[str, Any]) -> Answer:
    """Return the answer of a child process. All processes of its group are ended."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    arguments = (module, name, settings, request.gibibytes, sender)
    child = spawn.Process(target=_import, args=arguments, daemon=True)
    child.start()
    sender.close()
    answer = None
    try:
        if receiver.poll(request.seconds):
            # The text is data. A pickle of a stranger's process would be code.
            answer = Answer(**json.loads(receiver.recv_bytes(MAX_ANSWER)))
        else:
            answer = Answer(False, f"no answer after {request.seconds:g} s: --seconds allows more")
    except (EOFError, OSError, ValueError, TypeError):
        child.join(1)
    exit_code = child.exitcode
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid or 0, signal.SIGKILL)
    child.kill()
    child.join()
    return answer or Answer(False, _silence(exit_code))


def _silence(exit_code: int | None) -> str:
    """Return the reason of a process that ended without an answer."""
    if not exit_code:
        return "the process of the class gives no answer that can be read"
    if exit_code > 0:
        return f"the code of the class ends the process, with the status {exit_code}"
    name = signal.Signals(-exit_code).name
    return f"{name} ends the process of the class: it may lack memory, see --gibibytes"


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
    """Import a class in this process, and send the answer.

    The process leads a group of its own, so that its children can be ended with it. What the
    class writes goes nowhere: the command's output is the spec.
    """
    os.setsid()
    limit = int(gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.closerange(3, pipe.fileno())
    os.closerange(pipe.fileno() + 1, 256)
    sys.path.insert(0, "")
    me = os.getpid()
    try:
        answer = _answer(module, name, settings)
    except BaseException as error:
        answer = Answer(False, f"optgen: {module}:{name}: {_words(error)}")
    if os.getpid() == me:  # a fork of the class's comes here too
        pipe.send_bytes(json.dumps(vars(answer)).encode())


def _answer(module: str, name: str, settings: dict[str, Any]) -> Answer:
    from optgen.importer import NotImportedError, import_optimizer

    before = _functions()
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    try:
        made = import_optimizer(found, **settings)
    except NotImportedError as error:
        return Answer(False, _printable(str(error)))
    if changed := _changed(before):
        return Answer(
            False, f"the code of {module} changes {changed}, so a proof here says nothing"
        )
    return Answer(True, made.text, _report(f"{module}:{name}", made))


def _functions() -> dict[str, Mapping[str, Any]]:
    """Return what the proof trusts: functions of torch, of tensors, and of Python.

    Of torch's functions those in Python are left out: torch itself replaces some of them.
    """
    import builtins

    import torch

    holders = (torch.Tensor, torch.optim.Optimizer, math, builtins)
    found: dict[str, Mapping[str, Any]] = {
        each.__name__: {name: inspect.getattr_static(each, name) for name in dir(each)}
        for each in holders
    }
    in_c = {k: each for k, each in vars(torch).items() if inspect.isbuiltin(each)}
    return {**found, "torch": in_c}


def _changed(before: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the first function that is another one than before, or ""."""
    now = _functions()
    for holder, functions in before.items():
        for name, function in functions.items():
            if callable(function) and now[holder].get(name) is not function:
                return f"{holder}.{name}"
    return ""


def _words(error: BaseException) -> str:
    return _printable(f"{type(error).__name__}: {error}")


def _printable(text: str) -> str:
    """Return a stranger's text without what a terminal obeys, and not too long."""
    text = text[:MAX_REASON] + " …" * (len(text) > MAX_REASON)
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


_GAPS = (
    "  after a step in which a parameter has no gradient, they take other steps: a count in a "
    "group goes on"
)


def _report(name: str, made: Imported) -> str:
    """Return the proof in a few lines, as `optgen verify` prints it."""
    proof = made.proof
    shapes = ", ".join(map(str, proof.shapes))
    exchange = (
        "are exchanged in both directions"
        if proof.keys
        else "are not exchanged: the original keeps its count or a number in the param group, or a "
        "state under the name of an argument"
    )
    return "\n".join(
        [
            f"{name} agrees with its import",
            f"  30 steps in float64; each side has the gradients at its own parameters: {shapes}",
            f"  {proof.num_settings} settings of the arguments ({proof.num_refused} more are "
            f"refused by the original), {made.num_runs} recorded runs",
            f"  the largest difference of an element is {proof.largest:.1e}; the bound is 1e-12",
            f"  state dicts {exchange}",
            *([] if proof.gaps else [_GAPS]),
            *(f"  its state {key}, which no step reads, is left out" for key in proof.left_out),
        ]
    )
