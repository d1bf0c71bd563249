"""Run an optimizer's rule in float64: the result that every lowering should compute."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.passes.prepare_rule import add_maximize
from optgen.spec.read_spec import read_spec


@functools.cache
def rule_of_module(module: str) -> Algorithm:
    """Return the rule of a generated module, with the option `maximize` as in its lowerings."""
    (algorithm,) = read_spec(Path(str(files("optgen.specs") / f"{module}.py")))
    return add_maximize(algorithm)


def oracle(optimizer: Optimizer, param: Tensor, grads: Iterable[Tensor]) -> dict[str, Any]:
    """Return the parameter, under "param", and its state after one step for each gradient.

    The optimizer is one of ours. It gives the rule and the hyperparameters, and takes no step.
    """
    rule = rule_of_module(optimizer.rule.name)  # type: ignore[attr-defined]
    group = optimizer.param_groups[0]
    hypers = {hyper.name: group.get(hyper.name, hyper.default) for hyper in rule.hypers}
    state: dict[str, Any] = {}
    value = param.detach().double()
    for grad in grads:
        value, state = evaluate(rule, hypers, value, grad, state)
    return {"param": value, **state}
