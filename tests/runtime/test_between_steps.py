"""Test changes between two steps: the next step must see them."""

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
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
from optgen.optim import SGD, AdaHessian, Adam, AdamW, NAdam, Prodigy, RMSprop

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


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("loaded", [False, True], ids=["replaced", "loaded"])
def test_a_state_with_a_smaller_local_shard_is_an_error(
    lowering: str, loaded: bool, shard: Callable[[Tensor], Any]
) -> None:
    from torch.distributed.tensor import DTensor

    param = torch.nn.Parameter(shard(torch.ones(64, 50)))
    optimizer = AdamW([param])
    with use_lowering(lowering):
        for _ in range(2):
            param.grad = shard(torch.ones(64, 50))
            optimizer.step()
        small = DTensor.from_local(
            torch.zeros(2, 2),
            param.device_mesh,
            param.placements,
            run_check=False,
            shape=torch.Size((64, 50)),
            stride=(50, 1),
        )
        if loaded:
            saved = optimizer.state_dict()
            saved["state"][0]["exp_avg"] = small
            optimizer.load_state_dict(saved)
        else:
            optimizer.state[param]["exp_avg"] = small
        before = param.to_local().detach().clone()
        param.grad = shard(torch.ones(64, 50))
        with pytest.raises(RuntimeError, match=r"exp_avg has the shape \(2, 2\)"):
            optimizer.step()

    assert torch.equal(param.to_local(), before)


@outside_interpreter
@pytest.mark.parametrize("part", ["local exp_avg", "local grad", "local param"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_local_shard_of_another_dtype_is_read_as_that_dtype(
    part: str, dtype: torch.dtype, shard: Callable[[Tensor], Any]
) -> None:
    """The spec still names float32. A plain tensor with the local tensors' dtypes steps equally."""
    results = []
    for place in (shard, lambda tensor: tensor):
        param = torch.nn.Parameter(place(torch.ones(64, 50)))
        optimizer = AdamW([param], lr=0.1)
        for step in range(4):
            param.grad = place(torch.ones(64, 50)).to(param.dtype)
            if step == 2:
                tensors = {"exp_avg": optimizer.state[param]["exp_avg"], "grad": param.grad}
                tensor = tensors.get(part.removeprefix("local "), param)
                if place is shard:
                    local = tensor._local_tensor
                    local.data = local.detach().to(dtype)
                elif tensor is param:
                    param.grad, param.data = None, param.data.to(dtype)
                    param.grad = torch.ones(64, 50, dtype=dtype)
                else:
                    tensor.data = tensor.to(dtype)
            with use_lowering("fused_cpu"):
                optimizer.step()
        results.append(param._local_tensor if place is shard else param)

    assert results[0].dtype == results[1].dtype
    assert torch.equal(results[0].detach(), results[1].detach())


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("key", ["exp_avg", "step"])
def test_a_state_made_in_inference_mode_raises_before_anything_is_written(
    lowering: str, key: str
) -> None:
    params = parameters()
    optimizer = AdamW(params)
    with use_lowering(lowering):
        train(optimizer, params, 3)
        with torch.inference_mode():
            optimizer.state[params[1]][key] = torch.zeros_like(optimizer.state[params[1]][key])
        before = [param.detach().clone() for param in params]
        with pytest.raises(RuntimeError, match=f"writes to .*{key}, which was made in inference"):
            train(optimizer, params, 1)

    assert all(map(torch.equal, params, before))


def shrink_the_parameter(optimizer: AdamW, param: Tensor) -> Tensor:
    return param.detach()


def shrink_the_gradient(optimizer: AdamW, param: Tensor) -> Tensor:
    assert param.grad is not None
    return param.grad


def shrink_a_state(optimizer: AdamW, param: Tensor) -> Tensor:
    return optimizer.state[param]["exp_avg_sq"]


@outside_interpreter
@pytest.mark.usefixtures("with_and_without_reader")
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize(
    "chosen", [shrink_the_parameter, shrink_the_gradient, shrink_a_state], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("size", [0, 40])
def test_a_storage_smaller_than_its_tensor_is_an_error(
    chosen: Callable[[AdamW, Tensor], Tensor], lowering: str, size: int
) -> None:
    params = parameters()
    optimizer = AdamW(params)
    with use_lowering(lowering):
        train(optimizer, params, 3)
        counts = [optimizer.state[param]["step"].item() for param in params]
        chosen(optimizer, params[0]).untyped_storage().resize_(size)
        with pytest.raises(RuntimeError, match=f"storage has only {size} bytes: give the storage"):
            optimizer.step()

    assert counts == [optimizer.state[param]["step"].item() for param in params]


@outside_interpreter
@pytest.mark.usefixtures("with_and_without_reader")
def test_gradients_in_a_buffer_that_shrinks_are_an_error() -> None:
    params = [torch.nn.Parameter(torch.ones(50)) for _ in range(3)]
    buffer = torch.ones(150)
    for param, grad in zip(params, buffer.split(50), strict=True):
        param.grad = grad
    optimizer = AdamW(params)
    for _ in range(3):
        optimizer.step()

    buffer.untyped_storage().resize_(500)
    with pytest.raises(RuntimeError, match=r"a gradient has the shape .* only 500 bytes"):
        optimizer.step()


@outside_interpreter
@pytest.mark.usefixtures("with_and_without_reader")
def test_a_tensor_whose_address_torch_refuses_is_torchs_error() -> None:
    params = parameters()
    optimizer = AdamW(params)
    train(optimizer, params, 3)
    before = [param.detach().clone() for param in params]
    torch._C._set_throw_on_mutable_data_ptr(optimizer.state[params[1]]["exp_avg"])

    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        train(optimizer, params, 1)

    assert all(map(torch.equal, params, before))
    assert [optimizer.state[param]["step"].item() for param in params] == [3, 3, 3]


@outside_interpreter
def test_a_scalar_state_of_8_bits_takes_another_lowering() -> None:
    """A kernel knows 8 bits as codes, but not as numbers."""
    results = []
    for lowering in (None, "forloop"):
        params = parameters()
        optimizer = NAdam(params)
        train(optimizer, params, 2)
        for state in optimizer.state.values():
            state["mu_product"] = torch.ones((), dtype=torch.int8)
        with use_lowering(lowering) if lowering else nullcontext():
            train(optimizer, params, 1)
            assert "fused" not in optgen.explain(optimizer).partition(": no kernel")[0]
        results.append(params)

    assert error(*results) < 1e-12


@outside_interpreter
def test_an_extra_input_of_another_local_shape_is_an_error(shard: Callable[[Tensor], Any]) -> None:
    param = torch.nn.Parameter(shard(torch.ones(6, 10)))
    optimizer = AdaHessian([param])
    for step in range(3):
        param.grad = shard(torch.ones(6, 10))
        if step < 2:
            optimizer.step(hessian=[shard(torch.ones(6, 10))])
    hessian = shard(torch.ones(6, 10))
    hessian._local_tensor = torch.ones(3, 10)

    with pytest.raises(ValueError, match=r"local tensor of hessian\[0\] has the shape \(3, 10\)"):
        optimizer.step(hessian=[hessian])


@outside_interpreter
@pytest.mark.usefixtures("with_and_without_reader")
def test_a_state_of_a_group_without_memory_is_an_error() -> None:
    params = parameters()
    optimizer = Prodigy(params)
    train(optimizer, params, 3)
    key = next(key for key, value in optimizer.param_groups[0].items() if torch.is_tensor(value))
    optimizer.param_groups[0][key].untyped_storage().resize_(0)

    with pytest.raises(RuntimeError, match=rf"{key} of a group has .* storage has only 0 bytes"):
        train(optimizer, params, 1)
