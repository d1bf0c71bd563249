"""Check every lowering on a CUDA machine, and measure its speed.

    python benchmarks/gpu.py [--part PART …] [--only AdamW RAdam …] [--minutes M] [--out FILE]

Needs only torch with CUDA and Triton, because generated/ is checked in. Appends each result to
benchmarks/results/gpu-<device>.jsonl as soon as it is known. If --minutes or a limit of the machine
ends a run, the next run continues the file. After a fault, a new process continues with the next
task. Exits with 1 if a check failed, with 3 if tasks are left.

    python benchmarks/gpu.py --rehearse

runs all tasks with a few small tensors in Triton's interpreter, without a GPU (needs numpy).

This file was written on a machine without a GPU and has not run on one. The kernels were compiled
ahead of time, and checked in Triton's interpreter. Speed, graph capture and copies to the device
are unproven until results are committed.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu_results import Result, Results, show

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("situations", "trajectories", "speed")
MAX_SILENCE = 240.0
"""Seconds without a result after which a process counts as hanging."""
GRACE = 20.0
"""Seconds after the deadline in which a process may end by itself."""
DEVICE_FAULT = 75
"""The exit status of a process whose device no longer works."""
Tasks = dict[str, Callable[[], Result]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the remaining tasks, in one process after another, until all are done or time is up."""
    arguments = parse(argv)
    if arguments.worker:
        return run_worker(arguments)
    out = arguments.out or ROOT / "benchmarks" / "results" / f"gpu-{device_name(arguments)}.jsonl"
    command = [sys.executable, __file__, "--worker", "--out", str(out), "--part", *arguments.part]
    command += ["--only", *arguments.only] if arguments.only else []
    command += ["--no-compile"] if arguments.no_compile else []
    deadline = time.monotonic() + 60 * arguments.minutes
    environment = {**os.environ, "TRITON_INTERPRET": "1"} if arguments.rehearse else None
    while (seconds_left := deadline - time.monotonic()) > 0:
        process = subprocess.Popen([*command, "--minutes", str(seconds_left / 60)], env=environment)
        status = wait_for(process, out, deadline)
        results = Results(out)
        if results.current_task:
            results.add(
                results.current_task, {"right": False, "raised": f"ended the process: {status}"}
            )
        elif status not in (0, DEVICE_FAULT):
            break
        if status == 0:
            return summary(results, out)
    summary(Results(out), out)
    return 3


def wait_for(process: subprocess.Popen[bytes], out: Path, deadline: float) -> int:
    """Wait for a process, and return its exit status; kill it if it hangs or time is up."""
    last_change, size = time.monotonic(), -1
    while process.poll() is None:
        time.sleep(0.2)
        size_now = out.stat().st_size if out.exists() else 0
        if size_now != size:
            last_change, size = time.monotonic(), size_now
        if time.monotonic() > min(last_change + MAX_SILENCE, deadline + GRACE):
            process.kill()
    return process.wait()


def run_worker(arguments: argparse.Namespace) -> int:
    """Run the tasks that are not done, as a worker process; stop at a fault of the device."""
    import torch

    results, deadline = Results(arguments.out), time.monotonic() + 60 * arguments.minutes
    for name, run in all_tasks(arguments).items():
        if name in results.done:
            continue
        if time.monotonic() > deadline:
            return 3
        results.begin(name)
        try:
            result = run()
        except Exception as problem:
            result = {"right": False, "raised": traceback.format_exc()}
            results.add(name, result)
            show(name, result)
            if isinstance(problem, torch.AcceleratorError) or "CUDA error" in str(problem):
                return DEVICE_FAULT
            continue
        results.add(name, result)
        show(name, result)
    return 0


def all_tasks(arguments: argparse.Namespace) -> Tasks:
    """Return the tasks of the wanted parts, by name. Only a worker does: this imports Triton."""
    from benchmarks.classes import CLASSES
    from benchmarks.gpu_checks import Check, situation_checks, trajectory_checks
    from benchmarks.gpu_device import replace_torch_compiler
    from benchmarks.gpu_speed import comparisons

    def task_of(check: Check) -> Callable[[], Result]:
        def run() -> Result:
            error, bound = check()
            return {"right": error <= bound, "error": error, "bound": bound}

        return run

    replace_torch_compiler()
    names = arguments.only or CLASSES
    parts: dict[str, Tasks] = {
        "situations": {name: task_of(check) for name, check in situation_checks(names).items()},
        "trajectories": {name: task_of(check) for name, check in trajectory_checks(names).items()},
        "speed": comparisons(names, compiled=not arguments.no_compile),
    }
    tasks: Tasks = {"machine": machine}
    for part in arguments.part:
        tasks |= {f"{part}: {name}": run for name, run in parts[part].items()}
    return tasks


def summary(results: Results, out: Path) -> int:
    """Print the failed checks; return the exit status."""
    failed = list(results.failed())
    print(
        f"\n{len(results.done)} results, {len(failed)} failed checks, in {out}", *failed, sep="\n  "
    )
    return 1 if failed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--only", nargs="+", metavar="CLASS")
    parser.add_argument("--minutes", type=float, default=600.0, help="end after this many minutes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile(step)")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def machine() -> dict[str, Any]:
    """Return the versions and the device, on which the figures depend."""
    import torch
    import triton

    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device": properties.name,
            "memory_gb": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
            "capability": list(torch.cuda.get_device_capability(0)),
            "driver": driver(),
        }
    return facts


def driver() -> str:
    """Return the driver's version and the clocks, from nvidia-smi if it exists."""
    fields = "driver_version,clocks.max.sm,clocks.max.memory,power.limit"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as problem:
        return f"unknown: {problem}"


def device_name(arguments: argparse.Namespace) -> str:
    """Return the device name for the file of results."""
    if arguments.rehearse:
        return "rehearsal"
    import torch

    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device here; --rehearse runs everything without one")
    return torch.cuda.get_device_name(0).lower().replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
