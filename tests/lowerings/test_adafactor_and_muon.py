"""Test the classes of Adafactor and Muon: arguments, errors, states and docstrings."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from conftest import Golden
from planning import WITH_PHASES
from torch.nn import Parameter
from torch_inputs import optim_db

from optgen import optim
from optgen.passes.latex import to_latex
from optgen.runtime import GeneratedOptimizer, State
from optgen.runtime.batch.gather import gather_batches

CLASSES: dict[str, Any] = {"Adafactor": optim.Adafactor, "Muon": optim.Muon}
ERRORS = {info.optim_cls.__name__: info.optim_error_inputs_func for info in optim_db}


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_signature_and_group_are_torchs(name: str) -> None:
    torch_parameters = list(inspect.signature(getattr(torch.optim, name)).parameters.values())
    our_parameters = list(inspect.signature(CLASSES[name]).parameters.values())
    group = getattr(torch.optim, name)([Parameter(torch.ones(2, 2))]).param_groups[0]
    our_group = CLASSES[name]([Parameter(torch.ones(2, 2))]).param_groups[0]

    assert [(a.name, a.default, a.kind) for a in our_parameters[: len(torch_parameters)]] == [
        (a.name, a.default, a.kind) for a in torch_parameters
    ]
    assert all(a.kind is a.KEYWORD_ONLY for a in our_parameters[len(torch_parameters) :])
    assert list(our_group)[: len(group)] == list(group)
    assert {key: our_group[key] for key in list(group)[1:]} == dict(list(group.items())[1:])


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_torchs_error_inputs_give_torchs_errors(name: str) -> None:
    for case in ERRORS[name]("cpu", torch.float32):
        messages = []
        for cls in (getattr(torch.optim, name), CLASSES[name]):
            with pytest.raises(case.error_type) as caught:
                construct_and_step(cls, case.optimizer_error_input)
            messages.append(str(caught.value))
        theirs, ours = messages
        assert ours.partition("\nhint: ")[0] == theirs


def construct_and_step(cls: Any, error_input: Any) -> None:
    """Construct an optimizer and take a step, because some errors are raised only there."""
    optimizer = cls(error_input.params, **error_input.kwargs)
    for param in error_input.params:
        param.grad = torch.ones_like(param)
    optimizer.step()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Adafactor", {"eps": (-1.0, 1e-3)}),
        ("Adafactor", {"eps": (1e-3, -1.0)}),
        ("Adafactor", {"eps": (None, float("nan"))}),
        ("Adafactor", {"d": 0.5}),
        ("Adafactor", {"beta2_decay": 0.8}),
        ("Adafactor", {"lr": -0.1}),
        ("Adafactor", {"weight_decay": -0.1}),
        ("Adafactor", {"lr": torch.ones(2)}),
        ("Muon", {"adjust_lr_fn": "arbitrary"}),
        ("Muon", {"lr": -0.1}),
        ("Muon", {"momentum": -0.1}),
        ("Muon", {"weight_decay": -0.1}),
    ],
)
def test_invalid_arguments_give_torchs_messages(name: str, arguments: dict[str, Any]) -> None:
    messages = []
    for cls in (getattr(torch.optim, name), CLASSES[name]):
        with pytest.raises(ValueError) as caught:
            cls([Parameter(torch.ones(2, 2))], **arguments)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 2)])
def test_muon_takes_matrices_only(shape: tuple[int, ...]) -> None:
    """Torch checks only the constructor's groups. optgen also checks a group that is added later.

    A refused group is not added.
    """
    param = Parameter(torch.ones(shape))
    with pytest.raises(ValueError) as theirs:
        torch.optim.Muon([param])
    with pytest.raises(ValueError) as ours:
        CLASSES["Muon"]([Parameter(torch.ones(2, 2)), param])
    message, hint = str(ours.value).splitlines()
    assert message == str(theirs.value)
    assert 'create_optimizer(model, Muon, others="adamw")' in hint

    optimizer = CLASSES["Muon"]([Parameter(torch.ones(2, 2))])
    with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
        optimizer.add_param_group({"params": [param]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_complex_parameters_are_refused(name: str) -> None:
    param = Parameter(torch.ones(2, 2, dtype=torch.complex64))
    param.grad = torch.ones_like(param)
    for cls in (getattr(torch.optim, name), CLASSES[name]):
        with pytest.raises(RuntimeError, match=f"^{name} does not support complex parameters$"):
            cls([param]).step()


def test_the_classes_have_the_properties_of_their_rules() -> None:
    adafactor, muon = CLASSES["Adafactor"].rule, CLASSES["Muon"].rule
    assert (adafactor.elementwise, muon.elementwise) == (False, False)
    assert (adafactor.facts, muon.facts) == (("factored",), ())
    assert adafactor.states == (
        State("row_var", shape="row", when="factored"),
        State("col_var", shape="col", when="factored"),
        State("variance", when="not factored"),
    )
    assert (adafactor.step, muon.step) == ("tensor", None)


def test_adafactor_states_are_torchs() -> None:
    """States have torch's keys, shapes and dtypes, for parameters of any number of axes."""
    shapes, dtypes = [(), (3,), (2, 3), (2, 3, 4, 5), (4, 0)], (torch.float64, torch.bfloat16)
    params = [Parameter(torch.ones(s, dtype=d)) for s in shapes for d in dtypes]
    ours, theirs = CLASSES["Adafactor"](params), torch.optim.Adafactor(params)
    ours.init_state()
    for param in params:
        param.grad = torch.ones_like(param)
        if not param.numel():
            continue  # torch divides by the number of elements, which is 0
        torch.optim.Adafactor.step(_with_one_param(theirs, param))
        found, expected = ours.state[param], theirs.state[param]
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert (found[key].shape, found[key].dtype) == (value.shape, value.dtype)
            assert not found[key].any()


def _with_one_param(optimizer: Any, param: torch.Tensor) -> Any:
    optimizer.param_groups[0]["params"] = [param]
    return optimizer


def parts_of_batches(optimizer: GeneratedOptimizer) -> list[Any]:
    """Return the batches; one whose parameters differ in a fact comes as its parts."""
    return [part for batch in gather_batches(optimizer) for part in batch.parts or (batch,)]


def test_parameters_that_differ_in_a_fact_share_no_batch() -> None:
    shapes = [(3,), (2, 3), (), (4, 2)]
    params = [Parameter(torch.ones(shape)) for shape in shapes]
    optimizer = CLASSES["Adafactor"](params)
    for param in params:
        param.grad = torch.ones_like(param)
    for _ in range(2):  # the first round creates the states, the second finds them
        found = {batch.dispatch_key.facts: batch for batch in parts_of_batches(optimizer)}
        not_factored, factored = found[(False,)], found[(True,)]
        assert [p.shape for p in factored.params] == [(2, 3), (4, 2)]
        assert [s.shape for s in factored.states[0]] == [(2, 1), (4, 1)]
        assert [s.shape for s in factored.states[1]] == [(1, 3), (1, 2)]
        assert factored.states[2] == []
        assert not_factored.states[:2] == [[], []]
        assert [s.shape for s in not_factored.states[2]] == [(3,), ()]
        assert len(not_factored.step_counts) == len(factored.step_counts) == 2


def test_parameters_that_agree_in_every_fact_share_a_batch() -> None:
    params = [Parameter(torch.ones(2, 3)) for _ in range(2)]
    optimizer = CLASSES["Adafactor"](params)
    for param in params:
        param.grad = torch.ones_like(param)
    for _ in range(2):
        (batch,) = parts_of_batches(optimizer)
        assert [len(column) for column in batch.states] == [2, 2, 0]


@pytest.mark.parametrize(
    ("key", "value"), [("row_var", torch.ones(2, 3)), ("col_var", torch.ones(2, 1))]
)
def test_a_state_of_another_shape_is_refused(key: str, value: Any) -> None:
    param = Parameter(torch.ones(2, 3))
    optimizer = CLASSES["Adafactor"]([param])
    param.grad = torch.ones_like(param)
    parts_of_batches(optimizer)
    optimizer.state[param][key] = value
    with pytest.raises(RuntimeError, match=f"{key} has the shape"):
        parts_of_batches(optimizer)


def test_a_state_that_an_old_checkpoint_lacks_is_created() -> None:
    params = [Parameter(torch.ones(2, 3)), Parameter(torch.ones(3))]
    optimizer = CLASSES["Adafactor"](params)
    for param in params:
        param.grad = torch.ones_like(param)
    parts_of_batches(optimizer)
    optimizer.state[params[0]]["row_var"] = None
    assert {len(batch.params) for batch in parts_of_batches(optimizer)} == {1}
    assert optimizer.state[params[0]]["row_var"].shape == (2, 1)


def test_the_docstring_describes_states_of_rows_and_columns() -> None:
    text = " ".join(CLASSES["Adafactor"].__doc__.split())
    for line in (
        "row_var (Tensor): :math:`r_t`, one number per row of the parameter, at first 0, "
        "only where it has rows and columns.",
        "variance (Tensor): :math:`v_t`, like the parameter, at first 0, "
        "only where it has no rows and columns.",
        r"eps (tuple[float or None, float]): The least divisor (by default",
        r":math:`(\epsilon_1, \epsilon_2)` in the rule. Default: (None, 1e-3).",
        "RuntimeError: A parameter is complex, or a training engine has replaced it by a flat "
        "partition.",
    ):
        assert line in text


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_latex_is_printed_as_recorded(name: str, golden: Golden) -> None:
    golden.check(to_latex(WITH_PHASES[name]))
