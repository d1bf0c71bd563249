"""Test keyed optimizers that wrap others: what they pass on, and what they share."""

import importlib
from typing import Any

import pytest
import torch
from keyed.models import IDS, LIBRARIES, NoOpOptimizer, keyed_adamw, parameters, train
from torch import Tensor

import optgen.keyed
import optgen.optim
from optgen.keyed import (
    CombinedOptimizer,
    KeyedOptimizer,
    KeyedOptimizerWrapper,
    OptimizerWrapper,
    WarmupOptimizer,
)


class SGDWithAllMethods(torch.optim.SGD):
    """An optimizer with all methods to which wrappers pass calls."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.calls: list[Any] = []
        self.buffer = torch.empty(3)

    def scratch_buffers(self) -> list[Tensor]:
        return [self.buffer]

    def set_optimizer_step(self, step: int) -> None:
        self.calls.append(step)

    def update_hyper_parameters(self, params_dict: dict[str, Any]) -> None:
        self.calls.append(params_dict)


@pytest.mark.parametrize("library", LIBRARIES, ids=IDS)
def test_a_wrappers_step_is_that_of_its_optimizer(library: Any) -> None:
    ours, theirs = parameters(), parameters()
    train(OptimizerWrapper(keyed_adamw(ours, library, lr=0.1)), 3)
    train(library.AdamW(list(theirs.values()), lr=0.1), 3)

    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_state_groups_and_parameters_are_shared() -> None:
    params = parameters()
    keyed = keyed_adamw(params)
    outer = OptimizerWrapper(keyed)

    assert keyed.params is outer.params is params
    assert keyed.state is outer.state is keyed._optimizer.state
    assert keyed.param_groups is outer.param_groups is keyed._optimizer.param_groups
    keyed._optimizer.load_state_dict(
        keyed._optimizer.state_dict()
    )  # replaces state and param_groups
    assert keyed.state is outer.state is keyed._optimizer.state
    assert keyed.param_groups is outer.param_groups is keyed._optimizer.param_groups


def test_the_factory_may_take_parameters_by_name() -> None:
    params = parameters()
    keyed = KeyedOptimizerWrapper(params, lambda each: torch.optim.SGD(each.items()), True)

    assert keyed.param_groups[0]["param_names"] == ["weight", "bias"]


@pytest.mark.parametrize("wrap", [lambda each: each, OptimizerWrapper])
def test_calls_are_passed_on_to_the_inner_optimizer(wrap: Any) -> None:
    outer = wrap(KeyedOptimizerWrapper(parameters(), SGDWithAllMethods))
    outer.set_optimizer_step(7)
    outer.update_hyper_parameters({"a": 1})
    inner = outer._optimizer if wrap is not OptimizerWrapper else outer._optimizer._optimizer

    assert inner.calls == [7, {"a": 1}]
    assert outer.scratch_buffers() == (inner.buffer,)


def test_calls_of_methods_that_the_inner_optimizer_lacks_do_nothing() -> None:
    for outer in (
        keyed_adamw(parameters()),
        OptimizerWrapper(KeyedOptimizer(parameters(), {}, [])),
    ):
        outer.set_optimizer_step(7)
        outer.update_hyper_parameters({"a": 1})
        assert outer.scratch_buffers() == ()


@pytest.mark.parametrize("wrap", [lambda each: each, OptimizerWrapper])
def test_zero_grad_sets_to_zeros_or_none(wrap: Any) -> None:
    params = parameters()
    outer = wrap(keyed_adamw(params))
    train(outer, 1)
    outer.zero_grad(set_to_none=False)
    assert all(param.grad is not None and not param.grad.any() for param in params.values())
    outer.zero_grad()
    assert all(param.grad is None for param in params.values())


def test_the_save_flag_is_seen_through_wrappers() -> None:
    keyed = keyed_adamw(parameters())
    outer = OptimizerWrapper(OptimizerWrapper(keyed))
    outer.save_param_groups(True)

    assert outer.defaults["_save_param_groups"] is keyed.defaults["_save_param_groups"] is True
    assert "param_groups" in outer.state_dict()


def test_a_wrapper_has_the_repr_of_its_optimizer() -> None:
    keyed = keyed_adamw(parameters())

    assert repr(OptimizerWrapper(keyed)) == repr(keyed)
    assert repr(keyed).startswith("KeyedOptimizerWrapper (\nParameter Group 0")


def test_a_factory_with_state_of_other_parameters_is_refused() -> None:
    def factory(params: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adagrad([torch.nn.Parameter(torch.ones(1))])

    with pytest.raises(ValueError, match="All state keys must be params"):
        KeyedOptimizerWrapper(parameters(), factory)


def test_errors_about_unnamed_parameters_and_plain_optimizers_name_a_remedy() -> None:
    params = parameters()
    for pairs in (params.items(), list(params.values())):
        for make in (
            lambda p: KeyedOptimizerWrapper(p, torch.optim.SGD),
            lambda p: NoOpOptimizer(p, {}, []),
        ):
            with pytest.raises(TypeError, match=r"such as dict\(model.named_parameters\(\)\), not"):
                make(pairs)
    plain = torch.optim.SGD(list(params.values()))
    for wrap in (
        OptimizerWrapper,
        lambda each: WarmupOptimizer(each, []),
        lambda each: CombinedOptimizer([each]),
        lambda each: CombinedOptimizer([("a", each)]),
    ):
        with pytest.raises(TypeError, match="SGD is no KeyedOptimizer: make one of it, Keyed"):
            wrap(plain)


def test_modules_have_torchrecs_names() -> None:
    for module, names in (
        ("keyed", "CombinedOptimizer KeyedOptimizer KeyedOptimizerWrapper OptimizerWrapper"),
        ("warmup", "WarmupOptimizer WarmupPolicy WarmupStage"),
        ("clipping", "GradientClipping GradientClippingOptimizer"),
        ("fused", "EmptyFusedOptimizer FusedOptimizer FusedOptimizerModule"),
        ("optimizers", "SGD Adagrad Adam in_backward_optimizer_filter"),
        ("rowwise_adagrad", "RowWiseAdagrad"),
        ("apply_optimizer_in_backward", "apply_optimizer_in_backward"),
    ):
        module_of_optgen = importlib.import_module(f"optgen.keyed.{module}")
        for name in names.split():
            assert getattr(module_of_optgen, name) is getattr(optgen.keyed, name)


def test_torchrecs_optimizer_names_are_our_classes() -> None:
    for name in ("SGD", "Adagrad", "Adam"):
        assert getattr(optgen.keyed, name) is getattr(optgen.optim, name)
