"""Test averaged models against torch's: means, buffers, checkpoints and errors."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import swa_utils as torchs
from training.digits import Network, batches, digits

from optgen.optim import SGD, swa_utils

BOUND = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2}


class SmallModel(nn.Module):
    """A model with tied and integer parameters, and with float and integer buffers."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(5, 4, dtype=dtype), nn.BatchNorm1d(4, dtype=dtype)
        self.second = nn.Linear(4, 5, bias=False, dtype=dtype)
        self.tied = self.second
        self.frozen = nn.Parameter(torch.arange(3), requires_grad=False)
        self.register_buffer("hidden", torch.ones(2, dtype=dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)))


def perturb(model: nn.Module, seed: int) -> None:
    """Change the model as training would, integers included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.add_((10 * noise if not tensor.is_floating_point() else noise).to(tensor.dtype))


def options(module: Any, name: str) -> dict[str, Any]:
    """Return AveragedModel's arguments for an average, with functions of `module`."""
    return {
        "default": dict,
        "ema lists": lambda: {"multi_avg_fn": module.get_ema_multi_avg_fn(0.9)},
        "ema lists, decay 0.25": lambda: {"multi_avg_fn": module.get_ema_multi_avg_fn(0.25)},
        "ema lists, decay 0": lambda: {"multi_avg_fn": module.get_ema_multi_avg_fn(0.0)},
        "ema lists, decay 1": lambda: {"multi_avg_fn": module.get_ema_multi_avg_fn(1.0)},
        "swa": lambda: {"avg_fn": module.get_swa_avg_fn()},
        "ema": lambda: {"avg_fn": module.get_ema_avg_fn(0.9)},
        "user's function": lambda: {
            "avg_fn": lambda mean, tensor, count: (mean + tensor) / (count + 2)
        },
        "user's lists": lambda: {"multi_avg_fn": average_lists_equally},
    }[name]()


def average_lists_equally(means: list[Tensor], tensors: list[Tensor], count: Tensor) -> None:
    """Average two lists. As torch promises, all tensors are detached, of one device and dtype."""
    assert len({(t.device, t.dtype) for t in (*means, *tensors)}) == 1
    assert not any(t.requires_grad for t in (*means, *tensors))
    assert count.dtype is torch.int64
    for mean, tensor in zip(means, tensors, strict=True):
        mean.copy_((mean + tensor) / 2)


AVERAGES = (
    *("default", "ema lists", "ema lists, decay 0.25", "ema lists, decay 0", "ema lists, decay 1"),
    *("swa", "ema", "user's function", "user's lists"),
)


def assert_close(ours: nn.Module, theirs: nn.Module, bound: float) -> None:
    """Compare everything that a checkpoint holds, and buffers that it does not hold."""
    expected = {**theirs.state_dict(), **dict(theirs.named_buffers())}
    found = {**ours.state_dict(), **dict(ours.named_buffers())}
    assert list(found) == list(expected)
    for key, tensor in found.items():
        assert (tensor.dtype, tensor.shape) == (expected[key].dtype, expected[key].shape)
        dtype = torch.complex128 if tensor.is_complex() else torch.float64
        value, expected_value = tensor.to(dtype), expected[key].to(dtype)
        error = (value - expected_value).abs().max().item()
        assert error <= bound * max(1, expected_value.abs().max().item()), key


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("use_buffers", [False, True], ids=["copied", "averaged"])
@pytest.mark.parametrize("average", AVERAGES)
def test_averages_are_torchs(average: str, use_buffers: bool, dtype: torch.dtype) -> None:
    model = SmallModel(dtype)
    pair = [
        module.AveragedModel(model, use_buffers=use_buffers, **options(module, average))
        for module in (swa_utils, torchs)
    ]
    for seed in range(5):
        perturb(model, seed)
        for averaged in pair:
            averaged.update_parameters(model)
        if seed == 0:
            assert all(map(torch.equal, pair[0].module.parameters(), model.parameters()))
    assert pair[0].n_averaged == 5
    assert_close(*pair, BOUND[dtype])


@pytest.mark.parametrize("decay", [None, 0.9])
def test_whole_numbers_in_lists_are_averaged(decay: float | None) -> None:
    """Torch's mean with equal weights fails, because `_foreach_addcdiv_` refuses integers."""
    if decay is None:
        average_tensor, average_lists = swa_utils.get_swa_avg_fn(), swa_utils.get_swa_multi_avg_fn()
    else:
        average_tensor = swa_utils.get_ema_avg_fn(decay)
        average_lists = swa_utils.get_ema_multi_avg_fn(decay)
    means = [torch.arange(5), torch.ones(3), torch.arange(2)]
    tensors = [torch.arange(5) * 7, torch.zeros(3), torch.tensor([2, 3])]
    expected = [
        mean.clone().copy_(average_tensor(mean.float(), tensor.float(), 3))
        for mean, tensor in zip(means, tensors, strict=True)
    ]
    average_lists(means, tensors, torch.tensor(3))

    for mean, value in zip(means, expected, strict=True):
        torch.testing.assert_close(mean, value)


def train(module: Any, cls: type, average: str, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """Train a network with batch norm on digits, and average from the second epoch on."""
    torch.manual_seed(seed)
    network = Network(sparse=False)
    averaged = module.AveragedModel(network, **options(module, average))
    optimizer = cls(network.parameters(), lr=0.1, momentum=0.9)
    scheduler = module.SWALR(optimizer, swa_lr=0.03, anneal_epochs=2)
    for epoch in range(2):
        for images, labels in islice(batches(1, 64), 8):
            optimizer.zero_grad()
            F.cross_entropy(network(images), labels).backward()
            optimizer.step()
            if epoch or average != "default":
                averaged.update_parameters(network)
        scheduler.step()
    module.update_bn(digits()[0][:600].split(100), averaged)
    return network, averaged


@pytest.mark.parametrize("average", ["default", "ema lists"])
def test_the_mean_of_a_trained_network_has_torchs_loss(average: str) -> None:
    """`update_bn` gives the mean batch statistics of its own activations."""
    _, ours = train(swa_utils, SGD, average)
    _, theirs = train(torchs, torch.optim.SGD, average)
    images, labels = (part[:600] for part in digits())
    losses = []
    for model in (ours, theirs):
        assert model.training
        with torch.no_grad():
            losses.append(F.cross_entropy(model.eval()(images), labels).item())
    assert abs(losses[0] - losses[1]) < 0.05 * losses[1]
    assert losses[0] < 2.0  # random guesses have log(10) = 2.3
    norms = [m for m in ours.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {m.num_batches_tracked.item() for m in norms} == {6}
    assert {m.momentum for m in norms} == {0.3}


def test_update_bn_equals_torchs() -> None:
    network, averaged = train(swa_utils, SGD, "ema lists")
    reference = torchs.AveragedModel(network)
    reference.load_state_dict(averaged.state_dict())
    torchs.update_bn(digits()[0][:600].split(100), reference)

    assert_close(averaged, reference, 1e-6)


@pytest.mark.parametrize("average", ["default", "ema lists"])
@pytest.mark.parametrize(("source", "target"), [(swa_utils, torchs), (torchs, swa_utils)])
def test_either_library_continues_from_a_checkpoint_of_the_other(
    source: Any, target: Any, average: str
) -> None:
    model, file = SmallModel(torch.float64), io.BytesIO()
    original = source.AveragedModel(model, **options(source, average))
    for seed in range(3):
        perturb(model, seed)
        original.update_parameters(model)
    torch.save(original.state_dict(), file)
    file.seek(0)
    loaded = target.AveragedModel(SmallModel(torch.float64), **options(target, average))
    loaded.load_state_dict(torch.load(file))
    assert loaded.n_averaged == 3
    assert "module.first.weight" in loaded.state_dict()
    for seed in range(3, 5):
        perturb(model, seed)
        for averaged in (original, loaded):
            averaged.update_parameters(model)
    assert_close(loaded, original, 1e-12)


def test_copies_do_not_share_tensors_with_the_original() -> None:
    model = SmallModel()
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5))
    averaged.update_parameters(model)
    deep, pickled = copy.deepcopy(averaged), pickle.loads(pickle.dumps(averaged))
    perturb(model, 1)
    for each in (deep, pickled):
        each.update_parameters(model)
        assert each.n_averaged == 2

    assert averaged.n_averaged == 1
    assert not torch.equal(averaged.module.first.weight, deep.module.first.weight)
    assert_close(deep, pickled, 0)


def test_the_class_derives_from_torchs() -> None:
    averaged = swa_utils.AveragedModel(SmallModel(), "cpu", None, None, True)

    assert isinstance(averaged, torchs.AveragedModel)
    assert averaged.use_buffers
    assert (averaged.avg_fn, averaged.multi_avg_fn) == (None, None)
    assert averaged.n_averaged.dtype is torch.int64
    assert averaged.eval()(torch.ones(2, 5)).shape == (2, 5)


def test_the_mean_of_a_bfloat16_model_can_be_in_float32() -> None:
    """Torch's `multi_avg_fn` needs lists of one dtype. Ours does not."""
    model = SmallModel(torch.bfloat16)
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    averaged.module.float()
    averaged.update_parameters(model)
    before = averaged.module.first.weight.clone()
    perturb(model, 3)
    averaged.update_parameters(model)

    expected = torch.lerp(before, model.first.weight.float(), 0.1)
    torch.testing.assert_close(averaged.module.first.weight, expected)


def test_the_mean_can_be_on_another_device() -> None:
    model = nn.Linear(3, 2)
    averaged = swa_utils.AveragedModel(model, device="meta")
    averaged.n_averaged = torch.tensor(0)
    for _ in range(2):
        averaged.update_parameters(model)

    assert averaged.module.weight.device.type == "meta"
    assert averaged.n_averaged == 2


def test_complex_parameters_are_averaged() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.randn(3, 4, dtype=torch.complex64))
    ours, theirs = swa_utils.AveragedModel(model), torchs.AveragedModel(model)
    for seed in range(4):
        with torch.no_grad():
            model.weight.add_(torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)))
        ours.update_parameters(model)
        theirs.update_parameters(model)
    assert_close(ours, theirs, 1e-6)


def test_parameters_of_other_memory_layouts_are_averaged() -> None:
    """The model is in channels-last format, unlike its mean, and a parameter has gaps."""
    model = nn.Conv2d(3, 4, 3).double()
    pair = [module.AveragedModel(model) for module in (swa_utils, torchs)]
    model.to(memory_format=torch.channels_last)
    model.bias = nn.Parameter(torch.randn(8, dtype=torch.float64)[::2])
    for seed in range(3):
        perturb(model, seed)
        for averaged in pair:
            averaged.update_parameters(model)
    assert_close(*pair, 1e-12)


@pytest.mark.parametrize("function", ["get_ema_avg_fn", "get_ema_multi_avg_fn"])
@pytest.mark.parametrize("decay", [-0.1, 1.5])
def test_an_invalid_decay_raises_torchs_error(function: str, decay: float) -> None:
    messages = []
    for module in (swa_utils, torchs):
        with pytest.raises(ValueError) as raised:
            getattr(module, function)(decay)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def error_of(call: Callable[[], Any]) -> tuple[type, str]:
    with pytest.raises(Exception) as raised:
        call()
    return type(raised.value), str(raised.value)


def test_other_errors_are_torchs() -> None:
    errors = []
    for module in (swa_utils, torchs):
        both = {**options(module, "ema"), **options(module, "ema lists")}
        averaged = module.AveragedModel(nn.BatchNorm1d(3))
        errors.append(
            [
                error_of(lambda m=module, b=both: m.AveragedModel(nn.Linear(1, 1), **b)),
                error_of(lambda a=averaged: a.update_parameters(nn.Linear(1, 3))),
            ]
        )
    assert errors[0] == errors[1]
