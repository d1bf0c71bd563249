"""Test RowWiseAdagrad: steps equal torchrec's rule in plain torch; also states and errors."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen import explain, use_lowering
from optgen.keyed import RowWiseAdagrad
from optgen.optim import Adagrad

LOWERINGS = ("forloop", "foreach", "fused_cpu")
SHAPES = ((6, 5), (1, 300), (7, 1), (3, 0))
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"lr": 0.3, "lr_decay": 0.1, "eps": 1e-3, "initial_accumulator_value": 0.2},
    {"weight_decay": 0.1, "maximize": True},
)


def torchrec_step(p: Tensor, g: Tensor, s: Tensor, t: int, options: dict[str, Any]) -> None:
    """Take one step as torchrec does, in place."""
    g = (-g if options.get("maximize") else g) + options.get("weight_decay", 0) * p
    s += g.pow(2).mean(1, keepdim=True)
    rate = options.get("lr", 1e-2) / (1 + (t - 1) * options.get("lr_decay", 0))
    p.addcdiv_(g, s.sqrt() + options.get("eps", 1e-10), value=-rate)


def tables(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in SHAPES]


@pytest.mark.parametrize("options", OPTIONS, ids=["defaults", "lr_decay", "maximize"])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_training_equals_torchrecs(lowering: str, options: dict[str, Any]) -> None:
    params = tables()
    optimizer = RowWiseAdagrad(params, **options)
    start = options.get("initial_accumulator_value", 0.0)
    expected = [
        (p.detach().clone(), p.new_full((p.shape[0], 1), start, requires_grad=False))
        for p in params
    ]
    for t in range(1, 6):
        for param, (p, s) in zip(params, expected, strict=True):
            param.grad = torch.randn_like(param)
            if p.numel():
                torchrec_step(p, param.grad, s, t, options)
        with use_lowering(lowering):
            optimizer.step()

    for param, (p, s) in zip(params, expected, strict=True):
        torch.testing.assert_close(param.detach(), p, rtol=1e-12, atol=1e-13)
        if p.numel():
            torch.testing.assert_close(optimizer.state[param]["sum"], s, rtol=1e-12, atol=1e-13)
        assert optimizer.state[param]["step"] == 5


def test_a_table_of_one_column_trains_as_with_adagrad() -> None:
    """Each row has one element and its own accumulator, as every element has in Adagrad."""
    ours, theirs = (torch.ones(9, 1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer, reference = RowWiseAdagrad([ours]), Adagrad([theirs])
    for _ in range(3):
        ours.grad = torch.randn(9, 1, dtype=torch.float64)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0)


def test_state_is_made_by_the_constructor() -> None:
    (param, *_) = tables(torch.float32)
    optimizer = RowWiseAdagrad([param], initial_accumulator_value=0.5)
    state = optimizer.state[param]

    assert list(state) == ["step", "sum"]
    assert state["step"] == 0
    assert state["step"].dtype == torch.float32
    assert torch.equal(state["sum"], torch.full((6, 1), 0.5))
    optimizer.share_memory()
    assert state["sum"].is_shared()


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_sparse_gradients_train_as_dense_ones(lowering: str) -> None:
    """A dense gradient of zeros does not change a row, so both trainings are equal."""
    sparse, dense = (torch.ones(8, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    with_sparse, reference = (RowWiseAdagrad([p], lr=0.1, lr_decay=0.2) for p in (sparse, dense))
    for _ in range(4):
        indices = torch.randint(8, (1, 5))
        values = torch.randn(5, 4, dtype=torch.float64)
        sparse.grad = torch.sparse_coo_tensor(indices, values, (8, 4), check_invariants=False)
        dense.grad = sparse.grad.to_dense()
        with use_lowering(lowering):
            with_sparse.step()
            reference.step()

    assert "sparse gradients by the rows they touch" in explain(with_sparse)
    torch.testing.assert_close(sparse, dense, rtol=1e-13, atol=0)
    torch.testing.assert_close(
        with_sparse.state[sparse]["sum"], reference.state[dense]["sum"], rtol=1e-13, atol=0
    )


def test_sparse_gradients_with_decay_or_without_whole_rows_are_refused() -> None:
    table = torch.ones(3, 2, requires_grad=True)
    table.grad = torch.ones(3, 2).to_sparse(1)
    with pytest.raises(RuntimeError, match="weight_decay option is not compatible with sparse"):
        RowWiseAdagrad([table], weight_decay=0.1).step()
    table.grad = torch.ones(3, 2).to_sparse(2)
    with pytest.raises(RuntimeError, match="a sparse gradient must name whole rows"):
        RowWiseAdagrad([table]).step()
    assert torch.equal(table, torch.ones(3, 2))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("lr", "Invalid learning rate: -1"),
        ("lr_decay", "Invalid lr_decay value: -1"),
        ("weight_decay", "Invalid weight_decay value: -1"),
        ("initial_accumulator_value", "Invalid initial_accumulator_value value: -1"),
        ("eps", "Invalid epsilon value: -1"),
    ],
)
def test_invalid_arguments_are_refused(argument: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        RowWiseAdagrad(tables(), **{argument: -1})


def test_parameters_of_one_axis_and_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"parameters of two axes, not torch.Size\(\[3\]\)"):
        RowWiseAdagrad([torch.ones(3)])
    with pytest.raises(TypeError, match="unexpected keyword argument 'lr_deacy'"):
        RowWiseAdagrad(tables(), lr_deacy=0.1)  # type: ignore[call-arg]


def test_an_old_checkpoint_is_loaded_into_an_unpickled_optimizer() -> None:
    """As in torchrec, the step count is a plain number, and groups have no `maximize`."""
    (param, *_) = tables()
    optimizer = RowWiseAdagrad([param], lr=0.5)
    checkpoint = optimizer.state_dict()
    checkpoint["state"][0]["step"] = 3
    del checkpoint["param_groups"][0]["maximize"]
    other = pickle.loads(pickle.dumps(RowWiseAdagrad([param])))
    other.load_state_dict(checkpoint)

    ((_, state),) = other.state.items()
    assert torch.equal(state["step"], torch.tensor(3.0))
    assert other.param_groups[0]["maximize"] is False
