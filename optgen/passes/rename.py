"""From the paper's letters to the names a reader of PyTorch knows."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import assigns, rename_program


def rename(algorithm: Algorithm) -> Algorithm:
    """p, g, t and the state's letters become param, grad, step and the checkpoint's keys.

    A local of the rule that already bears such a name steps aside with an underscore.
    """
    names = {algorithm.param: "param", algorithm.grad: "grad"}
    if algorithm.step:
        names[algorithm.step] = "step"
    names |= {s.symbol: s.key for s in algorithm.states}
    taken = set(names.values())
    for name in {a.target.name: None for a in assigns(algorithm.rule)}:
        if name not in names and name in taken:
            names[name] = f"{name}_"
    return replace(
        algorithm,
        param="param",
        grad="grad",
        step="step" if algorithm.step else None,
        states=tuple(replace(s, symbol=s.key) for s in algorithm.states),
        rule=rename_program(
            algorithm.rule, lambda ref: replace(ref, name=names.get(ref.name, ref.name))
        ),
    )
