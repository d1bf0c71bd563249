"""Test functional forms against torch's: signatures, and steps with arguments of torch's class."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from optim.classes import CLASSES
from parity.cases import CASE_OF_DENSE_CLASS, Case
from parity.trajectories import random_values, relative_error
from torch import Tensor
from torch.optim import _functional
from torch.optim.adam import adam as torchs_adam
from torch.optim.sgd import sgd as torchs_sgd
from torch_versions import HAS_2_14, HAS_2_15, TENSOR_RATES

import optgen.optim
from optgen.optim.adam import adam
from optgen.optim.functional import functional
from optgen.optim.sgd import sgd

FLAGS: list[dict[str, Any]] = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}]
SHAPES = [(4, 3), (5,), (6, 2)]
Call = tuple[tuple[Any, ...], dict[str, Any]]
Form = Callable[..., None]


def module_name(name: str) -> str:
    return {"SparseAdam": "sparse_adam"}.get(name, name.lower())


def torchs_namespace(name: str) -> dict[str, Any]:
    """Return the namespace in which torch's class finds its functional form."""
    if name == "SparseAdam":
        return vars(_functional)
    return inspect.unwrap(getattr(torch.optim, name).step).__globals__


def ours_and_torchs(name: str) -> tuple[Form, Form]:
    """Return our functional form and torch's."""
    form = module_name(name)
    theirs = "torch.optim.adamw" if name == "AdamW" else torchs_namespace(name)["__name__"]
    modules = map(importlib.import_module, (theirs.replace("torch.", "optgen."), theirs))
    ours, torchs = (getattr(module, form) for module in modules)
    return ours, torchs


def arguments_by_step(name: str, monkeypatch: pytest.MonkeyPatch, case: Case) -> Iterator[Call]:
    """Yield, for each step, the arguments that torch's class passes to its functional form."""
    form = "adam" if name == "AdamW" else module_name(name)
    original, calls = torchs_namespace(name)[form], []

    def record(*args: Any, **kwargs: Any) -> None:
        calls.append(copy.deepcopy((args, kwargs)))
        original(*args, **kwargs)

    monkeypatch.setitem(torchs_namespace(name), form, record)
    shapes = SHAPES if name != "Muon" else SHAPES[::2]
    params = [torch.nn.Parameter(v) for v in random_values(shapes, torch.float64, 1)]
    optimizer = case.theirs(params)
    for step in range(7):
        for param, grad in zip(
            params, random_values(shapes, torch.float64, 20 + step), strict=True
        ):
            param.grad = grad.to_sparse(1) if name == "SparseAdam" else grad
        optimizer.step()
        args, kwargs = calls.pop()
        if name == "AdamW":
            assert kwargs.pop("decoupled_weight_decay") is True
        yield args, kwargs


def tensors(call: Call) -> list[Tensor]:
    """Return the dense tensors in lists among the arguments: a step may change them."""
    args, kwargs = call
    flat = [item for v in (*args, *kwargs.values()) if isinstance(v, list) for item in v]
    return [item for item in flat if isinstance(item, Tensor) and not item.is_sparse]


@pytest.mark.parametrize("name", CLASSES)
def test_the_signature_is_torchs(name: str) -> None:
    ours, theirs = map(inspect.signature, ours_and_torchs(name))
    expected = list(theirs.parameters.values())
    if not HAS_2_14 and name in TENSOR_RATES:
        expected = [a.replace(annotation=float | Tensor) if a.name == "lr" else a for a in expected]

    assert list(ours.parameters.values()) == expected
    assert ours.return_annotation == theirs.return_annotation


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_a_step_equals_torchs(
    name: str, flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven steps agree. Before the first, no states exist."""
    ours, theirs = ours_and_torchs(name)
    loop = {"foreach": False} if "foreach" in inspect.signature(ours).parameters else {}
    if set(flags) - set(inspect.signature(ours).parameters):
        pytest.skip("torch's form has no such argument")
    for call in arguments_by_step(name, monkeypatch, CASE_OF_DENSE_CLASS.get(name, Case(name))):
        (args, kwargs), expected = copy.deepcopy(call), copy.deepcopy(call)
        before = tensors((args, kwargs))
        with torch.no_grad():
            ours(*args, **{**kwargs, **flags})
            theirs(*expected[0], **{**expected[1], **loop})

        after, expected_after = tensors((args, kwargs)), tensors(expected)
        for found, wanted in zip(after, expected_after, strict=True):
            assert relative_error(found, wanted) < 1e-12
        ids = {id(tensor) for tensor in after}
        assert all(id(tensor) in ids for tensor in before)  # changed in place


@pytest.mark.parametrize("name", CLASSES)
def test_step_counts_must_be_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = ours_and_torchs(name)
    if getattr(optgen.optim, name).rule.step != "tensor":
        pytest.skip("the rule's step count is no tensor")
    args, kwargs = next(arguments_by_step(name, monkeypatch, Case(name)))
    bound = inspect.signature(ours).bind(*args, **kwargs)
    bound.arguments["state_steps"] = [1] * len(args[0])

    with pytest.raises(RuntimeError, match="argument must contain a list of singleton tensors"):
        ours(*bound.args, **bound.kwargs)


def test_the_private_module_has_torchs_forms() -> None:
    for name in CLASSES:
        form = module_name(name)
        if hasattr(_functional, form):
            assert getattr(optgen.optim._functional, form) is ours_and_torchs(name)[0]
            assert form in optgen.optim._functional.__all__


def test_the_public_module_has_every_form() -> None:
    """Torch has this module since version 2.15."""
    assert optgen.optim.functional.__all__ == sorted(map(module_name, CLASSES))
    for name in CLASSES:
        assert getattr(optgen.optim.functional, module_name(name)) is ours_and_torchs(name)[0]
    if HAS_2_15:
        assert sorted(torch.optim.functional.__all__) == optgen.optim.functional.__all__


def two_tensors(seed: int = 0) -> list[Tensor]:
    return random_values([(3,), (2, 2)], torch.float64, seed)


def adam_lists() -> tuple[list[Tensor], ...]:
    zeros = [[torch.zeros_like(v) for v in two_tensors()] for _ in range(2)]
    return two_tensors(1), two_tensors(2), *zeros, [], [torch.tensor(0.0) for _ in range(2)]


ADAM = {
    "amsgrad": False,
    "beta1": 0.9,
    "beta2": 0.999,
    "lr": 0.1,
    "weight_decay": 0.1,
    "eps": 1e-8,
    "maximize": False,
}
SGD = {
    "weight_decay": 0.1,
    "momentum": 0.9,
    "lr": 0.1,
    "dampening": 0.5,
    "nesterov": False,
    "maximize": False,
}


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_missing_momentum_buffers_are_created(flags: dict[str, Any]) -> None:
    """A missing buffer becomes the gradient without dampening. Others are changed in place."""
    buffer = two_tensors(3)[0]
    ours, theirs = [buffer, None], [buffer.clone(), None]
    pairs = [(two_tensors(1), two_tensors(2)) for _ in range(2)]
    sgd(*pairs[0], ours, **SGD, **flags)
    torchs_sgd(*pairs[1], theirs, **SGD, foreach=False)

    assert ours[0] is buffer
    for found, expected in zip([*pairs[0][0], *ours], [*pairs[1][0], *theirs], strict=True):
        assert found is not None
        assert expected is not None
        assert relative_error(found, expected) < 1e-12


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_grad_scale_and_found_inf_have_effect(flags: dict[str, Any]) -> None:
    """Torch's forms accept these arguments for fused kernels only."""
    scaled, plain, skipped = adam_lists(), adam_lists(), adam_lists()
    for grad in scaled[1]:
        grad.mul_(4)
    adam(*scaled, **ADAM, **flags, grad_scale=torch.tensor(4.0), found_inf=torch.tensor(0.0))
    adam(*skipped, **ADAM, **flags, found_inf=torch.tensor(1.0))
    adam(*plain, **ADAM, **flags)

    assert [relative_error(a, b) for a, b in zip(scaled[0], plain[0], strict=True)] == [0, 0]
    for found, untouched in zip(skipped, adam_lists(), strict=True):
        assert all(map(torch.equal, found, untouched))


def test_sgd_is_differentiable_while_autograd_records() -> None:
    """Torch's form is, too. Neither form has an argument `differentiable`."""

    def step(form: Form, lr: Tensor, grad: Tensor) -> Tensor:
        params = [torch.ones(3, dtype=torch.float64)]
        form(params, [grad], [None], **{**SGD, "lr": lr, "momentum": 0})
        return params[0]

    grad, lr = two_tensors(1)[0].requires_grad_(), torch.tensor(0.1, dtype=torch.float64)
    lr.requires_grad_()
    assert torch.autograd.gradcheck(lambda *tensors: step(sgd, *tensors), (lr, grad))
    assert torch.equal(step(sgd, lr, grad), step(torchs_sgd, lr, grad))
    with torch.no_grad():
        assert not step(sgd, lr, grad).requires_grad


def test_adam_is_differentiable_if_asked_for() -> None:
    def step(*values: Tensor) -> tuple[Tensor, ...]:
        param, grad, m, v = (value.clone() for value in values)
        adam([param], [grad], [m], [v], [], [torch.tensor(3.0)], differentiable=True, **ADAM)
        return param, m, v

    inputs = [value.abs().requires_grad_() for value in random_values([(3,)] * 4, torch.float64, 4)]
    assert torch.autograd.gradcheck(step, tuple(inputs))


def test_a_leaf_that_requires_grad_raises_torchs_error() -> None:
    leaf = torch.ones(3, requires_grad=True)

    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        sgd([leaf], [torch.ones(3)], [None], **SGD)


def test_complex_parameters_need_no_has_complex_argument() -> None:
    lists = adam_lists()
    ours = [[v.to(torch.complex128) * (1 + 2j) for v in tensors] for tensors in lists[:4]]
    theirs = copy.deepcopy(ours)
    adam(*ours, [], lists[5], **ADAM)
    counts = [torch.tensor(0.0) for _ in range(2)]
    torchs_adam(*theirs, [], counts, **ADAM, foreach=False, has_complex=True)

    assert all(relative_error(a, b) < 1e-12 for a, b in zip(ours[0], theirs[0], strict=True))


def test_missing_and_wrong_arguments_raise() -> None:
    params, grads, m, v, _, counts = adam_lists()
    with pytest.raises(TypeError, match=r"adam\(\) missing 1 required keyword-only argument: 'lr'"):
        adam(params, grads, m, v, [], counts, **{k: x for k, x in ADAM.items() if k != "lr"})
    with pytest.raises(ValueError, match="`max_exp_avg_sqs` has 0 entries for 2 parameters"):
        adam(params, grads, m, v, [], counts, **{**ADAM, "amsgrad": True})
    with pytest.raises(ValueError, match="`exp_avgs` has 1 entries for 2 parameters"):
        adam(params, grads, m[:1], v, [], counts, **ADAM)
    with pytest.raises(TypeError, match="only optimize Tensors, but one of the params is NoneType"):
        adam([params[0], None], grads, m, v, [], counts, **ADAM)
    with pytest.raises(ValueError, match="stands in the list several times"):
        adam([params[0]] * 2, grads, m, v, [], counts, **ADAM)
    with pytest.raises(RuntimeError, match="`fused` does not support `differentiable`"):
        adam(params, grads, m, v, [], counts, **ADAM, fused=True, differentiable=True)


def test_a_declaration_without_the_rules_states_raises() -> None:
    def declaration(params: list[Tensor], grads: list[Tensor], buffers: list[Tensor]) -> None:
        """Have `buffers` instead of `momentum_buffers`."""

    with pytest.raises(TypeError, match=r"SGD: \['buffers'\] unknown, \['momentum_buffers'\] mis"):
        functional(optgen.optim.SGD)(declaration)


def test_a_compiled_caller_runs_the_form_uncompiled() -> None:
    compiled, plain = adam_lists(), adam_lists()
    torch.compile(lambda *lists: adam(*lists, **ADAM), backend="eager")(*compiled)
    adam(*plain, **ADAM)

    assert all(map(torch.equal, compiled[0], plain[0]))


def test_a_captured_graph_keeps_its_optimizer_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizers: list[Any] = []
    monkeypatch.setattr("optgen.optim.functional._captured_optimizers", optimizers)
    adam(*adam_lists(), **ADAM)
    assert not optimizers

    monkeypatch.setattr("optgen.optim.functional.capturing", lambda: True)
    adam(*adam_lists(), **ADAM)
    assert [type(optimizer) for optimizer in optimizers] == [optgen.optim.Adam]
