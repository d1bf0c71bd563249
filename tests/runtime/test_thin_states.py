"""Test thin states at run time: shapes, changed ranks, checkpoints, views, and refusals."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from spec_files import spec_file
from spec_texts import LR, spec
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.spec import Spec

SHAPES = ((4, 3), (2, 3, 5), (1, 6), (3, 4))
Dion: Any = optgen.load(spec_file("dion"))
GaLore: Any = optgen.load(spec_file("galore"))


def parameters(dtype: torch.dtype = torch.float64, shapes: Any = SHAPES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def params_of(optimizer: Any) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def step(optimizer: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param in params_of(optimizer):
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
    optimizer.step()


def state_shapes(optimizer: Any, key: str) -> list[tuple[int, ...]]:
    """Return the shapes of a state, one for each parameter."""
    return [tuple(optimizer.state[p][key].shape) for p in params_of(optimizer)]


def test_the_rank_is_at_most_the_number_of_rows_and_of_columns() -> None:
    for rank, expected in (
        (1, [(3, 1), (2, 5, 1), (6, 1), (4, 1)]),
        (2, [(3, 2), (2, 5, 2), (6, 1), (4, 2)]),
        (768, [(3, 3), (2, 5, 3), (6, 1), (4, 3)]),
    ):
        optimizer = Dion(parameters(), rank=rank)
        step(optimizer, 1)
        assert state_shapes(optimizer, "Q") == expected


def test_tall_and_wide_parameters_have_different_states() -> None:
    optimizer = GaLore(parameters(shapes=((5, 4), (4, 5), (4, 4))), rank=2)
    step(optimizer, 1)
    tall, wide, square = (
        {key: tuple(value.shape) for key, value in optimizer.state[p].items() if key != "step"}
        for p in params_of(optimizer)
    )
    assert tall == {"right_vectors": (4, 2), "exp_avg": (5, 2), "exp_avg_sq": (5, 2)}
    assert wide == {"left_vectors": (4, 2), "exp_avg_wide": (2, 5), "exp_avg_sq_wide": (2, 5)}
    assert square == {"right_vectors": (4, 2), "exp_avg": (4, 2), "exp_avg_sq": (4, 2)}


def test_parameters_of_one_shape_draw_different_numbers() -> None:
    optimizer = Dion(parameters(shapes=((4, 3), (4, 3))))
    for param in params_of(optimizer):
        param.grad = torch.zeros_like(param)
    optimizer.step()
    step(optimizer, 1)
    first, second = (optimizer.state[p]["Q"] for p in params_of(optimizer))
    assert not torch.equal(first, second)


def test_each_group_may_have_a_rank() -> None:
    first, second = parameters(shapes=((4, 5), (4, 5)))
    optimizer = Dion([{"params": [first], "rank": 1}, {"params": [second]}], rank=3)
    step(optimizer, 1)
    assert state_shapes(optimizer, "Q") == [(5, 1), (5, 3)]


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_a_changed_rank_is_an_error(lowering: Any) -> None:
    optimizer = Dion(parameters(), rank=2)
    with use_lowering(lowering):
        step(optimizer, 1)
        step(optimizer, 2)
        before = [p.detach().clone() for p in params_of(optimizer)]
        optimizer.param_groups[0]["rank"] = 3
        message = r"Q has the shape \(3, 2\), but rank=3 and the shape \(4, 3\) of its parameter"
        with pytest.raises(RuntimeError, match=rf"{message} ask for \(3, 3\); a rank holds"):
            step(optimizer, 3)
        assert all(map(torch.equal, params_of(optimizer), before))
        optimizer.param_groups[0]["rank"] = 2
        step(optimizer, 3)


def test_a_changed_rank_without_effect_is_accepted() -> None:
    optimizer = Dion(parameters(), rank=5)
    step(optimizer, 1)
    optimizer.param_groups[0]["rank"] = 7
    step(optimizer, 2)


@pytest.mark.parametrize("rank", [0, 2.5, -1, float("inf"), float("nan")])
def test_an_invalid_rank_is_an_error_of_the_constructor(rank: Any) -> None:
    with pytest.raises(ValueError, match="Invalid rank value"):
        Dion(parameters(), rank=rank)


@pytest.mark.parametrize("rank", [0, 2.5, float("nan"), torch.tensor(2), "2", None])
def test_an_invalid_rank_of_a_group_is_an_error_of_a_step(rank: Any) -> None:
    optimizer = Dion(parameters(), rank=2)
    optimizer.param_groups[0]["rank"] = rank
    for seed in (1, 2):
        before = [p.detach().clone() for p in params_of(optimizer)]
        with pytest.raises(ValueError, match="rank must be a whole number of at least 1"):
            step(optimizer, seed)
        assert all(map(torch.equal, params_of(optimizer), before))
        optimizer.param_groups[0]["rank"] = 2
        step(optimizer, seed)
        optimizer.param_groups[0]["rank"] = rank


def test_a_whole_float_is_a_rank() -> None:
    optimizer = Dion(parameters(), rank=2.0)
    step(optimizer, 1)
    assert state_shapes(optimizer, "Q")[0] == (3, 2)


@pytest.mark.parametrize("cls", [Dion, GaLore], ids=["Dion", "GaLore"])
def test_copies_and_checkpoints_take_the_same_next_step(cls: Any) -> None:
    optimizer = cls(parameters(), rank=2)
    step(optimizer, 1)
    other = cls([p.detach().clone().requires_grad_() for p in params_of(optimizer)], rank=7)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each in (optimizer, other, copy.deepcopy(optimizer)):
        step(each, 2)
        for ours, theirs in zip(params_of(each), params_of(optimizer), strict=True):
            assert torch.equal(ours, theirs)


def test_cpp_takes_the_rule() -> None:
    optimizer = Dion(parameters())
    step(optimizer, 1)
    assert "fused C++: CPU tensors, float64; torch computes" in str(optgen.explain(optimizer))
    step(Dion(parameters(), fused=True), 1)


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_a_viewed_matrix_takes_the_step_of_a_stack_of_matrices(lowering: Any) -> None:
    (whole,) = parameters(shapes=((3, 4, 5),))
    flat = whole.detach().reshape(12, 5).requires_grad_()
    ours = Dion([{"params": [flat], "view": (3, 4, 5)}], rank=2)
    theirs = Dion([whole], rank=2)
    with use_lowering(lowering):
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            whole.grad = torch.randn(whole.shape, generator=generator, dtype=torch.float64)
            flat.grad = whole.grad.reshape(12, 5)
            ours.step()
            theirs.step()
    assert ours.state[flat]["Q"].shape == (3, 5, 2)
    torch.testing.assert_close(flat.reshape(3, 4, 5), whole, rtol=0, atol=1e-12)


def test_states_of_another_view_are_refused() -> None:
    (flat,) = parameters(shapes=((12, 5),))
    optimizer = Dion([{"params": [flat], "view": (3, 4, 5)}], rank=2)
    step(optimizer, 1)
    optimizer.param_groups[0]["view"] = (2, 6, 5)
    with pytest.raises(RuntimeError, match="give the group the view that the state was made with"):
        step(optimizer, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("cls", [Dion, GaLore], ids=["Dion", "GaLore"])
def test_steps_in_low_precision_compute_in_float32(cls: Any, dtype: torch.dtype) -> None:
    in_low_precision = cls(parameters(dtype), rank=2)
    in_float32 = cls(
        [p.detach().float().requires_grad_() for p in params_of(in_low_precision)], rank=2
    )
    generator = torch.Generator().manual_seed(5)
    for param, float32_param in zip(
        params_of(in_low_precision), params_of(in_float32), strict=True
    ):
        param.grad = torch.randn(param.shape, generator=generator).to(dtype)
        float32_param.grad = param.grad.float()
    in_low_precision.step()
    in_float32.step()
    for param, float32_param in zip(
        params_of(in_low_precision), params_of(in_float32), strict=True
    ):
        assert torch.equal(param, float32_param.to(dtype))


def test_parameters_of_any_dtype_may_have_float32_states() -> None:
    text = spec(
        'require(ndim(p) == 2, "{shape}")',
        "Q = transpose(g) @ g @ Q",
        "p = p - lr * g @ Q @ transpose(Q)",
        states='Q=state("Q", shape=("cols", "rank"), dtype="float32", init=1)',
        hypers=f"{LR}, rank=hyper(2, ge=1)",
    )
    cls: Any = optgen.load(Spec("Made", text, "made.py", 1))
    for dtype in (torch.bfloat16, torch.float64):
        optimizer = cls(parameters(dtype, ((3, 2), (4, 2))))
        step(optimizer, 1)
        assert {optimizer.state[p]["Q"].dtype for p in params_of(optimizer)} == {torch.float32}


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_a_gradient_of_nan_does_not_reach_other_parameters(lowering: Any) -> None:
    for cls in (Dion, GaLore):
        optimizers = [cls(parameters(), rank=2) for _ in range(2)]
        for optimizer in optimizers:
            step(optimizer, 1)
        with_nan, without_nan = optimizers
        for optimizer in optimizers:
            generator = torch.Generator().manual_seed(2)
            for param in params_of(optimizer):
                param.grad = torch.randn(param.shape, generator=generator, dtype=param.dtype)
        params_of(with_nan)[0].grad[0, 0] = torch.nan  # type: ignore[index]
        for optimizer in optimizers:
            optimizer.param_groups[0]["update_proj_gap"] = 1
            with use_lowering(lowering):
                optimizer.step()
        assert params_of(with_nan)[0].isnan().all()
        for param, expected in zip(
            params_of(with_nan)[1:], params_of(without_nan)[1:], strict=True
        ):
            torch.testing.assert_close(param, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("cls", [Dion, GaLore], ids=["Dion", "GaLore"])
def test_a_matrix_without_elements_is_stepped(cls: Any) -> None:
    for shape in ((0, 3), (3, 0), (2, 0, 4), (0, 2, 2)):
        optimizer = cls(parameters(shapes=(shape, shape)))
        for lowering in ("forloop", "foreach"):
            with use_lowering(lowering):  # type: ignore[arg-type]
                step(optimizer, 1)


def test_docstrings_say_the_shapes_of_thin_states() -> None:
    docstring = " ".join(Dion.__doc__.split())
    assert "rank (float): Rank of thin matrices, a whole number, at least 1." in docstring
    assert "for each matrix of the parameter one of shape (cols, rank), at first 0" in docstring
    assert "only where it has no fewer rows than columns" in " ".join(GaLore.__doc__.split())
