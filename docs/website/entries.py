"""List the optimizers that have a page: every class of the catalogue that has a spec."""

from __future__ import annotations

import ast
import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optgen.ir.algorithm import Algorithm
from optgen.optim._published import PUBLISHED
from optgen.passes.prepare_rule import derive
from optgen.spec.read_spec import read_base, read_spec

ROOT = Path(__file__).resolve().parents[2]
SPECS = ROOT / "specs"
_KEYED = ("RowWiseAdagrad",)


@dataclass(frozen=True)
class Entry:
    """An optimizer of the catalogue.

    * `algorithm`: its rule, with states and hyperparameters. A derived optimizer has the rule of
      its base.
    * `rule_name`: the folder of `generated/` that has its lowerings: its own, or that of its base.
    """

    algorithm: Algorithm
    rule_name: str

    @property
    def name(self) -> str:
        """The name of the spec."""
        return self.algorithm.module

    @property
    def title(self) -> str:
        """The name of the class."""
        return self.algorithm.name

    @property
    def package(self) -> str:
        """The module to import the class from."""
        return "optgen.keyed" if self.title in _KEYED else "optgen.optim"

    @property
    def in_torch(self) -> bool:
        """Tell whether torch.optim has a class of this name."""
        return self.name not in PUBLISHED and self.title not in _KEYED

    @property
    def cls(self) -> Any:
        """The class."""
        return getattr(importlib.import_module(self.package), self.title)

    @property
    def page(self) -> str:
        """The path of its page, relative to the folder of all pages."""
        return f"optimizers/{self.name}.md"

    @property
    def summary(self) -> str:
        """The first line of the spec's description."""
        return self.algorithm.doc.strip().splitlines()[0]

    @property
    def remarks(self) -> str:
        """The docstring of the spec's file, without its summary line."""
        doc = ast.get_docstring(ast.parse((SPECS / f"{self.name}.py").read_text(encoding="utf-8")))
        return (doc or "").partition("\n\n")[2]


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Return the optimizers of the catalogue, sorted by the names of their classes."""
    result = []
    for path in sorted(SPECS.glob("[!_]*.py")):
        for algorithm in read_spec(path):
            if algorithm.is_function:
                continue
            base = read_base(algorithm, SPECS)
            complete = derive(algorithm, base) if base else algorithm
            result.append(Entry(complete, base.module if base else algorithm.module))
    return tuple(sorted(result, key=lambda each: each.title.lower()))
