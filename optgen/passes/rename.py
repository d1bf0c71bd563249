"""From the paper's letters to the names a reader of PyTorch knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import assigns, rename_program


def _underscored(name: str) -> Iterator[str]:
    return (name + "_" * length for length in count(1))


def rename(algorithm: Algorithm) -> Algorithm:
    """p, g, t and the state's letters become param, grad, step and the checkpoint's keys.

    A local of the rule that already bears such a name steps aside with an underscore or more.
    """
    names = {algorithm.param: "param", algorithm.grad: "grad"}
    if algorithm.step:
        names[algorithm.step] = "step"
    names |= {s.symbol: s.key for s in algorithm.states}
    taken = set(names.values())
    own = {a.target.name: None for a in assigns(algorithm.rule)}
    for name in own:
        if name not in names and name in taken:
            names[name] = next(n for n in _underscored(name) if n not in taken and n not in own)
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
