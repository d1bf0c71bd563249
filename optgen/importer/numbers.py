"""Numbers that record: floats, ints, flags and strings with the value that they stand for."""

from __future__ import annotations

import builtins
import math
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from optgen.importer.parameters import begun
from optgen.importer.recording import NotImportedError, as_value, author_line, current
from optgen.importer.values import MIRRORED, Value, apply

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "pow": operator.pow,
    "mod": operator.mod,
    "floordiv": operator.floordiv,
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
_FINFO = torch.finfo
_FUNCTIONS = ("sqrt", "exp", "log", "sin", "cos", "tanh", "floor", "ceil")


class Float(float):
    """A float that records."""

    value: Value


class Int(float):
    """A whole number that records.

    It only looks like an int. Of `1.0 / step` with a subclass of int, Python computes a plain
    float, and the record loses the quotient. torch takes a float wherever it takes a number.
    """

    value: Value

    @property
    def __class__(self) -> type:
        """Return int: so `isinstance(step, int)` holds in the author's code."""
        return int

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError("a recorded number keeps its class")

    def __index__(self) -> int:
        """Return the number for `range` and indices. The record notes that it is lost there."""
        return int(_lost(self))

    def __repr__(self) -> str:
        return repr(plain(self))


class Size(int):
    """A size of a tensor that records. It may be a size of another tensor."""

    value: Value


class Flag(int):
    """A flag that records."""

    value: Value

    def __repr__(self) -> str:
        return repr(plain(self) == 1)


class Text(str):
    """A string that records what it is compared with."""

    value: Value
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> Any:
        return _compare("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _compare("ne", self, other)


def recorded(x: Any, value: Value) -> Any:
    """Return a number that stands for a value."""
    kind: Any = {bool: Flag, int: Int, float: Float, str: Text}.get(type(x))
    if kind is None:
        return x
    made = kind(x)
    made.value = value
    return made


def plain(x: Any) -> Any:
    """Return a number without its record."""
    if type(x) is Int:
        return int(float.__float__(x))
    if isinstance(x, Float):
        return float.__float__(x)
    if isinstance(x, Size | Flag):
        return int.__int__(x)
    return str.__str__(x) if isinstance(x, Text) else x


def _lost(x: Any) -> Any:
    """Return a number without its record, for a use that nothing records: a round number, a text.

    The arguments that it is computed from keep their defaults then.
    """
    if (record := current()) is not None:
        record.lost.update(dict.fromkeys(x.value.atoms, author_line()))
    return plain(x)


def _in_text(self: Any, spec: str) -> str:
    """Return a number in a text. The texts of the constructor's errors are of no account."""
    record = current()
    return format(_lost(self) if record is not None and record.step else plain(self), spec)


def note(x: Any, value: Value) -> Any:
    """Record a new number, and return it."""
    record = current()
    if record is not None and value.op not in ("constant", "atom") and not value.place[0]:
        record.add(value)
    return recorded(x, value)


def _is_number(x: object) -> bool:
    return isinstance(x, int | float)


def _arithmetic(name: str, left: Any, right: Any) -> Any:
    if not (_is_number(left) and _is_number(right)):
        return NotImplemented
    try:
        result = _OPERATORS[name](plain(left), plain(right))
    except (ZeroDivisionError, OverflowError):
        result = math.nan
    if isinstance(result, complex):
        result = math.nan
    a, b = as_value(left), as_value(right)
    if a.op == b.op == "constant":
        return result
    record = current()
    if name == "add" and record is not None and (made := begun(record, a, b)) is not None:
        return note(result, made)
    if name == "floordiv":
        return note(result, apply("floor", note(result, apply("div", a, b)).value))
    return note(result, apply({"truediv": "div"}.get(name, name), a, b))


def _compare(name: str, left: Any, right: Any) -> Any:
    if not (_is_number(right) or isinstance(right, str)):
        return NotImplemented
    result = _COMPARISONS[name](plain(left), plain(right))
    record = current()
    if record is None:
        return result
    a, b = as_value(left), as_value(right)
    if a.op == b.op == "constant":
        return result
    if a.op == "constant":
        name, a, b = MIRRORED[name], b, a
    return record.branch(Value(name, (a, b)), result)


def _truth(self: Any) -> bool:
    record = current()
    result = builtins.bool(plain(self))
    return result if record is None else record.branch(self.value, result)


def _add_operators(kind: Any) -> None:
    for name in _OPERATORS:
        setattr(kind, f"__{name}__", lambda self, other, name=name: _arithmetic(name, self, other))
        setattr(kind, f"__r{name}__", lambda self, other, name=name: _arithmetic(name, other, self))
    for name in _COMPARISONS:
        setattr(kind, f"__{name}__", lambda self, other, name=name: _compare(name, self, other))
    kind.__neg__ = lambda self: note(-plain(self), apply("neg", self.value))
    kind.__abs__ = lambda self: note(abs(plain(self)), apply("abs", self.value))
    kind.__bool__ = _truth
    kind.__format__ = _in_text
    kind.__int__ = lambda self: int(_lost(self))
    kind.__trunc__ = lambda self: int(_lost(self))
    kind.__round__ = lambda self, *digits: round(_lost(self), *digits)
    kind.__hash__ = lambda self: hash(plain(self))


for _kind in (Float, Int, Size, Flag):
    _add_operators(_kind)


def _math_function(name: str) -> Callable[..., Any]:
    real = getattr(math, name)

    def function(x: Any, *others: Any) -> Any:
        if isinstance(x, Tensor):
            x = x.item()
        if not isinstance(getattr(x, "value", None), Value) or others:
            return real(x, *others)
        try:
            result = real(plain(x))
        except (ValueError, OverflowError):
            result = math.nan
        return note(result, apply(name, x.value))

    return function


def _is_nan(x: Any) -> bool:
    """Tell if a number is nan. A number of tensors is compared with itself."""
    x = x.item() if isinstance(x, Tensor) else x
    return bool(x != x) if _reads_tensors(x) else math.isnan(plain(x))


def _finite_function(name: str) -> Callable[..., bool]:
    real = getattr(math, name)

    def function(x: Any) -> bool:
        x = x.item() if isinstance(x, Tensor) else x
        if _reads_tensors(x):
            raise NotImportedError(
                f"`math.{name}` of a tensor's number has no word in the language",
                author_line(),
                hint="compare the number with a bound",
            )
        return bool(real(plain(x)))

    return function


def _reads_tensors(x: Any) -> bool:
    value = getattr(x, "value", None)
    return isinstance(value, Value) and value.reads_tensors


def _power(x: Any, y: Any) -> Any:
    return (x.item() if isinstance(x, Tensor) else x) ** y


def _extremum(name: str, word: str, bound: str) -> Callable[..., Any]:
    real = getattr(builtins, name)

    def function(*args: Any, **options: Any) -> Any:
        if len(args) == 2 and not options and any(isinstance(a, Tensor) for a in args):
            x, y = args if isinstance(args[0], Tensor) else args[::-1]
            return getattr(torch, word)(x, y) if isinstance(y, Tensor) else x.clamp(**{bound: y})
        if (
            len(args) == 2
            and not options
            and any(isinstance(a, Float | Size) or type(a) is Int for a in args)
        ):
            result = real(*map(plain, args))
            return note(result, apply(word, *map(as_value, args)))
        return real(*args, **options)

    return function


class _FloatType(type(float)):  # type: ignore[misc]
    """The class of `float` in the author's modules: a call keeps the record of a number."""

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, float)

    def __call__(cls, x: Any = 0.0) -> float:
        x = x.item() if isinstance(x, Tensor) else x
        number = float(plain(x))
        return (
            recorded(number, x.value) if isinstance(x, Float | Size) or type(x) is Int else number
        )


class _Float(float, metaclass=_FloatType):
    """The meaning of `float` in the author's modules while a step is recorded."""


class _IntType(type(int)):  # type: ignore[misc]
    """The class of `int` in the author's modules: a call keeps the record of a whole number."""

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, int)

    def __call__(cls, x: Any = 0, *base: Any) -> int:
        x = x.item() if isinstance(x, Tensor) else x
        if type(x) in (Int, Size) and not base:
            kept: int = x
            return kept
        if isinstance(x, Float) and (x.value.reads_tensors or "t" in x.value.atoms):
            raise NotImportedError(
                "`int` of a number that changes from step to step",
                author_line(),
                hint="write math.floor(…)",
            )
        return int(x, *base)


class _Int(int, metaclass=_IntType):
    """The meaning of `int` in the author's modules while a step is recorded."""


@contextmanager
def recording_floats(package: str) -> Iterator[None]:
    """Let `float(x)` and `int(x)` record in a package's modules. torch's own stay as they are."""
    changes = [
        (vars(each), word, kind)
        for name, each in list(sys.modules.items())
        for word, kind in (("float", _Float), ("int", _Int))
        if name.partition(".")[0] == package != "torch" and word not in vars(each)
    ]
    for names, word, kind in changes:
        names[word] = kind
    try:
        yield
    finally:
        for names, word, _ in changes:
            del names[word]


class _ParameterInfo:
    """The `torch.finfo` of the parameter's dtype: its eps records.

    A run has parameters in float64, and the rule is for all dtypes.
    """

    bits, dtype = 64, "float64"

    @property
    def eps(self) -> float:
        """Return the distance from 1 to the next number, as a number that records."""
        value = Value("machine_eps", (Value("atom", name="p"),))
        number: float = recorded(sys.float_info.epsilon, value)
        return number

    def __getattr__(self, name: str) -> Any:
        raise NotImportedError(
            f"the dtype's `{name}` has no word in the language",
            author_line(),
            hint="write a number, or use finfo(…).eps, which is machine_eps(p)",
        )


def _finfo(*dtypes: torch.dtype) -> Any:
    info = _FINFO(*dtypes)
    return _ParameterInfo() if info.dtype == "float64" and current() is not None else info


@contextmanager
def recording_functions() -> Iterator[None]:
    """Let `math`'s functions, `min`, `max` and `torch.finfo` record."""
    changes = [(math, name, _math_function(name)) for name in _FUNCTIONS]
    changes += [(math, "pow", _power), (math, "isnan", _is_nan)]
    changes += [(math, name, _finite_function(name)) for name in ("isinf", "isfinite")]
    changes += [(torch, "finfo", _finfo)]
    changes += [(builtins, "max", _extremum("max", "maximum", "min"))]
    changes += [(builtins, "min", _extremum("min", "minimum", "max"))]
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    for module, name, function in changes:
        setattr(module, name, function)
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)
