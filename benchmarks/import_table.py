"""Import every optimizer class of a package, and print what became of each.

    python benchmarks/import_table.py pytorch_optimizer [NAME ...] [--seconds 300]
        [--specs DIR] [--json docs/imported_classes.json] [--page docs/bring-your-own.md]

Each class is imported in a fork of this process: name, verdict, reason, seconds. `--specs` writes
the specs of the proven classes into a folder. `--json` keeps the rows, by package, in a file: what
is not run keeps its row there. `--page` writes all rows into the package's section of a page. With
`--show`, nothing is run. torch's own classes, which other packages hold too, count for torch.optim
alone.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import importlib.metadata
import inspect
import json
import multiprocessing
import os
import re
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from optgen.importer import NotImportedError, import_optimizer


@dataclass(frozen=True)
class Row:
    """One class and its verdict."""

    name: str
    version: str
    verdict: str
    reason: str
    seconds: float
    settings: int = 0
    """The settings of arguments that the proof compared; 0 if a row is older than its figures."""
    largest: float = 0.0
    """The largest difference of an element in the proof in float64."""
    limits: str = ""
    """A rounding that the proof leaves out, shapes that the spec requires, or ""."""
    gaps: bool = True
    """Both take the same steps if parameters have no gradients in some of them."""


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
    """Import a class, and send the fields of its row."""
    warnings.filterwarnings("ignore")
    try:
        made = import_optimizer(cls, out=specs and specs / f"{cls.__name__.lower()}.py")
        shapes = made.proof.shapes
        limits = [f"without its roundings to {made.proof.rounding}"] if made.proof.rounding else []
        limits += ["for matrices alone"] if {len(s) for s in shapes} == {2} else []
        proof = made.proof
        found = (proof.num_settings, proof.largest, ", ".join(limits), proof.gaps)
        pipe.send(("proven", "", *found))
    except NotImportedError as error:
        pipe.send(("refused", str(error)))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        pipe.send(("DEFECT", f"{type(error).__name__}: {error} ({where})"))


def _version(package: str) -> str:
    """Return the version of the distribution that has a package."""
    first = package.partition(".")[0]
    names = importlib.metadata.packages_distributions().get(first, [first])
    return importlib.metadata.version(names[0])


def row(name: str, version: str, cls: Any, seconds: float, specs: Path | None) -> Row:
    """Import a class in a fork, which is ended after some seconds."""
    began = time.perf_counter()
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_answer, args=(cls, specs, sender))
    child.start()
    sender.close()
    try:
        late = ("refused", f"more than {seconds:.0f} seconds\n  hint: --set some arguments")
        verdict, reason, *found = receiver.recv() if receiver.poll(seconds) else late
    except EOFError:
        verdict, reason, found = "DEFECT", "the process ended", []
    if child.is_alive():
        child.join(0.5)
        child.kill()
    child.join()
    took = round(time.perf_counter() - began, 1)
    return Row(name, version, verdict, _without_folders(reason), took, *found)


def _without_folders(reason: str) -> str:
    """Return a reason with file names instead of paths."""
    return re.sub(r"/\S*/", "", reason)


def _cell(text: str, longest: int) -> str:
    """Return a text as a cell of a table."""
    text = " ".join(text.split())
    text = text[:longest] + "…" * (len(text) > longest)
    for sign, word in (("|", "\\|"), ("<", "&lt;"), ("`", "'"), ("*", "\\*")):
        text = text.replace(sign, word)
    return text


def section(rows: Sequence[Row]) -> str:
    """Return a package's section of a page: a sentence, and a table of what is refused."""
    proven = [each for each in rows if each.verdict == "proven"]
    names = ", ".join(each.name for each in proven)
    lines = [f"{len(proven)} of {len(rows)} classes are imported and proven: {names}."]
    limited: dict[str, list[str]] = {}
    for each in proven:
        if each.limits:
            limited.setdefault(each.limits, []).append(each.name)
    lines += [f"{limits.capitalize()}: {', '.join(names)}." for limits, names in limited.items()]
    if other := [each.name for each in proven if not each.gaps]:
        lines.append(f"Other steps after a parameter had no gradient: {', '.join(other)}.")
    lines += ["", "| not imported | because | write instead |", "|---|---|---|"]
    for each in rows:
        if each.verdict != "proven":
            reason, _, hint = each.reason.rpartition("hint: ")
            cells = [each.name, _cell(reason or hint, 160), _cell(hint if reason else "", 160)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _read(file: Path | None, package: str) -> dict[str, Row]:
    """Return the rows of a package that a file has."""
    if file is None or not file.exists():
        return {}
    return {each["name"]: Row(**each) for each in json.loads(file.read_text()).get(package, [])}


def _write(file: Path, package: str, rows: Sequence[Row]) -> None:
    """Write the rows of a package into a file, which may have other packages too."""
    found = json.loads(file.read_text()) if file.exists() else {}
    found[package] = [asdict(each) for each in rows]
    text = json.dumps(dict(sorted(found.items())), indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def write_section(page: Path, mark: str, text: str) -> None:
    """Replace a section of a page, which begins with the comment `mark`.

    Raises:
        ValueError: the page has no such section.
    """
    first, last = f"<!-- {mark} -->", "<!-- end -->"
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
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--specs", type=Path)
    parser.add_argument("--show", action="store_true", help="run nothing")
    options = parser.parse_args()
    rows = _read(options.json, options.package)
    if not options.show:
        run(options, rows)
    found = [rows[name] for name in sorted(rows)]
    print(dict(collections.Counter(each.verdict for each in found)))
    if options.page:
        mark = f"{options.package}, by benchmarks/import_table.py"
        write_section(options.page, mark, section(found))


def run(options: argparse.Namespace, rows: dict[str, Row]) -> None:
    """Import the classes, and keep their rows."""
    if options.specs:
        options.specs.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    import_optimizer(torch.optim.AdamW)  # what torch imports late is imported once
    version = _version(options.package)
    for name, cls in classes(options.package).items():
        if options.names and name not in options.names:
            continue
        rows[name] = each = row(name, version, cls, options.seconds, options.specs)
        words = f"{each.largest:.0e}, {each.settings} settings" if each.settings else each.reason
        words = " ".join(words.split())[:200]
        print(f"{name:24} {each.verdict:8} {each.seconds:5.1f} s  {words}", flush=True)
        if options.json:
            _write(options.json, options.package, [rows[name] for name in sorted(rows)])


if __name__ == "__main__":
    main()
