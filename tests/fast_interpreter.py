"""Make Triton's interpreter faster; what a kernel computes, and what it refuses, stays the same.

The interpreter's blocks are small, so nearly all its time goes into finding the types of operands
again and again. Each function here stands before one of Triton's: it answers at once where the
types decide the answer, and else asks Triton's.
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
    """Put these functions before Triton's, once, in a process that has chosen the interpreter."""
    _patch_once_a_launch()
    _remember_builtins()
    _compare_by_identity()
    _unwrap_by_type()
    _remember_shapes()
    _pass_equal_types()
    _skip_unread_checks()
    _reduce_by_pairs()


def _patch_once_a_launch() -> None:
    """Patch Triton's language once a launch instead of at every call of a helper.

    A launch patches the language already. Triton's own helpers see the language under another name,
    which nothing restores afterwards: their first call patches it for good.
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
    found: dict[Any, list[tuple[str, Any]]] = {}

    def patch_builtins(package: Any, _builder: Any, scope: Any) -> None:
        if package not in found:
            members = inspect.getmembers(package)
            found[package] = [(name, one) for name, one in members if core.is_builtin(one)]
        for name, member in found[package]:
            scope.set_attr(package, name, _given_semantic(member))

    interpreter._patch_builtin = patch_builtins


@cache
def _given_semantic(member: Callable[..., Any]) -> Callable[..., Any]:
    inner = getattr(member, "__wrapped__", member)
    known = {"_semantic": semantic.TritonSemantic(interpreter.interpreter_builder)}

    def call(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **(kwargs | known))

    return faster(inner, call)


def _compare_by_identity() -> None:
    """Compare types by identity before anything else: most of them are objects of the language."""
    equal, scalar_types = core.dtype.__eq__, {}

    def is_equal(self: Any, other: Any) -> Any:
        return self is other or equal(self, other)

    core.dtype.__eq__ = is_equal
    numpy_type = interpreter._get_np_dtype

    def get_np_dtype(kind: Any) -> Any:
        if type(kind) is not core.dtype:
            return numpy_type(kind)
        if kind.name not in scalar_types:
            scalar_types[kind.name] = numpy_type(kind)
        return scalar_types[kind.name]

    interpreter._get_np_dtype = get_np_dtype


def _unwrap_by_type() -> None:
    """Unwrap constants by the type of the value: most values are no constants at all."""
    unwrap = core._unwrap_if_constexpr
    plain = (int, bool, str, float, core.dtype, core.tensor)

    def unwrapped(value: Any) -> Any:
        kind = type(value)
        if kind is core.constexpr:
            return value.value
        return value if kind in plain else unwrap(value)

    core._unwrap_if_constexpr = unwrapped


def _remember_shapes() -> None:
    """Make the shape and size of a type's tensors once a type, and a block type once a shape."""
    init, with_element = core.tensor.__init__, core.block_type.with_element_ty
    made: dict[tuple[str, tuple[int, ...]], Any] = {}

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
        if key not in made:
            made[key] = with_element(self, element)
        return made[key]

    core.tensor.__init__, core.block_type.with_element_ty = tensor_init, with_element_ty
    core.block_type.to_ir = lambda self, builder: self  # it would be made anew, equal to this one


def _pass_equal_types() -> None:
    """Return operands as they are if they need neither a conversion nor a broadcast."""
    kind = semantic.TritonSemantic
    check, broadcast, cast = kind.binary_op_type_checking_impl, kind.broadcast_impl_value, kind.cast

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
        if left and right and _are_one_type(lhs.type, rhs.type, div_or_mod):
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

    kind.binary_op_type_checking_impl, kind.broadcast_impl_value = checked, broadcasted
    kind.cast = converted


def _are_one_type(own: Any, other: Any, div_or_mod: bool) -> bool:
    """Tell whether two tensors of these types are the operands of an operation as they are."""
    if own is not other and own.name != other.name:
        return False
    scalar = own.scalar
    return type(scalar) is core.dtype and not (div_or_mod and scalar.name in _HALF)


def _skip_unread_checks() -> None:
    """Compute no check for overflow: without Triton's debug option, nothing reads its result."""
    kind = semantic.TritonSemantic
    check = kind.binary_op_sanitize_overflow_impl

    def checked(self: Any, *args: Any) -> None:
        if self.builder.options.debug:
            check(self, *args)

    kind.binary_op_sanitize_overflow_impl = checked


def _reduce_by_pairs() -> None:
    """Combine all neighbours of an axis at once, until one is left; Triton combines numbers.

    Reductions are associative, and the order stays the same.
    """
    kind = interpreter.ReduceOps
    by_numbers = kind.generic_reduce

    @wraps(by_numbers)
    def reduced(self: Any, input: Any) -> Any:
        (one, *others), axis = self.unravel(input, self.axis)
        data, scalar = one.handle.data, one.dtype
        length = data.shape[axis]
        if others or length & (length - 1):
            return by_numbers(self, input)
        while data.shape[axis] > 1:
            halves = np.moveaxis(data, axis, 0)
            left, right = (np.moveaxis(halves[at::2], 0, axis) for at in (0, 1))
            pair = self.to_tensor(left, scalar), self.to_tensor(right, scalar)
            combined = self.combine_fn.fn(*pair)
            if combined.dtype != scalar:
                return by_numbers(self, input)
            data = combined.handle.data
        if not self.keep_dims:
            data = data.item() if self.axis is None else data.squeeze(axis)
        return [self.to_tensor(data, scalar)]

    kind.generic_reduce = reduced
