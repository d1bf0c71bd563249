"""Test that our optimizers lack some faults of torch's."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from parity.classes import INFOS, NAMES
from parity.faults import Fault, Faults
from parity.trajectories import random_values, relative_error
from torch import Tensor
from torch.nn import Parameter

fault = Faults()


@fault("SGD", mended_in=(2, 14))
def fused_in_16_bits(optim: Any) -> None:
    """`fused=True` on the CPU does not move 16-bit parameters of 16 or more elements."""
    param = Parameter(torch.zeros(100, dtype=torch.bfloat16))
    param.grad = torch.ones_like(param)
    optim.SGD([param], lr=1, fused=True).step()

    assert (param == -1).all()


@fault("SGD", mended_in=(2, 14))
def fused_momentum_in_16_bits(optim: Any) -> None:
    """With 16-bit parameters, `fused=True` on the CPU first reads uninitialised momentum."""
    for _ in range(20):
        garbage = torch.full((4096,), torch.nan, dtype=torch.bfloat16)
        param = Parameter(torch.zeros_like(garbage))
        param.grad = torch.ones_like(param)
        del garbage  # the allocator reuses this memory
        optim.SGD([param], lr=1, momentum=0.9, fused=True).step()

        assert (param == -1).all()


@fault("LBFGS")
def a_copy_of_lbfgs(optim: Any) -> None:
    """A copy by deepcopy or pickle cannot take a step."""
    for copy_of in (copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))):
        optimizer = copy_of(optim.LBFGS([Parameter(torch.ones(3))]))
        (param,) = optimizer.param_groups[0]["params"]

        def closure(param: Tensor = param) -> Tensor:
            param.grad = param.detach().clone()
            return (param.detach() ** 2).sum() / 2

        optimizer.step(closure)
        assert (param.abs() < 1e-3).all()


@fault("LBFGS")
def a_scheduled_tensor_lr(optim: Any) -> None:
    """A scheduler that changes a tensor lr also changes the remembered length of the last step."""
    found = []
    for lr in (0.1, torch.tensor(0.1, dtype=torch.float64)):
        param = Parameter(torch.linspace(-1, 2, 5, dtype=torch.float64))
        optimizer = optim.LBFGS([param], lr=lr, max_iter=2)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def closure(param: Tensor = param) -> Tensor:
            param.grad = 4 * param.detach() ** 3 + param.detach()
            return (param.detach() ** 4 + param.detach() ** 2 / 2).sum()

        for _ in range(4):
            optimizer.step(closure)
            scheduler.step()
        found.append(param.detach())

    assert relative_error(found[0], found[1]) < 1e-12


@fault("Muon", mended_in=(2, 15))
def momentum_without_nesterov(optim: Any) -> None:
    """With `nesterov=False` in bfloat16, every step scales the stored momentum to norm 1."""
    param = Parameter(torch.zeros(8, 8, dtype=torch.bfloat16))
    optimizer = optim.Muon([param], nesterov=False, momentum=0.5)
    for _ in range(2):
        param.grad = torch.full_like(param, 16.0)
        optimizer.step()

    assert (optimizer.state[param]["momentum_buffer"] == 12).all()


def step_alone_and_together(make: Callable[[list[Tensor]], Any]) -> tuple[Tensor, Tensor]:
    """Return a float16 parameter after a step alone, and after a step with a float32 one first."""
    found = []
    for before in ([], [Parameter(torch.ones(4))]):
        params = [*before, Parameter(torch.ones(4, dtype=torch.float16))]
        for param in params:
            param.grad = torch.full_like(param, 1e-4)
        make(params).step()
        found.append(params[-1].detach())
    return found[0], found[1]


@fault("Adafactor")
def machine_epsilon(optim: Any) -> None:
    """All parameters use the machine epsilon of the first one's dtype."""
    alone, together = step_alone_and_together(lambda params: optim.Adafactor(params))

    assert torch.equal(alone, together)


@fault("Adafactor")
def a_parameter_without_elements(optim: Any) -> None:
    """A parameter without elements, as a rank may hold, causes a division by zero."""
    param = Parameter(torch.ones(0))
    param.grad = torch.ones(0)
    optim.Adafactor([param]).step()


@fault("RAdam")
def a_gradient_of_zero(optim: Any) -> None:
    """With `foreach=True` and eps 0, a gradient of 0 gives NaN in the unrectified steps."""
    param = Parameter(torch.ones(3))
    param.grad = torch.tensor([0.0, 1.0, 0.0])
    optim.RAdam([param], eps=0, foreach=True).step()

    assert relative_error(param, torch.tensor([1.0, 0.999, 1.0])) < 1e-6


@fault("Adagrad")
def a_sparse_complex_gradient(optim: Any) -> None:
    """A sparse complex gradient is squared as complex, a dense one as pairs of reals."""
    finals = []
    for dense in (True, False):
        param = Parameter(torch.ones(4, 2, dtype=torch.complex128))
        grad = random_values([(4, 2)], torch.complex128, 2)[0]
        param.grad = grad if dense else grad.to_sparse(1)
        optim.Adagrad([param]).step()
        finals.append(param.detach())

    assert relative_error(*finals) < 1e-12


def scaling_lost_in_a_copy(name: str) -> Fault:
    def check(optim: Any) -> None:
        """A copy of an optimizer with `fused=True` forgets that its steps unscale gradients."""
        original = getattr(optim, name)([Parameter(torch.ones(3))], fused=True)
        pickled = pickle.loads(pickle.dumps(original))
        for optimizer in (original, copy.deepcopy(original), pickled):
            # GradScaler reads this attribute.
            assert getattr(optimizer, "_step_supports_amp_scaling", False)

    return check


@fault("Muon")
def a_vector_that_comes_later(optim: Any) -> None:
    """A group that is added later may hold vectors; the error comes only in the step."""
    optimizer = optim.Muon([Parameter(torch.ones(2, 2))])

    with pytest.raises(ValueError, match="only supports 2D parameters"):
        optimizer.add_param_group({"params": [Parameter(torch.ones(3))]})


def amsgrad_switched_on_later(name: str) -> Fault:
    def check(optim: Any) -> None:
        """`amsgrad` cannot be switched on after the first step."""
        param = Parameter(torch.ones(3))
        optimizer = getattr(optim, name)([param])
        for _ in range(2):
            param.grad = torch.ones(3)
            optimizer.step()
            optimizer.param_groups[0]["amsgrad"] = True

        assert torch.equal(*map(optimizer.state[param].get, ("exp_avg_sq", "max_exp_avg_sq")))

    return check


def conjugate_gradient(name: str) -> Fault:
    def check(optim: Any) -> None:
        """A gradient that is a conjugate view, as autograd may make, is an error."""
        finals = []
        for resolved in (True, False):
            param = Parameter(torch.ones(4, dtype=torch.complex128))
            grad = random_values([(4,)], torch.complex128, 2)[0].conj()
            param.grad = grad.resolve_conj() if resolved else grad
            getattr(optim, name)([param]).step()
            finals.append(param.detach())

        assert torch.equal(*finals)

    return check


def learnt_lr(name: str, **options: Any) -> Fault:
    def check(optim: Any) -> None:
        """With `differentiable=True`, autograd cannot differentiate several steps by the lr."""

        def loss(lr: Tensor) -> Tensor:
            param = torch.linspace(1, 2, 5, dtype=torch.float64).requires_grad_().clone()
            optimizer = getattr(optim, name)([param], lr=lr, differentiable=True, **options)
            for _ in range(3):
                value = (param.clone() ** 4).sum()
                param.grad = torch.autograd.grad(value, param, create_graph=True)[0]
                optimizer.step()
            return (param**2).sum()

        lr = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(loss, (lr,))

    return check


for _name in INFOS:
    if INFOS[_name].supports_complex and _name not in ("LBFGS", "SGD"):
        fault(_name)(conjugate_gradient(_name))
for _name in ("Adadelta", "Adagrad", "Adamax", "NAdam", "RMSprop"):
    fault(_name)(learnt_lr(_name))
fault("Adam")(learnt_lr("Adam", amsgrad=True))
for _name in ("Adam", "AdamW"):
    fault(_name)(amsgrad_switched_on_later(_name))
for _name in ("Adagrad", "Adam", "AdamW", "SGD"):
    fault(_name)(scaling_lost_in_a_copy(_name))

test_our_class_lacks_the_fault, test_torchs_class_lacks_the_fault, test_the_page_lists_the_fault = (
    fault.tests(NAMES)
)
