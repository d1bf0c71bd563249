"""A DTensor whose local tensors hold codes. Import it only where a DTensor exists."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from optgen.runtime.tensors.dtensor import is_dtensor, placement_text, same_sharding
from optgen.runtime.tensors.quantized import QuantizedTensor, apply_to_numbers, to_numbers
from optgen.runtime.torch_private import local_tensor


class QuantizedDTensor(DTensor):
    """A sharded tensor of codes; any computation sees a DTensor of float32 numbers.

    An operation in place encodes its result. `full_tensor`, `to_local` and `redistribute` return
    numbers, and `clone` keeps the codes. The dtype is int8, that of the codes.
    """

    _local_tensor: QuantizedTensor

    @property
    def _memory(self) -> Tensor:
        return self._local_tensor._memory

    def _with_memory(self, memory: Tensor) -> QuantizedDTensor:
        return over_local(self._local_tensor._with_memory(memory), self._spec)

    def dequantize(self) -> Tensor:
        """Return the numbers, a DTensor in float32."""
        numbers: Tensor = to_numbers(self)
        return numbers

    def quantize_(self, values: Tensor) -> QuantizedDTensor:
        """Encode the values of a DTensor with the same placements."""
        if not (is_dtensor(type(values)) and same_sharding(self, values)):
            raise RuntimeError(
                f"a quantized state is a {placement_text(self)}, and cannot hold a "
                f"{placement_text(values)}: give the values the placements of the state"
            )
        self._local_tensor.quantize_(to_numbers(local_tensor(values)))
        return self

    def to_local(self, *args: Any, **kwargs: Any) -> Any:
        """Return the numbers of this rank's shard."""
        return self.dequantize().to_local(*args, **kwargs)  # type: ignore[attr-defined]

    def full_tensor(self, *args: Any, **kwargs: Any) -> Any:
        """Return the numbers of the whole tensor."""
        return self.dequantize().full_tensor(*args, **kwargs)  # type: ignore[attr-defined]

    def redistribute(self, *args: Any, **kwargs: Any) -> Any:
        """Return the numbers with other placements."""
        return self.dequantize().redistribute(*args, **kwargs)  # type: ignore[attr-defined]

    def _refuse_checkpoint(self, *_: Any) -> NoReturn:
        raise TypeError(
            "a sharded quantized state is not saved by itself: save the optimizer's "
            "`state_dict()`, or `dequantize()` of the state"
        )

    __create_write_items__: Any = _refuse_checkpoint
    __create_chunk_list__: Any = _refuse_checkpoint
    __get_tensor_shard__: Any = _refuse_checkpoint

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedDTensor:
        copied = over_local(copy.deepcopy(self._local_tensor, memo), self._spec)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return over_local, (self._local_tensor, self._spec)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"QuantizedDTensor({self._local_tensor}, placements={self._spec.placements})"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Apply a function of torch to the numbers; to the DTensor itself if it asks about that."""
        return apply_to_numbers(func, types, args, kwargs or {})


def over_local(local: QuantizedTensor, spec: DTensorSpec) -> QuantizedDTensor:
    """Return a sharded tensor over this rank's shard."""
    tensor: QuantizedDTensor = QuantizedDTensor(local, spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return tensor
