"""Make fast operators, loads and stores for Triton's interpreter.

The types of the operands decide the type of the result and the NumPy function that computes it. The
first call with given types calls Triton, and notes the type of the result. Later calls with these
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


def fast_form(function: Callable[..., Any], call_triton: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fast form of a builtin; if there is none, `call_triton`, which calls the builtin."""
    name = function.__qualname__
    if name == "load":
        return _load(call_triton)
    if name == "store":
        return _store(call_triton)
    method = name.removeprefix("tensor.")
    direct = _REFLECTED.get(method, method)
    if method == name or direct not in _UFUNCS:
        return call_triton
    is_reflected, adds = method != direct, direct == "__add__"
    return _operator(call_triton, *_UFUNCS[direct], reflected=is_reflected, adds=adds)


def takes_type_of(number: Any, element_type: Any) -> bool:
    """Tell whether Triton makes a number a constant of the other operand's element type."""
    if type(number) is float:
        return element_type.name in _FLOATS
    return type(number) is int and -(2**31) <= number < 2**31 and element_type.name in _NUMBERS


class _Operator:
    """An operator of Triton's tensors, which calls Triton once for each pair of operand types.

    * `type_names`: names of the element types for which NumPy computes as Triton does.
    * `reflected`: whether the tensor is the right operand.
    * `adds`: whether the operator is `+`, which also adds offsets to pointers.
    """

    def __init__(
        self,
        call_triton: Callable[..., Any],
        ufunc: Callable[..., Any],
        type_names: frozenset[str],
        reflected: bool,
        adds: bool,
    ) -> None:
        self.call_triton, self.ufunc, self.type_names = call_triton, ufunc, type_names
        self.reflected, self.adds_offsets = reflected, adds and not reflected
        self.result_types: dict[tuple[str, Any], tuple[Any, Any, Any]] = {}
        self.pointer_types: dict[tuple[str, Any], tuple[Any, Any, int]] = {}
        self.constants: dict[tuple[str, Any, Any], Any] = {}

    def __call__(self, tensor: Any, other: Any) -> Any:
        if type(other) is core.constexpr:
            other = other.value
        other_class, element_type = type(other), tensor.dtype
        is_tensor = other_class is core.tensor
        key = tensor.type.name, other.type.name if is_tensor else other_class
        if type(element_type) is core.pointer_type:
            if self.adds_offsets:
                return self.with_offset(tensor, other, key)
            return self.call_triton(tensor, other)
        data = other.handle.data if is_tensor else self.constant(other, element_type)
        if data is None:
            return self.call_triton(tensor, other)
        if key not in self.result_types:
            return self.first_result(tensor, other, key)
        result_type, handle_dtype, numpy_dtype = self.result_types[key]
        tensor_data = tensor.handle.data
        result = self.ufunc(data, tensor_data) if self.reflected else self.ufunc(tensor_data, data)
        if result.dtype is not numpy_dtype:
            return self.call_triton(tensor, other)
        return _tensor(result, handle_dtype, result_type)

    def first_result(self, tensor: Any, other: Any, key: tuple[str, Any]) -> Any:
        """Return Triton's result; note its types if the operands are of one supported type."""
        result, element_type = self.call_triton(tensor, other), tensor.dtype
        same_type = type(other) is not core.tensor or other.dtype.name == element_type.name
        if element_type.name in self.type_names and same_type:
            self.result_types[key] = result.type, result.handle.dtype, result.handle.data.dtype
        return result

    def constant(self, value: Any, element_type: Any) -> Any:
        """Return a Python number as data of the tensor's type; None if Triton must convert it."""
        key = element_type.name, type(value), value
        data = self.constants.get(key)
        is_supported = element_type.name in self.type_names and takes_type_of(value, element_type)
        if data is None and is_supported:
            if value != value:
                return None  # NaN equals no key of a dictionary
            dtype = interpreter._get_np_dtype(element_type)
            # Like Triton, `or 0` turns -0.0 into 0.
            data = self.constants[key] = np.array([value or 0], dtype)
        return data

    def with_offset(self, tensor: Any, other: Any, key: tuple[str, Any]) -> Any:
        """Return pointers plus an offset; the first call with these types calls Triton."""
        if key not in self.pointer_types:
            result = self.call_triton(tensor, other)
            is_tensor = type(other) is core.tensor
            if type(other) is int or (is_tensor and other.dtype.name in _INTEGERS):
                element_bytes = max(1, tensor.dtype.element_ty.primitive_bitwidth // 8)
                self.pointer_types[key] = result.type, result.handle.dtype, element_bytes
            return result
        result_type, handle_dtype, element_bytes = self.pointer_types[key]
        if type(other) is int:
            if not -(2**31) <= other < 2**31:
                return self.call_triton(tensor, other)
            offset = np.array([other], np.int32)
        else:
            offset = other.handle.data
        addresses = tensor.handle.data + element_bytes * offset.astype(np.uint64)
        return _tensor(addresses, handle_dtype, result_type)


def _operator(
    call_triton: Callable[..., Any],
    ufunc: Callable[..., Any],
    type_names: frozenset[str],
    reflected: bool,
    adds: bool,
) -> Callable[..., Any]:
    """Return the operator as a function, which becomes a method of tensors."""
    operator = _Operator(call_triton, ufunc, type_names, reflected, adds)
    return lambda tensor, other, **_: operator(tensor, other)


def _load(call_triton: Callable[..., Any]) -> Callable[..., Any]:
    result_types: dict[tuple[str, str], tuple[Any, Any, Any]] = {}

    def load(pointer: Any, mask: Any = None, *others: Any, **options: Any) -> Any:
        if others or options or (mask is not None and type(mask) is not core.tensor):
            return call_triton(pointer, mask, *others, **options)
        key = pointer.type.name, "" if mask is None else mask.type.name
        types, addresses = result_types.get(key), pointer.handle.data
        if types is None or (mask is not None and mask.handle.data.shape != addresses.shape):
            result = call_triton(pointer, mask)
            pointer_type = pointer.dtype
            if type(pointer_type) is core.pointer_type and pointer_type.element_ty.name != "int1":
                result_types[key] = result.type, result.handle.dtype, result.handle.data.dtype
            return result
        result_type, handle_dtype, numpy_dtype = types
        mask_data = np.ones(addresses.shape, bool) if mask is None else mask.handle.data
        zeros = np.zeros(addresses.shape, numpy_dtype)
        data = memory.load(addresses, mask_data, zeros, numpy_dtype)
        return _tensor(data, handle_dtype, result_type)

    return load


def _store(call_triton: Callable[..., Any]) -> Callable[..., Any]:
    results: dict[tuple[str, str, str], Any] = {}

    def store(pointer: Any, value: Any, mask: Any = None, *others: Any, **options: Any) -> Any:
        are_tensors = type(value) is core.tensor and type(mask) in (core.tensor, type(None))
        if others or options or not are_tensors:
            return call_triton(pointer, value, mask, *others, **options)
        key = pointer.type.name, value.type.name, "" if mask is None else mask.type.name
        addresses, data = pointer.handle.data, value.handle.data
        mask_data = np.ones(addresses.shape, bool) if mask is None else mask.handle.data
        same_shape = mask_data.shape == addresses.shape == data.shape
        if key not in results or not same_shape:
            result = call_triton(pointer, value, mask)
            pointer_type = pointer.dtype
            is_pointer = type(pointer_type) is core.pointer_type
            if is_pointer and pointer_type.element_ty.name == value.dtype.name:
                results[key] = result
            return result
        memory.store(addresses, data, mask_data)
        return results[key]

    return store


def _tensor(data: Any, handle_dtype: Any, tensor_type: Any) -> Any:
    """Return a tensor with this data; do not run the constructor of its handle."""
    handle = _new(interpreter.TensorHandle)
    handle.data, handle.dtype, handle.attr = data, handle_dtype, {}
    return core.tensor(handle, tensor_type)
