"""A quantized state: a tensor whose memory holds a code for each element, and scales of blocks.

A block is a run of consecutive elements in memory, whatever the strides. The scales follow the
codes, at a multiple of 64 bytes, so a kernel finds them from the address of the tensor.

A scale is the largest magnitude of a block. A code is the sign and a number c from 0 to 127, which
stands for a share of the scale. For the map "linear", the share is c / 127. For "dynamic", shares
lie closer together the smaller they are: (c + 1) / 128 is about the fourth root of the share. The
root is computed from the bits of the share as a float32, which are roughly its logarithm: the bits
are divided by 4, and a constant is added. So no lowering needs a table, and all lowerings compute
equal codes. There is an exception: with a linear map, a GPU may fuse a product and a sum into one
rounding. If two codes are equally near, the GPU may then choose the other code.

For the map "e4m3", a code is a number of float8_e4m3fn, with its sign in the top bit. The largest
such number is 448, so the scale is the largest magnitude divided by 448. The codes are those of
OptimStateFp8 in torchao.optim.

For the map "dynamic4", codes have 4 bits, and two of them share a byte: the first has the high
bits. Beside a sign, there are 8 shares as those of "dynamic". In a block without negative numbers,
such as one of a mean of squares, all 4 bits are c, the share is c / 15, and the scale is stored
negated. No byte belongs to two blocks, because blocks have even numbers of elements.

A number gets the nearest code. In a block without negative numbers, numbers that are not 0 get at
least code 1, so that a rule can divide by them.

Blocks whose largest magnitude is below `SMALLEST_SCALE` become zeros. If the largest magnitude is
NaN, or `TOO_LARGE_SCALE` or more, the scale becomes NaN, and so do all numbers of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from optgen.contract.constants import SMALLEST_SCALE, TOO_LARGE_SCALE
from optgen.contract.quantization import CODE_MAPS
from optgen.runtime.tensors.dtensor import is_dtensor
from optgen.runtime.torch_private import call_ignoring_overrides, dtensor_spec, local_tensor

_ALIGNMENT = 64  # in bytes
# Names of torch's functions that see the memory of the codes. All other functions see numbers,
# except those in `_COPYING_FUNCTIONS`.
_MEMORY_FUNCTIONS = frozenset(
    [
        "data_ptr",
        "numel",
        "nelement",
        "size",
        "dim",
        "ndimension",
        "storage_offset",
        "untyped_storage",
        "element_size",
        "is_inference",
        "is_neg",
        "is_conj",
        "is_complex",
        "is_floating_point",
        "has_names",
        "get_device",
        "is_shared",
        "__len__",
        "__hash__",
        "__dir__",
        "_is_view",
        "_has_symbolic_sizes_strides",
    ]
)
# Names of functions that ask about strides. Packed codes do not have those of their elements.
_STRIDE_FUNCTIONS = frozenset({"stride", "is_contiguous"})
# Names of attributes that are tensors of numbers.
_NUMBER_ATTRIBUTES = frozenset({"data", "T", "H", "mT", "mH", "real", "imag"})
# Names of functions that copy or move codes.
_COPYING_FUNCTIONS = frozenset({"clone", "cpu", "cuda", "pin_memory", "share_memory_"})


class QuantizedTensor(Tensor):
    """A tensor of codes of 8 or 4 bits; computations see the float32 numbers that they stand for.

    An operation in place, such as `copy_` or `mul_`, encodes its result. `dequantize` returns the
    numbers, and `clone`, `cpu` and `cuda` keep the codes. The dtype is int8, that of the memory.
    """

    _format: tuple[int, str]  # `block` and `map`, which never change: kernels rely on it
    _memory: Tensor  # the codes, then the scales
    _layout: Tensor  # without memory; its strides are those of the elements

    @classmethod
    def _over(
        cls, memory: Tensor, size: Sequence[int], stride: Sequence[int], block: int, code_map: str
    ) -> QuantizedTensor:
        """Return a tensor over memory that holds codes, then scales."""
        is_packed = CODE_MAPS[code_map].bits < 8  # then memory has no byte for each element
        memory_stride = [0] * len(size) if is_packed else stride
        tensor = Tensor._make_subclass(cls, memory.as_strided(size, memory_stride))
        tensor._memory, tensor._format = memory, (block, code_map)
        tensor._layout = torch.empty_strided(size, stride, dtype=torch.int8, device="meta")
        return tensor

    @classmethod
    def zeros_like(cls, like: Tensor, block: int, code_map: str) -> QuantizedTensor:
        """Return zeros with the shape of a tensor, and with its strides if it is dense."""
        num_bytes = code_bytes(like.numel(), block, code_map)
        memory = torch.zeros(num_bytes, dtype=torch.int8, device=like.device)
        stride = torch.empty_like(like, device="meta").stride()
        return cls._over(memory, like.shape, stride, block, code_map)

    @property
    def block(self) -> int:
        """The elements that share a scale."""
        return self._format[0]

    @property
    def map(self) -> str:
        """The map from codes to shares of their scale: a key of `CODE_MAPS`."""
        return self._format[1]

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """The bytes of the codes and the scales."""
        return self._memory.nbytes

    @property
    def codes(self) -> Tensor:
        """The codes, an int8 tensor over the same memory; flat if they lie in pairs."""
        if CODE_MAPS[self.map].bits < 8:
            return self._memory[: _bytes_of_codes(self.numel(), self.map)]
        return self._memory.as_strided(self.size(), self.stride())

    @property
    def scales(self) -> Tensor:
        """The scales of the blocks, a float32 tensor over the same memory.

        If codes have 4 bits, a block without negative numbers has a negative scale.
        """
        first = _padded(_bytes_of_codes(self.numel(), self.map))
        return self._memory[first:].view(torch.float32)

    @torch.no_grad()
    def dequantize(self) -> Tensor:
        """Return the numbers, a new float32 tensor."""
        count = self.numel()
        codes = self._memory[: _bytes_of_codes(count, self.map)]
        numbers = decode(codes, self.scales, self.block, self.map, count)
        return numbers.as_strided(self.size(), self.stride())

    @torch.no_grad()
    def quantize_(self, values: Tensor) -> QuantizedTensor:
        """Encode the values of a tensor of the same shape."""
        if tuple(values.shape) != tuple(self.shape):
            raise RuntimeError(f"shape {tuple(values.shape)} does not fit {tuple(self.shape)}")
        stride, count = self.stride(), self.numel()
        if values.dtype != torch.float32 or values.stride() != stride:
            converted = torch.empty_strided(
                values.shape, stride, dtype=torch.float32, device=self.device
            )
            values = converted.copy_(values)
        numbers = values.detach().as_strided((count,), (1,))
        codes, scales = encode(numbers, self.block, self.map)
        self._memory[: codes.numel()].copy_(codes)
        self.scales.copy_(scales)
        return self

    def view_codes(self, size: Sequence[int]) -> QuantizedTensor:
        """Return a quantized view in another shape; raise a `RuntimeError` if there is none."""
        view = self._layout.view(size)
        return self._over(self._memory, view.shape, view.stride(), self.block, self.map)

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedTensor:
        copy = memo[id(self)] = self._with_memory(self._memory.clone())
        return copy

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        arguments = (self._memory, tuple(self.size()), self.stride(), self.block, self.map)
        return QuantizedTensor._over, arguments

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"QuantizedTensor({self.dequantize()}, block={self.block}, map={self.map!r})"

    def _with_memory(self, memory: Tensor) -> QuantizedTensor:
        return self._over(memory, self.size(), self.stride(), self.block, self.map)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Apply a function of torch to the numbers; to the memory if the function asks about it."""
        return apply_to_numbers(func, types, args, kwargs or {})


def code_bytes(count: int, block: int, code_map: str) -> int:
    """Return the bytes of the codes and scales of so many elements."""
    return _padded(_bytes_of_codes(count, code_map)) + 4 * -(-count // block) if count else 0


def _bytes_of_codes(count: int, code_map: str) -> int:
    return -(-count * CODE_MAPS[code_map].bits // 8)


def apply_to_numbers(
    func: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Apply a function of torch to the numbers of quantized tensors and quantized DTensors.

    A function that asks about memory, or copies it, is applied to the memory.
    """
    name = func.__name__
    if func == _SET_DATA:  # two wrappers of a method are equal, but not identical
        return args[0].quantize_(_numbers_for_data(args[0], args[1]))
    if _asks_memory(func):
        return call_ignoring_overrides(func, types, args, kwargs)
    if name in _STRIDE_FUNCTIONS:
        layout = getattr(args[0], "_layout", None)  # a DTensor has strides of its own
        asked = args if layout is None else (layout, *args[1:])
        return call_ignoring_overrides(func, types, asked, kwargs)
    if _keeps_codes(name, args, kwargs):
        memory = getattr(args[0]._memory, name)(*args[1:], **kwargs)
        return args[0]._with_memory(memory)
    if _holds_codes(kwargs.get("out")):
        raise TypeError("a quantized tensor cannot be `out`: copy the result into it")
    values = _with_numbers(args)
    result = func(*values, **{key: _with_numbers(value) for key, value in kwargs.items()})
    if _is_in_place(name):
        _write(args[0], values[0])
        return args[0]
    return result


_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_IN_PLACE_OPERATORS = frozenset(
    {
        *("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__"),
        *("__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
    }
)


@cache
def _asks_memory(func: Any) -> bool:
    """Tell whether a function asks about memory, or about an attribute that is no tensor."""
    if func.__name__ == "__get__":
        return func.__self__.__name__ not in _NUMBER_ATTRIBUTES
    return func.__name__ in _MEMORY_FUNCTIONS or func.__name__ == "__set__"


def _padded(count: int) -> int:
    """Return the first multiple of the alignment that is at least `count`."""
    return -(-count // _ALIGNMENT) * _ALIGNMENT


def _keeps_codes(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Tell whether a function copies or moves memory, and converts nothing."""
    if not args or not is_quantized(args[0]):
        return False
    if name == "to":
        arguments = (*args[1:], *kwargs.values())
        return not any(isinstance(each, torch.dtype | Tensor) for each in arguments)
    return name in _COPYING_FUNCTIONS


def _numbers_for_data(tensor: QuantizedTensor, values: Tensor) -> Tensor:
    """Return the numbers to assign to `tensor.data`; raise a RuntimeError for another device."""
    if values.device != tensor.device:
        raise RuntimeError(
            f"the data of a quantized tensor stays on {tensor.device}: put a new tensor, "
            "`tensor.to(device)`, into the state"
        )
    numbers: Tensor = to_numbers(values)
    return numbers


def _holds_codes(out: Any) -> bool:
    tensors = out if isinstance(out, list | tuple) else (out,)
    return any(map(is_quantized, tensors))


def _is_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE_OPERATORS


def _with_numbers(value: Any) -> Any:
    """Return a value with numbers in place of quantized tensors, in lists and tuples too."""
    if is_quantized(value):
        return to_numbers(value)
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)([_with_numbers(each) for each in value])
    return value


def _write(target: Any, values: Any) -> None:
    """Encode values in a quantized tensor, or in those of a list; leave other tensors alone."""
    if is_quantized(target):
        target.quantize_(values)
    elif isinstance(target, list | tuple):
        for each, each_values in zip(target, values, strict=True):
            _write(each, each_values)


def is_quantized(value: Any) -> bool:
    """Tell whether a value is a quantized tensor, or a DTensor with quantized local tensors."""
    local = local_tensor(value) if is_dtensor(type(value)) else value
    return isinstance(local, QuantizedTensor)


def to_numbers(value: Any) -> Any:
    """Return the numbers of a quantized tensor or a quantized DTensor; any other value itself."""
    if isinstance(value, QuantizedTensor):
        return value.dequantize()
    return _with_local(value, local_tensor(value).dequantize()) if is_quantized(value) else value


def _with_local(like: Any, local: Tensor) -> Tensor:
    """Return a DTensor over a local tensor, with the mesh and placements of another DTensor."""
    from torch.distributed.tensor import DTensor

    tensor: Tensor = DTensor(local, spec_like(like, local.dtype), requires_grad=False)
    return tensor


def spec_like(like: Any, dtype: torch.dtype) -> Any:
    """Return the sharding spec of a DTensor, with another dtype."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    spec = dtensor_spec(like)
    return DTensorSpec(spec.mesh, spec.placements, TensorMeta(like.shape, like.stride(), dtype))


_ONE = 0x3F800000  # the bits of 1.0
_ROOT_OFFSET = _ONE - (_ONE >> 2)  # the bits of a fourth root, less a quarter of the number's bits


def encode(numbers: Tensor, block_size: int, code_map: str) -> tuple[Tensor, Tensor]:
    """Return the int8 codes of a flat float32 tensor, and the float32 scales of its blocks.

    Codes of 4 bits are in pairs; an odd last one is followed by a code of 0.
    """
    count = numbers.numel()
    blocks = pad(numbers, (0, -count % block_size)).view(-1, block_size)
    magnitudes = blocks.abs()
    largest = magnitudes.amax(dim=1, keepdim=True) if count else blocks.new_zeros((0, 1))
    are_in_range = (largest >= SMALLEST_SCALE) & (largest < TOO_LARGE_SCALE)
    scales = largest / CODE_MAPS[code_map].largest
    has_signs = blocks.signbit().any(dim=1, keepdim=True)
    min_code_is_1 = ~has_signs & (blocks > 0)
    inverses = torch.where(are_in_range, scales, 1.0).reciprocal_()
    if code_map == "dynamic4":  # a number times the inverse is c or the share
        inverses = torch.where(has_signs, inverses, 15 / torch.where(are_in_range, scales, 1.0))
    shares = magnitudes.mul_(inverses)
    codes = torch.maximum(_magnitude_codes(shares, code_map, has_signs), min_code_is_1)
    if code_map == "dynamic4":
        codes = codes + 8 * blocks.signbit()
        scales = torch.where(has_signs, scales, -scales)
    elif code_map == "e4m3":
        codes = codes - 128 * blocks.signbit()
    else:
        codes = codes.copysign(blocks)
    codes = torch.where(are_in_range, codes, 0.0).to(torch.int8).view(-1)
    if CODE_MAPS[code_map].bits == 4:
        pairs = codes[: count + count % 2].view(-1, 2)
        codes = pairs[:, 0] << 4 | pairs[:, 1]
    are_finite = largest < TOO_LARGE_SCALE
    stored_scales = torch.where(are_in_range, scales, torch.where(are_finite, 0.0, torch.nan))
    return codes[: _bytes_of_codes(count, code_map)], stored_scales.view(-1)


def _magnitude_codes(shares: Tensor, code_map: str, has_signs: Tensor) -> Tensor:
    """Return the codes of shares without their signs; overwrite the shares.

    In blocks of "dynamic4" without negative numbers, shares are multiplied by 15.
    """
    if code_map == "e4m3":
        return shares.to(torch.float8_e4m3fn).view(torch.int8)
    if code_map == "linear":
        return shares.mul_(127).round_()
    roots = (shares.view(torch.int32) >> 2).add_(_ROOT_OFFSET).view(torch.float32)
    codes = roots.mul_(128 if code_map == "dynamic" else 8).round_().sub_(1).clamp_(min=0)
    return codes if code_map == "dynamic" else torch.where(has_signs, codes, shares.round_())


def decode(codes: Tensor, scales: Tensor, block_size: int, code_map: str, count: int) -> Tensor:
    """Return the float32 numbers that `count` codes and the scales of their blocks stand for."""
    scales = scales[:, None]
    if code_map == "e4m3":
        codes = codes.view(torch.float8_e4m3fn)
    elif code_map == "dynamic4":
        codes = torch.stack([codes >> 4 & 15, codes & 15], dim=-1).view(-1)
    numbers = pad(codes.to(torch.float32), (0, -len(codes) % block_size)).view(-1, block_size)
    if code_map == "e4m3":
        shares = numbers
    elif code_map == "linear":
        shares = numbers.mul_(1 / 127)
    elif code_map == "dynamic":
        shares = _fourth_powers(numbers.abs(), 128).copysign_(numbers)
    else:
        is_negative = numbers >= 8
        with_signs = _fourth_powers(numbers - 8 * is_negative, 8)
        with_signs = torch.where(is_negative, -with_signs, with_signs)
        shares, scales = torch.where(scales < 0, numbers * (1 / 15), with_signs), scales.abs()
    return shares.mul_(scales).view(-1)[:count]


def _fourth_powers(codes: Tensor, levels: int) -> Tensor:
    """Return the shares of codes of 0 and more in a dynamic map."""
    roots = (codes + 1).div_(levels).view(torch.int32)
    shares = ((roots - _ROOT_OFFSET) << 2).view(torch.float32)
    return torch.where(codes == 0, 0.0, shares)
