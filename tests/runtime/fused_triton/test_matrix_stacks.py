"""Test the memory for operands of matrix ops."""

import torch
from torch import Tensor

from optgen.runtime.fused_triton.matrix_stacks import MatrixStacks, places_of

SHAPES = ((2, 3), (5, 4), (2, 3), (3, 2), (2, 2, 3), (0, 3), (2, 3))
COUNTS = (4, 3)  # of two batches


def stacks_of_matrices() -> tuple[MatrixStacks, list[list[Tensor]]]:
    params = [torch.zeros(shape) for shape in SHAPES]
    stacks = MatrixStacks(params, COUNTS)
    return stacks, stacks.allocate(torch.float32, torch.device("cpu"))


def test_matrices_of_one_shape_in_one_batch_are_one_stack() -> None:
    _, allocated = stacks_of_matrices()

    shapes = [[tuple(stack.shape) for stack in of_batch] for of_batch in allocated]
    assert shapes == [[(2, 2, 3), (1, 5, 4), (1, 3, 2)], [(1, 2, 2, 3), (1, 0, 3), (1, 2, 3)]]


def test_addresses_are_those_of_the_matrices_in_their_order() -> None:
    stacks, allocated = stacks_of_matrices()
    addresses = stacks.addresses(places_of(allocated))

    (both, second, fourth), (fifth, empty, last) = allocated
    order = [both[0], second[0], both[1], fourth[0], fifth[0], empty[0], last[0]]
    nonempty = [i for i, matrix in enumerate(order) if matrix.numel()]
    assert [addresses[i] for i in nonempty] == [order[i].data_ptr() for i in nonempty]
    assert len(addresses) == len(SHAPES)


def test_every_matrix_is_contiguous_and_begins_where_16_elements_do() -> None:
    _, allocated = stacks_of_matrices()
    matrices = [matrix for of_batch in allocated for stack in of_batch for matrix in stack]

    assert all(matrix.is_contiguous() for matrix in matrices)
    assert all(matrix.storage_offset() % 16 == 0 for matrix in matrices)
    for number, matrix in enumerate(matrices):
        matrix.fill_(number)
    assert all((matrix == number).all() for number, matrix in enumerate(matrices))
