"""Test checkpoints, hooks and copies of keyed optimizers, and schedulers around them."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from keyed.models import IDS, LIBRARIES, NoOpOptimizer, content, keyed_adamw, parameters, train

import optgen.keyed
from optgen.keyed import (
    CombinedOptimizer,
    KeyedOptimizer,
    OptimizerWrapper,
    WarmupOptimizer,
    WarmupStage,
)

Factory = Callable[[], Any]


def combined_optimizer() -> CombinedOptimizer:
    return CombinedOptimizer([("a", keyed_adamw(parameters())), ("b", keyed_adamw(parameters()))])


def with_warmup(optimizer: KeyedOptimizer) -> WarmupOptimizer:
    return WarmupOptimizer(optimizer, [WarmupStage(max_iters=4, value=0.5)])


def no_op_optimizer() -> NoOpOptimizer:
    params = parameters()
    return NoOpOptimizer(params, {}, [{"params": list(params.values()), "lr": 0.1}])


FACTORIES: dict[str, Factory] = {
    "KeyedOptimizer": no_op_optimizer,
    "KeyedOptimizerWrapper": lambda: keyed_adamw(parameters()),
    "OptimizerWrapper": lambda: OptimizerWrapper(keyed_adamw(parameters())),
    "WarmupOptimizer": lambda: with_warmup(keyed_adamw(parameters())),
    "CombinedOptimizer": combined_optimizer,
    "around CombinedOptimizer": lambda: with_warmup(OptimizerWrapper(combined_optimizer())),
}
every_class = pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)


class Counter:
    """An entry of a state that has its own state_dict()."""

    def __init__(self) -> None:
        self.count = torch.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}


def test_a_checkpoint_has_state_and_groups_by_name() -> None:
    params = parameters()
    tensor, counter = torch.ones(2), Counter()
    state = {params["bias"]: {"one": 1, "deep": {"tensor": tensor, "counter": counter}}}
    groups = [{"params": [params["weight"], params["bias"]], "lr": [0.1]}]
    optimizer = KeyedOptimizer(params, state, groups)

    checkpoint = optimizer.state_dict()
    assert list(checkpoint) == ["state"]
    assert checkpoint["state"].keys() == {"bias"}
    assert checkpoint["state"]["bias"]["one"] == 1
    assert checkpoint["state"]["bias"]["deep"]["tensor"] is tensor
    assert checkpoint["state"]["bias"]["deep"]["counter"]["count"] is counter.count
    assert optimizer.params is params
    assert optimizer.state is state
    assert optimizer.param_groups is groups

    optimizer.save_param_groups(True)
    checkpoint = optimizer.state_dict()
    assert checkpoint["param_groups"] == [{"params": ["bias", "weight"], "lr": [0.1]}]
    assert checkpoint["param_groups"][0]["lr"] is not groups[0]["lr"]
    optimizer.save_param_groups(False)
    assert list(optimizer.state_dict()) == ["state"]


def test_state_keys_must_be_parameters() -> None:
    params = parameters()
    with pytest.raises(ValueError) as caught:
        KeyedOptimizer(params, {params["bias"]: {}, "x": {}}, [])
    assert str(caught.value) == (
        "All state keys must be params. The following keys are not: ['x']."
    )


def test_saving_a_parameter_without_a_name_is_an_error() -> None:
    params = parameters()
    optimizer = keyed_adamw(params)
    train(optimizer, 1)
    optimizer.params = {"bias": params["bias"]}
    with pytest.raises(ValueError, match=r"The state has a parameter of shape \(3, 2\) that has"):
        optimizer.state_dict()
    optimizer = no_op_optimizer()
    optimizer.params = {"bias": params["bias"]}
    optimizer.state_dict()
    optimizer.save_param_groups(True)
    with pytest.raises(ValueError, match=r"A param group has a parameter of shape \(3, 2\) that"):
        optimizer.state_dict()


def test_a_parameter_of_two_names_loads_what_it_saved() -> None:
    params = parameters()
    params["tied"] = params["weight"]
    optimizer = keyed_adamw({"weight": params["weight"]})
    optimizer.params = params
    train(optimizer, 1)
    checkpoint = optimizer.state_dict()

    assert checkpoint["state"].keys() == {"tied"}
    optimizer.load_state_dict(copy.deepcopy(checkpoint))


def test_step_and_add_param_group_are_not_implemented() -> None:
    optimizer = KeyedOptimizer(parameters(), {}, [])

    with pytest.raises(NotImplementedError, match="KeyedOptimizer has no step"):
        optimizer.step()
    with pytest.raises(NotImplementedError, match="by name"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})


@every_class
def test_all_hooks_fire(make: Factory) -> None:
    optimizer = make()
    optimizer.init_state()
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("step"))
    optimizer.register_step_post_hook(lambda *_: calls.append("stepped"))
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("save"))
    optimizer.register_state_dict_post_hook(lambda _, checkpoint: {**checkpoint, "more": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda _, checkpoint: calls.append(f"load {checkpoint.pop('more')}")
    )
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("loaded"))

    optimizer.step()
    checkpoint = optimizer.state_dict()
    optimizer.load_state_dict(checkpoint)
    assert calls == ["step", "stepped", "save", "load 1", "loaded"]
    assert checkpoint["more"] == 1


@every_class
def test_a_hook_may_replace_the_state_to_load(make: Factory) -> None:
    optimizer = make()
    train(optimizer, 2)
    before = copy.deepcopy(optimizer.state_dict())
    train(optimizer, 1)
    optimizer.register_load_state_dict_pre_hook(lambda *_: before)
    optimizer.load_state_dict({})

    assert content(optimizer.state_dict()) == content(before)


@every_class
@pytest.mark.parametrize(
    "make_copy", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))]
)
def test_a_copy_is_independent_of_its_original(
    make: Factory, make_copy: Callable[[Any], Any]
) -> None:
    original = make()
    train(original, 2)
    original.register_step_pre_hook(lambda *_: pytest.fail("a hook was copied"))
    saved = content(original.state_dict())
    other = make_copy(original)

    assert content(other.state_dict()) == saved
    train(other, 1)
    assert content(original.state_dict()) == saved
    other.load_state_dict(original.state_dict())
    assert content(other.state_dict()) == saved
    train(make(), 1)  # a new optimizer of the class can step


@every_class
def test_torch_save_keeps_names(make: Factory) -> None:
    optimizer = make()
    train(optimizer, 2)
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)

    assert content(loaded.state_dict()) == content(optimizer.state_dict())
    assert list(loaded.params) == list(optimizer.params)


@pytest.mark.parametrize("library", LIBRARIES, ids=IDS)
def test_a_copy_has_no_scheduler(library: Any) -> None:
    optimizer = no_op_optimizer()
    library.lr_scheduler.StepLR(optimizer, 1)
    assert "step" in vars(optimizer)  # the scheduler has replaced the method to count steps

    assert "step" not in vars(copy.deepcopy(optimizer))
    pickle.loads(pickle.dumps(optimizer)).step()


@pytest.mark.parametrize("library", LIBRARIES, ids=IDS)
@every_class
def test_schedulers_set_the_rate(make: Factory, library: Any) -> None:
    optimizer = make()
    scheduler = library.lr_scheduler.ExponentialLR(optimizer, 0.5)
    before = [group["lr"] for group in optimizer.param_groups]
    optimizer.step()
    scheduler.step()

    assert scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
    if not isinstance(optimizer, WarmupOptimizer):
        assert scheduler.get_last_lr() == [0.5 * lr for lr in before]


@pytest.mark.parametrize("library", LIBRARIES, ids=IDS)
@pytest.mark.parametrize(
    "wrap", [lambda each: each, OptimizerWrapper, lambda o: CombinedOptimizer([o])]
)
def test_schedulers_find_momentum_in_defaults(library: Any, wrap: Any) -> None:
    optimizer = wrap(keyed_adamw(parameters()))
    library.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=4)

    assert optimizer.param_groups[0]["betas"][0] == 0.95


@pytest.mark.parametrize("name", [name for name in FACTORIES if name != "KeyedOptimizer"])
def test_a_subclass_with_a_step_runs_hooks_once(name: str) -> None:
    optimizer = FACTORIES[name]()
    base: Any = type(optimizer)

    class SubclassWithStep(base):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    optimizer.__class__ = SubclassWithStep
    optimizer._patch_step_function()  # as torch does for a new class
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.step()
    assert calls == [1]


def test_a_grad_scaler_skips_steps_of_a_keyed_optimizer() -> None:
    params = parameters()
    optimizer = OptimizerWrapper(keyed_adamw(params))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale((params["weight"] ** 2).sum()).backward()
    params["bias"].grad = torch.full((2,), torch.inf)
    before = params["weight"].detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(params["weight"], before)
    params["bias"].grad = None
    scaler.step(optimizer)
    assert not torch.equal(params["weight"], before)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("combined", "CombinedOptimizer"),
        ("keyed_optimizer", "KeyedOptimizer"),
        ("wrappers", "KeyedOptimizerWrapper"),
        ("wrappers", "OptimizerWrapper"),
        ("warmup_stages", "WarmupStage"),
        ("embedding", "FusedEmbedding"),
        ("clipping", "GradientClippingOptimizer"),
    ],
)
def test_pickles_of_earlier_versions_find_the_classes(module: str, name: str) -> None:
    cls = pickle.loads(f"coptgen.keyed.{module}\n{name}\n.".encode())

    assert cls is getattr(optgen.keyed, name)
    assert cls.__module__ == "optgen.keyed"
