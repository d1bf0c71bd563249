"""Test that slices and chunks of lists cover every tensor once and stay within their limits."""

import pytest
import torch

from optgen.runtime.eager import parts
from optgen.runtime.eager.parts import chunks


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(parts, "CPU_ELEMENTS", 10)
    monkeypatch.setattr(parts, "DEVICE_BYTES", 160)


def tensors(*shapes):
    return [torch.zeros(shape) for shape in shapes]


def test_a_large_tensor_is_cut_into_views_that_cover_it():
    params, states = tensors((5, 5), (3,)), tensors((5, 5), (3,))

    with torch.no_grad():
        sizes = []
        for param, state in parts.zip_slices(params, states):
            param.add_(1)
            state.sub_(1)
            sizes.append(param.numel())

    assert sizes == [10, 10, 5, 3]
    assert all((p == 1).all() and (s == -1).all() for p, s in zip(params, states, strict=True))


def test_an_empty_list_yields_none():
    pieces = list(parts.zip_slices(tensors((25,), (2,)), [], tensors((25,), (2,))))

    assert len(pieces) == 4
    assert all(middle is None for _, middle, _ in pieces)


def test_parameters_that_require_grad_can_be_changed_through_slices():
    param = torch.nn.Parameter(torch.zeros(25))

    with torch.no_grad():
        for (piece,) in parts.zip_slices([param]):
            piece.fill_(2)

    assert (param == 2).all()


@pytest.mark.parametrize(
    ("param", "sizes"),
    [
        (torch.zeros(5, 6).T, [6] * 5),  # along the columns: each column is contiguous
        (torch.zeros(3, 2, 3, 4).to(memory_format=torch.channels_last), [8] * 9),
        (torch.zeros(4, 10)[::2, ::3], [8]),
        (torch.zeros(1, 26)[:, ::2], [10, 3]),
    ],
    ids=["transposed", "channels last", "small", "a row"],
)
def test_a_tensor_that_is_not_contiguous_is_cut_into_blocks(param, sizes):
    state = torch.zeros(param.shape)

    results = []
    for param_piece, state_piece, nothing in parts.zip_slices([param], [state], []):
        param_piece.add_(1)
        state_piece.sub_(1)
        assert nothing is None
        results.append(param_piece.numel())

    assert results == sizes
    assert (param == 1).all()
    assert (state == -1).all()


def test_sparse_tensors_stay_whole():
    ((piece, _),) = parts.zip_slices(tensors((6, 5)), [torch.zeros(6, 5).to_sparse()])

    assert piece.shape == (6, 5)


def test_chunks_have_at_most_as_many_elements_as_a_slice():
    params = tensors((4,), (4,), (4,), (25,), (1,))

    found = [[t.numel() for t in batch] for (batch,) in chunks(params)]

    assert found == [[4, 4], [4], [10], [10], [5, 1]]


@pytest.mark.parametrize(("dtype", "elements"), [(torch.float16, 20), (torch.float64, 5)])
def test_on_a_device_a_slice_is_limited_in_bytes(dtype, elements):
    """The bytes are those of the widest dtype, because a temporary may have it."""
    params = [torch.zeros(50, dtype=torch.float16, device="meta")]
    states = [torch.zeros(50, dtype=dtype, device="meta")]

    assert max(p.numel() for (p,), _ in chunks(params, states)) == elements
    assert max(p.numel() for (p,), _ in chunks(params, states, live_lists=20)) == elements // 5


def test_chunks_keep_lists_parallel_and_empty_lists_empty():
    params, states = tensors((4,), (25,)), tensors((4,), (25,))

    with torch.no_grad():
        for batch, nothing, same in chunks(params, [], states):
            assert nothing == []
            torch._foreach_add_(batch, 1)
            torch._foreach_add_(same, 1)

    assert all((t == 1).all() for t in params + states)


def test_tensors_without_elements_are_not_left_out():
    assert [len(batch) for (batch,) in chunks(tensors((0,), (3,), (0,)))] == [3]
    assert len(list(parts.zip_slices(tensors((0,), (3,))))) == 2
