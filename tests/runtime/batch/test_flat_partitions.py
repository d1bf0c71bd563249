"""Test that rules that need whole parameters refuse flat partitions, and take everything else."""

import copy
import pickle
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optgen
from optgen import use_lowering
from optgen.optim import Adafactor, AdamW, Muon
from optgen.optim._adafactor import adafactor
from optgen.runtime import GeneratedOptimizer
from optgen.spec import hyper, norm, optimizer

MESSAGE = r"cannot step a flat partition: .* DeepSpeed's stage 0; elementwise rules, such as AdamW"


@optimizer(paper="https://arxiv.org/abs/1708.03888")
def ScaledByNorm(p, g, /, *, lr=hyper(1e-1, ge=0)):
    """A rule whose update has the norm of the parameter, times `lr`."""
    p = p - lr * g * norm(p) / norm(g)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))


def matrix_and_vector_groups(net: nn.Module) -> list[dict[str, Any]]:
    """Return a group of matrices and a group of vectors, as for weight decay."""
    params = list(net.parameters())
    return [
        {"params": [p for p in params if p.ndim > 1]},
        {"params": [p for p in params if p.ndim <= 1]},
    ]


def with_gradients(params: Sequence[Tensor]) -> list[Tensor]:
    """Give gradients of ones to the parameters, and return the parameters."""
    for param in params:
        param.grad = torch.ones_like(param)
    return list(params)


def flat_partition(params: Sequence[Tensor], ranks: int = 1) -> nn.Parameter:
    """Return rank 0's partition of a group's parameters as ZeRO stores it: a flat vector."""
    whole = torch.cat([param.detach().flatten() for param in params])
    return nn.Parameter(whole[: -(-len(whole) // ranks)])


def replace_by_flat_vector(group: dict[str, Any], ranks: int = 1) -> None:
    """Replace a group's parameters by one flat vector with a gradient."""
    group["params"] = with_gradients([flat_partition(group["params"], ranks)])


@pytest.mark.parametrize("cls", [Adafactor, optgen.load(ScaledByNorm)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_one_vector_in_place_of_a_model_is_refused(
    cls: type[GeneratedOptimizer], ranks: int
) -> None:
    """ZeRO stages 1 and 2 replace the parameters by a vector, also after steps were taken."""
    for steps in (0, 3):
        net = model()
        opt = cls(with_gradients(list(net.parameters())))
        for _ in range(steps):
            opt.step()
        replace_by_flat_vector(opt.param_groups[0], ranks)
        before = opt.param_groups[0]["params"][0].detach().clone()

        with pytest.raises(RuntimeError, match=MESSAGE) as caught:
            opt.step()
        assert "a group's parameters were exchanged for vectors of" in str(caught.value)
        assert torch.equal(opt.param_groups[0]["params"][0], before)
        with pytest.raises(RuntimeError, match=MESSAGE):
            opt.step()


def test_muon_refuses_flat_partitions_too() -> None:
    opt = Muon(with_gradients([nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(2, 3))]))
    replace_by_flat_vector(opt.param_groups[0])

    with pytest.raises(RuntimeError, match=MESSAGE):
        opt.step()


@pytest.mark.parametrize("index", [0, 1])
def test_a_vector_in_the_only_visible_group_is_refused(index: int) -> None:
    """ZeRO stage 1 steps one group, of matrices or of vectors, and hides the others."""
    opt = Adafactor(matrix_and_vector_groups(model()))
    for group in opt.param_groups:
        replace_by_flat_vector(group)
    opt.param_groups = [opt.param_groups[index]]

    with pytest.raises(RuntimeError, match=MESSAGE):
        opt.step()


def test_a_vector_beside_empty_groups_is_refused() -> None:
    """ZeRO stage 3 steps one group while all others are empty."""
    opt = Adafactor(matrix_and_vector_groups(model()))
    partitions = [flat_partition(group["params"]) for group in opt.param_groups]
    for group in opt.param_groups:
        group["params"] = []
    opt.step()
    opt.param_groups[0]["params"] = with_gradients(partitions[:1])

    with pytest.raises(RuntimeError, match=MESSAGE):
        opt.step()


def test_a_vector_for_each_parameter_is_refused() -> None:
    """Megatron replaces each parameter by a flat piece of it."""
    opt = Adafactor(model().parameters())
    pieces = [flat_partition([param], ranks=2) for param in opt.param_groups[0]["params"]]
    opt.param_groups[0]["params"] = with_gradients(pieces)

    with pytest.raises(RuntimeError, match=MESSAGE):
        opt.step()


def test_loading_a_checkpoint_does_not_hide_an_exchange() -> None:
    opt = Adafactor(with_gradients(list(model().parameters())))
    replace_by_flat_vector(opt.param_groups[0])
    opt.load_state_dict(opt.state_dict())

    with pytest.raises(RuntimeError, match=MESSAGE):
        opt.step()


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda opt: pickle.loads(pickle.dumps(opt))])
def test_a_copy_refuses_an_exchange_of_its_own_parameters(make_copy: Any) -> None:
    opt = Adafactor(with_gradients(list(model().parameters())))
    opt.step()
    clone = make_copy(opt)
    with_gradients(clone.param_groups[0]["params"])
    clone.step()
    replace_by_flat_vector(clone.param_groups[0])

    with pytest.raises(RuntimeError, match=MESSAGE):
        clone.step()


def test_elementwise_rules_take_flat_partitions() -> None:
    net, partition = model(), flat_partition(list(model().parameters()))
    ours = AdamW(with_gradients(list(net.parameters())))
    ours.param_groups[0]["params"] = with_gradients([partition])
    theirs = torch.optim.AdamW(with_gradients(list(net.parameters())))

    ours.step()
    theirs.step()
    assert torch.allclose(partition, flat_partition(list(net.parameters())), atol=1e-7)


def test_vectors_of_the_model_are_accepted() -> None:
    """Biases in a group of their own, a single bias, and biases without gradients are accepted."""
    net = model()
    opt = Adafactor(matrix_and_vector_groups(net))
    with_gradients(opt.param_groups[1]["params"][1:2])
    opt.step()
    opt.param_groups = opt.param_groups[1:]
    opt.param_groups[0]["params"] = with_gradients(opt.param_groups[0]["params"][2:])
    opt.step()
    Adafactor(with_gradients([flat_partition(list(model().parameters()))])).step()


def test_parameters_that_are_exchanged_one_for_one_are_accepted() -> None:
    """A layer that grows, new layers, and copies in another precision keep their dimensions."""
    net, other = model(), nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3))
    opt = Adafactor(matrix_and_vector_groups(net))
    opt.param_groups[0]["params"] = with_gradients([nn.Parameter(torch.ones(7, 4))])
    opt.param_groups[1]["params"] = with_gradients([nn.Parameter(torch.ones(5))] * 4)
    opt.step()
    opt.param_groups[0]["params"] = with_gradients(list(other.parameters()))
    opt.step()
    opt.param_groups[0]["params"] = with_gradients([p.detach().double() for p in net.parameters()])
    opt.step()


@pytest.mark.parametrize("lowering", [None, "forloop"])
def test_parameters_that_move_to_another_group_are_accepted(lowering: str | None) -> None:
    """A vector that comes from another group is no flat partition."""
    matrix, vector = (nn.Parameter(torch.ones(shape)) for shape in ((2, 3), (4,)))
    opt = Adafactor([{"params": with_gradients([matrix])}, {"params": with_gradients([vector])}])
    with use_lowering(lowering) if lowering else nullcontext():
        opt.step()
        first, second = opt.param_groups
        first["params"], second["params"] = second["params"], first["params"]
        opt.step()
    assert (vector < 1).all()


def test_vectors_that_join_a_group_are_accepted() -> None:
    net = nn.Linear(4, 3, bias=False)
    opt = Adafactor(net.parameters())
    opt.param_groups[0]["params"] += with_gradients([nn.Parameter(torch.ones(12))])
    opt.step()
    opt.add_param_group({"params": with_gradients([nn.Parameter(torch.ones(9))])})
    opt.step()


def test_parameters_may_be_swapped() -> None:
    """`model.to()` swaps DTensors; with this setting, also tensors without weak references."""
    net = model()
    opt = Adafactor(net.parameters())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        net.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    with_gradients(list(net.parameters()))
    opt.step()
    assert net[0].weight.dtype == torch.float64
    replace_by_flat_vector(opt.param_groups[0])
    with pytest.raises(RuntimeError, match=MESSAGE):
        opt.step()


def test_a_function_takes_flat_vectors() -> None:
    param, grad = torch.ones(12), torch.ones(12)
    adafactor(
        [param], [grad], [None], [None], [torch.zeros(12)], [torch.tensor(0.0)],
        lr=1e-2, beta2_decay=-0.8, eps1=1e-30, eps2=1e-3, d=1.0, weight_decay=0.0, maximize=False,
    )  # fmt: skip
    assert (param < 1).all()
