"""Test clipping in one process: it equals torch.nn.utils, and refuses invalid arguments."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from keyed.models import NoOpOptimizer
from torch import Tensor, nn

import optgen.keyed.clipping
import optgen.optim
from optgen.keyed import (
    CombinedOptimizer,
    EmptyFusedOptimizer,
    GradientClipping,
    GradientClippingOptimizer,
    KeyedOptimizerWrapper,
    UpdateInBackward,
)

NORM, VALUE, NONE = GradientClipping.NORM, GradientClipping.VALUE, GradientClipping.NONE
SHAPES = ((3, 4), (), (0,), (5,), (2, 3, 2))


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    torch.manual_seed(0)
    params = {f"p{n}": nn.Parameter(torch.zeros(s, dtype=dtype)) for n, s in enumerate(SHAPES)}
    for param in params.values():
        param.grad = torch.randn_like(param) * 3
    params["none"] = nn.Parameter(torch.zeros(2, dtype=dtype))
    return params


def clipping_only(params: dict[str, Tensor], **options: Any) -> GradientClippingOptimizer:
    """Return an optimizer that clips and does nothing else; its parameters are in two groups."""
    all_params = list(params.values())
    groups = [{"params": all_params[:2]}, {"params": all_params[2:]}]
    return GradientClippingOptimizer(NoOpOptimizer(params, {}, groups), **options)


def gradients(params: dict[str, Tensor]) -> list[Tensor]:
    return [param.grad for param in params.values() if param.grad is not None]


@pytest.mark.parametrize("max_gradient", [0.0, 1.5, 1000.0])
@pytest.mark.parametrize("norm_type", [1, 2.0, 3.5, "inf"])
def test_clipping_by_norm_equals_torchs(norm_type: float | str, max_gradient: float) -> None:
    ours, theirs = parameters(), parameters()
    optimizer = clipping_only(ours, clipping=NORM, max_gradient=max_gradient, norm_type=norm_type)
    optimizer.step()
    non_empty = [p for p in theirs.values() if p.numel()]  # torch has no maximum of no elements
    total = nn.utils.clip_grad_norm_(non_empty, max_gradient, float(norm_type))

    torch.testing.assert_close(gradients(ours), gradients(theirs))
    torch.testing.assert_close(optimizer.last_total_grad_norm, total)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_norms_are_not_rounded_to_16_bits(dtype: torch.dtype) -> None:
    params = parameters(dtype)
    exact = torch.cat([g.flatten().to(torch.complex128) for g in gradients(params)]).norm()
    optimizer = clipping_only(params, clipping=NORM, max_gradient=1.0)
    total = optimizer.clip_grad_norm_()

    norm_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    assert total.dtype == norm_dtype
    torch.testing.assert_close(total, exact.abs().to(norm_dtype))
    clipped_norm = torch.cat([g.flatten().to(torch.complex128) for g in gradients(params)]).norm()
    assert clipped_norm.item() == pytest.approx(1.0, rel=1e-2 if dtype == torch.bfloat16 else 1e-5)


def test_a_large_gradient_has_an_exact_norm() -> None:
    """On the CPU torch adds up all float32 numbers one after the other, and loses digits."""
    param = nn.Parameter(torch.zeros(4_000_000))
    param.grad = torch.randn_like(param)
    total, _ = clipping_only({"": param}, clipping=NORM).compute_total_grad_norm()
    assert total.item() == pytest.approx(param.grad.double().norm().item(), rel=5e-6)


def test_a_norm_can_be_computed_in_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optgen.keyed.clipping, "use_64bit_grad_norm", True)
    params = {"": nn.Parameter(torch.zeros(4))}
    params[""].grad = torch.full((4,), 1e30)  # its square is no float32 number
    total, grads = clipping_only(params, clipping=NORM).compute_total_grad_norm()
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(2e30)
    assert grads[0] is params[""].grad


def test_clipping_by_value_equals_torchs_and_is_off_by_default() -> None:
    ours, theirs, untouched = parameters(), parameters(), parameters()
    optimizer = clipping_only(ours, clipping=VALUE, max_gradient=0.7)
    optimizer.step()
    nn.utils.clip_grad_value_(theirs.values(), 0.7)
    torch.testing.assert_close(gradients(ours), gradients(theirs), rtol=0, atol=0)
    assert optimizer.last_total_grad_norm is None

    clipping_only(ours).step()
    torch.testing.assert_close(gradients(ours), gradients(theirs), rtol=0, atol=0)
    for clipping in (VALUE, NONE):
        params = parameters()
        optimizer = clipping_only(params, clipping=clipping, track_grad_norm=True)
        assert optimizer.last_total_grad_norm is None
        optimizer.step()
        expected = nn.utils.get_total_norm(gradients(untouched))
        torch.testing.assert_close(optimizer.last_total_grad_norm, expected)


def test_equal_rows_of_sparse_gradients_are_summed_before_clipping() -> None:
    """The two entries of row 1 add up to (4, 0), so the norm is 5, not the root of 17."""
    for clipping, expected in (
        (NORM, [[0.0, 0.6], [0.8, 0.0]]),
        (VALUE, [[0.0, 1.0], [1.0, 0.0]]),
    ):
        param = nn.Parameter(torch.zeros(2, 2))
        values = torch.tensor([[2.0, 0.0], [0.0, 3.0], [2.0, 0.0]])
        param.grad = torch.sparse_coo_tensor(
            torch.tensor([[1, 0, 1]]), values, (2, 2), check_invariants=False
        )
        optimizer = clipping_only(
            {"": param}, clipping=clipping, max_gradient=1.0, track_grad_norm=True
        )
        optimizer.step()
        assert param.grad.is_sparse
        torch.testing.assert_close(param.grad.to_dense(), torch.tensor(expected))
        torch.testing.assert_close(optimizer.last_total_grad_norm, torch.tensor(5.0))


def test_a_parameter_in_two_groups_counts_once_in_the_norm() -> None:
    param = nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([3.0, 4.0])
    optimizer = clipping_only({"a": param, "b": param, "c": param}, clipping=NORM, max_gradient=1.0)
    optimizer.step()
    assert optimizer.last_total_grad_norm == 5
    torch.testing.assert_close(param.grad, torch.tensor([0.6, 0.8]))


def test_the_norm_is_that_of_the_last_step() -> None:
    params = parameters()
    optimizer = clipping_only(params, clipping=NORM)
    optimizer.step()
    assert optimizer.last_total_grad_norm is not None
    optimizer.zero_grad()
    optimizer.step()
    assert optimizer.last_total_grad_norm is None  # no parameter had a gradient
    assert optimizer.clip_grad_norm_() == 0


def test_a_nan_makes_all_gradients_nan() -> None:
    for norm_type in (2.0, "inf"):
        params = parameters()
        params["p3"].grad[0] = torch.nan
        optimizer = clipping_only(params, clipping=NORM, norm_type=norm_type)
        optimizer.step()
        assert optimizer.last_total_grad_norm.isnan()
        assert all(grad.isnan().all() for grad in gradients(params))


def test_gradients_of_a_closure_are_clipped() -> None:
    """torchrec clips before the closure runs, so the closure's gradients are never clipped."""
    param = nn.Parameter(torch.zeros(2))
    inner = KeyedOptimizerWrapper({"p": param}, lambda each: optgen.optim.SGD(each, lr=1.0))
    optimizer = GradientClippingOptimizer(inner, clipping=NORM, max_gradient=1.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (param * torch.tensor([3.0, 4.0])).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 0
    torch.testing.assert_close(param.detach(), torch.tensor([-0.6, -0.8]))
    assert optimizer.last_total_grad_norm == 5


def test_meta_parameters_are_not_clipped() -> None:
    meta = nn.Parameter(torch.zeros(3, device="meta"))
    meta.grad = torch.zeros(3, device="meta")
    params = {**parameters(), "meta": meta}
    before = [grad.clone() for grad in gradients(params)[:-1]]
    optimizer = clipping_only(params, clipping=NORM)
    optimizer.step()
    assert optimizer.last_total_grad_norm is None
    torch.testing.assert_close(gradients(params)[:-1], before)


def test_training_with_clipping_equals_torchs() -> None:
    """Clipping wraps a combined optimizer, of our optimizer or of torch's."""

    def train(cls: Any, clip: bool) -> list[Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        plain = cls(net.parameters(), lr=0.1)
        keyed = KeyedOptimizerWrapper(dict(net.named_parameters()), lambda _: plain)
        optimizer: Any = GradientClippingOptimizer(
            CombinedOptimizer([("net", keyed)]), clipping=NORM, max_gradient=0.5
        )
        for step in range(4):
            plain.zero_grad()
            net(torch.full((3, 4), 1.0 + step)).square().sum().backward()
            if not clip:
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            (optimizer if clip else plain).step()
        return [param.detach() for param in net.parameters()]

    expected = train(torch.optim.AdamW, clip=False)
    for cls in (torch.optim.AdamW, optgen.optim.AdamW):
        torch.testing.assert_close(train(cls, clip=True), expected)


def test_copies_and_unpickled_optimizers_clip() -> None:
    params = parameters()
    inner = KeyedOptimizerWrapper(params, lambda each: optgen.optim.SGD(each, lr=1.0))
    optimizer = GradientClippingOptimizer(inner, clipping=NORM, max_gradient=1.0)
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        for param in other.params.values():
            param.grad = torch.ones_like(param)
        other.step()
        torch.testing.assert_close(other.last_total_grad_norm, torch.tensor(32.0).sqrt())  # 32 ones


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="Invalid norm_type value: 0; it must be above 0, or inf"):
        clipping_only(parameters(), clipping=NORM, norm_type=0)
    with pytest.raises(ValueError, match="'clip' is not a valid GradientClipping"):
        clipping_only(parameters(), clipping="clip")
    model = UpdateInBackward(nn.Linear(2, 2), optgen.optim.SGD)
    for inner in (model.fused_optimizer, CombinedOptimizer([("m", model.fused_optimizer)])):
        for options in ({"clipping": NORM}, {"clipping": VALUE}, {"track_grad_norm": True}):
            with pytest.raises(ValueError, match="before all gradients are known"):
                GradientClippingOptimizer(inner, **options)
        GradientClippingOptimizer(inner).step()
    GradientClippingOptimizer(EmptyFusedOptimizer(), clipping=NORM).step()


def test_the_enum_has_torchrecs_values() -> None:
    assert [clipping.value for clipping in GradientClipping] == ["norm", "value", "none"]
    assert GradientClipping("norm") is NORM
