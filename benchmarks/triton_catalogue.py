"""Find the files of Triton kernels under generated/, and the class or function of each."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import optgen.optim
from benchmarks.triton_aot import classes as classes_of_torch
from optgen.optim._published import PUBLISHED
from optgen.runtime.elementwise import Elementwise

GENERATED = Path(__file__).parents[1] / "generated"
_LAUNCHED = re.compile(r"^@triton\.jit\(do_not_specialize.*\ndef (\w+)\(", re.M)
"""A kernel that is launched; functions that kernels call have no options."""


@cache
def classes() -> dict[str, Any]:
    """Return the classes with kernels of their own, by name."""
    published = {
        name: getattr(optgen.optim, name)
        for folder, name in PUBLISHED.items()
        if (GENERATED / folder / "fused_triton.py").exists()
    }
    return classes_of_torch() | published


def functions() -> list[str]:
    """Return the folders of functions over lists: averages, and parts of rules on matrices."""
    files = sorted(GENERATED.glob("*/*/fused_triton.py"))
    return [path.parent.relative_to(GENERATED).as_posix() for path in files]


def function(folder: str) -> Elementwise:
    """Return the function of a folder."""
    module = importlib.import_module(f"optgen.generated.{folder.replace('/', '.')}")
    update: Elementwise = module._update
    return update


def folder_of(cls: Any) -> str:
    """Return the folder of a class, under generated/."""
    return str(cls.lowerings.removeprefix("optgen.generated.").replace(".", "/"))


def kernels() -> dict[str, list[str]]:
    """Return the names of all kernels that are launched, by their file's folder."""
    return {
        path.parent.relative_to(GENERATED).as_posix(): _LAUNCHED.findall(
            path.read_text(encoding="utf-8")
        )
        for path in sorted(GENERATED.glob("**/fused_triton.py"))
    }
