"""Predict how fast each generated Triton kernel is on an H100, from its machine code.

    python benchmarks/triton_speed.py [--changed | --only FOLDER …]

A prediction, not a measurement: no kernel has run on a card. Each kernel under generated/ is
compiled for sm_90, for parameters in float32 and in bfloat16. It writes to
results/triton-speed.json the fraction of the speed of a copy that a kernel reaches, if nothing
limits it but the latency of a block (with as many blocks at once as registers, threads and shared
memory allow) and the slots in which instructions issue: `triton_model.py`. Each kernel below ENOUGH
has a reason from REASONS there. Exits with 1 if one has none.

With --only or --changed, other rows stay as they are recorded. The record is written after each
folder, so --changed also continues a run that was interrupted.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import isqrt
from pathlib import Path
from typing import Any
from zlib import crc32

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import triton
from triton.runtime.jit import JITFunction

from benchmarks import triton_aot_compile
from benchmarks.gpu_report import ENOUGH
from benchmarks.triton_aot_compile import Case, Launch, Shapes, call_function, compiling_for
from benchmarks.triton_catalogue import classes, folder_of, function, functions, kernels
from benchmarks.triton_model import H100, REFERENCE, Prediction, kind_of, predict, predict_step
from optgen.runtime.fused_triton import folds
from optgen.runtime.fused_triton.bucket import Bucket
from optgen.verification.patch_attribute import patch_attribute

RECORD = Path(__file__).parent / "results" / "triton-speed.json"
CACHE = str(Path(__file__).parents[1] / "build" / "triton")
"""Triton's files, which the tests use too."""
TARGET = "sm_90"
TYPES = ("float32", "bfloat16")
SIDE = 1024
"""The rows and columns of large matrices, which have one tile shape."""
SEVERAL_TILES = "in three tile shapes"
"""The name of the case of matrices of several shapes, for kernels that sweep them in tiles."""
REASONS = {
    "power": (
        r"muon_clip_step2 bfloat16",
        "each element needs a quotient and a power of it, some 1,000 instructions for 8 elements "
        "of a thread; 16 bits leave half the time for them",
    ),
    "quotients": (
        r"stable_adamw_step1 bfloat16",
        "a block waits for a correctly rounded quotient of each element and for sums in float64, "
        "and 16 bits have half the bytes in flight",
    ),
    "codes": (
        r"adamw_8bit_step bfloat16",
        "each element of two states is decoded and encoded, with a fourth root, in some 900 "
        "instructions for 8 elements of a thread; 8 bits leave a quarter of the time for them",
    ),
    "root and quotient": (
        r"adamuon_step2 bfloat16",
        "each element needs a correctly rounded root and quotient and a sum in float64, some 350 "
        "instructions for 8 elements of a thread; 16 bits leave half the time for them",
    ),
    "one stream of 16 bits": (
        r"(novograd|adagc|fadam)_step1 bfloat16|stable_spam_step2 bfloat16",
        "a sweep reads the gradient alone, for its norm: a block has 32 KiB in flight, and waits "
        "for sums in float64",
    ),
    "one program for all lines": (
        r"(adafactor\w*|adam_mini\w*|came|mano|normuon|racs|(adamp|sgdp|tam)_factored)_finish1 |"
        r"nero_factored_finish[23] |rose_factored_finish[13] |"
        r"^(dion/sweep2|apollo/sweep7|aro/sweep2|fira/sweep4) .*_finish1 ",
        "when all programs have combined the partial sums of a matrix, one of them finishes all "
        "of its lines, 1024 rows or columns at a time, and waits for loads and for quotients in "
        "float64 each time",
    ),
    "tiles of 16 bits": (
        r"(adafactor\w*|adam_mini\w*|came\w*|mano|normuon\w*|racs|\w+_factored)_step\d? bfloat16|"
        r"^(aro/sweep2|dion/sweep2|one_sided_shampoo/sweep3|shampoo/sweep4) .*_step\d bfloat16",
        "tiles of 16-bit elements move half the bytes in the same time, and some 200 instructions "
        "find a tile and its rows; tiles of 4096 elements would reach 0.8 to 1 where all matrices "
        "have one tile shape, but the kernels of several shapes spill",
    ),
}
"""Reasons of kernels below ENOUGH, by a short name: the rows that each is for, and its text."""

Rows = dict[str, Prediction]
"""Predictions by folder, kernel, dtype of parameters, and case."""


def predictions(folder: str, types: str, cache: str) -> Rows:
    """Return the predictions for all kernels in a file."""
    rows: Rows = {}
    names = kernels()[folder]
    has_finishes = any(kind_of(kernel) in ("fold", "finish") for kernel in names)
    side = isqrt(REFERENCE) if has_finishes else SIDE
    tiled: set[str] = set()
    for shape in ((side, side), (side**2,)):
        new = {name for name in names if row_name(folder, name, types) not in rows}
        if new:
            launches = launches_of(folder, types, (shape,), cache)
            for each, prediction in zip(launches, predict_step(launches), strict=True):
                rows.setdefault(row_name(folder, each.name, types), prediction)
            tiled |= {each.name for each in launches if "TILES" in each.options}
    tiled = {name for name in tiled if kind_of(name) == "sweep"}
    if tiled:
        several = triton_aot_compile.SHAPES
        for each in launches_of(folder, types, several, cache, tiled.__contains__):
            if len(each.options["TILES"]) > 1:
                rows[row_name(folder, each.name, types, SEVERAL_TILES)] = predict(each)
    return rows


def launches_of(
    folder: str,
    types: str,
    shapes: Shapes,
    cache: str,
    is_wanted: Callable[[str], bool] = bool,
) -> list[Launch]:
    """Return the launches of a step of a class, or of a call of a function.

    No matrix op runs. All partial sums are folded before a finish, as those of large tensors are.
    """
    with compiling_for(TARGET, cache, is_wanted=is_wanted) as launches:
        _take_step(folder, types, shapes)
    return launches


def _take_step(folder: str, types: str, shapes: Shapes) -> None:
    """Take a step of a class, or call a function, with parameters of these dtypes and shapes."""
    case = Case(TARGET, types)
    stand_ins = (
        (Bucket, "call", keep_operands),
        (folds, "chunk_count", lambda count, readers: -(-count // folds.FOLD)),
    )
    with ExitStack() as stack:
        for owner, attribute, value in stand_ins:
            stack.enter_context(patch_attribute(owner, attribute, value))
        if folder in functions():
            call_function(function(folder), case, shapes)
        else:
            (cls,) = (cls for cls in classes().values() if folder_of(cls) == folder)
            triton_aot_compile.take_step(cls, case, shapes)


def keep_operands(bucket: Bucket, op: Any, source: str, target: str, arguments: Any) -> None:
    """Take the operands of a matrix op for its results."""
    bucket._set_local(target, bucket._locals[source])


def row_name(folder: str, kernel: str, *case: str) -> str:
    """Return the name of the row of a kernel."""
    return " ".join((folder, kernel, *case))


def reason(name: str, prediction: Prediction) -> str:
    """Return the short name of the reason why a kernel is slow; "" if it is not, or has none."""
    if prediction.fraction >= ENOUGH:
        return ""
    return next((key for key, (rows, _) in REASONS.items() if re.search(rows, name)), "")


def missing(rows: Mapping[str, Prediction]) -> list[str]:
    """Return the folder and the name of each kernel that has no row for one of TYPES."""
    recorded_kernels = {tuple(name.split()[:3]) for name in rows}
    return [
        f"{folder} {kernel}"
        for folder, names in kernels().items()
        for kernel in names
        if any((folder, kernel, types) not in recorded_kernels for types in TYPES)
    ]


def unexplained(rows: Mapping[str, Prediction]) -> list[str]:
    """Return the names of the rows that are below ENOUGH for no known reason."""
    return [
        name
        for name, prediction in rows.items()
        if prediction.fraction < ENOUGH and not reason(name, prediction)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Predict, write the record, and print what is slow."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--changed", action="store_true", help="only new and changed kernels")
    which.add_argument("--only", nargs="+", metavar="FOLDER", help="folders under generated/")
    arguments = parser.parse_args(argv)
    folders = arguments.only or list(kernels())
    if arguments.changed:
        folders = changed()
    for folder in folders:
        found: Rows = {}
        for types in TYPES:
            found |= predictions(folder, types, CACHE)
        print(*(f"{name}: {row}" for name, row in found.items()), sep="\n", flush=True)
        others = {name: row for name, row in recorded().items() if name.split()[0] != folder}
        write(others | found, recorded_texts() | {folder: text_of(folder)})
    rows = recorded()
    faults = [f"{name} has no row" for name in missing(rows)]
    faults += [f"{name} is below {ENOUGH}, and REASONS has no reason" for name in unexplained(rows)]
    print(f"{len(rows)} rows, {len(faults)} faults", *faults, sep="\n")
    return 1 if faults else 0


def read_record() -> dict[str, Any]:
    """Return the record of earlier runs."""
    return dict(json.loads(RECORD.read_text(encoding="utf-8"))) if RECORD.exists() else {}


def recorded() -> Rows:
    """Return the predictions of earlier runs; rows of kernels that are gone are left out."""
    current = {(folder, kernel) for folder, names in kernels().items() for kernel in names}
    width = len(Prediction._fields)
    return {
        name: Prediction(*row[:width])
        for name, row in read_record().get("rows", {}).items()
        if tuple(name.split()[:2]) in current
    }


def recorded_texts() -> dict[str, str]:
    """Return `text_of` each folder when its kernels were compiled."""
    texts = read_record().get("texts", {})
    return {folder: text for folder, text in texts.items() if folder in kernels()}


def text_of(folder: str) -> str:
    """Return a checksum of what the launches of a folder compile: sources, types and options."""
    found: set[str] = set()

    def note(kernel: Any, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            found.add(repr((sources(kernel), list(map(_kind, args)), sorted(options.items()))))

        return launch

    with compiling_for(TARGET, CACHE), patch_attribute(JITFunction, "__getitem__", note):
        for types in TYPES:
            for shapes in (((SIDE, SIDE),), ((SIDE**2,), *triton_aot_compile.SHAPES)):
                _take_step(folder, types, shapes)
    return f"{crc32(repr((triton.__version__, sorted(found))).encode()):08x}"


def sources(kernel: Any) -> list[str]:
    """Return the source of a kernel, and of all device functions and constants that it reads."""
    texts: dict[str, str] = {}
    unread = [kernel]
    while unread:
        function = unread.pop()
        texts[function.fn.__name__] = function.src
        for name in function.fn.__code__.co_names:
            value = function.fn.__globals__.get(name)
            if isinstance(value, triton.language.constexpr):
                texts[name] = repr(value.value)
            elif isinstance(value, JITFunction) and name not in texts:
                unread.append(value)
    return sorted(f"{name}: {text}" for name, text in texts.items())


def _kind(argument: Any) -> str:
    """Return what a kernel is compiled for, of an argument: a dtype, or the name of a class."""
    if isinstance(argument, torch.Tensor):
        return str(argument.dtype)
    is_type = isinstance(argument, triton.language.dtype)
    return str(argument) if is_type else type(argument).__name__


def changed() -> list[str]:
    """Return the folders that are new, or whose launches differ from those that were compiled."""
    texts = recorded_texts()
    return [folder for folder in kernels() if texts.get(folder) != text_of(folder)]


def write(rows: Mapping[str, Prediction], texts: Mapping[str, str]) -> None:
    """Write a line for each row, slowest first."""
    head: dict[str, Any] = {
        "what": "a prediction from machine code; no kernel has run on a card",
        "triton": triton.__version__,
        "card": H100._asdict(),
        "enough": ENOUGH,
        "reasons": {key: text for key, (_, text) in REASONS.items()},
        "columns": [*Prediction._fields, "reason, if below enough"],
        "texts": dict(sorted(texts.items())),
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    ordered = sorted(rows.items(), key=lambda item: (item[1].fraction, item[0]))
    row_lines = [
        f"    {json.dumps(name)}: {json.dumps([*row, reason(name, row)])}" for name, row in ordered
    ]
    lines.append('"rows": {\n' + ",\n".join(row_lines) + "\n  }")
    RECORD.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
