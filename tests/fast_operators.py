"""Make operators, loads and stores of Triton's interpreter that call Triton once per operand types.

The types of the operands decide the type of the result and the NumPy function that computes it. The
first call with some types calls Triton, and notes the type of the result. Later calls with these
types only call NumPy, which broadcasts as Triton does.
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
"""Operators that are one function of NumPy, and the operand types for which this holds."""
_REFLECTED = {f"__r{name[2:]}": name for name in ("__add__", "__sub__", "__mul__", "__truediv__")}
_new = object.__new__


def faster(function: Callable[..., Any], triton: Callable[..., Any]) -> Callable[..., Any]:
    """Return a faster form of a builtin, or `triton` itself, which calls Triton's builtin."""
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
    """An operator of Triton's tensors, which calls Triton once for each pair of operand types.

    * `names`: names of the element types for which NumPy computes as Triton does.
    * `reflected`: whether the tensor is the right operand.
    * `adds`: whether the operator is `+`, which also adds offsets to pointers.
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
        self.reflected, self.adds_offsets = reflected, adds and not reflected
        self.result_types: dict[tuple[str, Any], tuple[Any, Any, Any]] = {}
        self.pointer_types: dict[tuple[str, Any], tuple[Any, Any, int]] = {}
        self.constants: dict[tuple[str, Any, Any], Any] = {}

    def __call__(self, tensor: Any, other: Any) -> Any:
        if type(other) is core.constexpr:
            other = other.value
        kind, scalar = type(other), tensor.dtype
        key = tensor.type.name, other.type.name if kind is core.tensor else kind
        if type(scalar) is core.pointer_type:
            if self.adds_offsets:
                return self.with_offset(tensor, other, key)
            return self.triton(tensor, other)
        data = other.handle.data if kind is core.tensor else self.constant(other, scalar)
        if data is None:
            return self.triton(tensor, other)
        if key not in self.result_types:
            return self.first_result(tensor, other, key)
        result_type, handle_dtype, numpy_dtype = self.result_types[key]
        own = tensor.handle.data
        result = self.ufunc(data, own) if self.reflected else self.ufunc(own, data)
        if result.dtype is not numpy_dtype:
            return self.triton(tensor, other)
        return _tensor(result, handle_dtype, result_type)

    def first_result(self, tensor: Any, other: Any, key: tuple[str, Any]) -> Any:
        """Return Triton's result; note its types if the operands are of one supported type."""
        result, scalar = self.triton(tensor, other), tensor.dtype
        same = type(other) is not core.tensor or other.dtype.name == scalar.name
        if scalar.name in self.names and same:
            self.result_types[key] = result.type, result.handle.dtype, result.handle.data.dtype
        return result

    def constant(self, value: Any, scalar: Any) -> Any:
        """Return a Python number as data of the tensor's type; None if Triton must convert it."""
        key = scalar.name, type(value), value
        data = self.constants.get(key)
        if data is None and scalar.name in self.names and takes_type_of(value, scalar):
            if value != value:
                return None  # NaN equals no key of a dictionary
            dtype = interpreter._get_np_dtype(scalar)
            # `or 0`: Triton makes 0 of -0.0, too.
            data = self.constants[key] = np.array([value or 0], dtype)
        return data

    def with_offset(self, tensor: Any, other: Any, key: tuple[str, Any]) -> Any:
        """Return pointers plus an offset; the first call with these types calls Triton."""
        if key not in self.pointer_types:
            result = self.triton(tensor, other)
            scalar, kind = tensor.dtype, type(other)
            if kind is int or (kind is core.tensor and other.dtype.name in _INTEGERS):
                width = max(1, scalar.element_ty.primitive_bitwidth // 8)
                self.pointer_types[key] = result.type, result.handle.dtype, width
            return result
        kind, scalar, width = self.pointer_types[key]
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
    result_types: dict[tuple[str, str], tuple[Any, Any, Any]] = {}

    def load(pointer: Any, mask: Any = None, *others: Any, **options: Any) -> Any:
        if others or options or (mask is not None and type(mask) is not core.tensor):
            return triton(pointer, mask, *others, **options)
        key = pointer.type.name, "" if mask is None else mask.type.name
        known, addresses = result_types.get(key), pointer.handle.data
        if known is None or (mask is not None and mask.handle.data.shape != addresses.shape):
            result = triton(pointer, mask)
            scalar = pointer.dtype
            if type(scalar) is core.pointer_type and scalar.element_ty.name != "int1":
                result_types[key] = result.type, result.handle.dtype, result.handle.data.dtype
            return result
        kind, scalar, dtype = known
        lanes = np.ones(addresses.shape, bool) if mask is None else mask.handle.data
        data = memory.load(addresses, lanes, np.zeros(addresses.shape, dtype), dtype)
        return _tensor(data, scalar, kind)

    return load


def _store(triton: Callable[..., Any]) -> Callable[..., Any]:
    results: dict[tuple[str, str, str], Any] = {}

    def store(pointer: Any, value: Any, mask: Any = None, *others: Any, **options: Any) -> Any:
        if others or options or not {type(value), type(mask)} <= {core.tensor, type(None)}:
            return triton(pointer, value, mask, *others, **options)
        key = pointer.type.name, value.type.name, "" if mask is None else mask.type.name
        addresses, data = pointer.handle.data, value.handle.data
        lanes = np.ones(addresses.shape, bool) if mask is None else mask.handle.data
        if key not in results or not lanes.shape == addresses.shape == data.shape:
            result = triton(pointer, value, mask)
            scalar = pointer.dtype
            if type(scalar) is core.pointer_type and scalar.element_ty.name == value.dtype.name:
                results[key] = result
            return result
        memory.store(addresses, data, lanes)
        return results[key]

    return store


def _tensor(data: Any, scalar: Any, kind: Any) -> Any:
    """Return a tensor with this data, whose handle has dtype `scalar` and whose type is `kind`."""
    handle = _new(interpreter.TensorHandle)
    handle.data, handle.dtype, handle.attr = data, scalar, {}
    return core.tensor(handle, kind)
