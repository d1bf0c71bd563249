"""Import every optimizer class of a package, and print what became of each.

    python benchmarks/import_table.py pytorch_optimizer [NAME ...] [--seconds 60]
        [--specs DIR] [--page docs/bring-your-own.md]

Each class is imported in a fork of this process: name, verdict, reason, seconds. `--specs` writes
the specs of the proven classes into a folder. `--page` writes the result into the package's section
of a page. torch's own classes, which other packages hold too, count for torch.optim alone.
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
from collections.abc import Sequence
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
        and (package.startswith("torch.") or not each.__module__.startswith("torch."))
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


def section(rows: Sequence[Row]) -> str:
    """Return a package's section of a page: a sentence, and a table of what is refused."""
    proven = [each.name for each in rows if each.verdict == "proven"]
    lines = [
        f"{len(proven)} of {len(rows)} classes are imported and proven: {', '.join(proven)}.",
        "",
        "| not imported | because |",
        "|---|---|",
    ]
    for each in rows:
        if each.verdict != "proven":
            reason = _short(each.reason).partition(" hint: ")[0]
            reason = reason[:160] + "…" * (len(reason) > 160)
            for sign, word in (("|", "\\|"), ("<", "&lt;"), ("`", "'"), ("*", "\\*")):
                reason = reason.replace(sign, word)
            lines.append(f"| {each.name} | {reason} |")
    return "\n".join(lines)


def write_section(page: Path, package: str, text: str) -> None:
    """Replace a package's section of a page.

    Raises:
        ValueError: the page has no such section.
    """
    first, last = f"<!-- {package}, by benchmarks/import_table.py -->", "<!-- end -->"
    before, mark, rest = page.read_text(encoding="utf-8").partition(first)
    if not mark:
        raise ValueError(f"{page} has no line {first}")
    after = rest.partition(last)[2]
    page.write_text(f"{before}{first}\n{text}\n{last}{after}", encoding="utf-8")


def main() -> None:
    """Print the table of a package."""
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--specs", type=Path)
    options = parser.parse_args()
    if options.specs:
        options.specs.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    import_optimizer(torch.optim.AdamW)  # what torch imports late is imported once
    rows: list[Row] = []
    for name, cls in classes(options.package).items():
        if options.names and name not in options.names:
            continue
        rows.append(each := row(name, cls, options.seconds, options.specs))
        reason = _short(each.reason)[:200]
        print(f"{name:24} {each.verdict:8} {each.seconds:5.1f} s  {reason}", flush=True)
    print(dict(collections.Counter(each.verdict for each in rows)))
    if options.page:
        write_section(options.page, options.package, section(rows))


if __name__ == "__main__":
    main()
