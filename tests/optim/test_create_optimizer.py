"""Test optimizers created by name, and param groups made from the names of parameters."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import optgen.specs
from optgen import optim
from optgen.cli.catalogue import spec_path
from optgen.compositions import spec_of
from optgen.jit import named_spec
from optgen.optim import (
    _published,
    create_optimizer,
    list_optimizers,
    optimizer_class,
    param_groups,
)
from optgen.optim._published import PUBLISHED


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x))


def network() -> nn.Sequential:
    """Return a network of a stem, two numbered blocks and a head."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(3, 4))
    model.add_module("blocks", nn.Sequential(Block(), Block()))
    model.add_module("head", nn.Linear(4, 2))
    return model


def options_of(groups: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """Return each parameter's value of an option by the parameter's name; None if it has none."""
    return {name: group.get(key) for group in groups for name in group["param_names"]}


def test_list_optimizers_takes_patterns() -> None:
    names = "adadelta adafactor adagrad adam adamax adamw adamw_8bit adamw_torch adamw_torch_fused"
    assert set(names.split()) <= set(list_optimizers("ada*"))
    assert list_optimizers("schedule_free_*") == [
        f"schedule_free_{base}" for base in ("adamw", "radam", "sgd")
    ]
    assert list_optimizers("LB*") == ["lbfgs"]
    assert list_optimizers("nox*") == []


@pytest.mark.parametrize("name", list_optimizers())
def test_every_name_makes_an_optimizer(name: str) -> None:
    params = [nn.Parameter(torch.ones(2, 3))]
    optimizer = create_optimizer(params, name, lr=0.5)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(("spec", "name"), PUBLISHED.items())
def test_a_published_class_is_found_by_name_import_and_pickle(spec: str, name: str) -> None:
    """The module's type hints import the class, too."""
    cls: Any = getattr(optim, name)
    assert optimizer_class(spec) is optimizer_class(name) is cls
    assert (cls.__module__, cls.__name__, cls.rule.name) == ("optgen.optim", name, spec)
    assert pickle.loads(pickle.dumps(cls)) is cls
    assert name in dir(optim)
    assert spec_of(cls).name == named_spec(name).name == spec_path(name).stem == spec
    assert f"from optgen.generated.{spec} import {name} as {name}" in inspect.getsource(_published)


def test_every_spec_without_another_public_class_is_published() -> None:
    """Torch's classes, classes of `optgen.keyed`, and functions are public in other modules."""
    specs = {path.stem for path in Path(optgen.specs.__path__[0]).glob("[!_]*.py")}
    in_other_modules = {"averaging", "row_wise_adagrad", "sparse_adam"}
    in_other_modules |= set(map(str.lower, optim.__all__))
    assert specs - in_other_modules == set(PUBLISHED)


def test_adoptw_is_timms() -> None:
    """timm's ADOPT has another exponent of its limit than the authors'."""
    (group,) = create_optimizer([nn.Parameter(torch.ones(2))], "adoptw").param_groups
    assert (group["decouple"], group["clip_exp"]) == (True, 0.333)


def test_arguments_replace_arguments_of_an_alias() -> None:
    params = [nn.Parameter(torch.ones(2))]
    (group,) = create_optimizer(params, "nesterov").param_groups
    assert (group["momentum"], group["nesterov"]) == (0.9, True)
    (group,) = create_optimizer(params, "nesterov", momentum=0.5).param_groups
    assert (group["momentum"], group["nesterov"]) == (0.5, True)
    with pytest.raises(ValueError, match=r"'nesterov' stands for SGD with momentum=0.9, nesterov"):
        optimizer_class("nesterov")
    assert optimizer_class("lion32bit") is optimizer_class("lion_32bit") is optimizer_class("lion")


def test_biases_and_norms_of_a_model_do_not_decay() -> None:
    model = network()
    optimizer = create_optimizer(model, "AdamW", lr=0.1, weight_decay=0.3)
    found = options_of(optimizer.param_groups, "weight_decay")
    assert list(found) != []
    assert found == {n: 0.3 if p.ndim > 1 else 0 for n, p in model.named_parameters()}
    assert len(optimizer.param_groups) == 2


def test_parameters_given_without_a_model_all_decay() -> None:
    optimizer = create_optimizer(nn.Parameter(torch.ones(3)), "adam", weight_decay=0.3)
    assert optimizer.param_groups[0]["weight_decay"] == 0.3


def test_layer_decay_lowers_rates_with_the_distance_from_the_output() -> None:
    found = options_of(param_groups(network(), lr=1.0, layer_decay=0.5), "lr")
    assert found["head.weight"] == found["head.bias"] == 1
    assert found["blocks.1.linear.weight"] == found["blocks.1.norm.bias"] == 0.5
    assert found["blocks.0.linear.weight"] == 0.25
    assert found["stem.weight"] == 0.125


@pytest.mark.parametrize("frozen", [["blocks.1", "head"], ["blocks.0", "stem"], ["head"]])
def test_layer_decay_counts_frozen_layers(frozen: list[str]) -> None:
    expected = options_of(param_groups(network(), lr=1.0, layer_decay=0.5), "lr")
    model = network()
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    found = options_of(param_groups(model, lr=1.0, layer_decay=0.5), "lr")
    assert found == {name: expected[name] for name in found}
    assert 0 < len(found) < len(expected)


def test_layer_decay_changes_nothing_without_numbered_layers() -> None:
    model = nn.Module()
    model.one, model.two = nn.Linear(2, 2), nn.Linear(2, 2)
    assert set(options_of(param_groups(model, lr=1.0, layer_decay=0.5), "lr").values()) == {1.0}


def test_later_patterns_override_earlier_ones_and_frozen_parameters_are_left_out() -> None:
    model = network()
    model.stem.weight.requires_grad_(False)  # type: ignore[union-attr]
    groups = param_groups(model, {"*.bias": {"lr": 0.5}, "head.*": {"lr": 0.25, "eps": 1e-5}})
    found = options_of(groups, "lr")
    assert "stem.weight" not in found
    assert found["stem.bias"] == 0.5
    assert found["head.bias"] == 0.25
    assert found["blocks.0.linear.weight"] is None
    assert options_of(groups, "eps")["head.bias"] == 1e-5
    assert [len(group["params"]) for group in groups] == [5, 4, 2]


def test_a_step_uses_the_options_of_each_group() -> None:
    model = network()
    optimizer = create_optimizer(
        model, "adamw", lr=0.01, weight_decay=0.1, layer_decay=0.9, options={"head.*": {"lr": 0.0}}
    )
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert "blocks.0.linear.weight" in moved
    assert not moved & {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: create_optimizer(network(), "adanw"), "no optimizer is called 'adanw': did you"),
        (lambda: param_groups(network(), {"*.wait": {}}), "no trainable parameter is called"),
        (lambda: param_groups(network(), layer_decay=0.5), "give lr too"),
        (
            lambda: param_groups(network(), lr=1, layer_decay=1.5),
            "must be between 0 and 1, not 1.5",
        ),
        (lambda: param_groups(network(), lr=1, layer_decay=float("nan")), "between 0 and 1"),
        (
            lambda: create_optimizer([torch.ones(1)], "sgd", lr=1, layer_decay=0.5),
            "give the model, not its parameters",
        ),
    ],
)
def test_an_invalid_call_says_what_is_wrong(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: param_groups(network(), lr=1, layer_decay="0.9"), "such as 0.9, not '0.9'"),
        (lambda: create_optimizer("adamw", network()), "takes the model first"),
        (lambda: create_optimizer(network(), "adamw", wd=0.1), "has no argument called 'wd': it"),
        (
            lambda: create_optimizer(network(), torch.optim.AdamW, no_decay=["*.bias"]),
            "AdamW has no argument called 'no_decay': it has amsgrad, betas",
        ),
        (
            lambda: create_optimizer(network(), "adamw", options={"*.bias": {"lrr": 0.1}}),
            "AdamW has no option of a group called 'lrr': it has amsgrad, betas",
        ),
        (
            lambda: create_optimizer(network(), "adamw", lr=1, others_names="head.*", others="sgd"),
            r"others_names is a list of patterns: write others_names=\['head.\*'\]",
        ),
        (
            lambda: create_optimizer(network(), "adamw", lr=1, first_names="head.*", others="sgd"),
            "first_names is a list of patterns",
        ),
        (
            lambda: create_optimizer(network(), "muon", others={"lr": 1e-3}),
            "others is an optimizer, or a pair of an optimizer and a dict of its arguments",
        ),
        (
            lambda: create_optimizer(network(), "muon", others=["adamw", {"lr": 1e-3}]),
            "others is an optimizer, or a pair of an optimizer and a dict of its arguments",
        ),
        (
            lambda: create_optimizer(network(), "muon", others=("adamw", {"wd": 0.1})),
            "AdamW has no argument called 'wd'",
        ),
        (lambda: create_optimizer(network(), "adamw", betas=0.9), "a tuple of 2 numbers, not 0.9"),
    ],
)
def test_a_wrong_argument_is_named_with_the_way_out(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_options_are_those_of_the_optimizer_that_gets_the_parameters() -> None:
    options = {"blocks.*.linear.weight": {"ns_steps": 3}, "head.*": {"eps": 1e-6}, "*.bias": {}}
    optimizer = create_optimizer(network(), "muon", others="adamw", options=options)
    assert options_of(optimizer.param_groups, "ns_steps")["blocks.1.linear.weight"] == 3
    assert options_of(optimizer.param_groups, "eps")["head.weight"] == 1e-6
    with pytest.raises(TypeError, match="AdamW has no option of a group called 'ns_steps'"):
        create_optimizer(network(), "muon", others="adamw", options={"head.*": {"ns_steps": 3}})


def test_the_name_of_a_torch_class_means_our_class() -> None:
    assert optimizer_class("RMSprop") is optim.RMSprop


class LanguageModel(nn.Module):
    """Embeddings of tokens and positions, a block, and an output layer, without a forward pass."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 4)
        self.positions = nn.Embedding(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.output = nn.Linear(4, 32, bias=False)
        if tied:
            self.output.weight = self.tokens.weight


def names_of(optimizer: Any) -> list[list[str]]:
    """Return, for each chained optimizer, the names of its parameters."""
    return [
        [name for group in member.param_groups for name in group["param_names"]]
        for member in optimizer.members
    ]


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_the_output_layer_and_vectors_go_to_the_second_optimizer(tied: bool) -> None:
    optimizer = create_optimizer(LanguageModel(tied), "muon", lr=0.1, others=("lion", {"lr": 0.2}))
    first, second = names_of(optimizer)

    assert [type(member).__name__ for member in optimizer.members] == ["Muon", "Lion"]
    assert first == ["block.0.weight"]
    expected = ["tokens.weight", "positions.weight"]
    expected += ["block.0.bias", "block.1.weight", "block.1.bias"]
    if not tied:
        expected.append("output.weight")
    assert sorted(second) == sorted(expected)
    rates = [{group["lr"] for group in member.param_groups} for member in optimizer.members]
    assert rates == [{0.1}, {0.2}]


def test_a_classifiers_head_goes_to_the_second_optimizer() -> None:
    optimizer = create_optimizer(network(), "muon", others="adamw")

    assert "head.weight" in names_of(optimizer)[1]


def test_others_names_gives_more_parameters_to_the_second_optimizer() -> None:
    optimizer = create_optimizer(network(), "muon", others="adamw", others_names=["head.*", "st*"])

    assert names_of(optimizer)[0] == ["blocks.0.linear.weight", "blocks.1.linear.weight"]
    with pytest.raises(ValueError, match=r"no trainable parameter is called 'tail\.\*'"):
        create_optimizer(network(), "muon", others="adamw", others_names=["tail.*"])


def test_options_apply_to_parameters_of_both_optimizers() -> None:
    options = {"blocks.*": {"lr": 0.5}}
    optimizer = create_optimizer(
        network(), "muon", lr=1.0, weight_decay=0.3, options=options, others=("adamw", {"lr": 2.0})
    )
    decays = options_of(optimizer.param_groups, "weight_decay")

    assert decays == {n: 0.3 if p.ndim > 1 else 0 for n, p in network().named_parameters()}
    lr = options_of(optimizer.param_groups, "lr")
    assert (lr["stem.weight"], lr["stem.bias"], lr["blocks.0.norm.bias"]) == (1.0, 2.0, 0.5)


def test_the_second_optimizers_arguments_override_weight_decay() -> None:
    others = ("adamw", {"weight_decay": 0.2})
    optimizer = create_optimizer(LanguageModel(), "muon", weight_decay=0.3, others=others)
    decays = options_of(optimizer.param_groups, "weight_decay")

    assert (decays["block.0.weight"], decays["tokens.weight"]) == (0.3, 0.2)


def test_a_convolution_viewed_as_a_matrix_goes_to_the_first_optimizer() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    for options in (None, {"0.weight": {"view": (2, -1)}}):
        optimizer = create_optimizer(model, "muon", others="adamw", options=options)

        first, second = names_of(optimizer)
        assert (first, {*second}) == (["0.weight"], {"2.weight", "0.bias", "2.bias"})
        assert optimizer.param_groups[0]["view"] == ((2, -1) if options else (4, -1))


def test_the_error_names_parameters_that_need_a_second_optimizer() -> None:
    hint = r"'stem\.bias' of shape \(4,\) and 7 more: .*\"muon\", others=\(\"adamw\""
    with pytest.raises(ValueError, match=hint):
        create_optimizer(network(), "muon")


def test_others_needs_names_of_parameters() -> None:
    with pytest.raises(ValueError, match="layer_decay, options and others go by names"):
        create_optimizer(network().parameters(), "muon", others="adamw")


def test_the_default_decay_does_not_apply_to_biases_and_norms() -> None:
    found = options_of(create_optimizer(network(), "adamw").param_groups, "weight_decay")

    assert found == {n: 0.01 if p.ndim > 1 else 0 for n, p in network().named_parameters()}
