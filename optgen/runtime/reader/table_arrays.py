"""Allocate the columns of a table of tensors: addresses, sizes, dtypes and groups."""

from array import array

SHAPE_SIZE = 4
"""Number of entries of a parameter's shape in a table: dimensions, matrices, rows, columns."""


class TableArrays:
    """Arrays of a table: addresses, sizes, dtype codes, groups and shapes of tensors.

    `shape` is empty unless `has_shapes`.
    """

    def __init__(self, stream_count: int, tensor_count: int, has_shapes: bool = False) -> None:
        self.address = array("q", bytes(8 * stream_count * tensor_count))
        self.elements = array("q", bytes(8 * tensor_count))
        self.dtypes = array("Q", bytes(8 * tensor_count))
        self.group = array("i", bytes(4 * tensor_count))
        self.shape = array("q", bytes(8 * SHAPE_SIZE * tensor_count * has_shapes))
