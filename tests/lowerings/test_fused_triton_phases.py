"""Test rules with phases in Triton's interpreter against the oracle."""

from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from lowerings.phased_rules import Oracle, class_of, module_of
from torch import Tensor

from optgen import use_lowering

pytest.importorskip("triton")

SHAPES = ((7,), (1025,), (), (0,), (5, 3), (3, 2, 3, 3), (40, 1), (1, 300), (2, 17, 140))
RULES = [
    ("Adafactor", {}),
    ("Adafactor", {"eps": (0.1, 1e-3), "weight_decay": 0.1, "d": 2.0, "maximize": True}),
    ("LAMB", {"weight_decay": 0.1, "eps": 0.0}),  # 0 / 0 in a block without elements
    ("LARS", {"nesterov": True, "momentum": 0.9, "weight_decay": 0.1}),
    ("CAME", {"weight_decay": 0.1}),
    ("Ragged", {}),
    ("Ragged", {"sharp": False, "maximize": True}),
    ("Peaks", {}),
    ("Peaks", {"sharp": False, "maximize": True}),
    ("SM3", {}),
]


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


def random_tensor(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def parameters(dtype: torch.dtype, shapes: Any = SHAPES) -> list[Tensor]:
    return [random_tensor(shape, i, dtype).requires_grad_() for i, shape in enumerate(shapes)]


def give_gradients(params: list[Tensor], step: int) -> None:
    for i, param in enumerate(params):
        has_no_gradient = (i + step) % 4 == 3
        param.grad = (
            None
            if has_no_gradient
            else random_tensor(param.shape, 100 * step + i + 50, param.dtype)
        )


def largest_error_of_steps(
    optimizer: Any, oracle: Oracle, params: list[Tensor], steps: int
) -> float:
    """Return the largest error after steps of an optimizer and of the oracle."""
    with use_lowering("fused_triton"):
        for step in range(steps):
            give_gradients(params, step)
            oracle.step(optimizer.param_groups, params)
            optimizer.step()
    return oracle.largest_error(params, optimizer)


@inside_interpreter
@pytest.mark.parametrize(("name", "settings"), RULES)
def test_kernels_agree_with_the_oracle(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    takes_matrices_only = name == "CAME"
    params = parameters(
        torch.float64, ((5, 3), (17, 140), (1, 1)) if takes_matrices_only else SHAPES
    )
    groups = [{"params": params[::2]}, {"params": params[1::2], "lr": 0.02}]
    optimizer = class_of(name, tmp_path)(groups, **settings)
    assert largest_error_of_steps(optimizer, Oracle(name, params), params, steps=2) < 1e-14


@inside_interpreter
@pytest.mark.parametrize("name", ["Adafactor", "LAMB"])
def test_kernels_compute_float32_parameters_in_float32(name: str, tmp_path: Path) -> None:
    params = parameters(torch.float32, SHAPES[:-1])
    optimizer = class_of(name, tmp_path)(params)
    assert largest_error_of_steps(optimizer, Oracle(name, params), params, steps=2) < 5e-7


@inside_interpreter
def test_any_memory_layout_agrees_with_the_oracle(tmp_path: Path) -> None:
    """The tensors are transposed, strided, not aligned, and channels-last."""
    tensors = [
        random_tensor((20, 6), 0).t(),
        random_tensor((9, 14), 1)[:, ::2],
        random_tensor((31,), 2)[1:].view(5, 6),
    ]
    tensors.append(random_tensor((2, 4, 5, 6), 3).to(memory_format=torch.channels_last))
    params = [tensor.detach().requires_grad_() for tensor in tensors]
    optimizer = class_of("Adafactor", tmp_path)(params)
    assert largest_error_of_steps(optimizer, Oracle("Adafactor", params), params, steps=2) < 1e-14


@inside_interpreter
def test_the_bits_of_a_tensor_do_not_depend_on_other_tensors(tmp_path: Path) -> None:
    """The order of a tensor's sums depends on this tensor only."""
    cls = class_of("Adafactor", tmp_path)
    alone = parameters(torch.float32, [(30, 150)])
    beside_others = [
        *parameters(torch.float32, [(30, 150)]),
        *parameters(torch.float32, [(5, 3), (17, 130)]),
    ]
    with use_lowering("fused_triton"):
        for params in (alone, beside_others):
            give_gradients(params, 0)
            cls(params).step()
    assert torch.equal(alone[0], beside_others[0])


@inside_interpreter
def test_an_infinity_skips_every_phase(tmp_path: Path) -> None:
    params = parameters(torch.float64, [(5, 3), (30,), (1, 300)])
    optimizer, oracle = class_of("Adafactor", tmp_path)(params), Oracle("Adafactor", params)
    give_gradients(params, 0)
    optimizer.found_inf = torch.tensor(1.0)
    with use_lowering("fused_triton"):
        optimizer.step()
    optimizer.found_inf = torch.tensor(0.0)
    assert largest_error_of_steps(optimizer, oracle, params, steps=1) < 1e-14


@inside_interpreter
@pytest.mark.parametrize("name", ["Adafactor", "LAMB"])
def test_kernels_unscale_gradients_once(name: str, tmp_path: Path) -> None:
    params = parameters(torch.float64, [(5, 3), (300,)])
    optimizer, oracle = class_of(name, tmp_path)(params), Oracle(name, params)
    give_gradients(params, 0)
    oracle.step(optimizer.param_groups, params)
    for param in params:
        assert param.grad is not None
        param.grad *= 8
    optimizer.grad_scale = torch.tensor(8.0)
    with use_lowering("fused_triton"):
        optimizer.step()
    assert oracle.largest_error(params, optimizer) < 1e-14


@inside_interpreter
def test_muon_steps_as_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of("Muon", tmp_path)
    shapes = [(6, 9), (6, 9), (9, 6), (1, 1), (20, 10)]
    params = parameters(torch.float64, shapes)
    groups = [{"params": params[::2]}, {"params": params[1::2], "ns_steps": 4, "nesterov": False}]
    optimizer, their_params = module.Muon(groups), parameters(torch.float64, shapes)
    references = [
        torch.optim.Muon(their_params[::2]),
        torch.optim.Muon(their_params[1::2], ns_steps=4, nesterov=False),
    ]
    for step in range(2):
        give_gradients(params, step)
        give_gradients(their_params, step)
        with use_lowering("fused_triton"):
            optimizer.step()
        for reference in references:
            reference.step()
    for ours, theirs in zip(params, their_params, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=5e-3 * float(theirs.detach().abs().max())
        )
