"""Tell the results of benchmarks/gpu.py in lines of text, with a verdict in each line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from benchmarks.gpu_results import Result

ENOUGH = 0.9
"""The fraction of the copy ceiling from which on a kernel is good."""
OURS, THEIRS, COMPILED = "optgen fused Triton", "torch fused", "torch compiled"


def lines(name: str, result: Result) -> Iterator[str]:
    """Yield the lines about one result."""
    if "absent" in result:
        yield f"-    {name}: {result['absent']}"
    elif "right" in result:
        yield check_line(name, result)
    elif "kernels" in result:
        yield f"\n{name}: {result['ms']:.3f} ms in kernels, {result['elements']:,} elements"
        if result["times_by"] != "profiler":
            yield f"  times by {result['times_by']}"
        yield from map(kernel_line, result["kernels"])
    elif "variants" in result:
        yield f"\n{name}: {result['elements']:,} elements in {result['tensors']:,} tensors"
        yield from variant_lines(result["variants"])
        yield f"  {step_verdict(result)}"
    else:
        yield f"{name} {json.dumps(result, indent=2)}"


def check_line(name: str, result: Result) -> str:
    """Return the line of a check: its error, or the last line of what it raised."""
    if "raised" in result:
        return f"BAD  {name}: {(result['raised'].strip().splitlines() or ['?'])[-1]}"
    verdict = "ok  " if result["right"] else "BAD "
    return f"{verdict} {name}: error {result['error']:.2g}, limit {result['limit']:.2g}"


def kernel_line(kernel: Mapping[str, object]) -> str:
    """Return the line of a kernel: its time, traffic and verdict."""
    line = f"  {kernel['name']!s:44} {kernel['us']:8.1f} us {kernel['part']:5.0%} of the step"
    if kernel.get("gb_per_s"):
        line += f" {kernel['gb_per_s']:7.0f} GB/s {kernel['of_copy']:5.0%} of a copy"
    return f"{line}  {kernel['verdict']}"


def variant_lines(variants: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a line for each variant of a step, with its time relative to the first variant's."""
    ours = next(iter(variants.values())).get("device_ms")
    for title, figures in variants.items():
        if "device_ms" not in figures:
            yield f"  {title:32}  -  {str(figures.get('absent', ''))[:90]}"
            continue
        ratio = f"x{figures['device_ms'] / ours:.2f}" if ours else ""
        yield (
            f"  {title:32} {figures['device_ms']:9.3f} ms {figures['host_ms']:9.3f} host "
            f"{figures['gb_per_s']:8.0f} GB/s {ratio:>8}  first {figures['first_step_s']:.2f} s"
        )


def step_verdict(result: Result) -> str:
    """Return the verdict of a comparison: whether our step is as fast as torch's fastest."""
    ratio = ratio_to_torch(result)
    if ratio is None:
        return "nothing of torch's to compare with"
    return f"{'PASS' if ratio <= 1 else 'SLOW'}: x{ratio:.2f} of torch's fastest"


def ratio_to_torch(result: Result) -> float | None:
    """Return the time of our step as a multiple of torch's fastest eager step, if both ran."""
    times = {t: f["device_ms"] for t, f in result["variants"].items() if "device_ms" in f}
    eager = [title for title in times if not title.endswith("in a graph") and title != COMPILED]
    theirs = [times[title] for title in eager if title.startswith("torch")]
    return times[OURS] / min(theirs) if theirs and OURS in times else None


def summary(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield what somebody should read first: what is wrong, and what is slow."""
    checks = [name for name, result in results.items() if "right" in result]
    failed = [name for name in checks if not results[name]["right"]]
    yield f"\n{len(results)} results, {len(checks)} checks, {len(failed)} failed checks"
    yield from (check_line(name, results[name]) for name in failed)
    kernels = [(n, k) for n, r in results.items() for k in r.get("kernels", ())]
    slow = [(n, k) for n, k in kernels if k["verdict"] == "SLOW"]
    if kernels:
        yield f"{len(kernels)} kernels, {len(slow)} below {ENOUGH:.0%} of a copy"
        yield from (f"  {n}: {k['name']} {k['of_copy']:.0%}" for n, k in slow)
    ratios = {n: ratio_to_torch(r) for n, r in results.items() if "variants" in r}
    slower = {n: ratio for n, ratio in ratios.items() if ratio is not None and ratio > 1}
    if ratios:
        yield f"{len(ratios)} comparisons, {len(slower)} slower than torch's fastest"
        yield from (f"  {name}: x{ratio:.2f}" for name, ratio in slower.items())
