"""A compiler for PyTorch optimizers: one symbolic update rule, four lowerings.

Importing this package is cheap: each public name imports its module on first use.
"""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optgen import amp, frameworks, keyed, modifiers, optim, spec
    from optgen.compositions import compose
    from optgen.importer import import_optimizer
    from optgen.jit import load
    from optgen.offloading import OffloadError, offload
    from optgen.prebuilt_kernels import build_kernels
    from optgen.runtime import GeneratedOptimizer
    from optgen.runtime.choose_lowering import use_lowering
    from optgen.runtime.explain import explain

__version__ = "0.1.0"
__all__ = [
    "GeneratedOptimizer",
    "OffloadError",
    "amp",
    "build_kernels",
    "compose",
    "explain",
    "frameworks",
    "import_optimizer",
    "keyed",
    "load",
    "modifiers",
    "offload",
    "optim",
    "spec",
    "use_lowering",
]

_MODULE_OF_NAME = {
    "GeneratedOptimizer": "optgen.runtime.optimizer",
    "OffloadError": "optgen.offloading",
    "build_kernels": "optgen.prebuilt_kernels",
    "compose": "optgen.compositions",
    "explain": "optgen.runtime.explain",
    "import_optimizer": "optgen.importer",
    "load": "optgen.jit",
    "offload": "optgen.offloading",
    "use_lowering": "optgen.runtime.choose_lowering",
}
_SUBMODULES = ("amp", "frameworks", "keyed", "modifiers", "optim", "spec")

# In a checkout, specs/, templates/ and generated/ are beside this package; installed, inside it.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file() and (_checkout / "specs").is_dir():
    __path__.append(str(_checkout))


if not TYPE_CHECKING:  # else a type checker would accept every name

    def __getattr__(name: str) -> object:
        if name in _SUBMODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _MODULE_OF_NAME:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(f"{message}{_hint(name)}")
        value = getattr(importlib.import_module(_MODULE_OF_NAME[name]), name)
        globals()[name] = value
        return value


def _hint(name: str) -> str:
    """Return where a name is that this package lacks, after a colon, or ""."""
    if name in __all__ or not name[:1].isupper():
        close = difflib.get_close_matches(name, __all__, 1)
        return f": did you mean `{close[0]}`?" if close else ""
    return f": optimizers are in optgen.optim, as in optgen.optim.{name}"


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    dunders = {name for name in globals() if name.startswith("__")}
    return sorted({*dunders, *__all__})
