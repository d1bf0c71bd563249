"""Choose how many elements of a large tensor are processed at once, so that temporaries stay small.

A piece of a large CPU tensor fits into a core's cache. All operations of the update but the first
then find their operands in the cache, which is 2 to 3.5 times faster than sweeping the whole tensor
once per operation.
"""

from torch import Tensor

CPU_ELEMENTS = 2**18
"""Elements processed at once on the CPU: 1 MiB of float32, which with its states fits into L2."""
DEVICE_BYTES = 60 * 2**20
"""Bytes of all lists of temporaries together, on a device other than the CPU."""


def block_elements(tensor: Tensor, itemsize: int, live_lists: int) -> int:
    """Return how many elements are processed at once on the device of a tensor.

    Args:
        tensor: Any tensor on the device.
        itemsize: Bytes of an element of the widest temporary.
        live_lists: How many lists of temporaries exist at once.
    """
    return CPU_ELEMENTS if tensor.is_cpu else device_elements(itemsize, live_lists)


def device_elements(itemsize: int, live_lists: int) -> int:
    """Return how many elements are processed at once on another device than the CPU."""
    return DEVICE_BYTES // (live_lists * itemsize)
