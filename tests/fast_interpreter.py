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
from fast_operators import faster, takes_type_of
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
    patching = function.__call__
    patched = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn.__module__.startswith("triton.") and self.fn not in patched:
            patched.add(self.fn)
            return patching(self, *args, **kwargs)
        return self.rewrite()(*args, **kwargs)

    function.__call__ = call


def _remember_builtins() -> None:
    """Look for the builtins of a module or class once, and call each without a filter."""
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

    return faster(inner, call)


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
    """Look at a value's type before it is unwrapped: most values are no `constexpr`."""
    unwrap = core._unwrap_if_constexpr
    plain = (int, bool, str, float, core.dtype, core.tensor)

    def unwrapped(value: Any) -> Any:
        kind = type(value)
        if kind is core.constexpr:
            return value.value
        return value if kind in plain else unwrap(value)

    core._unwrap_if_constexpr = unwrapped


def _remember_shapes() -> None:
    """Compute the shape and size of tensors once for each type, and create each block type once."""
    init, with_element = core.tensor.__init__, core.block_type.with_element_ty
    block_types: dict[tuple[str, tuple[int, ...]], Any] = {}

    def tensor_init(self: Any, handle: Any, type: Any) -> None:
        known = type.__dict__.get("known")
        if known is None:
            init(self, handle, type)
            type.known = self.shape, self.numel, self.dtype
        else:
            self.handle, self.type = handle, type
            self.shape, self.numel, self.dtype = known

    def with_element_ty(self: Any, element: Any) -> Any:
        if type(element) is not core.dtype:
            return with_element(self, element)
        key = element.name, self.shape
        if key not in block_types:
            block_types[key] = with_element(self, element)
        return block_types[key]

    core.tensor.__init__, core.block_type.with_element_ty = tensor_init, with_element_ty
    core.block_type.to_ir = lambda self, builder: self  # Triton's returns a new, equal type


def _pass_equal_types() -> None:
    """Return operands as they are if they need neither a conversion nor a broadcast."""
    triton = semantic.TritonSemantic
    check, broadcast = triton.binary_op_type_checking_impl, triton.broadcast_impl_value
    cast = triton.cast

    @wraps(check)
    def checked(
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
            return broadcasted(self, lhs, self.scalar_constant(rhs, lhs.dtype))
        if right and arithmetic_check and takes_type_of(lhs, rhs.dtype):
            return broadcasted(self, self.scalar_constant(lhs, rhs.dtype), rhs)
        if left and allow_lhs_ptr and lhs.dtype.is_ptr():
            other = self.to_tensor(rhs)
            if type(other.dtype) is core.dtype and other.dtype.is_int():
                return broadcasted(self, lhs, other)
        pointers = allow_lhs_ptr, allow_rhs_ptr
        return check(self, lhs, rhs, *pointers, arithmetic_check, div_or_mod)

    @wraps(broadcast)
    def broadcasted(self: Any, lhs: Any, rhs: Any) -> Any:
        own, other = lhs.type, rhs.type
        same = own is other or getattr(own, "shape", ()) == getattr(other, "shape", ())
        return (lhs, rhs) if same else broadcast(self, lhs, rhs)

    @wraps(cast)
    def converted(self: Any, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        return input if input.dtype is target else cast(self, input, target, *args, **kwargs)

    triton.binary_op_type_checking_impl, triton.broadcast_impl_value = checked, broadcasted
    triton.cast = converted


def _need_no_conversion(own: Any, other: Any, div_or_mod: bool) -> bool:
    """Tell whether an operation takes two tensors of these types as they are."""
    if own is not other and own.name != other.name:
        return False
    scalar = own.scalar
    return type(scalar) is core.dtype and not (div_or_mod and scalar.name in _HALF)


def _skip_unread_checks() -> None:
    """Compute no check for overflow: without Triton's debug option, nothing reads its result."""
    triton = semantic.TritonSemantic
    check = triton.binary_op_sanitize_overflow_impl

    def checked(self: Any, *args: Any) -> None:
        if self.builder.options.debug:
            check(self, *args)

    triton.binary_op_sanitize_overflow_impl = checked


def _reduce_by_pairs() -> None:
    """Combine all neighbouring pairs of an axis in one call, until one element is left.

    Triton's interpreter calls the function once for each element. Reductions are associative, and
    the order of the elements stays the same.
    """
    triton = interpreter.ReduceOps
    reduce_by_elements = triton.generic_reduce

    @wraps(reduce_by_elements)
    def reduced(self: Any, input: Any) -> Any:
        (tensor, *others), axis = self.unravel(input, self.axis)
        data, scalar = tensor.handle.data, tensor.dtype
        length = data.shape[axis]
        if others or length & (length - 1):
            return reduce_by_elements(self, input)
        while data.shape[axis] > 1:
            halves = np.moveaxis(data, axis, 0)
            left, right = (np.moveaxis(halves[at::2], 0, axis) for at in (0, 1))
            pair = self.to_tensor(left, scalar), self.to_tensor(right, scalar)
            combined = self.combine_fn.fn(*pair)
            if combined.dtype != scalar:
                return reduce_by_elements(self, input)
            data = combined.handle.data
        if not self.keep_dims:
            data = data.item() if self.axis is None else data.squeeze(axis)
        return [self.to_tensor(data, scalar)]

    triton.generic_reduce = reduced
