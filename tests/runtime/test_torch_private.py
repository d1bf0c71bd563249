"""Test optgen's assumptions on torch's private names."""

import pytest
import torch

from optgen.runtime import torch_private


class WithoutOverrides(torch.nn.Parameter):
    """A subclass that overrides no operation, like most subclasses of Parameter."""


class WithOverrides(torch.Tensor):
    """A subclass that may override any operation."""


@pytest.mark.parametrize(
    ("cls", "is_plain"),
    [
        (torch.Tensor, True),
        (torch.nn.Parameter, True),
        (WithoutOverrides, True),
        (torch.nn.Buffer, True),
        (WithOverrides, False),
        (torch.nn.UninitializedParameter, False),
    ],
)
def test_a_plain_class_overrides_no_operation(cls: type[torch.Tensor], is_plain: bool) -> None:
    assert torch_private.is_plain_class(cls) is is_plain


def test_a_function_that_dynamo_wraps_can_be_called_without_the_wrapper() -> None:
    assert (
        torch_private.without_dynamo_wrapper(torch.optim.Optimizer.zero_grad).__module__
        == "torch.optim.optimizer"
    )
    assert torch_private.without_dynamo_wrapper(torch.optim.Optimizer.zero_grad) is not (
        torch.optim.Optimizer.zero_grad
    )
    assert torch_private.without_dynamo_wrapper(len) is len


@pytest.mark.parametrize("default_dtype", [torch.float32, torch.float64])
def test_scalars_have_torchs_dtype(default_dtype: torch.dtype) -> None:
    torch.set_default_dtype(default_dtype)
    try:
        assert torch_private.scalar_dtype() == default_dtype
        assert torch_private.scalar_dtype(fused=True) == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("in_use", [False, True])
def test_graph_capture_is_checked_only_if_cuda_is_initialized(
    in_use: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    checks: list[bool] = []
    monkeypatch.setattr(
        optimizer, "_accelerator_graph_capture_health_check", lambda: checks.append(True)
    )

    torch_private.check_graph_capture(optimizer)

    assert checks == ([True] if in_use else [])
