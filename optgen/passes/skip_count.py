"""Find the state that counts the steps that a rule skips because a gradient is not finite.

A rule that skips such steps checks all gradients itself. So a gradient scaler need not check them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Call, Const, Expr, Ref, assigns
from optgen.ir.whole_matrices import why_uncut


def skip_count(algorithm: Algorithm) -> str:
    """Return the key of the state that counts skipped steps; "" unless all of this holds.

    * The rule computes `finite = 0 * max_abs(g, over="all") == 0` from the unchanged gradient.
    * The rule assigns `where(finite, s, s + 1)` to one scalar state `s`, outside of branches.
    * Everything else that the rule assigns to the parameter `p` or to a state is
      `where(finite, x, p)`, for any `x`.
    * No state has codes of 8 bits, because they change even if the same values are stored again.
    * The rule is cut into sweeps, because decompositions of matrices with NaN raise errors.
    """
    if algorithm.step is None or algorithm.counter != "tensor" or algorithm.has_codes:
        return ""
    if why_uncut(algorithm):
        return ""
    keys = (_counter_key(algorithm, finite) for finite in _finite_flags(algorithm))
    return next(filter(None, keys), "")


def _finite_flags(algorithm: Algorithm) -> Iterator[Ref]:
    """Yield the names that are true if and only if all gradients are finite."""
    assign_counts = Counter(each.target.name for each in assigns(algorithm.rule))
    grad = Ref(algorithm.grad)
    largest = Call("all_max", (Call("max_abs", (grad,)),))
    maxima: list[Expr] = []
    for statement in algorithm.rule:
        if grad in (each.target for each in assigns((statement,))):
            return
        if isinstance(statement, Assign) and assign_counts[statement.target.name] == 1:
            if statement.value == largest:
                maxima.append(statement.target)
            elif any(statement.value == _finiteness_test(each) for each in maxima):
                yield statement.target


def _finiteness_test(number: Expr) -> Expr:
    return Call("==", (Call("*", (Const(0), number)), Const(0)))


def _counter_key(algorithm: Algorithm, finite: Ref) -> str:
    """Return the key of the state that counts steps in which `finite` is false.

    Return "" if there is no such state, or if such a step changes anything else.
    """
    stored = {algorithm.param, *(state.symbol for state in algorithm.states)}
    changes = [each for each in assigns(algorithm.rule) if each.target.name in stored]
    changes = [each for each in changes if not _is_guarded(each, finite)]
    if len(changes) != 1 or changes[0] not in algorithm.rule:
        return ""
    counter = changes[0].target
    state = algorithm.state(counter.name)
    counted = Call("where", (finite, counter, Call("+", (counter, Const(1)))))
    if state is None or state.shape != "scalar" or state.of_group:
        return ""
    return state.key if changes[0].value == counted else ""


def _is_guarded(change: Assign, finite: Ref) -> bool:
    """Tell whether the target keeps its value if `finite` is false."""
    match change.value:
        case Call("where", (condition, _, old)):
            return condition == finite and old == change.target
    return False
