"""Test features that few rules have: a different first step, and sparse gradients by rows."""

import copy
from collections.abc import Iterator

import pytest
import torch
from runtime.training import error, parameters, steps_with_gradients, train
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.optim import SGD

OPTIONS = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}


@pytest.fixture(autouse=True, params=["forloop", "foreach", "fused_cpu"])
def lowering(request: pytest.FixtureRequest) -> Iterator[None]:
    with use_lowering(request.param):
        yield


def embedding(sparse: bool) -> torch.nn.Embedding:
    torch.manual_seed(0)
    return torch.nn.Embedding(10, 4, sparse=sparse, dtype=torch.float64)


def give_sparse_gradient(model: torch.nn.Embedding, step: int) -> None:
    """Give the embedding a gradient that names row 3 at least twice."""
    model.zero_grad()
    rows = torch.tensor([step % 10, 3, 3, (step * 7) % 10])
    model(rows).pow(2).sum().backward()


def test_sgd_without_momentum_has_no_state() -> None:
    params = parameters()
    optimizer = SGD(params, lr=0.1)

    train(optimizer, params, 3)

    assert not optimizer.state
    assert optimizer.state_dict()["state"] == {}


def test_each_parameter_has_its_own_first_step() -> None:
    """A parameter may get gradients late, and an old checkpoint may have None for its buffer."""
    ours, theirs = parameters(), parameters()
    optimizers = [SGD(ours, **OPTIONS), torch.optim.SGD(theirs, foreach=False, **OPTIONS)]
    for optimizer, params in zip(optimizers, (ours, theirs), strict=True):
        train(optimizer, params[:2], 3)
        train(optimizer, params, 3)
        optimizer.state[params[0]]["momentum_buffer"] = None
        train(optimizer, params, 3)

    assert error(ours, theirs) < 1e-12


def test_a_state_made_by_init_state_is_fresh_in_the_first_step() -> None:
    ours, theirs = parameters(), parameters()
    optimizer = SGD(ours, **OPTIONS)
    optimizer.init_state()
    train(optimizer, ours, 3)
    train(torch.optim.SGD(theirs, foreach=False, **OPTIONS), theirs, 3)

    assert error(ours, theirs) < 1e-12


def test_a_skipped_step_leaves_a_state_fresh() -> None:
    ours, theirs = parameters(), parameters()
    optimizer = SGD(ours, fused=True, **OPTIONS)
    optimizer.found_inf = torch.ones(())
    train(optimizer, ours, 1)
    del optimizer.found_inf

    train(optimizer, ours, 3)
    train(torch.optim.SGD(theirs, foreach=False, **OPTIONS), theirs, 3)

    assert error(ours, theirs) < 1e-12


def test_a_failing_step_leaves_a_state_fresh() -> None:
    ours, theirs = parameters(), parameters()
    optimizer = SGD(ours, **OPTIONS)
    for _ in steps_with_gradients(ours, 1):
        optimizer.param_groups[0]["weight_decay"] = "nonsense"
        with pytest.raises((TypeError, ValueError)):
            optimizer.step()
    optimizer.param_groups[0]["weight_decay"] = 0
    assert not any("momentum_buffer" in values for values in optimizer.state.values())

    with torch.no_grad():
        for param, value in zip(ours, theirs, strict=True):
            param.copy_(value)
    train(optimizer, ours, 3)
    train(torch.optim.SGD(theirs, foreach=False, **OPTIONS), theirs, 3)

    assert error(ours, theirs) < 1e-12


class TestSparse:
    """Sparse gradients change only the rows that they name."""

    @pytest.fixture(autouse=True)
    def lowering(self) -> None:
        """Force no lowering."""

    @pytest.mark.parametrize(
        "options", [{}, {"foreach": True}, {"fused": True}, {"maximize": True}]
    )
    def test_rows_are_updated_as_torch_updates_them(self, options: dict[str, bool]) -> None:
        """Torch's class is made without `fused`, which refuses sparse gradients."""
        ours, theirs = embedding(sparse=True), embedding(sparse=True)
        optimizer = SGD(ours.parameters(), lr=0.1, **options)
        maximize = options.get("maximize", False)
        reference = torch.optim.SGD(theirs.parameters(), lr=0.1, maximize=maximize)
        for step in range(5):
            for model, each in ((ours, optimizer), (theirs, reference)):
                give_sparse_gradient(model, step)
                assert model.weight.grad is not None
                assert model.weight.grad.is_sparse
                each.step()

        assert error([ours.weight], [theirs.weight]) < 1e-12

    def test_momentum_of_sparse_gradients_equals_torchs_and_is_dense(self) -> None:
        ours, theirs = embedding(sparse=True), embedding(sparse=True)
        optimizer = SGD(ours.parameters(), foreach=False, **OPTIONS)
        reference = torch.optim.SGD(theirs.parameters(), **OPTIONS)
        for step in range(5):
            for model, each in ((ours, optimizer), (theirs, reference)):
                give_sparse_gradient(model, step)
                each.step()

        assert error([ours.weight], [theirs.weight]) < 1e-12
        assert not optimizer.state[ours.weight]["momentum_buffer"].is_sparse

    def test_a_sparse_buffer_in_torchs_checkpoint_is_loaded(self) -> None:
        theirs = embedding(sparse=True)
        reference = torch.optim.SGD(theirs.parameters(), **OPTIONS)
        give_sparse_gradient(theirs, 0)
        reference.step()
        ours = copy.deepcopy(theirs)
        optimizer = SGD(ours.parameters(), foreach=False, **OPTIONS)
        optimizer.load_state_dict(reference.state_dict())
        for step in range(1, 4):
            for model, each in ((ours, optimizer), (theirs, reference)):
                give_sparse_gradient(model, step)
                each.step()

        assert error([ours.weight], [theirs.weight]) < 1e-12

    def test_explain_lists_sparse_gradients_beside_dense_ones(self) -> None:
        model = embedding(sparse=True)
        dense: Tensor = torch.nn.Parameter(torch.ones(3))
        optimizer = SGD([model.weight, dense], foreach=True)
        give_sparse_gradient(model, 0)
        dense.grad = torch.ones(3)

        assert optgen.explain(optimizer).splitlines() == [
            "group 0: foreach: foreach=True; sparse gradients by the rows they touch",
            "group 0: foreach: foreach=True",
        ]
