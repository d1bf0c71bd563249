"""Add the flag `maximize` to every optimizer: it negates the gradient before the rule."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm, Hyper
from optgen.ir.nodes import Assign, Call, If, Ref


def add_maximize(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with the flag `maximize`. An `@elementwise` function stays as it is."""
    if algorithm.is_function:
        return algorithm
    grad = Ref(algorithm.grad)
    negation = Assign(grad, Call("neg", (grad,)), (f"{grad.name} = -{grad.name}",))
    flag = Hyper("maximize", "flag", False)
    branch = If(Ref("maximize"), (negation,), (), ("if maximize:",))
    return replace(algorithm, hypers=(*algorithm.hypers, flag), rule=(branch, *algorithm.rule))
