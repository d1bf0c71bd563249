"""Test changes between two steps: the next step must see them."""

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from runtime.training import error
from torch import Tensor
from torch.optim import Optimizer

import optgen
from optgen import use_lowering
from optgen.optim import SGD, Adam, AdamW, RMSprop

LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")


def parameters(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return parameters that allow a cached step."""
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((3, 4), (7,), (1,))]


def train(optimizer: Optimizer, params: list[Tensor], steps: int, seed: int = 1) -> None:
    """Take some steps, each with a gradient for every parameter."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for param in params:
            grad = torch.randn(param.shape, dtype=torch.complex128, generator=generator)
            param.grad = (grad if param.is_complex() else grad.real.clone()).to(param.dtype)
        optimizer.step()


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


def move_to_new_memory(param: Tensor) -> None:
    param.data = param.data.clone()


def double_the_precision(param: Tensor) -> None:
    param.grad = None
    param.data = param.data.to(torch.complex128 if param.is_complex() else torch.float64)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("change", [move_to_new_memory, double_the_precision])
def test_the_new_storage_of_a_parameter_is_used(
    lowering: str, dtype: torch.dtype, change: Callable[[Tensor], None]
) -> None:
    results = []
    for cls in (SGD, torch.optim.SGD):
        params = parameters(dtype)
        optimizer = cls(params, lr=0.1)
        with use_lowering(lowering):
            train(optimizer, params, 4)
            for param in params:
                change(param)
            train(optimizer, params, 4, seed=2)
        results.append(params)

    assert error(*results) < 1e-5


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_new_storage_of_a_state_is_used(lowering: str) -> None:
    results = []
    for cls in (SGD, torch.optim.SGD):
        params = parameters(torch.complex128)
        optimizer = cls(params, lr=0.1, momentum=0.9)
        with use_lowering(lowering):
            train(optimizer, params, 6)
            for entry in optimizer.state.values():
                entry["momentum_buffer"].data = entry["momentum_buffer"].data * 0.5
            train(optimizer, params, 4, seed=2)
        results.append(params)

    assert error(*results) < 1e-12


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Callable[[Tensor], Any]]:
    """Return a function that converts a tensor to a DTensor on a mesh of one rank."""
    if not torch.distributed.is_available():
        pytest.skip("no torch.distributed")
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    yield lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)])
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_local_shard_that_fsdp_replaces_is_used(
    lowering: str, shard: Callable[[Tensor], Any]
) -> None:
    results = []
    for cls in (AdamW, torch.optim.AdamW):
        param = torch.nn.Parameter(shard(torch.ones(8, 4)))
        optimizer = cls([param], lr=0.1)
        with use_lowering(lowering):
            for step in range(6):
                if step == 3:
                    param._local_tensor = param._local_tensor.clone()
                param.grad = shard(torch.ones(8, 4))
                optimizer.step()
        results.append(param.to_local().detach())

    assert error(results[:1], results[1:]) < 1e-6


@outside_interpreter
def test_a_dtype_without_a_kernel_takes_another_lowering() -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = SGD([param], lr=0.5)
    for _ in range(2):
        param.grad = torch.ones(4)
        optimizer.step()

    param.grad = None
    param.data = param.data.to(torch.float8_e5m2)
    param.grad = torch.ones(4).to(torch.float8_e5m2)

    assert optgen.explain(optimizer) == "group 0: for-loop: no kernel for torch.float8_e5m2"
    with pytest.raises(NotImplementedError, match="float8_e5m2"):  # torch has no kernel either
        optimizer.step()


@outside_interpreter
def test_a_step_count_that_is_no_tensor_raises_torchs_error() -> None:
    messages = []
    for cls in (Adam, torch.optim.Adam):
        params = parameters()
        optimizer = cls(params)
        train(optimizer, params, 2)
        optimizer.state[params[1]]["step"] = 5
        with pytest.raises(RuntimeError) as caught:
            train(optimizer, params, 1)
        messages.append(str(caught.value))

    assert messages[0] == messages[1]


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("has_cached_step", [True, False])
@pytest.mark.parametrize("shape", [(7,), (1 << 20,), (3, 3)])
def test_a_parameter_of_another_shape_than_its_state_is_an_error(
    lowering: str, has_cached_step: bool, shape: tuple[int, ...]
) -> None:
    param = torch.nn.Parameter(torch.ones(9))
    optimizer = Adam([param])
    with use_lowering(lowering):
        for _ in range(3):
            param.grad = torch.ones(9)
            optimizer.step()
        if not has_cached_step:
            optimizer.load_state_dict(optimizer.state_dict())
        param.grad = None
        param.data = torch.ones(shape)
        param.grad = torch.ones(shape)

        message = f"exp_avg has the shape (9,), but its parameter {shape}"
        with pytest.raises(RuntimeError, match=re.escape(message)):
            optimizer.step()

    assert (param == 1).all()


MOMENTUM = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}


def copy_optimizer(optimizer: SGD, params: list[Tensor]) -> tuple[SGD, list[Tensor]]:
    return copy.deepcopy((optimizer, params))


def load_into_new_optimizer(optimizer: SGD, params: list[Tensor]) -> tuple[SGD, list[Tensor]]:
    other = SGD(params, **MOMENTUM)
    other.load_state_dict(optimizer.state_dict())
    return other, params


@pytest.mark.parametrize("change", [copy_optimizer, load_into_new_optimizer])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_state_made_by_init_state_is_fresh_in_a_copy_too(
    change: Callable[[SGD, list[Tensor]], tuple[SGD, list[Tensor]]], lowering: str
) -> None:
    ours, theirs = parameters(), parameters()
    optimizer = SGD(ours, **MOMENTUM)
    optimizer.init_state()
    optimizer, ours = change(optimizer, ours)

    with use_lowering(lowering):
        train(optimizer, ours, 3)
    train(torch.optim.SGD(theirs, foreach=False, **MOMENTUM), theirs, 3)

    assert error(ours, theirs) < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_state_made_by_init_state_is_fresh_at_its_first_gradient(lowering: str) -> None:
    results = []
    for cls in (SGD, torch.optim.SGD):
        params = parameters()
        optimizer = cls(params, **MOMENTUM)
        if isinstance(optimizer, SGD):
            optimizer.init_state()
        with use_lowering(lowering):
            train(optimizer, params[:2], 4)
            train(optimizer, params, 4)
        results.append(params)

    assert error(*results) < 1e-12


@pytest.mark.parametrize("lowering", [name for name in LOWERINGS if name != "forloop"])
def test_states_may_be_switched_on_and_off(lowering: str) -> None:
    """One state replaces another, so that the number and the dtypes of states stay equal."""

    def params_after_steps(lowering: str) -> list[Tensor]:
        params = parameters()
        optimizer = RMSprop([{"params": params[:1]}, {"params": params[1:]}], momentum=0.5)
        group = optimizer.param_groups[1]
        with use_lowering(lowering):
            train(optimizer, params, 3)
            group |= {"momentum": 0, "centered": True}
            train(optimizer, params, 3, seed=2)
            group["centered"] = False
            train(optimizer, params, 3, seed=3)
            group["momentum"] = 0.9
            train(optimizer, params, 3, seed=4)
        return params

    assert error(params_after_steps(lowering), params_after_steps("forloop")) < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_step_count_that_parameters_share_is_advanced_by_each(lowering: str) -> None:
    results, counts = [], []
    for cls in (Adam, torch.optim.Adam):
        params = parameters()
        optimizer = cls(params)
        with use_lowering(lowering):
            train(optimizer, params, 2)
            optimizer.state[params[0]]["step"] = optimizer.state[params[2]]["step"]
            train(optimizer, params, 2)
        results.append(params)
        counts.append([optimizer.state[param]["step"].item() for param in params])

    assert counts[0] == counts[1]
    assert error(*results) < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_an_integer_step_count_is_advanced(lowering: str) -> None:
    """Programs that convert checkpoints write integer step counts."""
    results = []
    for cls in (Adam, torch.optim.Adam):
        params = parameters()
        optimizer = cls(params)
        train(optimizer, params, 2)
        for state in optimizer.state.values():
            state["step"] = torch.tensor(7)
        with use_lowering(lowering):
            train(optimizer, params, 2)
        results.append(params)

    assert error(*results) < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("elements", [0, 2])
def test_a_step_count_that_is_not_one_number_raises_torchs_error(
    lowering: str, elements: int
) -> None:
    messages = []
    for cls in (Adam, torch.optim.Adam):
        params = parameters()
        optimizer = cls(params)
        with use_lowering(lowering):
            train(optimizer, params, 2)
            optimizer.state[params[1]]["step"] = torch.ones(elements)
            with pytest.raises(RuntimeError) as caught:
                train(optimizer, params, 1)
        messages.append(str(caught.value))

    assert messages[0] == messages[1]
