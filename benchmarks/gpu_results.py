"""Record the results of benchmarks/gpu.py: a line of JSON when a task begins, and when it ends.

A line is on the disk before the next task begins, so an interrupted run keeps all results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

Result = dict[str, Any]
"""The findings of a task. The keys say of which kind it is.

`right`: a check, with `error` and `limit`, or with `raised`. `variants`: a comparison of steps.
`kernels`: the kernels of a step. `absent`: why the task had nothing to do. Else facts.
"""
Check = Callable[[], tuple[float, float]]
"""A function that returns an error, and the largest error that passes. Or it raises."""


def result_of(check: Check) -> Callable[[], Result]:
    """Return the task of a check. An error that is no number, or a limit that allows any, fails."""

    def run() -> Result:
        error, limit = check()
        return {"right": isfinite(limit) and error <= limit, "error": error, "limit": limit}

    return run


class Results:
    """A file of results, new or continued. It continues after a line that was half written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done: dict[str, Result] = {}
        self.current_task = ""  # running now, or when the last process ended
        if path.exists():
            whole = path.read_bytes().rpartition(b"\n")
            path.write_bytes(whole[0] + whole[1])
            for line in whole[0].decode().splitlines():
                entry = json.loads(line)
                self.current_task = entry["name"] if set(entry) == {"name"} else ""
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

    def interrupt(self) -> None:
        """Record that time was up for the task that was running; the next run repeats it."""
        if self.current_task:
            self._write({"name": self.current_task, "interrupted": True})
            self.current_task = ""

    def failed(self) -> Iterator[str]:
        """Return the names of the checks that failed."""
        return (name for name, result in self.done.items() if not result.get("right", True))

    def _write(self, entry: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
