"""Rename a paper's letters to the names that readers of PyTorch know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from optgen.ir.algorithm import Algorithm
from optgen.ir.generated_names import is_free
from optgen.ir.nodes import Call, assigns, expressions, rename_program, walk
from optgen.ir.ops import SHADOWABLE_FUNCTIONS


def rename(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with p, g, t and the states renamed to param, grad, step and keys.

    A state's key is its name in checkpoints. The lists of a function keep the author's names.

    A name that a printer would confuse with another name is changed: a state gets the prefix
    `state_` (for example a state `step_size` beside a hyperparameter `step_sizes`), and a local
    gets trailing underscores. Hyperparameters keep their names, because callers use them.
    """
    keys = {s.symbol: s.key for s in algorithm.states}
    wanted = {algorithm.param: "param", algorithm.grad: "grad"}
    if algorithm.is_function:
        wanted = {name: name for name in wanted}
    if algorithm.step:
        wanted[algorithm.step] = "step"
    wanted |= keys
    wanted |= {n: n for a in assigns(algorithm.rule) if (n := a.target.name) not in wanted}
    names: dict[str, str] = {}
    used_names = {"state_steps", *(h.name for h in algorithm.hypers), *_shadowable_calls(algorithm)}
    used_names |= set() if algorithm.step else {"step"}
    for name, wanted_name in wanted.items():
        candidates = _state_names(wanted_name) if name in keys else _underscored_names(wanted_name)
        names[name] = next(n for n in candidates if is_free(n, used_names))
        used_names.add(names[name])
        if names[name] != wanted_name:
            used_names.add(f"fresh_{wanted_name}")  # the runtime builds this name from the key
    return replace(
        algorithm,
        param=names[algorithm.param],
        grad=names[algorithm.grad],
        step="step" if algorithm.step else None,
        states=tuple(replace(s, symbol=names[s.symbol]) for s in algorithm.states),
        rule=rename_program(
            algorithm.rule, lambda ref: replace(ref, name=names.get(ref.name, ref.name))
        ),
    )


def _shadowable_calls(algorithm: Algorithm) -> frozenset[str]:
    """Return the functions that a rule calls, and whose names other rules may give to values."""
    nodes = (node for expr in expressions(algorithm.rule) for node in walk(expr))
    return SHADOWABLE_FUNCTIONS.intersection(n.op for n in nodes if isinstance(n, Call))


def _state_names(key: str) -> Iterator[str]:
    yield key
    yield from _underscored_names(f"state_{key}")


def _underscored_names(name: str) -> Iterator[str]:
    return (name + "_" * length for length in count())
