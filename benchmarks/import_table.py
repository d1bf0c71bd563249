"""Import every optimizer class of a package, and print what became of each.

    python benchmarks/import_table.py pytorch_optimizer [NAME ...] [--seconds 60] [--markdown]
        [--specs DIR]

Each class is imported in a fork of this process: name, verdict, reason, seconds. `--specs` writes
the specs of the proven classes into a folder.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import inspect
import multiprocessing
import os
import re
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from optgen.importer import NotImportedError, import_optimizer


@dataclass(frozen=True)
class Row:
    """One class and its verdict."""

    name: str
    verdict: str
    reason: str
    seconds: float


def classes(package: str) -> dict[str, Any]:
    """Return a package's optimizer classes."""
    module = importlib.import_module(package)
    return {
        name: each
        for name, each in sorted(vars(module).items())
        if inspect.isclass(each)
        and issubclass(each, torch.optim.Optimizer)
        and not inspect.isabstract(each)
        and each is not torch.optim.Optimizer
    }


def _answer(cls: Any, specs: Path | None, pipe: Connection) -> None:
    """Import a class, and send the verdict and the reason."""
    warnings.filterwarnings("ignore")
    try:
        made = import_optimizer(cls, out=specs and specs / f"{cls.__name__.lower()}.py")
        pipe.send(("proven", f"{made.proof.largest:.0e}, {made.proof.num_settings} settings"))
    except NotImportedError as error:
        pipe.send(("refused", str(error)))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        pipe.send(("DEFECT", f"{type(error).__name__}: {error} ({where})"))


def row(name: str, cls: Any, seconds: float, specs: Path | None) -> Row:
    """Import a class in a fork, which is ended after some seconds."""
    began = time.perf_counter()
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_answer, args=(cls, specs, sender))
    child.start()
    sender.close()
    try:
        verdict, reason = receiver.recv() if receiver.poll(seconds) else ("refused", "too slow")
    except EOFError:
        verdict, reason = "DEFECT", "the process ended"
    if child.is_alive():
        child.join(0.5)
        child.kill()
    child.join()
    return Row(name, verdict, reason, time.perf_counter() - began)


def _short(reason: str) -> str:
    """Return a reason in one line, with file names instead of paths."""
    return re.sub(r"/\S*/", "", " ".join(reason.split()))


def main() -> None:
    """Print the table of a package."""
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--specs", type=Path)
    options = parser.parse_args()
    if options.specs:
        options.specs.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    import_optimizer(torch.optim.AdamW)  # what torch imports late is imported once
    counts: collections.Counter[str] = collections.Counter()
    for name, cls in classes(options.package).items():
        if options.names and name not in options.names:
            continue
        each = row(name, cls, options.seconds, options.specs)
        counts[each.verdict] += 1
        reason = _short(each.reason)
        if options.markdown:
            print(f"| {name} | {each.verdict} | {reason} |", flush=True)
        else:
            print(f"{name:24} {each.verdict:8} {each.seconds:5.1f} s  {reason[:200]}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
