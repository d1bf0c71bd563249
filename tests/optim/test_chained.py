"""Test chained optimizers against equal optimizers that step one by one."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim.lr_scheduler import CosineAnnealingLR

import optgen
from optgen.optim import create_optimizer, optimizer_class
from optgen.optim._chained import ChainedOptimizer

TOKENS = torch.arange(24).reshape(4, 6) % 20
NAMES = ("muon", "soap", "shampoo", "galore", "adamw_8bit", "prodigy", "schedule_free_adamw")


class Network(nn.Module):
    """An embedding, a block with a matrix and a norm, and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 64)
        self.block = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh())
        self.output = nn.Linear(64, 20, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.block(self.embedding(tokens)))


def chained_with_adamw(model: nn.Module, name: str = "muon", **options: Any) -> Any:
    return create_optimizer(model, name, lr=0.02, others=("adamw", {"lr": 1e-3}), **options)


def backward(model: nn.Module) -> torch.Tensor:
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten())
    loss.backward()
    return loss


def train(model: nn.Module, optimizers: list[Any], steps: int = 3) -> None:
    for _ in range(steps):
        backward(model)
        for optimizer in optimizers:
            optimizer.step()


def assert_equal(model: nn.Module, other: nn.Module) -> None:
    for param, expected in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(param, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_chained_optimizer_steps_as_its_members_alone(name: str) -> None:
    model, other = Network(), Network()
    optimizer, params = chained_with_adamw(model, name), dict(other.named_parameters())
    optimizers_alone = []
    for member in optimizer.members:
        groups = [
            {**group, "params": [params[param_name] for param_name in group["param_names"]]}
            for group in member.param_groups
        ]
        optimizers_alone.append(type(member)(groups))
    schedulers = [CosineAnnealingLR(each, 5) for each in (optimizer, *optimizers_alone)]
    for _ in range(4):
        train(model, [optimizer], 1)
        train(other, optimizers_alone, 1)
        for scheduler in schedulers:
            scheduler.step()

    assert_equal(model, other)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["state_dict", "by name", "deepcopy", "pickle"])
def test_training_continues_from_a_copy(name: str, form: str) -> None:
    model = Network()
    optimizer = chained_with_adamw(model, name)
    train(model, [optimizer])
    if form in ("deepcopy", "pickle"):
        make_copy = copy.deepcopy if form == "deepcopy" else lambda x: pickle.loads(pickle.dumps(x))
        resumed_model, resumed = make_copy((model, optimizer))
    else:
        resumed_model = copy.deepcopy(model)
        resumed = chained_with_adamw(resumed_model, name)
        if form == "state_dict":
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        else:
            saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
            set_optimizer_state_dict(resumed_model, resumed, saved)
    for each in ((model, [optimizer]), (resumed_model, [resumed])):
        train(*each)

    assert_equal(resumed_model, model)


def test_a_step_calls_the_closure_once_and_returns_its_loss() -> None:
    model, losses = Network(), []

    def closure() -> torch.Tensor:
        losses.append(backward(model))
        return losses[-1]

    assert chained_with_adamw(model).step(closure) is losses[0]
    assert len(losses) == 1


def test_a_checkpoint_of_other_groups_is_refused_and_changes_nothing() -> None:
    model = Network()
    optimizer = chained_with_adamw(model)
    train(model, [optimizer])
    before = copy.deepcopy(optimizer.state_dict())
    other = chained_with_adamw(Network(), options={"block.1.bias": {"lr": 0.5}})

    with pytest.raises(ValueError, match=r"has groups of \[1, 2, 2, 1\] par.* of \[1, 2, 3\]"):
        optimizer.load_state_dict(other.state_dict())
    assert str(optimizer.state_dict()) == str(before)


def test_a_member_that_fails_to_load_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Network()
    optimizer = chained_with_adamw(model)
    train(model, [optimizer])
    before = copy.deepcopy(optimizer.state_dict())
    saved = copy.deepcopy(before)
    for group in saved["param_groups"]:
        group["lr"] = 7.0

    def fail(state_dict: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(optimizer.members[1], "load_state_dict", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        optimizer.load_state_dict(saved)
    assert str(optimizer.state_dict()) == str(before)
    train(model, [optimizer], 1)


def test_hooks_of_checkpoints_run() -> None:
    optimizer, calls = chained_with_adamw(Network()), []
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda _, saved: {**saved, "more": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, saved: calls.append(saved["more"]))
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())

    assert calls == ["before saving", 1, "loaded"]


def test_hooks_of_steps_run_once() -> None:
    model, calls = Network(), []
    optimizer = chained_with_adamw(model)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(model, [optimizer], 1)

    assert calls == ["before", "after"]


def test_eval_replaces_weights_by_averages_until_train() -> None:
    model = Network()
    optimizer = chained_with_adamw(model, "schedule_free_adamw")
    train(model, [optimizer])
    trained = copy.deepcopy(model.state_dict())
    optimizer.eval()
    averaged = copy.deepcopy(model.state_dict())
    optimizer.train()

    assert not torch.equal(averaged["block.0.weight"], trained["block.0.weight"])
    assert torch.equal(averaged["embedding.weight"], trained["embedding.weight"])
    torch.testing.assert_close(model.state_dict(), trained)


def test_a_parameter_of_two_members_is_refused() -> None:
    param = nn.Parameter(torch.ones(2))
    sgd = optimizer_class("sgd")

    with pytest.raises(ValueError, match="belongs to two of the chained optimizers"):
        ChainedOptimizer([sgd([param]), sgd([param])])


def test_add_param_group_is_refused() -> None:
    with pytest.raises(TypeError, match=r"add the group to one of the optimizers: optimizer\.mem"):
        chained_with_adamw(Network()).add_param_group({"params": [nn.Parameter(torch.ones(2))]})


@pytest.mark.parametrize("cls", [optgen.optim.LBFGS, torch.optim.LBFGS])
def test_a_member_that_needs_a_closure_is_refused(cls: Any) -> None:
    with pytest.raises(TypeError, match="LBFGS calls the closure several times in a step"):
        ChainedOptimizer([cls(nn.Linear(2, 2).parameters())])


def test_one_optimizer_is_no_list() -> None:
    with pytest.raises(TypeError, match="takes a list of optimizers"):
        ChainedOptimizer(optgen.optim.SGD(nn.Linear(2, 2).parameters()))  # type: ignore[arg-type]


def test_explain_names_a_member_of_another_library() -> None:
    model = Network()
    adamw = torch.optim.AdamW([{"params": model.embedding.weight}, {"params": model.output.weight}])
    sgd = optgen.optim.SGD(model.block.parameters())
    lines = optgen.explain(ChainedOptimizer([adamw, sgd])).splitlines()
    name = "torch.optim.adamw.AdamW, which optgen did not generate"
    assert lines[:2] == [f"group 0: {name}", f"group 1: {name}"]
    assert lines[2].startswith("group 2: ")
    assert "CPU tensors" in lines[2]


def test_explain_numbers_the_groups_of_all_members() -> None:
    lines = optgen.explain(chained_with_adamw(Network())).splitlines()

    assert [line.split(":")[0] for line in lines[2:]] == ["group 0", "group 1", "group 2"]
    assert [line.split()[0] for line in lines[:2]] == ["Muon", "AdamW"]


def members_that_refuse() -> dict[str, Any]:
    """Return what makes the second member, or both, refuse a step."""

    def eval_mode(model: Network, optimizer: Any) -> None:
        optimizer.members[1].eval()

    def sparse_gradient(model: Network, optimizer: Any) -> None:
        model.embedding.weight.grad = model.embedding.weight.grad.to_sparse()

    def wrong_rate(model: Network, optimizer: Any) -> None:
        optimizer.param_groups[-1]["lr"] = "fast"

    def wrong_rate_of_the_first(model: Network, optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = "fast"

    def failing_hook(model: Network, optimizer: Any) -> None:
        def fail(*_: Any) -> None:
            raise RuntimeError("the hook fails")

        optimizer.members[1].register_step_pre_hook(fail)

    return {
        each.__name__: each
        for each in (eval_mode, sparse_gradient, wrong_rate, wrong_rate_of_the_first, failing_hook)
    }


def everything(model: nn.Module, optimizer: Any) -> str:
    """Return a text of all parameters and states."""
    torch.set_printoptions(profile="full", precision=17)
    try:
        return str((model.state_dict(), optimizer.state_dict()["state"]))
    finally:
        torch.set_printoptions(profile="default")


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("refusal", members_that_refuse())
@pytest.mark.parametrize("first", ["muon", "lion"])
def test_a_refused_step_changes_no_member(
    first: str, refusal: str, steps: int, lowering: str
) -> None:
    model = Network()
    optimizer = create_optimizer(model, first, lr=0.02, others="schedule_free_adamw")
    with optgen.use_lowering(lowering):
        train(model, [optimizer], steps)
        backward(model)
        make_refuse = members_that_refuse()[refusal]
        make_refuse(model, optimizer)
        before = everything(model, optimizer)
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            optimizer.step()

        assert everything(model, optimizer) == before


def test_training_goes_on_after_a_refused_step() -> None:
    model, other = Network(), Network()
    optimizer = create_optimizer(model, "lion", lr=0.02, others="schedule_free_adamw")
    reference = create_optimizer(other, "lion", lr=0.02, others="schedule_free_adamw")
    for step in range(4):
        backward(model)
        if step in (0, 2):
            rate, optimizer.param_groups[-1]["lr"] = optimizer.param_groups[-1]["lr"], "fast"
            with pytest.raises((TypeError, ValueError)):
                optimizer.step()
            optimizer.param_groups[-1]["lr"] = rate
        optimizer.step()
        train(other, [reference], 1)

    assert_equal(model, other)


@pytest.mark.parametrize("first", ["muon", "lion"])
def test_torchs_optimizers_step_only_if_the_others_can(first: str) -> None:
    model, other = Network(), Network()
    theirs, ours = (
        create_optimizer(each, first, lr=0.02, others=(library.AdamW, {"lr": 1e-3}))
        for each, library in ((model, torch.optim), (other, optgen.optim))
    )
    for each, optimizer in ((model, theirs), (other, ours)):
        train(each, [optimizer])
    for param, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(param, expected)

    backward(model)
    theirs.param_groups[0]["lr"] = "fast"
    before = everything(model, theirs)
    with pytest.raises((TypeError, ValueError)):
        theirs.step()
    assert everything(model, theirs) == before
    theirs.param_groups[0]["lr"] = 0.02
    theirs.param_groups[-1]["lr"] = "fast"  # torch's step raises the error
    parameters = str(model.block[0].weight)
    with pytest.raises((TypeError, ValueError)):
        theirs.step()
    assert str(model.block[0].weight) == parameters


def test_hooks_of_members_run_around_all_updates() -> None:
    """A hook may change what a prepared step has read, so no hook runs between the two."""
    model, calls = Network(), []
    optimizer = chained_with_adamw(model, "lion")
    train(model, [optimizer], 1)
    for index, member in enumerate(optimizer.members):

        def record(*_: Any, when: str, index: int = index) -> None:
            calls.append((when, index, [w.detach().clone() for w in weights]))

        member.register_step_pre_hook(lambda *_, record=record: record(when="before"))
        member.register_step_post_hook(lambda *_, record=record: record(when="after"))
    weights = [member.param_groups[0]["params"][0] for member in optimizer.members]
    train(model, [optimizer], 1)

    assert [call[:2] for call in calls] == [
        ("before", 0),
        ("before", 1),
        ("after", 1),
        ("after", 0),
    ]
    for old, new in zip(calls[1][2], calls[2][2], strict=True):
        assert not torch.equal(old, new)
    assert all(torch.equal(a, b) for a, b in zip(calls[0][2], calls[1][2], strict=True))


def test_torchs_checkpoint_functions_initialize_the_states_of_all_members() -> None:
    model = Network()
    optimizer = chained_with_adamw(model, "lion")
    saved = get_optimizer_state_dict(model, optimizer)

    assert saved["state"].keys() == dict(model.named_parameters()).keys()
    assert "exp_avg_sq" in saved["state"]["embedding.weight"]


def test_a_gradient_scaler_skips_the_step_of_all_members() -> None:
    model, scaler = Network(), torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer, reference_model = chained_with_adamw(model), Network()
    reference = chained_with_adamw(reference_model)
    for step in range(3):
        model.zero_grad()
        tokens = model(TOKENS).flatten(0, 1)
        loss = nn.functional.cross_entropy(tokens, TOKENS.flatten())
        scaler.scale(loss).backward()
        if step == 1:
            model.output.weight.grad[0, 0] = torch.inf
        else:
            train(reference_model, [reference], 1)
        scaler.step(optimizer)
        scaler.update()

    for param, expected in zip(model.parameters(), reference_model.parameters(), strict=True):
        torch.testing.assert_close(param, expected)


def test_a_step_hands_extra_inputs_to_the_members_that_take_them() -> None:
    model, other = Network(), Network()
    optimizer = create_optimizer(model, "muon_clip", others="adamw")
    reference = create_optimizer(other, "muon_clip", others="adamw")
    backward(model), backward(other)
    logits = [torch.full((64, 64), 200.0)] + [None] * 5
    optimizer.step(max_logits=logits)
    for member, inputs in zip(reference.members, ({"max_logits": logits[:1]}, {}), strict=True):
        member.step(**inputs)

    assert_equal(model, other)
    with pytest.raises(TypeError, match="no member's step has an argument 'max_logit'"):
        optimizer.step(max_logit=logits)
    with pytest.raises(ValueError, match="max_logits has 2 entries, and the members have 6"):
        optimizer.step(max_logits=logits[:2])


def test_zero_grad_resets_the_gradients_of_all_members() -> None:
    model = Network()
    optimizer = chained_with_adamw(model)
    backward(model)
    optimizer.zero_grad(set_to_none=False)
    assert all(not param.grad.any() for param in model.parameters())
    optimizer.zero_grad()
    assert all(param.grad is None for param in model.parameters())
