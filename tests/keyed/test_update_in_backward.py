"""Test updates in the backward pass: they give the bits of a later step, with fewer gradients."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import optgen.optim
from optgen import use_lowering
from optgen.keyed import (
    FusedEmbeddingBag,
    KeyedOptimizerWrapper,
    UpdateInBackward,
    WarmupOptimizer,
    WarmupStage,
    apply_optimizer_in_backward,
    in_backward_optimizer_filter,
)
from optgen.optim import SGD, AdamW
from optgen.runtime import GeneratedOptimizer

LARGER_THAN_A_NETWORK = 2**30  # bytes
NAMES = [
    name
    for name in optgen.optim.__all__
    if isinstance(cls := getattr(optgen.optim, name), type)
    and issubclass(cls, GeneratedOptimizer)
    and cls.rule.gradient != "sparse_only"
]


class Network(nn.Module):
    """Three layers; the middle one is used twice. No size is a multiple of a SIMD vector's."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(9, 37, bias=bias)
        self.middle = nn.Linear(37, 37, bias=bias)
        self.last = nn.Linear(37, 3, bias=bias)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.middle(torch.tanh(self.first(inputs)))
        output: Tensor = self.last(torch.tanh(self.middle(torch.tanh(hidden))))
        return output


def batch(step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(5, 9, generator=torch.Generator().manual_seed(step)).to(dtype)


def backward(model: Callable[[Tensor], Tensor], step: int, dtype: Any = torch.float32) -> None:
    model(batch(step, dtype)).square().mean().backward()


def train_with_steps(
    model: nn.Module, optimizer: Any, steps: int, dtype: Any = torch.float32
) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step, dtype)
        optimizer.step()


def assert_equal_params(ours: nn.Module, theirs: nn.Module) -> None:
    for param, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(param, expected)


@pytest.mark.parametrize(
    "bucket_bytes", [0, 3000, LARGER_THAN_A_NETWORK], ids=["each", "some", "all"]
)
@pytest.mark.parametrize("name", NAMES)
def test_updates_have_the_bits_of_a_step_after_the_pass(name: str, bucket_bytes: int) -> None:
    cls, bias = getattr(optgen.optim, name), name != "Muon"
    ours, theirs = Network(bias), Network(bias)
    model = UpdateInBackward(ours, cls, bucket_bytes=bucket_bytes, lr=0.01)
    reference = cls(theirs.parameters(), lr=0.01)
    for step in range(3):
        backward(model, step)
        assert all(param.grad is None for param in ours.parameters())
        model.fused_optimizer.step()
    train_with_steps(theirs, reference, 3)

    assert_equal_params(ours, theirs)
    for param, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        states = model.fused_optimizer.state[param]
        for key, value in reference.state[expected].items():
            assert torch.equal(states[key], value), key


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_updates_have_the_bits_of_a_later_step_in_every_lowering_and_dtype(
    dtype: torch.dtype, lowering: str
) -> None:
    ours, theirs = Network().to(dtype), Network().to(dtype)
    model = UpdateInBackward(ours, AdamW, bucket_bytes=3000, lr=0.01)
    with use_lowering(lowering):
        for step in range(3):
            backward(model, step, dtype)
            model.fused_optimizer.step()
        train_with_steps(theirs, AdamW(theirs.parameters(), lr=0.01), 3, dtype)
    assert_equal_params(ours, theirs)


@pytest.mark.parametrize(
    "bucket_bytes", [0, 3000, None], ids=["each", "some", "step after the pass"]
)
def test_at_most_a_buckets_gradients_are_alive(bucket_bytes: int | None) -> None:
    """With a step after the pass, all gradients are alive."""
    network = Network()
    params, references, alive_bytes = list(network.parameters()), [], []

    def record_bytes(param: Tensor) -> None:
        references.append(weakref.ref(param.grad))
        grads = [grad for ref in references if (grad := ref()) is not None]
        alive_bytes.append(sum(grad.nbytes for grad in grads))

    for param in params:
        param.register_post_accumulate_grad_hook(record_bytes)  # before the update's own hook
    if bucket_bytes is None:
        backward(network, 0)
        assert max(alive_bytes) == sum(param.nbytes for param in params)
        return
    backward(UpdateInBackward(network, AdamW, bucket_bytes=bucket_bytes), 0)
    assert len(alive_bytes) == len(params)
    assert max(alive_bytes) <= max(bucket_bytes, *(param.nbytes for param in params))
    assert not any(ref() is not None for ref in references)


def test_an_unused_part_of_the_model_is_left_out() -> None:
    """The bucket is updated without the unused part, at the end of the pass."""
    network = nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(3, 2)})
    network["idle"].weight.requires_grad_(False)
    expected = copy.deepcopy(network)
    model = UpdateInBackward(network, AdamW, bucket_bytes=LARGER_THAN_A_NETWORK, lr=0.1)
    reference = AdamW([p for p in expected.parameters() if p.requires_grad], lr=0.1)
    for each in (model.module, expected):
        each["used"](torch.ones(2, 3)).sum().backward()
    assert network["used"].weight.grad is None
    reference.step()
    assert_equal_params(network, expected)
    assert "module.idle.weight" not in model.fused_optimizer.params


def test_a_learning_rate_acts_on_the_next_pass() -> None:
    """A schedule or a warm-up sets the rate, and groups have their own rates."""
    for with_warmup in (False, True):
        networks = Network(), Network()
        groups_of_networks = [
            [
                {"params": [net.first.weight, net.last.weight]},
                {"params": [*net.middle.parameters(), net.first.bias, net.last.bias], "lr": 0.5},
            ]
            for net in networks
        ]
        model = UpdateInBackward(
            networks[0], SGD, groups=groups_of_networks[0], lr=0.2, bucket_bytes=3000
        )
        plain = SGD(groups_of_networks[1], lr=0.2)
        named_params = dict(networks[1].named_parameters())
        reference: Any = KeyedOptimizerWrapper(named_params, lambda _, plain=plain: plain)
        ours: Any = model.fused_optimizer
        if with_warmup:
            stages = [WarmupStage(max_iters=4, value=0.1)]
            ours, reference = (WarmupOptimizer(each, stages, lr=0.3) for each in (ours, reference))
        schedules = [StepLR(each, 1, 0.5) for each in (ours, reference) if not with_warmup]
        for step in range(4):
            backward(model, step)
            ours.step()
            reference.zero_grad()
            backward(networks[1], step)
            reference.step()
            for schedule in schedules:
                schedule.step()
        assert_equal_params(*networks)


def test_a_closure_may_run_the_backward_pass() -> None:
    ours, theirs = Network(), Network()
    model = UpdateInBackward(ours, AdamW, lr=0.01)

    def closure() -> float:
        backward(model, 0)
        return 3.0

    assert model.fused_optimizer.step(closure) == 3.0
    assert model.fused_optimizer.step(closure) == 3.0
    reference = AdamW(theirs.parameters(), lr=0.01)
    for _ in range(2):
        train_with_steps(theirs, reference, 1)
    assert_equal_params(ours, theirs)


def test_gradients_are_not_accumulated() -> None:
    network = Network()
    model = UpdateInBackward(network, SGD, lr=0.1)
    backward(model, 0)
    after = [param.detach().clone() for param in network.parameters()]
    with pytest.raises(RuntimeError, match=r"module\.last\.\w+ has a second gradient since the"):
        backward(model, 1)
    for param, old in zip(network.parameters(), after, strict=True):
        assert torch.equal(param, old)
        assert param.grad is None
    model.fused_optimizer.zero_grad()
    backward(model, 1)
    assert not torch.equal(network.first.weight, after[0])


def test_a_graph_cannot_be_used_again() -> None:
    """The update has changed the weights, and torch notices."""
    model = UpdateInBackward(Network(), SGD, lr=0.1)
    loss = model(batch(0)).sum()
    loss.backward(retain_graph=True)
    model.fused_optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_failed_pass_can_be_followed_by_another() -> None:
    """`zero_grad` drops the gradients of the failed pass, so that the next pass trains as usual."""
    ours, theirs = Network(), Network()
    model = UpdateInBackward(ours, AdamW, bucket_bytes=LARGER_THAN_A_NETWORK, lr=0.01)

    def fail(grad: Tensor) -> None:
        raise ValueError("broken off")

    handle = ours.first.weight.register_hook(fail)
    with pytest.raises(ValueError, match="broken off"):
        backward(model, 5)
    assert ours.last.weight.grad is not None
    handle.remove()
    model.fused_optimizer.zero_grad()
    assert ours.last.weight.grad is None
    backward(model, 0)
    train_with_steps(theirs, AdamW(theirs.parameters(), lr=0.01), 1)
    assert_equal_params(ours, theirs)


@pytest.mark.parametrize("bucket_bytes", [0, 3000, LARGER_THAN_A_NETWORK])
def test_after_a_failed_pass_errors_say_what_was_updated(bucket_bytes: int) -> None:
    """Forward passes with gradients, backward passes and `step` refuse weights of two steps."""
    network = Network()
    model = UpdateInBackward(network, AdamW, bucket_bytes=bucket_bytes, lr=0.01)
    optimizer = model.fused_optimizer
    before = [param.detach().clone() for param in network.parameters()]
    passes = [model(batch(seed)).sum() for seed in range(2)]

    def fail(grad: Tensor) -> None:
        raise ValueError("broken off")

    handle = network.first.weight.register_hook(fail)
    with pytest.raises(ValueError, match="broken off"):
        passes[0].backward()
    handle.remove()
    moved = [
        not torch.equal(param, old) for param, old in zip(network.parameters(), before, strict=True)
    ]
    message = "failed before it had updated a parameter"
    if any(moved):
        message = rf"failed after it had updated {sum(moved)} of 6 parameters, module\.\w+\.\w+"
    assert any(moved) == (bucket_bytes < LARGER_THAN_A_NETWORK)
    after = [param.detach().clone() for param in network.parameters()]
    with pytest.raises(RuntimeError, match=message):
        model(batch(1))
    if bucket_bytes == LARGER_THAN_A_NETWORK:  # else torch finds that the weights have changed
        with pytest.raises(RuntimeError, match=message):
            passes[1].backward()
    for closure in (None, lambda: torch.tensor(1.0)):
        with pytest.raises(RuntimeError, match=message):
            optimizer.step(closure)
    with torch.no_grad():
        model(batch(1))
    assert all(map(torch.equal, network.parameters(), after))
    optimizer.zero_grad()
    backward(model, 1)
    optimizer.step()


def test_a_checkpointed_part_may_compute_its_forward_pass_again() -> None:
    """A recomputation inside the backward pass is no new pass."""
    results = []
    for reentrant in (None, False, True):
        network = Network()
        model = UpdateInBackward(network, AdamW, lr=0.01)
        for step in range(2):
            inputs = batch(step).requires_grad_()
            output = (
                model(inputs)
                if reentrant is None
                else torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=reentrant)
            )
            output.square().mean().backward()
            model.fused_optimizer.step()
        results.append(list(network.parameters()))
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


def test_a_dropped_model_is_freed() -> None:
    """Hooks live where the garbage collector does not look, so they refer to nothing strongly."""

    def wrapped() -> list[weakref.ref[Any]]:
        model = UpdateInBackward(Network(), AdamW, lr=0.01)
        backward(model, 0)
        model.fused_optimizer.step()
        copied = copy.deepcopy(model)
        backward(copied, 1)
        parts = [model, copied, model.fused_optimizer, model.module.first.weight]
        return [weakref.ref(each) for each in parts]

    def nested() -> list[weakref.ref[Any]]:
        model = nn.Sequential(UpdateInBackward(nn.Linear(9, 9), SGD), nn.Linear(9, 9))
        outer = UpdateInBackward(model, SGD, lr=0.1)
        backward(outer, 0)
        return [weakref.ref(each) for each in (outer, *outer.parameters())]

    def table() -> list[weakref.ref[Any]]:
        bag = FusedEmbeddingBag(10, 4, mode="sum", optimizer_class=optgen.optim.Adagrad)
        bag(torch.tensor([[1, 2]])).sum().backward()
        return [weakref.ref(each) for each in (bag, bag.weight, bag.fused_optimizer)]

    def function() -> list[weakref.ref[Any]]:
        network = Network()
        apply_optimizer_in_backward(AdamW, network.parameters(), {})
        backward(network, 0)
        return [weakref.ref(each) for each in (network, network.first.weight)]

    for make in (wrapped, nested, table, function):
        references = make()
        gc.collect()
        assert [ref() for ref in references] == [None] * len(references), make.__name__


def test_updates_go_on_if_only_the_module_is_kept() -> None:
    """The parameters keep the optimizer alive."""
    network = Network()
    UpdateInBackward(network, SGD, lr=0.1)
    gc.collect()
    before = network.first.weight.detach().clone()
    backward(network, 0)
    assert not torch.equal(network.first.weight, before)
    assert network.first.weight.grad is None


def test_gradients_are_clipped_by_value() -> None:
    ours, theirs = Network(), Network()
    model = UpdateInBackward(ours, SGD, clip_value=1e-3, lr=0.5)
    backward(model, 0)
    backward(theirs, 0)
    nn.utils.clip_grad_value_(theirs.parameters(), 1e-3)
    SGD(theirs.parameters(), lr=0.5).step()
    assert_equal_params(ours, theirs)


def test_a_new_model_loads_a_checkpoint_by_name() -> None:
    """A new model loads a checkpoint of step 2, and its third step equals the old model's."""
    model = UpdateInBackward(Network(), AdamW, lr=0.01)
    for step in range(2):
        backward(model, step)
        model.fused_optimizer.step()
    file = io.BytesIO()
    torch.save((model.state_dict(), model.fused_optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file)
    other = UpdateInBackward(Network(), AdamW, bucket_bytes=LARGER_THAN_A_NETWORK, lr=0.01)
    other.load_state_dict(weights)
    fresh = [param.detach().clone() for param in other.parameters()]
    other.fused_optimizer.init_state()
    assert all(map(torch.equal, other.parameters(), fresh))
    other.fused_optimizer.load_state_dict(state)
    for each in (model, other):
        backward(each, 2)
    assert set(state["state"]) == set(dict(model.named_parameters()))
    assert_equal_params(model, other)


def test_copies_train_too() -> None:
    model = UpdateInBackward(Network(), AdamW, bucket_bytes=3000, lr=0.01)
    backward(model, 0)
    model.fused_optimizer.step()
    others = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for each in (model, *others):
        backward(each, 1)
    for other in others:
        assert_equal_params(model, other)
        assert next(iter(other.parameters())) is not next(iter(model.parameters()))


def test_a_gradient_scaler_finds_no_gradients() -> None:
    model, scaler = UpdateInBackward(Network(), SGD, lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(model(batch(0)).sum()).backward()
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        scaler.step(model.fused_optimizer)


def test_the_filter_yields_parameters_without_updates_in_backward() -> None:
    model = nn.Sequential(UpdateInBackward(nn.Linear(2, 2), SGD), nn.Linear(2, 2))
    remaining = [name for name, _ in in_backward_optimizer_filter(model.named_parameters())]
    assert remaining == ["1.weight", "1.bias"]


def test_wrong_groups_and_replaced_parameters_are_refused() -> None:
    network = Network()
    first_weight = network.first.weight
    with pytest.raises(ValueError, match=r"module\.first\.bias is in none of the groups"):
        UpdateInBackward(network, SGD, groups=[{"params": [first_weight]}])
    layer = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="groups have parameters that are not the module's"):
        UpdateInBackward(layer, SGD, groups=[{"params": [first_weight, *layer.parameters()]}])
    with pytest.raises(ValueError, match="Invalid learning rate: -1"):
        UpdateInBackward(Network(), SGD, lr=-1)
    model = UpdateInBackward(network, SGD)
    network.middle.bias = nn.Parameter(torch.zeros(37))
    with pytest.raises(RuntimeError, match=r"module\.middle\.bias is another parameter than when"):
        model(batch(0))


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        ("adamw", "takes a class and its arguments, such as AdamW, lr=1e-3, not 'adamw'"),
        (AdamW(nn.Linear(1, 1).parameters()), "takes a class and its arguments"),
        (optgen.optim.LBFGS, "LBFGS.step needs a closure"),
        (torch.optim.LBFGS, "LBFGS.step needs a closure"),
    ],
)
def test_what_cannot_step_in_the_backward_pass_is_refused(cls: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        UpdateInBackward(Network(), cls)


def test_explain_says_how_the_buckets_of_each_group_are_stepped() -> None:
    network = Network()
    groups = [
        {"params": network.first.parameters(), "lr": 0.1},
        {"params": [p for n, p in network.named_parameters() if not n.startswith("first.")]},
    ]
    optimizer = UpdateInBackward(network, AdamW, groups=groups).fused_optimizer
    with use_lowering("foreach"):
        lines = optgen.explain(optimizer).splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["group 0", "group 1"]
    assert all(line.split(": ")[1] == "foreach" for line in lines)

    optimizer.param_groups[1]["foreach"] = False
    lines = optgen.explain(optimizer).splitlines()
    assert lines[1].startswith("group 1: for-loop: ")
