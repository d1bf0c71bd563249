"""Check every lowering on a CUDA machine, and measure its speed.

    python benchmarks/gpu.py --quick --out FOLDER
    python benchmarks/gpu.py --out FOLDER

The first command takes at most five minutes. It prints what is wrong and what is slow as it goes.
The second one takes nine minutes; if it exits with 3, tasks are left, and the same command
continues. FOLDER (by default benchmarks/results/gpu-DEVICE) receives results.jsonl, a line for each
result, and report.txt. Exits with 1 if a check failed. On a rented machine, bring FOLDER back after
each command, and give it to the next one.

Needs only torch with CUDA and Triton, because generated/ is checked in. After a fault or a hang, a
new process continues with the next task. A task that runs when time is up is repeated by the next
command.

    python benchmarks/gpu.py --rehearse

runs all tasks with a few small tensors in Triton's interpreter, without a GPU (needs numpy).

This file was written on a machine without a GPU and has not run on one. Speed is unproven until
results are committed.
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

from benchmarks import gpu_report
from benchmarks.gpu_results import Result, Results, result_of

ROOT = Path(__file__).resolve().parents[1]
QUICK = "quick"
PARTS = (QUICK, "speed", "situations", "steps", "matrices", "offload", "trajectories", "compiled")
"""The parts, in the order of their worth."""
MINUTES, QUICK_MINUTES = 9.0, 5.0
MAX_SILENCE, QUICK_MAX_SILENCE, EMULATED_MAX_SILENCE = 240.0, 60.0, 1200.0
"""Seconds without a result after which a process counts as hanging."""
GRACE = 20.0
"""Seconds after the deadline in which a process may end by itself."""
DEVICE_FAULT = 75
"""The exit status of a process whose device no longer works."""
TIME_IS_UP = 3
NO_DEVICE = "there is no CUDA device here; --rehearse runs everything without one"
Tasks = dict[str, Callable[[], Result]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the remaining tasks, in one process after another, until all are done or time is up."""
    arguments = parse(argv)
    if arguments.worker:
        return run_worker(arguments)
    out = arguments.out or ROOT / "benchmarks" / "results" / f"gpu-{device_name(arguments)}"
    command = [sys.executable, __file__, "--worker", "--out", str(out), "--part", *arguments.part]
    command += ["--only", *arguments.only] if arguments.only else []
    command += ["--rehearse"] if arguments.rehearse else []
    deadline = time.monotonic() + 60 * arguments.minutes
    environment = {**os.environ, "TRITON_INTERPRET": "1"} if arguments.rehearse else None
    file = results_file(out)
    Results(file).interrupt()  # what an earlier command left unfinished
    status = TIME_IS_UP
    while (seconds_left := deadline - time.monotonic()) > 0:
        process = subprocess.Popen([*command, "--minutes", str(seconds_left / 60)], env=environment)
        status = wait_for(process, file, deadline, arguments.max_silence)
        results = Results(file)
        if status != 0 and time.monotonic() > deadline:
            results.interrupt()
            status = TIME_IS_UP
        if results.current_task:
            raised = f"ended the process: {status}"
            results.add(results.current_task, {"right": False, "raised": raised})
        elif status != DEVICE_FAULT:
            break
    return report(Results(file), out, status)


def results_file(out: Path) -> Path:
    """Return the file of results in the folder of a run."""
    return out / "results.jsonl"


def wait_for(
    process: subprocess.Popen[bytes], file: Path, deadline: float, max_silence: float
) -> int:
    """Wait for a process, and return its exit status; kill it if it hangs or time is up."""
    last_change, size = time.monotonic(), -1
    while process.poll() is None:
        time.sleep(0.2)
        size_now = file.stat().st_size if file.exists() else 0
        if size_now != size:
            last_change, size = time.monotonic(), size_now
        if time.monotonic() > min(last_change + max_silence, deadline + GRACE):
            process.kill()
    return process.wait()


def run_worker(arguments: argparse.Namespace) -> int:
    """Run the tasks that are not done, as a worker process; stop at a fault of the device."""
    import torch

    if not (arguments.rehearse or torch.cuda.is_available()):
        sys.exit(NO_DEVICE)
    results = Results(results_file(arguments.out))
    deadline = time.monotonic() + 60 * arguments.minutes
    for name, run in all_tasks(arguments).items():
        if name in results.done:
            continue
        if time.monotonic() > deadline:
            return TIME_IS_UP
        results.begin(name)
        fault = False
        try:
            result = run()
        except Exception as problem:
            result = {"right": False, "raised": traceback.format_exc()}
            fault = isinstance(problem, torch.AcceleratorError) or "CUDA error" in str(problem)
        results.add(name, result)
        print(*gpu_report.lines(name, result), sep="\n", flush=True)
        if fault:
            return DEVICE_FAULT
    return 0


def all_tasks(arguments: argparse.Namespace) -> Tasks:
    """Return the tasks of the wanted parts, by name. Only a worker does: this imports Triton."""
    from benchmarks import gpu_matrices, gpu_offload, gpu_quick
    from benchmarks.classes import CLASSES
    from benchmarks.gpu_checks import situation_checks, trajectory_checks
    from benchmarks.gpu_device import replace_torch_compiler
    from benchmarks.gpu_one_step import one_step_checks
    from benchmarks.gpu_speed import comparisons, compiled_comparisons

    replace_torch_compiler()
    names = arguments.only or CLASSES
    checks = {
        "situations": situation_checks(names),
        "steps": one_step_checks(names),
        "trajectories": trajectory_checks(names),
    }
    parts: dict[str, Tasks] = {
        QUICK: gpu_quick.tasks(arguments.only or gpu_quick.CLASSES),
        "speed": comparisons(names),
        "matrices": gpu_matrices.tasks(),
        "offload": gpu_offload.tasks(names),
        "compiled": compiled_comparisons(names),
    } | {part: {n: result_of(c) for n, c in each.items()} for part, each in checks.items()}
    tasks: Tasks = {"machine": machine}
    for part in (part for part in PARTS if part in arguments.part):
        tasks |= {f"{part}: {name}": run for name, run in parts[part].items()}
    return tasks


def report(results: Results, out: Path, status: int) -> int:
    """Print the summary, write all lines into the report, and return the exit status."""
    summary = "\n".join(gpu_report.summary(results.done))
    ending = "tasks are left: run the same command again" if status == TIME_IS_UP else "all is done"
    if status not in (0, TIME_IS_UP, DEVICE_FAULT):
        ending = f"the last process ended with {status}, outside of any task"
    print(f"{summary}\n{ending}; results are in {out}", flush=True)
    lines = (line for name, r in results.done.items() for line in gpu_report.lines(name, r))
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.txt").write_text("\n".join([*lines, summary, ""]), encoding="utf-8")
    return 1 if any(results.failed()) and status == 0 else status


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the most important five minutes")
    parser.add_argument("--part", nargs="+", choices=PARTS)
    parser.add_argument("--only", nargs="+", metavar="CLASS")
    parser.add_argument("--minutes", type=float, help="end after this many minutes")
    parser.add_argument("--out", type=Path, help="the folder for results")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    arguments.part = arguments.part or ((QUICK,) if arguments.quick else PARTS)
    is_quick = tuple(arguments.part) == (QUICK,)
    arguments.max_silence = QUICK_MAX_SILENCE if is_quick else MAX_SILENCE
    if arguments.rehearse or os.environ.get("OPTGEN_GPU_SMALL") == "1":
        arguments.max_silence = EMULATED_MAX_SILENCE
    if arguments.minutes is None:
        arguments.minutes = QUICK_MINUTES if is_quick else MINUTES
    return arguments


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
        sys.exit(NO_DEVICE)
    return torch.cuda.get_device_name(0).lower().replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
