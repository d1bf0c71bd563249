"""Test that the faster functions of Triton's interpreter answer as Triton's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from interpreter import inside_interpreter, outside_interpreter, run_inside

pytest.importorskip("triton")

import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

TYPES = (tl.int1, tl.uint8, tl.int32, tl.uint32, tl.int64, tl.float16, tl.float32, tl.float64)
NUMBERS = (0, 2, -3, 2**31, -(2**31), 2**40, 2**63, 0.5, -0.0, 1e300, float("inf"), True)
SHAPES = ((), (4,), (2, 4), (8,))


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@triton.jit
def _kernel() -> None:
    """Do nothing. The fixture patches `triton.language` for this kernel, as a launch does."""
    tl.static_assert(True)


@pytest.fixture
def semantic() -> Iterator[TritonSemantic[Any]]:
    """Return Triton's semantics, with the language as it is during a launch."""
    scope = interpreter._patch_lang(_kernel.fn)
    yield TritonSemantic(interpreter.interpreter_builder)
    scope.restore()


def tensor_of(dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor of a dtype and shape; a scalar's handle has one element."""
    data = np.ones(shape or (1,), dtype=interpreter._get_np_dtype(dtype))
    type_ = tl.block_type(dtype, list(shape)) if shape else dtype
    return tl.tensor(interpreter.TensorHandle(data, dtype), type_)


def outcome(function: Any, *args: Any) -> Any:
    """Return the types and numbers of the result, or the type of the error."""
    try:
        found = function(*args)
    except Exception as error:
        return type(error)
    return types_and_numbers(found if isinstance(found, tuple) else (found,))


def types_and_numbers(tensors: Any) -> list[Any]:
    """Return everything that a kernel could tell apart in these tensors."""
    return [
        (
            *(str(x.type), str(x.dtype), [size.value for size in x.shape], x.numel.value),
            *(x.handle.data.dtype, x.handle.data.tolist(), str(x.handle.dtype)),
        )
        for x in tensors
    ]


def operands() -> list[Any]:
    """Return tensors of all types and shapes, pointers, and numbers."""
    kinds = (*TYPES, tl.bfloat16, tl.pointer_type(tl.float32))
    return [*(tensor_of(kind, shape) for kind in kinds for shape in SHAPES), *NUMBERS]


@inside_interpreter
@pytest.mark.parametrize(
    "options",
    [
        # allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        (False, False, True, False),
        (True, True, True, False),
        (False, False, True, True),
        (False, False, False, True),
    ],
)
def test_operands_are_converted_as_triton_does(
    semantic: TritonSemantic[Any], options: tuple[bool, ...]
) -> None:
    fast = TritonSemantic.binary_op_type_checking_impl
    for left, right in product(operands(), operands()):
        found = outcome(fast, semantic, left, right, *options)
        assert found == outcome(fast.__wrapped__, semantic, left, right, *options), (left, right)


@inside_interpreter
def test_tensors_are_broadcast_and_converted_as_triton_does(
    semantic: TritonSemantic[Any],
) -> None:
    broadcast, cast = TritonSemantic.broadcast_impl_value, TritonSemantic.cast
    tensors = [each for each in operands() if isinstance(each, tl.tensor)]
    for left, right in product(tensors, tensors):
        found = outcome(broadcast, semantic, left, right)
        assert found == outcome(broadcast.__wrapped__, semantic, left, right), (left, right)
    for tensor, dtype in product(tensors, TYPES):
        found = outcome(cast, semantic, tensor, dtype)
        assert found == outcome(cast.__wrapped__, semantic, tensor, dtype), (tensor, dtype)


@triton.jit
def larger(x, y):  # type: ignore[no-untyped-def]
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def last(x, y):  # type: ignore[no-untyped-def]
    """Return the second of two values, so that the order of a reduction matters."""
    return y + 0


@inside_interpreter
@pytest.mark.usefixtures("semantic")
@pytest.mark.parametrize("combine", [larger, last], ids=["larger", "last"])
def test_blocks_are_reduced_as_triton_does(combine: Any) -> None:
    numbers = np.random.default_rng(0).integers(-100, 100, 64)
    for kind, axis, keep in product(TYPES[2:], (None, 0, 1, 2), (False, True)):
        block = tensor_of(kind, (4, 1, 16))
        block.handle.data[:] = numbers.reshape(4, 1, 16)
        if kind.is_floating():
            block.handle.data[1, 0, 7] = np.nan
        fast = interpreter.ReduceOps.generic_reduce
        reduction = interpreter.ReduceOps(axis, combine, keep)
        found, expected = (f(reduction, (block,)) for f in (fast, fast.__wrapped__))
        same = repr(types_and_numbers(found)) == repr(types_and_numbers(expected))
        assert same, (kind, axis, keep)


NAMES = "add sub mul truediv radd rsub rmul rtruediv and or lt le gt ge eq ne"
OPERATORS = [f"__{name}__" for name in NAMES.split()]
ORIGINALS = {name: getattr(tl.tensor, name).__wrapped__ for name in OPERATORS}
LOAD, STORE = tl.load.__wrapped__, tl.store.__wrapped__


@inside_interpreter
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_answer_as_triton_does_at_every_call(
    semantic: TritonSemantic[Any], name: str
) -> None:
    kinds = (tl.int1, tl.int32, tl.int64, tl.float16, tl.float64, tl.pointer_type(tl.float32))
    tensors = [tensor_of(kind, shape) for kind in kinds for shape in SHAPES[:3]]
    for index, tensor in enumerate(tensors):
        tensor.handle.data = (tensor.handle.data * (index + 2)).astype(tensor.handle.data.dtype)
    for left, right in product(tensors, [*tensors, 0, 3, 2**31, -0.0, 0.5, float("nan"), True]):
        expected = outcome(ORIGINALS[name], left, right, semantic)
        for _ in range(2):  # the second call reuses the types that the first call got from Triton
            found = outcome(getattr(tl.tensor, name), left, right)
            assert repr(found) == repr(expected), (left, right)


@inside_interpreter
@pytest.mark.parametrize("masked", [False, True])
def test_loads_and_stores_read_and_write_as_triton_does(
    semantic: TritonSemantic[Any], masked: bool
) -> None:
    memory, triton_memory = np.arange(8.0), np.arange(8.0)
    block = tl.block_type(tl.pointer_type(tl.float64), [4])
    mask = tensor_of(tl.int1, (4,)) if masked else None
    if mask is not None:
        mask.handle.data[2] = False
    for step in range(3):
        offsets = 8 * (step + np.arange(4)).astype(np.uint64)
        blocks = []
        for start in (memory.ctypes.data, triton_memory.ctypes.data):
            addresses = interpreter.TensorHandle(offsets + np.uint64(start), block.element_ty)
            blocks.append(tl.tensor(addresses, block))
        pointers, triton_pointers = blocks
        found, expected = tl.load(pointers, mask), LOAD(triton_pointers, mask, _semantic=semantic)
        assert types_and_numbers([found]) == types_and_numbers([expected])
        tl.store(pointers, found * 2, mask)
        STORE(triton_pointers, expected * 2, mask, _semantic=semantic)
        assert memory.tolist() == triton_memory.tolist()
