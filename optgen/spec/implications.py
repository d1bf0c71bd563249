"""Find what a condition implies: flags, shape predicates, and numbers that are not None."""

from __future__ import annotations

from optgen.contract.states import FACTS
from optgen.ir.nodes import Call, Const, Expr, Ref
from optgen.spec.scope import Scope


def implied(condition: Expr) -> frozenset[str]:
    """Return what holds if a condition is true: "amsgrad", "not amsgrad", "eps[0] is given"."""
    match condition:
        case Ref(name) | Call("truth", (Ref(name),)):
            return frozenset((name,))
        case Call("not", (Ref(name) | Call("truth", (Ref(name),)),)):
            return frozenset((f"not {name}",))
        case Call("not", (Call("is_none", (value,)),)):
            return frozenset((_given_text(value),))
        case Call("tall", _):
            return frozenset(("tall", "factored"))
        case Call(fact, _) if fact in FACTS:
            return frozenset((fact,))
        case Call("not", (Call(fact, _),)) if fact in FACTS:
            return frozenset((f"not {fact}",))
        case Call("and", (a, b)):
            return implied(a) | implied(b)
        case Call("not", (Call("not", (a,)),)):
            return implied(a)
        case Call("not", (Call("or", (a, b)),)):
            return implied(Call("not", (a,))) | implied(Call("not", (b,)))
    return frozenset()


def may_be_none(value: Expr, scope: Scope) -> bool:
    """Tell whether a value is a hyperparameter, or an item of one, that may be None here."""
    if isinstance(value, Ref):
        value = scope.items.get(value.name, value)  # a variable may be unpacked from a tuple
    match value:
        case Ref(name):
            index, proofs = 0, {name, _given_text(value)}  # a number that is true is not None
        case Call("item", (Ref(name), Const(int() as index))):
            proofs = {_given_text(value)}
        case _:
            return False
    hyper = scope.algorithm.hyper(name)
    if hyper is None or hyper.type not in ("number", "tuple") or not hyper.may_be_none(index):
        return False
    if isinstance(value, Ref) and hyper.type == "tuple":  # a tuple itself is never None
        return False
    return proofs.isdisjoint(scope.known_true)


def _given_text(value: Expr) -> str:
    """Return the text in `known_true` for a hyperparameter, or an item of one, that is not None."""
    match value:
        case Ref(name):
            return f"{name} is given"
        case Call("item", (Ref(name), Const(index))):
            return f"{name}[{index}] is given"
    raise TypeError(f"not a hyperparameter or an item of one: {value!r}")
