"""Complete a spec with `base=`: copy the base's rule and states into the derived algorithm."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm, Hyper


def derive(algorithm: Algorithm, base: Algorithm) -> Algorithm:
    """Return the complete derived algorithm, with all hyperparameters in the base's order."""
    return replace(
        algorithm,
        states=base.states,
        hypers=tuple(_own_or_of_base(algorithm, hyper) for hyper in base.hypers),
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


def _own_or_of_base(algorithm: Algorithm, of_base: Hyper) -> Hyper:
    """Return a hyperparameter; what its groups must share follows from the base's rule."""
    own = algorithm.hyper(of_base.name)
    return replace(own, groups=of_base.groups) if own else of_base
