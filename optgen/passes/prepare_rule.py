"""Prepare a rule for planning: complete it, drop what it does not read, and rename its names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count

from optgen.ir.algorithm import Algorithm, Hyper
from optgen.ir.generated_names import is_free
from optgen.ir.nodes import (
    Assign,
    Call,
    If,
    Ref,
    assigns,
    expressions,
    names_read,
    rename_program,
    walk,
)
from optgen.ir.ops import SHADOWABLE_FUNCTIONS
from optgen.passes.expand_reductions import expand_reductions


def derive(algorithm: Algorithm, base: Algorithm) -> Algorithm:
    """Return the complete algorithm of a spec with `base=`, which takes the base's rule and states.

    All hyperparameters are in the base's order.
    """
    hypers: list[Hyper] = []
    for of_base in base.hypers:  # what groups must share follows from the base's rule
        own = algorithm.hyper(of_base.name)
        hypers.append(replace(own, groups=of_base.groups) if own else of_base)
    return replace(
        algorithm,
        states=base.states,
        hypers=tuple(hypers),
        rule=base.rule,
        requires=(*base.requires, *algorithm.requires),
        gradient=base.gradient,
        sparse_hint=algorithm.sparse_hint or base.sparse_hint,
        group=algorithm.group or base.group,
        keywords=algorithm.keywords,
        param=base.param,
        grad=base.grad,
        step=base.step,
        counter=base.counter,
        scalar_device=base.scalar_device,
        compute_dtype=base.compute_dtype,
        zero_grad=algorithm.zero_grad or base.zero_grad,
    )


def add_maximize(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with the flag `maximize`, which negates the gradient before the rule.

    An `@elementwise` function stays as it is.
    """
    if algorithm.is_function:
        return algorithm
    grad = Ref(algorithm.grad)
    negation = Assign(grad, Call("neg", (grad,)), (f"{grad.name} = -{grad.name}",))
    flag = Hyper("maximize", "flag", False)
    branch = If(Ref("maximize"), (negation,), (), ("if maximize:",))
    return replace(algorithm, hypers=(*algorithm.hypers, flag), rule=(branch, *algorithm.rule))


def drop_unused_hypers(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with only the hyperparameters that its rule reads.

    For example, a hyperparameter may only initialize a state.
    """
    rule = expand_reductions(algorithm).rule if algorithm.has_rank else algorithm.rule
    read = names_read(rule)  # a mean over an axis of the rank's size reads the rank
    return replace(algorithm, hypers=tuple(h for h in algorithm.hypers if h.name in read))


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
        candidates = _underscored_names(wanted_name)
        if name in keys:
            candidates = chain([wanted_name], _underscored_names(f"state_{wanted_name}"))
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


def _underscored_names(name: str) -> Iterator[str]:
    return (name + "_" * length for length in count())
