"""Import every optimizer class of a package, and print what became of each.

    python benchmarks/import_table.py pytorch_optimizer [NAME ...] [--seconds 60]

One child process for each class: name, verdict, reason, seconds.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import inspect
import json
import subprocess
import sys
import time

CHILD = """
import importlib, json, sys, warnings
warnings.filterwarnings("ignore")
from optgen.importer import NotImportedError, import_optimizer
module, name = sys.argv[1:]
cls = getattr(importlib.import_module(module), name)
try:
    made = import_optimizer(cls)
    lines = sum(bool(line.strip()) for line in made.text.splitlines())
    print(json.dumps(["proven", f"{made.proof.largest:.0e}, {made.proof.num_settings} settings", lines]))
except NotImportedError as error:
    print(json.dumps(["refused", str(error), 0]))
except Exception as error:
    import traceback
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{last.filename.split('/')[-1]}:{last.lineno}"
    print(json.dumps(["DEFECT", f"{type(error).__name__}: {error} ({where})", 0]))
"""


def classes(package: str) -> list[str]:
    """Return the names of a package's optimizer classes."""
    import torch

    module = importlib.import_module(package)
    return sorted(
        name
        for name, each in vars(module).items()
        if inspect.isclass(each)
        and issubclass(each, torch.optim.Optimizer)
        and not inspect.isabstract(each)
        and each is not torch.optim.Optimizer
    )


def main() -> None:
    """Print the table of a package."""
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for name in options.names or classes(options.package):
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, "-c", CHILD, options.package, name],
                capture_output=True,
                text=True,
                timeout=options.seconds,
                check=False,
            )
            lines = done.stdout.strip().splitlines() or ['["DEFECT", "no answer", 0]']
            verdict, reason, _ = json.loads(lines[-1])
        except subprocess.TimeoutExpired:
            verdict, reason = "refused", f"more than {options.seconds:.0f} s"
        counts[verdict] += 1
        seconds = time.perf_counter() - began
        first = reason.replace("\n", " ")[:230]
        print(f"{name:24} {verdict:8} {seconds:5.1f} s  {first}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
