"""Make Triton's interpreter faster; what a kernel computes, and what it refuses, stays the same.

The interpreter's blocks are small, so nearly all its time goes into finding the types of operands
again and again. Each function here replaces one of Triton's. If the types decide the result, the
new function returns it at once; otherwise it calls Triton's function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np
from fast_operators import fast_form, takes_type_of
from triton.language import core, semantic
from triton.runtime import interpreter

_HALF = ("fp16", "bf16")  # a quotient of two of these is a float32


@cache
def install() -> None:
    """Replace Triton's functions, once, in a process that has chosen the interpreter."""
    _patch_once_per_launch()
    _remember_builtins()
    _compare_by_identity()
    _unwrap_by_type()
    _remember_shapes()
    _pass_equal_types()
    _skip_unread_checks()
    _reduce_by_pairs()


def _patch_once_per_launch() -> None:
    """Patch Triton's language once per launch instead of at every call of a helper.

    A launch patches `triton.language` itself. Triton's own helpers import it under another name.
    Nothing undoes a patch of that name, so one patch at the first call of such a helper is enough.
    """
    function = interpreter.InterpretedFunction
    patch_and_call = function.__call__
    patched_helpers = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn.__module__.startswith("triton.") and self.fn not in patched_helpers:
            patched_helpers.add(self.fn)
            return patch_and_call(self, *args, **kwargs)
        return self.rewrite()(*args, **kwargs)

    function.__call__ = call


def _remember_builtins() -> None:
    """Find the builtins of a module or class once; call them without filtering keywords."""
    builtins: dict[Any, list[tuple[str, Any]]] = {}

    def patch_builtins(package: Any, _builder: Any, scope: Any) -> None:
        if package not in builtins:
            builtins[package] = inspect.getmembers(package, core.is_builtin)
        for name, member in builtins[package]:
            scope.set_attr(package, name, _with_semantic(member))

    interpreter._patch_builtin = patch_builtins


@cache
def _with_semantic(member: Callable[..., Any]) -> Callable[..., Any]:
    """Return a builtin that receives the interpreter's `_semantic` at every call."""
    inner = getattr(member, "__wrapped__", member)
    option = {"_semantic": semantic.TritonSemantic(interpreter.interpreter_builder)}

    def call(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **(kwargs | option))

    return fast_form(inner, call)


def _compare_by_identity() -> None:
    """Compare types by identity first, and cache NumPy's dtypes.

    Most types are attributes of `triton.language`, so equal types are usually one object.
    """
    equal, numpy_dtypes = core.dtype.__eq__, {}

    def is_equal(self: Any, other: Any) -> Any:
        return self is other or equal(self, other)

    core.dtype.__eq__ = is_equal
    numpy_dtype = interpreter._get_np_dtype

    def get_np_dtype(dtype: Any) -> Any:
        if type(dtype) is not core.dtype:
            return numpy_dtype(dtype)
        if dtype.name not in numpy_dtypes:
            numpy_dtypes[dtype.name] = numpy_dtype(dtype)
        return numpy_dtypes[dtype.name]

    interpreter._get_np_dtype = get_np_dtype


def _unwrap_by_type() -> None:
    """Check a value's type before unwrapping it: most values are not `constexpr`."""
    triton_unwrap = core._unwrap_if_constexpr
    plain_types = (int, bool, str, float, core.dtype, core.tensor)

    def unwrap(value: Any) -> Any:
        kind = type(value)
        if kind is core.constexpr:
            return value.value
        return value if kind in plain_types else triton_unwrap(value)

    core._unwrap_if_constexpr = unwrap


def _remember_shapes() -> None:
    """Compute the shape and size of tensors once for each type, and create each block type once."""
    init, with_element = core.tensor.__init__, core.block_type.with_element_ty
    block_types: dict[tuple[str, tuple[int, ...]], Any] = {}

    def tensor_init(self: Any, handle: Any, type: Any) -> None:
        fields = type.__dict__.get("tensor_fields")
        if fields is None:
            init(self, handle, type)
            type.tensor_fields = self.shape, self.numel, self.dtype
        else:
            self.handle, self.type = handle, type
            self.shape, self.numel, self.dtype = fields

    def with_element_ty(self: Any, element: Any) -> Any:
        if type(element) is not core.dtype:
            return with_element(self, element)
        key = element.name, self.shape
        if key not in block_types:
            block_types[key] = with_element(self, element)
        return block_types[key]

    core.tensor.__init__, core.block_type.with_element_ty = tensor_init, with_element_ty
    core.block_type.to_ir = lambda self, builder: self  # Triton's method returns a new, equal type


def _pass_equal_types() -> None:
    """Return operands as they are if they need neither a conversion nor a broadcast."""
    operations = semantic.TritonSemantic
    triton_check = operations.binary_op_type_checking_impl
    triton_broadcast, triton_cast = operations.broadcast_impl_value, operations.cast

    @wraps(triton_check)
    def check(
        self: Any,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        left, right = type(lhs) is core.tensor, type(rhs) is core.tensor
        if left and right and _need_no_conversion(lhs.type, rhs.type, div_or_mod):
            return lhs, rhs
        if left and arithmetic_check and takes_type_of(rhs, lhs.dtype):
            return broadcast(self, lhs, self.scalar_constant(rhs, lhs.dtype))
        if right and arithmetic_check and takes_type_of(lhs, rhs.dtype):
            return broadcast(self, self.scalar_constant(lhs, rhs.dtype), rhs)
        if left and allow_lhs_ptr and lhs.dtype.is_ptr():
            offset = self.to_tensor(rhs)
            if type(offset.dtype) is core.dtype and offset.dtype.is_int():
                return broadcast(self, lhs, offset)
        pointers = allow_lhs_ptr, allow_rhs_ptr
        return triton_check(self, lhs, rhs, *pointers, arithmetic_check, div_or_mod)

    @wraps(triton_broadcast)
    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        same_shape = left is right or getattr(left, "shape", ()) == getattr(right, "shape", ())
        return (lhs, rhs) if same_shape else triton_broadcast(self, lhs, rhs)

    @wraps(triton_cast)
    def cast(self: Any, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        return input if input.dtype is target else triton_cast(self, input, target, *args, **kwargs)

    operations.binary_op_type_checking_impl = check
    operations.broadcast_impl_value, operations.cast = broadcast, cast


def _need_no_conversion(left: Any, right: Any, div_or_mod: bool) -> bool:
    """Tell whether an operation takes two tensors of these types as they are."""
    if left is not right and left.name != right.name:
        return False
    scalar = left.scalar
    return type(scalar) is core.dtype and not (div_or_mod and scalar.name in _HALF)


def _skip_unread_checks() -> None:
    """Skip checks for overflow unless Triton's debug option, which reads them, is set."""
    operations = semantic.TritonSemantic
    triton_check = operations.binary_op_sanitize_overflow_impl

    def check(self: Any, *args: Any) -> None:
        if self.builder.options.debug:
            triton_check(self, *args)

    operations.binary_op_sanitize_overflow_impl = check


def _reduce_by_pairs() -> None:
    """Combine all neighbouring pairs of an axis in one call, until one element is left.

    Triton's interpreter calls the combining function once for each element. The function is
    associative, and the order of the elements stays the same.
    """
    reductions = interpreter.ReduceOps
    reduce_by_elements = reductions.generic_reduce

    @wraps(reduce_by_elements)
    def reduce_by_pairs(self: Any, input: Any) -> Any:
        (tensor, *others), axis = self.unravel(input, self.axis)
        data, scalar = tensor.handle.data, tensor.dtype
        length = data.shape[axis]
        is_power_of_two = length & (length - 1) == 0
        if others or not is_power_of_two:
            return reduce_by_elements(self, input)
        while data.shape[axis] > 1:
            axis_first = np.moveaxis(data, axis, 0)
            left, right = (np.moveaxis(axis_first[start::2], 0, axis) for start in (0, 1))
            pair = self.to_tensor(left, scalar), self.to_tensor(right, scalar)
            combined = self.combine_fn.fn(*pair)
            if combined.dtype != scalar:
                return reduce_by_elements(self, input)
            data = combined.handle.data
        if not self.keep_dims:
            data = data.item() if self.axis is None else data.squeeze(axis)
        return [self.to_tensor(data, scalar)]

    reductions.generic_reduce = reduce_by_pairs
