"""One call on a CUDA machine: is every lowering right there, and how fast is it?

    python benchmarks/gpu.py [--quick] [--compile] [--only AdamW RAdam] [--out FILE]

Needs torch with CUDA and Triton, nothing else: generated/ is checked in. Prints tables, writes
benchmarks/results/gpu-<device>.json, and exits with 1 if a check fails.

Written on a machine without a GPU: nothing in this file has run on one. What it launches was
compiled ahead of time and was right in Triton's interpreter; speed, graph capture and copies to the
device are unproven until somebody runs this and commits the results.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.classes import CLASSES
from benchmarks.gpu_checks import run_checks
from benchmarks.gpu_speed import run_speed


def main() -> int:
    """Run everything, print it, write it down."""
    arguments = parse()
    if not torch.cuda.is_available():
        print("there is no CUDA device here")
        return 2
    results: dict[str, Any] = {"machine": machine()}
    print(json.dumps(results["machine"], indent=2))
    results["checks"] = run_checks(arguments.only, quick=arguments.quick)
    results["speed"] = run_speed(arguments.only, quick=arguments.quick, compiled=arguments.compile)
    path = arguments.out or default_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    failed = [check["name"] for check in results["checks"] if not check["right"]]
    print(f"\n{len(failed)} checks of {len(results['checks'])} failed; written to {path}")
    for name in failed:
        print(f"  {name}")
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small tensors and few rounds")
    parser.add_argument("--compile", action="store_true", help="also torch.compile(step): minutes")
    parser.add_argument("--only", nargs="*", default=CLASSES, choices=CLASSES)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "memory_gb": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "capability": list(torch.cuda.get_device_capability(0)),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def default_path() -> Path:
    device = torch.cuda.get_device_name(0).lower().replace(" ", "-")
    return Path(__file__).resolve().parent / "results" / f"gpu-{device}.json"


if __name__ == "__main__":
    sys.exit(main())
