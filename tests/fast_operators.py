"""Operators, loads and stores of Triton's interpreter that ask Triton once for given types.

The types of the operands decide what Triton makes of them: the type of the result, and which
function of NumPy computes it. The first call with some types is Triton's; later calls take its
answer for the types, and NumPy's for the numbers. NumPy broadcasts as Triton does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from triton._C.libtriton import interpreter as memory
from triton.language import core
from triton.runtime import interpreter

_FLOATS, _INTEGERS = frozenset(["fp32", "fp64"]), frozenset(["int32", "int64"])
_NUMBERS = _FLOATS | _INTEGERS
_UFUNCS: dict[str, tuple[Callable[..., Any], frozenset[str]]] = {
    "__add__": (np.add, _NUMBERS),
    "__sub__": (np.subtract, _NUMBERS),
    "__mul__": (np.multiply, _NUMBERS),
    "__truediv__": (np.divide, _FLOATS),
    "__and__": (np.bitwise_and, _INTEGERS | {"int1"}),
    "__or__": (np.bitwise_or, _INTEGERS | {"int1"}),
    "__lt__": (np.less, _NUMBERS),
    "__le__": (np.less_equal, _NUMBERS),
    "__gt__": (np.greater, _NUMBERS),
    "__ge__": (np.greater_equal, _NUMBERS),
    "__eq__": (np.equal, _NUMBERS),
    "__ne__": (np.not_equal, _NUMBERS),
}
"""Operators that are one function of NumPy, and the types of operands for which they are."""
_REFLECTED = {f"__r{name[2:]}": name for name in ("__add__", "__sub__", "__mul__", "__truediv__")}
_new = object.__new__


def faster(function: Callable[..., Any], triton: Callable[..., Any]) -> Callable[..., Any]:
    """Return a faster form of a builtin, or the builtin as `triton` calls it."""
    name = function.__qualname__
    if name == "load":
        return _load(triton)
    if name == "store":
        return _store(triton)
    method = name.removeprefix("tensor.")
    plain = _REFLECTED.get(method, method)
    if method == name or plain not in _UFUNCS:
        return triton
    return _operator(triton, *_UFUNCS[plain], reflected=method != plain, adds=plain == "__add__")


def takes_type_of(number: Any, scalar: Any) -> bool:
    """Tell whether a number becomes a constant of the other operand's type, whatever its value."""
    if type(number) is float:
        return scalar.name in _FLOATS
    return type(number) is int and -(2**31) <= number < 2**31 and scalar.name in _NUMBERS


class _Operator:
    """An operator of Triton's tensors, which asks Triton once for each pair of types.

    * `names`: the types of numbers for which NumPy computes as Triton does.
    * `reflected`: whether the tensor is the right operand.
    * `adds`: whether it is `+`, which moves pointers too.
    """

    def __init__(
        self,
        triton: Callable[..., Any],
        ufunc: Callable[..., Any],
        names: frozenset[str],
        reflected: bool,
        adds: bool,
    ) -> None:
        self.triton, self.ufunc, self.names = triton, ufunc, names
        self.reflected, self.moves = reflected, adds and not reflected
        self.kinds: dict[tuple[str, Any], tuple[Any, Any, Any]] = {}
        self.widths: dict[tuple[str, Any], tuple[Any, Any, Any]] = {}
        self.constants: dict[tuple[str, Any, Any], Any] = {}

    def __call__(self, tensor: Any, other: Any) -> Any:
        if type(other) is core.constexpr:
            other = other.value
        kind, scalar = type(other), tensor.dtype
        key = tensor.type.name, other.type.name if kind is core.tensor else kind
        if type(scalar) is core.pointer_type:
            return self.moved(tensor, other, key) if self.moves else self.triton(tensor, other)
        data = other.handle.data if kind is core.tensor else self.number(other, scalar)
        if data is None:
            return self.triton(tensor, other)
        known = self.kinds.get(key)
        if known is None:
            return self.learnt(tensor, other, key)
        own = tensor.handle.data
        result = self.ufunc(data, own) if self.reflected else self.ufunc(own, data)
        if result.dtype is not known[2]:
            return self.triton(tensor, other)
        return _tensor(result, known[1], known[0])

    def learnt(self, tensor: Any, other: Any, key: tuple[str, Any]) -> Any:
        """Return Triton's result; note its types if the operands are of one supported type."""
        found, scalar = self.triton(tensor, other), tensor.dtype
        same = type(other) is not core.tensor or other.dtype.name == scalar.name
        if scalar.name in self.names and same:
            self.kinds[key] = found.type, found.handle.dtype, found.handle.data.dtype
        return found

    def number(self, value: Any, scalar: Any) -> Any:
        """Return a Python number as data of the other operand's type; None if Triton decides."""
        key = scalar.name, type(value), value
        found = self.constants.get(key)
        if found is None and scalar.name in self.names and takes_type_of(value, scalar):
            if value != value:
                return None  # not a number, and not a key
            dtype = interpreter._get_np_dtype(scalar)
            # Triton's -0.0 is 0, too.
            found = self.constants[key] = np.array([value or 0], dtype)
        return found

    def moved(self, tensor: Any, other: Any, key: tuple[str, Any]) -> Any:
        """Add an offset to pointers; learn from Triton at first."""
        known = self.widths.get(key)
        if known is None:
            found = self.triton(tensor, other)
            scalar, kind = tensor.dtype, type(other)
            if kind is int or (kind is core.tensor and other.dtype.name in _INTEGERS):
                width = max(1, scalar.element_ty.primitive_bitwidth // 8)
                self.widths[key] = found.type, found.handle.dtype, width
            return found
        kind, scalar, width = known
        if type(other) is int:
            if not -(2**31) <= other < 2**31:
                return self.triton(tensor, other)
            offset = np.array([other], np.int32)
        else:
            offset = other.handle.data
        return _tensor(tensor.handle.data + width * offset.astype(np.uint64), scalar, kind)


def _operator(
    triton: Callable[..., Any],
    ufunc: Callable[..., Any],
    names: frozenset[str],
    reflected: bool,
    adds: bool,
) -> Callable[..., Any]:
    """Return the operator as a function, which becomes a method of tensors."""
    operator = _Operator(triton, ufunc, names, reflected, adds)
    return lambda tensor, other, **_: operator(tensor, other)


def _load(triton: Callable[..., Any]) -> Callable[..., Any]:
    kinds: dict[tuple[str, str], tuple[Any, Any, Any]] = {}

    def load(pointer: Any, mask: Any = None, *others: Any, **options: Any) -> Any:
        if others or options or (mask is not None and type(mask) is not core.tensor):
            return triton(pointer, mask, *others, **options)
        key = pointer.type.name, "" if mask is None else mask.type.name
        known, places = kinds.get(key), pointer.handle.data
        if known is None or (mask is not None and mask.handle.data.shape != places.shape):
            found = triton(pointer, mask)
            scalar = pointer.dtype
            if type(scalar) is core.pointer_type and scalar.element_ty.name != "int1":
                kinds[key] = found.type, found.handle.dtype, found.handle.data.dtype
            return found
        kind, scalar, dtype = known
        given = np.ones(places.shape, bool) if mask is None else mask.handle.data
        return _tensor(
            memory.load(places, given, np.zeros(places.shape, dtype), dtype), scalar, kind
        )

    return load


def _store(triton: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[tuple[str, str, str], Any] = {}

    def store(pointer: Any, value: Any, mask: Any = None, *others: Any, **options: Any) -> Any:
        if others or options or not {type(value), type(mask)} <= {core.tensor, type(None)}:
            return triton(pointer, value, mask, *others, **options)
        key = pointer.type.name, value.type.name, "" if mask is None else mask.type.name
        places, data = pointer.handle.data, value.handle.data
        given = np.ones(places.shape, bool) if mask is None else mask.handle.data
        if key not in known or not given.shape == places.shape == data.shape:
            found = triton(pointer, value, mask)
            scalar = pointer.dtype
            if type(scalar) is core.pointer_type and scalar.element_ty.name == value.dtype.name:
                known[key] = found
            return found
        memory.store(places, data, given)
        return known[key]

    return store


def _tensor(data: Any, scalar: Any, kind: Any) -> Any:
    """Return a tensor of a type that Triton gave to another one."""
    handle = _new(interpreter.TensorHandle)
    handle.data, handle.dtype, handle.attr = data, scalar, {}
    return core.tensor(handle, kind)
