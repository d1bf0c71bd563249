"""Record the results of benchmarks/gpu.py: a line of JSON when a task begins, and when it ends.

A line is on the disk before the next task begins, so an interrupted run keeps all results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Result = dict[str, Any]


class Results:
    """A file of results, new or continued."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done: dict[str, Result] = {}
        self.current_task = ""  # running now, or when the last process ended
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.current_task = "" if "result" in entry else entry["name"]
                if "result" in entry:
                    self.done[entry["name"]] = entry["result"]

    def begin(self, name: str) -> None:
        """Record that a task begins."""
        self.current_task = name
        self._write({"name": name})

    def add(self, name: str, result: Result) -> None:
        """Record the result of a task."""
        self.current_task = ""
        self.done[name] = result
        self._write({"name": name, "result": result})

    def failed(self) -> Iterator[str]:
        """Return the names of the checks that failed."""
        return (name for name, result in self.done.items() if not result.get("right", True))

    def _write(self, entry: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def show(name: str, result: Result) -> None:
    """Print the outcome of a check, or a line of figures for each variant of a comparison."""
    if "right" in result:
        detail = result.get("error", result.get("raised", "").strip().splitlines()[-1:])
        print("ok  " if result["right"] else "BAD ", name, detail, flush=True)
        return
    if "variants" not in result:
        print(name, json.dumps(result, indent=2), flush=True)
        return
    print(f"\n{name}: {result['elements']:,} elements")
    variants = result["variants"]
    ours = next(iter(variants.values())).get("device_ms")
    for title, figures in variants.items():
        if "device_ms" not in figures:
            print(f"  {title:30}  -  {figures.get('absent', '')[:70]}")
            continue
        ratio = f"x{figures['device_ms'] / ours:.2f}" if ours else ""
        print(
            f"  {title:30} {figures['device_ms']:9.3f} ms {figures['host_ms']:9.3f} host "
            f"{figures['gb_per_s']:8.0f} GB/s {ratio:>8}  first {figures['first_step_s']:.2f} s",
            flush=True,
        )
