"""Patch Triton's interpreter during our launches, so that it computes as devices do.

The interpreter stores bfloat16 values as their bits. It converts them from and to float32 only, and
truncates where devices round. In any other conversion it takes the bits for a number, so a float64
stored as bfloat16 is nearly always 0. It also converts a boolean to a number when it broadcasts the
boolean to a block, and `&` and `|` refuse numbers. After a launch, the patch is undone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any

import torch

_lock = RLock()  # all threads share the interpreter's builder class


@contextmanager
def patched_interpreter() -> Iterator[None]:
    """Patch the interpreter in this context, in which infinities and NaN cause no warning."""
    from triton.runtime import interpreter

    builder, patches = interpreter.InterpreterBuilder, _patches()
    with _lock, interpreter.np.errstate(all="ignore"):
        originals = {name: getattr(builder, name) for name in patches}
        for name, function in patches.items():
            setattr(builder, name, function)
        try:
            yield
        finally:
            for name, function in originals.items():
                setattr(builder, name, function)


@cache
def _patches() -> dict[str, Callable[..., Any]]:
    """Return the patched methods of the interpreter's builder by name."""
    from triton import language as tl
    from triton.runtime import interpreter

    builder, np = interpreter.InterpreterBuilder, interpreter.np
    new_handle = interpreter.TensorHandle
    original_cast, original_splat = builder.cast_impl, builder.create_splat

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar == tl.bfloat16:
            bits = torch.from_numpy(np.array(source.data)).view(torch.bfloat16)
            source = new_handle(bits.double().numpy(), tl.float64)
        if target.scalar == tl.bfloat16:
            rounded_data = torch.from_numpy(np.array(source.data)).bfloat16()
            return new_handle(rounded_data.view(torch.uint16).numpy(), tl.bfloat16)
        return original_cast(self, source, target)

    def create_splat(self: Any, block_type: Any, source: Any) -> Any:
        block = original_splat(self, block_type, source)
        return new_handle(block.data.astype(bool), tl.int1) if source.data.dtype == bool else block

    return {"cast_impl": cast_impl, "create_splat": create_splat}
