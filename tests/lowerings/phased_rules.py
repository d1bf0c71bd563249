"""Load rules with phases as classes that have only the Triton lowering, and run their oracle."""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from spec_files import spec_file
from torch import Tensor

from optgen.emit import render
from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.lowerings import LOWERINGS
from optgen.passes.prepare_rule import add_maximize
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

MODULE_NUMBERS = itertools.count()

RAGGED = '''
from optgen.spec import *

@optimizer()
def Ragged(
    p, g, /,
    r=state("peaks", shape="row", when="factored"),
    c=state("levels", shape="col", when="factored"),
    *, lr=hyper(0.5), sharp=flag(True),
):
    """Reductions of every kind: sums over rows, columns and the whole tensor, and max_abs."""
    if factored(p):
        r = maximum(r, row_mean(abs(g)) + row_mean(g * g))
        spread = col_sum(r) / rows(p)
        if sharp:
            c = c + (col_sum(g) - col_mean(g * g)) * spread
        else:
            c = c - spread
        share = row_sum(c * c) / cols(p)
        level = mean(r) + max_abs(c) + sum(share)
        u = g / (r + spread) + share * p + c
    else:
        level = max_abs(p)
        u = g / (max_abs(p) + 1)
    p = p - lr * u / (max_abs(g) + sqrt(sum(u * u) / numel(p)) + level + 1)
'''


def algorithm_of(name: str) -> Algorithm:
    """Return the rule of the class with this name: a spec's class, or `Ragged`."""
    if name != "Ragged":
        module = re.sub("(?<=[a-z])(?=[A-Z][a-z])", "_", name).lower()
        (algorithm,) = read_spec(spec_file(module))
        return algorithm
    (algorithm,) = read_spec(Spec("ragged", RAGGED, "<ragged>", 1))
    return algorithm


def module_of(name: str, folder: Path) -> ModuleType:
    """Write a package with the class and its kernels to a folder, and import it."""
    algorithm = algorithm_of(name)
    for lowering in LOWERINGS:
        if lowering.name in ("optimizer", "fused_triton"):
            text = render(algorithm, lowering, ruff=None)
            (folder / lowering.filename).write_text(text, encoding="utf-8")
    module_name = f"phased_{next(MODULE_NUMBERS)}"
    path = folder / "__init__.py"
    module_spec = importlib.util.spec_from_file_location(
        module_name, path, submodule_search_locations=[str(folder)]
    )
    assert module_spec is not None
    assert module_spec.loader is not None
    module = sys.modules[module_name] = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def class_of(name: str, folder: Path) -> Any:
    return getattr(module_of(name, folder), name)


class Oracle:
    """Steps float64 copies of the parameters with the evaluator."""

    def __init__(self, name: str, params: list[Tensor]) -> None:
        self._algorithm = add_maximize(algorithm_of(name))
        self.values = [param.detach().double().clone() for param in params]
        self.states: list[dict[str, Any]] = [{} for _ in params]

    def step(self, groups: list[dict[str, Any]], params: list[Tensor]) -> None:
        group_of_param = {id(p): group for group in groups for p in group["params"]}
        for i, param in enumerate(params):
            if param.grad is not None:
                self.values[i], self.states[i] = evaluate(
                    self._algorithm,
                    group_of_param[id(param)],
                    self.values[i],
                    param.grad,
                    self.states[i],
                )

    def largest_error(self, params: list[Tensor], optimizer: Any) -> float:
        """Return the largest relative error of a parameter or a state."""
        errors = [0.0]
        for param, value, states in zip(params, self.values, self.states, strict=True):
            found_states = optimizer.state.get(param, {})
            assert set(found_states) == set(states)
            pairs = [(param, value), *((found_states[key], states[key]) for key in states)]
            errors += [_error(found, expected) for found, expected in pairs]
        return max(errors)


def _error(found: Any, expected: Any) -> float:
    a, b = torch.as_tensor(found).detach().double(), torch.as_tensor(expected).double()
    if not a.numel():
        return 0.0
    equal = (a == b) | (a.isnan() & b.isnan())
    deviation = (a - b).abs().masked_fill(equal, 0.0).nan_to_num(nan=math.inf)
    return (deviation.max() / b.abs().nan_to_num(nan=0.0).max().clamp(min=1e-300)).item()
