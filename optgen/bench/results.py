"""Define cells and their figures, and load, save and merge files of results."""

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import torch

Figures = dict[str, dict[str, Any]]
"""Figures of a cell, by the title of the variant and the name of the figure."""


@dataclass(frozen=True, order=True)
class Cell:
    """One measurement of the benchmark. A later result of the same cell replaces an earlier one."""

    part: str  # a key of suite.PARTS, such as "step"
    name: str  # of the class
    tensors: str  # a key of tensor_lists.LISTS
    dtype: str = "float32"
    threads: int = 1

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        part = "" if self.part == "step" else f"{self.part}: "
        return f"{part}{self.name}, {self.tensors}, {self.dtype}, {threads}"


Results = dict[Cell, Figures]


def load(path: Path) -> Results:
    """Return the results in a file; {} if there is no file."""
    if not path.exists():
        return {}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {Cell(**cell["cell"]): cell["figures"] for cell in cells}


def machine_of(path: Path) -> dict[str, Any]:
    """Return the machine that a file's results were measured on; {} if there is no file."""
    if not path.exists():
        return {}
    machine: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["machine"]
    return machine


def save(path: Path, results: Mapping[Cell, Figures]) -> None:
    """Write results, one cell a line, so that diffs are readable."""
    cells = sorted(results, key=astuple)
    lines = [
        json.dumps({"cell": asdict(cell), "figures": _round_figures(results[cell])})
        for cell in cells
    ]
    machine = json.dumps(describe_machine())
    text = f'{{"machine": {machine},\n "cells": [\n  ' + ",\n  ".join(lines) + "\n ]}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def merge(path: Path, new_results: Mapping[Cell, Figures]) -> Results:
    """Merge results into a file, replacing earlier ones of the same cells; return all."""
    merged = load(path) | dict(new_results)
    save(path, merged)
    return merged


def describe_machine() -> dict[str, Any]:
    """Return what figures depend on: processor, load, and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    return {
        "processor": model or platform.processor(),
        "cores": os.cpu_count(),
        "converts_bfloat16": any("avx512_bf16" in line.split() for line in lines),
        "load": os.getloadavg(),
        "system": platform.system(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _round_figures(figures: Figures) -> Figures:
    """Round figures to four digits; measurements are no more precise."""
    return {
        variant: dict(_round_values(variant_figures.items()))
        for variant, variant_figures in figures.items()
    }


def _round_values(items: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    for key, value in items:
        yield key, float(f"{value:.4g}") if isinstance(value, float) else value
