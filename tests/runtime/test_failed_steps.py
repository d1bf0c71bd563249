"""Test that a step that raises an error changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from torch import Tensor
from torch.nn import Parameter

import optgen
import optgen.keyed
from optgen.optim import Adam

LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu", "default")
Group = dict[str, Any]
Change = Callable[[Adam, Group, Tensor], Any]


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


def lowering_context(lowering: str) -> AbstractContextManager[Any]:
    return nullcontext() if lowering == "default" else optgen.use_lowering(lowering)


def three_groups(cls: type[Adam] = Adam, **options: Any) -> Adam:
    """Return an optimizer of three groups with two parameters each."""
    torch.manual_seed(0)
    groups = [
        {"params": [Parameter(torch.randn(5)), Parameter(torch.randn(3, 4))]} for _ in range(3)
    ]
    return cls(groups, lr=0.1, **options)


def give_gradients(optimizer: Adam) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.randn_like(param)


def comparable_form(value: Any) -> Any:
    """Return a value's identity, layout and numbers, in a form that `==` compares."""
    if isinstance(value, list | tuple):
        return [comparable_form(each) for each in value]
    if not isinstance(value, Tensor):
        return value
    properties = [id(value), value.dtype, value.device, value.shape, value.stride()]
    if value.layout is torch.strided and not value.is_meta:
        properties.append(value.detach().reshape(-1).tolist())
    return properties


def snapshot_of(optimizer: Adam) -> Any:
    """Return all that a failed step must leave as it was: parameters, gradients, state, groups."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    state = [
        (id(param), [(key, comparable_form(value)) for key, value in values.items()])
        for param, values in optimizer.state.items()
    ]
    groups = [
        [(key, comparable_form(value)) for key, value in g.items()] for g in optimizer.param_groups
    ]
    return (
        [comparable_form(p.data)[1:] for p in params],
        [comparable_form(p.grad) for p in params],
        state,
        groups,
    )


def replace_state(key: str, value: Any) -> Change:
    """Return a change that sets a state of the parameter."""

    def change(optimizer: Adam, group: Group, param: Tensor) -> None:
        optimizer.state[param][key] = value

    return change


def set_option(key: str, value: Any) -> Change:
    """Return a change that sets an option of the group."""

    def change(optimizer: Adam, group: Group, param: Tensor) -> None:
        group[key] = value

    return change


def expand_parameter(optimizer: Adam, group: Group, param: Tensor) -> None:
    param.data = torch.ones(4).expand(3, 4)


def resize_a_gradient(optimizer: Adam, group: Group, param: Tensor) -> None:
    assert param.grad is not None
    param.grad.resize_(4, 3)


def add_an_axis_to_a_gradient(optimizer: Adam, group: Group, param: Tensor) -> None:
    assert param.grad is not None
    param.grad.resize_(1, 3, 4)


def make_gradient_sparse(optimizer: Adam, group: Group, param: Tensor) -> None:
    param.grad = param.detach().to_sparse()


def remove_eps(optimizer: Adam, group: Group, param: Tensor) -> None:
    del group["eps"]


def add_failing_hook(optimizer: Adam, group: Group, param: Tensor) -> Any:
    def fail(*args: Any) -> None:
        raise ValueError("a hook")

    return optimizer.register_step_pre_hook(fail).remove


CHANGES_AT_ANY_STEP: dict[str, Change] = {  # also at the first step
    "an expanded parameter": expand_parameter,
    "a gradient of transposed shape": resize_a_gradient,
    "a gradient with another axis": add_an_axis_to_a_gradient,
    "a sparse gradient": make_gradient_sparse,
    "lr is a string": set_option("lr", "x"),
    "lr is None": set_option("lr", None),
    "lr has two elements": set_option("lr", torch.ones(2)),
    "betas has one item": set_option("betas", (0.9,)),
    "betas is a number": set_option("betas", 0.9),
    "betas has a string": set_option("betas", ("x", 0.9)),
    "beta1 is 1": set_option("betas", (1.0, 0.99)),
    "beta2 is above 1": set_option("betas", (0.9, 1.5)),
    "eps is None": set_option("eps", None),
    "weight_decay is a string": set_option("weight_decay", "y"),
    "no eps": remove_eps,
    "a hook": add_failing_hook,
}
CHANGES_OF_STATES: dict[str, Change] = {  # at later steps, when there are states
    "an expanded state": replace_state("exp_avg", torch.zeros(4).expand(3, 4)),
    "an overlapping state": replace_state("exp_avg_sq", torch.ones(1).expand(3, 4)),
    "a state of another size": replace_state("exp_avg", torch.zeros(9)),
    "a state of transposed shape": replace_state("exp_avg", torch.zeros(4, 3)),
    "a state of whole numbers": replace_state("exp_avg", torch.zeros(3, 4, dtype=torch.int64)),
    "a state of bools": replace_state("exp_avg_sq", torch.zeros(3, 4, dtype=torch.bool)),
    "a complex state": replace_state("exp_avg", torch.zeros(3, 4, dtype=torch.complex64)),
    "a state on another device": replace_state("exp_avg", torch.zeros(3, 4, device="meta")),
    "a state that is a number": replace_state("exp_avg", 0.5),
    "a step count on another device": replace_state("step", torch.zeros((), device="meta")),
    "a step count of two elements": replace_state("step", torch.zeros(2)),
    "a step count that is a number": replace_state("step", 3.0),
    "a step count of -3": replace_state("step", torch.tensor(-3.0)),
    "a step count of -1": replace_state("step", torch.tensor(-1.0)),
}
# A case runs after no step and after two steps. In Triton's interpreter, which is slow, it runs
# after one of the two.
CASES = [
    *(
        (name, change, steps)
        for index, (name, change) in enumerate(CHANGES_AT_ANY_STEP.items())
        for steps in ([(0, 2)[index % 2]] if INTERPRETED else (0, 2))
    ),
    *((name, change, 2) for name, change in CHANGES_OF_STATES.items()),
]


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(
    ("change", "steps"), [c[1:] for c in CASES], ids=[f"{c[0]}, {c[2]}" for c in CASES]
)
def test_a_step_that_fails_changes_nothing(change: Change, steps: int, lowering: str) -> None:
    """When the cause is removed, the next step equals that of a twin that had no failed step."""
    optimizer, twin = three_groups(), three_groups()
    group, param = optimizer.param_groups[-1], optimizer.param_groups[-1]["params"][-1]
    with lowering_context(lowering):
        for each in (optimizer, twin):
            torch.manual_seed(1)
            for _ in range(steps):
                give_gradients(each)
                each.step()
            give_gradients(each)
        group_before, state_before = dict(group), dict(optimizer.state.get(param, {}))
        data_before, grad_before = param.data, param.grad.clone()
        undo = change(optimizer, group, param)
        before = snapshot_of(optimizer)

        with pytest.raises(Exception) as caught:
            optimizer.step()
        assert type(caught.value) is not AssertionError
        assert snapshot_of(optimizer) == before

        if undo is not None:
            undo()
        param.data, param.grad = data_before, grad_before
        group |= group_before
        if steps:
            optimizer.state[param].update(state_before)
        for each in (optimizer, twin):
            each.step()
    for ours, theirs in zip(optimizer.param_groups, twin.param_groups, strict=True):
        assert all(map(torch.equal, ours["params"], theirs["params"]))


@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_closure_that_raises_changes_nothing(lowering: str) -> None:
    optimizer = three_groups()
    give_gradients(optimizer)
    before = snapshot_of(optimizer)

    def fail() -> float:
        raise ValueError("a closure")

    with lowering_context(lowering), pytest.raises(ValueError, match="a closure"):
        optimizer.step(fail)
    assert snapshot_of(optimizer) == before
    assert torch.is_grad_enabled()


@outside_interpreter
def test_a_later_group_with_impossible_options_changes_nothing() -> None:
    """The first two groups, which have lowerings of their own, must not step before the error."""
    optimizer = three_groups()
    optimizer.param_groups[0]["foreach"] = True
    optimizer.param_groups[1]["foreach"] = False
    group = optimizer.param_groups[2]
    group["params"] = [Parameter(torch.ones(3, device="meta"))]
    group["fused"] = True
    give_gradients(optimizer)
    before = snapshot_of(optimizer)

    with pytest.raises(RuntimeError, match="fused"):
        optimizer.step()
    assert snapshot_of(optimizer) == before


@outside_interpreter
def test_states_made_for_a_step_that_fails_are_removed() -> None:
    """A failed step also removes the states that `amsgrad` adds to those of earlier steps."""
    optimizer = three_groups()
    for _ in range(2):
        give_gradients(optimizer)
        optimizer.step()
    for group in optimizer.param_groups:
        group["amsgrad"] = True
    optimizer.param_groups[-1]["betas"] = (0.9, 2.0)
    before = snapshot_of(optimizer)

    with pytest.raises(ValueError, match="betas must be less than 1"):
        optimizer.step()
    assert snapshot_of(optimizer) == before


@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu", "default"])
def test_a_first_step_that_fails_leaves_no_state(lowering: str) -> None:
    """The states of the parameters before the last were made when the error came."""
    optimizer = three_groups()
    optimizer.state[optimizer.param_groups[-1]["params"][-1]]["exp_avg"] = 0.5
    give_gradients(optimizer)
    before = snapshot_of(optimizer)
    with lowering_context(lowering), pytest.raises(TypeError, match=r"must be a tensor, not 0\.5"):
        optimizer.step()
    assert snapshot_of(optimizer) == before


@outside_interpreter
@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu", "default"])
def test_a_row_index_out_of_range_of_a_later_parameter_changes_nothing(lowering: str) -> None:
    params = [Parameter(torch.ones(5, 2)) for _ in range(3)]
    optimizer = optgen.optim.Adagrad(
        [{"params": params[:1], "foreach": True}, {"params": params[1:]}]
    )
    for param in params:
        rows = torch.tensor([[1, 6 if param is params[2] else 2]])
        param.grad = torch.sparse_coo_tensor(rows, torch.ones(2, 2), (5, 2), check_invariants=False)
    before = snapshot_of(optimizer)

    with lowering_context(lowering), pytest.raises(IndexError, match="names rows 1 to 6"):
        optimizer.step()
    assert snapshot_of(optimizer) == before


@outside_interpreter
def test_a_leaf_in_a_differentiable_step_raises_torchs_error() -> None:
    optimizer = three_groups(differentiable=True)
    give_gradients(optimizer)
    before = snapshot_of(optimizer)

    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        optimizer.step()
    assert snapshot_of(optimizer) == before


@outside_interpreter
@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SparseAdam"])
def test_a_negative_step_count_and_a_beta_above_one_are_refused(name: str) -> None:
    """Torch's arithmetic raises an error for these values. optgen's would give NaN."""
    param = Parameter(torch.ones(3, 2))
    optimizer = getattr(optgen.optim, name)([param])
    grad = torch.ones(3, 2)
    param.grad = grad.to_sparse(1) if name == "SparseAdam" else grad
    optimizer.step()
    state = optimizer.state[param]
    step_count = state["step"]
    state["step"] = -3 if name == "SparseAdam" else torch.tensor(-3.0)
    with pytest.raises(ValueError, match="steps are counted from 0"):
        optimizer.step()
    state["step"] = step_count
    optimizer.param_groups[0]["betas"] = (0.9, 1.5)
    with pytest.raises(ValueError, match=r"betas must be less than 1, and is 1\.5"):
        optimizer.step()
    optimizer.param_groups[0]["betas"] = (0.9, 0.99)
    optimizer.step()
    assert param.isfinite().all()


@outside_interpreter
def test_a_failed_step_of_a_keyed_wrapper_changes_nothing() -> None:
    params = {name: Parameter(torch.ones(3, 2)) for name in "ab"}
    inner = optgen.keyed.KeyedOptimizerWrapper(params, Adam)
    optimizer = optgen.keyed.CombinedOptimizer([("all", inner)])
    for param in params.values():
        param.grad = torch.ones(3, 2)
    optimizer.step()
    inner._optimizer.state[params["b"]]["exp_avg"] = torch.ones(2).expand(3, 2)
    before = snapshot_of(inner._optimizer)

    with pytest.raises(RuntimeError, match="single memory location"):
        optimizer.step()
    assert snapshot_of(inner._optimizer) == before
