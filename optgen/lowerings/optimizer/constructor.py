"""Print a constructor's arguments, with types and defaults, and its checks of them, as torch's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from optgen.contract.states import RANK
from optgen.ir.algorithm import Algorithm, Bounds, Hyper, Require
from optgen.ir.nodes import Call, Const, Expr, Ref, rebuild
from optgen.lowerings.python.expression_printer import PythonPrinter
from optgen.lowerings.python.literals import annotation, fill_fields, literal, message

_MESSAGES = {"lr": "Invalid learning rate: {}", "eps": "Invalid epsilon value: {}"}
_NOT_FOREACH = "{} as a Tensor is not supported for capturable=False and foreach=True"
_SCALAR_FUNCTIONS = ("sqrt", "exp", "log", "tanh", "sin", "cos", "atan2", "floor", "ceil", "round")
_FUNCTIONS = {
    **{name: f"scalars.{name}" for name in _SCALAR_FUNCTIONS},
    "abs": "abs",
    "maximum": "max",
    "minimum": "min",
}


@dataclass(frozen=True)
class Argument:
    """Argument of the constructor, as Python text."""

    name: str
    annotation: str
    default: str


COMMON_ARGUMENTS = (
    Argument("maximize", "bool", "False"),
    Argument("foreach", "bool | None", "None"),
    Argument("fused", "bool | None", "None"),
    Argument("capturable", "bool", "False"),
    Argument("differentiable", "bool", "False"),
)
"""Arguments that every optimizer gets, in this order unless its spec gives another."""


def arguments(algorithm: Algorithm) -> tuple[list[Argument], list[Argument]]:
    """Return the arguments that may be positional, and the keyword-only ones."""
    by_name = {
        h.name: Argument(h.name, annotation(h), literal(h.default))
        for h in algorithm.hypers
        if not h.fixed
    }
    # An argument is keyword-only if `keywords` lists it after "*", or does not list it.
    order = algorithm.keywords or tuple(by_name)
    by_name |= {a.name: a for a in COMMON_ARGUMENTS}
    star = order.index("*") if "*" in order else len(order)
    missing = [name for name in by_name if name not in order]
    keyword_only = [*order[star + 1 :], *missing]
    return [by_name[name] for name in order[:star]], [by_name[name] for name in keyword_only]


def group_keys(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys of a param group except `params`, in order."""
    hypers = (h.name for h in algorithm.hypers if not h.set_by_step)
    keys = [*hypers, *(a.name for a in COMMON_ARGUMENTS)]
    return (*algorithm.group, *(key for key in keys if key not in algorithm.group))


def backfill(algorithm: Algorithm) -> dict[str, str]:
    """Return the flags of torch's class, with the values that old checkpoints get on loading."""
    texts = {a.name: a.default for a in COMMON_ARGUMENTS}
    texts |= {h.name: literal(h.default) for h in algorithm.hypers if h.type == "flag"}
    return {key: texts[key] for key in algorithm.keywords if key in texts}


def keys_that_torch_lacks(algorithm: Algorithm) -> dict[str, str]:
    """Return the keys that torch's groups lack, with defaults; {} unless the spec lists torch's."""
    keys = algorithm.group
    return {a.name: a.default for a in COMMON_ARGUMENTS if keys and a.name not in keys}


@dataclass(frozen=True)
class Check:
    """Check of a constructor: if the condition is true, it raises ValueError with the message."""

    condition: str
    message: str


def checks(algorithm: Algorithm, base: Algorithm | None) -> list[Check]:
    """Return all checks in the order of the arguments, except checks that the base makes."""
    hypers = [h for h in algorithm.hypers if not h.fixed and not _is_checked_by(base, h)]
    # A spec with `keywords` or `group` mirrors a class of torch, which does not check lengths.
    checks_lengths = not (algorithm.is_function or algorithm.keywords or algorithm.group)
    all_checks = [
        check
        for hyper in hypers
        for check in (*(_length_checks(hyper) if checks_lengths else ()), *_checks(hyper))
    ]
    if base is None and algorithm.has_rank:
        text = f"Invalid {RANK} value, which must be whole: {{}}"
        all_checks.append(Check(f"{RANK} % 1", message(text, {"": RANK})))
    for require in _requires(algorithm, base):
        if not require.is_about_param:
            condition = _as_python(_negated(require.condition))
            all_checks.append(Check(condition, message(require.message, {})))
    return all_checks


def param_checks(algorithm: Algorithm, base: Algorithm | None) -> list[Check]:
    """Return the checks that every parameter must pass when it is added."""
    return [
        Check(
            _on_param(_negated(require.condition)),
            message(require.message, {"shape": "param.shape"}),
        )
        for require in _requires(algorithm, base)
        if require.is_about_param
    ]


def _requires(algorithm: Algorithm, base: Algorithm | None) -> list[Require]:
    return [r for r in algorithm.requires if base is None or r not in base.requires]


def _on_param(condition: Expr) -> str:
    """Return the text of a condition on the constructor's `param`."""

    def in_python(expr: Expr) -> Expr:
        match expr:
            case Call("factored", _):
                return Call(">", (Ref("param.ndim"), Const(1)))
            case Call("ndim", _):
                return Ref("param.ndim")
            case Call("numel", _):
                return Ref("param.numel()")
            case Call("machine_eps", _):
                return Ref("finfo(param.dtype).eps")
        return rebuild(expr, in_python)

    return _as_python(in_python(condition))


def _is_checked_by(base: Algorithm | None, hyper: Hyper) -> bool:
    """Tell whether the base's constructor makes the same checks of a hyperparameter."""
    base_hyper = base.hyper(hyper.name) if base is not None else None
    checked = attrgetter("bounds", "choices", "error", "tensor", "optional")
    return base_hyper is not None and bool(checked(base_hyper) == checked(hyper))


def _length_checks(hyper: Hyper) -> Iterator[Check]:
    """Yield a check of a tuple's length; an IndexError would not name the argument."""
    name = hyper.name
    if hyper.type == "tuple":
        numbers = "1 number" if hyper.size == 1 else f"{hyper.size} numbers"
        text = f"Invalid {name} value, which must be {numbers}"
        condition = f"not hasattr({name}, '__len__') or len({name}) != {hyper.size}"
        yield Check(condition, message(f"{text}: {{}}", {"": name}))


def _checks(hyper: Hyper) -> Iterator[Check]:
    name = hyper.name
    if hyper.type == "choice":
        text = message(hyper.error or f"Invalid {name} value: {{}}", {"": name})
        yield Check(f"{name} not in {literal(hyper.choices)}", text)
    elif hyper.type == "number":
        yield from _tensor_checks(hyper)
        whole_clause = _whole_clause(hyper.bounds)
        text = hyper.error or _MESSAGES.get(name, f"Invalid {name} value{whole_clause}: {{}}")
        text = fill_fields(text, {"index": "0", "number": "1"})
        yield from _bounds_check(hyper, index=0, value=name, text=text)
    elif hyper.type == "tuple":
        yield from _tuple_checks(hyper)


def _whole_clause(bounds: Bounds) -> str:
    """Return what a message says about a number that must be whole; "" for any other."""
    if not bounds.whole:
        return ""
    lower_bound = "" if bounds.ge is None else f" and at least {bounds.ge}"
    return f", which must be whole{lower_bound}"


def _tensor_checks(hyper: Hyper) -> Iterator[Check]:
    if hyper.tensor == "never":
        return
    name = hyper.name
    if hyper.tensor == "capturable":
        condition = f"isinstance({name}, Tensor) and foreach and not capturable"
        yield Check(condition, literal(_NOT_FOREACH.format(name)))
    condition = f"isinstance({name}, Tensor) and {name}.numel() != 1"
    yield Check(condition, literal(f"Tensor {name} must be 1-element"))


def _tuple_checks(hyper: Hyper) -> Iterator[Check]:
    name, items = hyper.name, [f"{hyper.name}[{index}]" for index in range(hyper.size)]
    if hyper.tensor != "never":
        for item in items:
            condition = f"isinstance({item}, Tensor) and {item}.numel() != 1"
            yield Check(condition, literal(f"Tensor {item} must be 1-element"))
    singular = "beta parameter" if name == "betas" else f"{name} value"
    whole_clause = f"{_whole_clause(hyper.bounds)}," if hyper.bounds.whole else ""
    error_text = hyper.error or f"Invalid {singular}{whole_clause} at index {{index}}: {{}}"
    for index, item in enumerate(items):
        text = fill_fields(error_text, {"index": str(index), "number": str(index + 1)})
        yield from _bounds_check(hyper, index, item, text)
    if hyper.tensor != "never":
        have_one_type = " or ".join(
            f"all(isinstance(x, {t}) for x in {name})" for t in ("float", "Tensor")
        )
        both_or_all = "both" if hyper.size == 2 else "all"
        text = f"{name} must be either {both_or_all} floats or {both_or_all} Tensors"
        yield Check(f"not ({have_one_type})", literal(text))
    if hyper.tensor == "capturable":
        condition = f"isinstance({items[0]}, Tensor) and foreach and not capturable"
        yield Check(condition, literal(_NOT_FOREACH.format(items[0])))


def _bounds_check(hyper: Hyper, index: int, value: str, text: str) -> Iterator[Check]:
    in_bounds = _in_bounds(hyper.bounds, value)
    if in_bounds:
        not_none = f"{value} is not None and " if hyper.may_be_none(index) else ""
        yield Check(f"{not_none}not {in_bounds}", message(text, {"": value}))


def _in_bounds(bounds: Bounds, value: str) -> str:
    """Return a comparison that is true inside the bounds and false for NaN; "" if unbounded."""
    lower_bounds = [(bounds.ge, "<="), (bounds.gt, "<")]
    upper_bounds = [(bounds.le, "<="), (bounds.lt, "<")]
    before = [
        f"{_text_of_bound(number)} {sign} " for number, sign in lower_bounds if number is not None
    ]
    after = [
        f" {sign} {_text_of_bound(number)}" for number, sign in upper_bounds if number is not None
    ]
    comparisons = [b + value for b in before[1:]] + [value + a for a in after[1:]]
    if before or after:
        comparisons.insert(0, "".join([*before[:1], value, *after[:1]]))
    if bounds.whole:
        comparisons.append(f"{value} % 1 == 0")
    return f"({' and '.join(comparisons)})" if len(comparisons) > 1 else "".join(comparisons)


def _text_of_bound(number: float) -> str:
    if math.isinf(number):
        return f"float({str(number)!r})"
    return literal(float(number))


def _negated(condition: Expr) -> Expr:
    """Return a condition's negation. Ordered comparisons get a `not`, so NaN makes it true."""
    match condition:
        case Call("not", (inner,)):
            return inner
        case Call("or", (a, b)):
            return Call("and", (_negated(a), _negated(b)))
        case Call("==" | "!=" as word, sides):
            return Call("!=" if word == "==" else "==", sides)
    return Call("not", (condition,))


def _as_python(condition: Expr) -> str:
    return PythonPrinter(names={}, functions=_FUNCTIONS).text(condition)
