"""Infer the role of a hyperparameter from the rule, to describe it in the docstring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optgen.contract.states import RANK
from optgen.ir.algorithm import Algorithm, Hyper
from optgen.ir.nodes import Assign, Call, Const, Expr, Ref, assigns, children, expressions, refs

_NONZERO_OPS = ("+", "sqrt", "*", "**", "maximum")
"""Ops on a divisor whose result is nonzero, because a positive number is added to their operand."""


@dataclass(frozen=True)
class _Average:
    """Running average in a rule: `state = weight * state + (1 - weight) * value`."""

    state: str
    weight: Expr
    value: tuple[Expr, ...]  # its factors


def role(algorithm: Algorithm, hyper: Hyper) -> str:
    """Return a description of a hyperparameter's role in the rule; "" if none is found."""
    averages = list(_averages(algorithm))
    averages_by_number = [  # for each number of the hyperparameter, the averages that it weights
        [a for a in averages if a.weight in _equal_expressions(algorithm, number)]
        for number in _numbers(hyper)
    ]
    if averages_by_number and all(averages_by_number):
        return _describe_decay(algorithm, averages_by_number)
    if hyper.name == RANK and algorithm.has_rank:
        return "Rank of thin matrices, a whole number"
    if hyper.name == "eps" and _keeps_divisors_from_zero(algorithm, hyper.name):
        return "Added to the denominator for numerical stability"
    if hyper.name == "momentum" and _scales_its_state(algorithm, hyper.name):
        return "Fraction of the last update that is kept in the next one"
    if hyper.name == "dampening" and _reduces_the_gradient(algorithm, hyper.name):
        return "Fraction of the gradient that is not added to the momentum"
    if hyper.name == "amsgrad" and _keeps_the_largest(algorithm, hyper.name, averages):
        return "Divide by the largest second moment so far, not by the present one"
    return ""


def _numbers(hyper: Hyper) -> list[Expr]:
    """Return the expressions by which a rule may read a hyperparameter's numbers."""
    if hyper.type == "tuple":
        return [Call("item", (Ref(hyper.name), Const(i))) for i in range(hyper.size)]
    return [Ref(hyper.name)] if hyper.type == "number" else []


def _equal_expressions(algorithm: Algorithm, number: Expr) -> list[Expr]:
    """Return a number's expression, and the names that are always equal to it."""
    names = [a.target for a in assigns(algorithm.rule)]
    assigned_once = (a for a in assigns(algorithm.rule) if names.count(a.target) == 1)
    return [number, *(a.target for a in assigned_once if a.value == number)]


def _averages(algorithm: Algorithm) -> Iterator[_Average]:
    states = {state.symbol for state in algorithm.states}
    for stmt in assigns(algorithm.rule):
        if stmt.target.name in states:
            yield from _average(stmt)


def _average(stmt: Assign) -> Iterator[_Average]:
    """Yield the running average that a statement computes, if it computes one."""
    state = stmt.target
    match stmt.value:
        case Call("lerp", (start, end, Call("-", (Const(1), weight)))) if start == state:
            yield _Average(state.name, weight, tuple(_factors(end)))
        case Call("+", (a, b)):
            for old, new in ((a, b), (b, a)):
                old_factors, new_factors = _factors(old), _factors(new)
                if len(old_factors) == 2 and state in old_factors:
                    old_factors.remove(state)
                    (weight,) = old_factors
                    new_weight = Call("-", (Const(1), weight))
                    if new_weight in new_factors:
                        new_factors.remove(new_weight)
                        yield _Average(state.name, weight, tuple(new_factors))


def _factors(expr: Expr) -> list[Expr]:
    match expr:
        case Call("*", (a, b)):
            return [*_factors(a), *_factors(b)]
    return [expr]


def _are_factors(factors: list[Expr], *expected: Expr) -> bool:
    """Tell whether a product has exactly the expected factors, in any order."""
    return len(factors) == len(expected) and all(each in factors for each in expected)


def _describe_decay(algorithm: Algorithm, averages_by_number: list[list[_Average]]) -> str:
    """Describe the numbers of a hyperparameter as decay rates of running averages."""
    averages = [average for of_number in averages_by_number for average in of_number]
    if len(averages_by_number) > 1:
        return "Decay rates of the running averages"
    if len(averages) > 1:
        return "Decay rate of the running averages"
    if _is_of_squares(algorithm, averages[0]):
        return "Decay rate of the running average of squared gradients"
    if averages[0].value == (Ref(algorithm.grad),):
        return "Decay rate of the running average of gradients"
    return "Decay rate of a running average"


def _is_of_squares(algorithm: Algorithm, average: _Average) -> bool:
    grad = Ref(algorithm.grad)
    return average.value in ((Call("**", (grad, Const(2))),), (grad, grad))


def _keeps_divisors_from_zero(algorithm: Algorithm, name: str) -> bool:
    """Tell whether a number is added to divisors wherever it is read."""
    reads = [
        read
        for value, target in _values_with_targets(algorithm)
        for read in _reads_of(value, target, name)
    ]
    return bool(reads) and all(
        path[:1] == ["+"] and _divides(algorithm, path, target, frozenset((name,)))
        for path, target in reads
    )


def _divides(algorithm: Algorithm, path: list[str], target: str, seen: frozenset[str]) -> bool:
    """Tell whether a value that is read ends up in a divisor, here or through a local variable.

    Args:
        algorithm: the algorithm.
        path: the ops around the read, innermost first.
        target: the name that the statement assigns.
        seen: the local variables through which the value has passed so far.
    """
    for word in path:
        if word == "divisor":
            return True
        if word not in _NONZERO_OPS:
            return False
    stored = {algorithm.param, *(state.symbol for state in algorithm.states)}
    if not target or target in stored or target in seen:
        return False
    reads = [
        read
        for value, reader in _values_with_targets(algorithm)
        for read in _reads_of(value, reader, target)
    ]
    return bool(reads) and all(
        _divides(algorithm, path, reader, seen | {target}) for path, reader in reads
    )


def _values_with_targets(algorithm: Algorithm) -> Iterator[tuple[Expr, str]]:
    """Yield every assigned value with its target's name, and every condition with ""."""
    yield from ((stmt.value, stmt.target.name) for stmt in assigns(algorithm.rule))
    values = [stmt.value for stmt in assigns(algorithm.rule)]
    yield from ((expr, "") for expr in expressions(algorithm.rule) if expr not in values)


def _reads_of(expr: Expr, target: str, name: str) -> Iterator[tuple[list[str], str]]:
    """Yield the ops around each read of a name, innermost first, and the statement's target.

    The op is "/" for a read in the numerator of a quotient, "divisor" for one in the denominator.
    """
    if isinstance(expr, Ref) and expr.name == name:
        yield [], target
    for index, child in enumerate(children(expr)):
        word = expr.op if isinstance(expr, Call) else ""
        word = "divisor" if word == "/" and index == 1 else word
        yield from (([*path, word], reader) for path, reader in _reads_of(child, target, name))


def _scales_its_state(algorithm: Algorithm, name: str) -> bool:
    """Tell whether some state becomes itself times the number, plus another term."""
    states = {state.symbol for state in algorithm.states}
    for stmt in assigns(algorithm.rule):
        if stmt.target.name in states and isinstance(stmt.value, Call) and stmt.value.op == "+":
            terms = [_factors(term) for term in stmt.value.args]
            if any(_are_factors(term, Ref(name), stmt.target) for term in terms):
                return True
    return False


def _reduces_the_gradient(algorithm: Algorithm, name: str) -> bool:
    """Tell whether a number is read only in `(1 - number) * grad`."""
    reduced_gradient: list[Expr] = [Call("-", (Const(1), Ref(name))), Ref(algorithm.grad)]
    reads = [r for expr in expressions(algorithm.rule) for r in refs(expr) if r.name == name]
    matches = [
        product
        for expr in expressions(algorithm.rule)
        for product in _products(expr)
        if _are_factors(_factors(product), *reduced_gradient)
    ]
    return bool(reads) and len(reads) == len(matches)


def _products(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Call) and expr.op == "*":
        yield expr
    for child in children(expr):
        yield from _products(child)


def _keeps_the_largest(algorithm: Algorithm, name: str, averages: list[_Average]) -> bool:
    """Tell whether a flag's state is the largest second moment so far, as with `amsgrad`."""
    moments = {Ref(a.state) for a in averages if _is_of_squares(algorithm, a)}
    states_of_flag = {Ref(state.symbol) for state in algorithm.states if state.when == name}
    return any(
        isinstance(stmt.value, Call)
        and stmt.value.op == "maximum"
        and stmt.target in states_of_flag & set(stmt.value.args)
        and moments & set(stmt.value.args)
        for stmt in assigns(algorithm.rule)
    )
