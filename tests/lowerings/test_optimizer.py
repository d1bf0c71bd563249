"""Test generated classes of specs that torch lacks: constructor, checks, docstring."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from optgen import emit
from optgen.lowerings.optimizer import OPTIMIZER
from optgen.runtime import GeneratedOptimizer, State
from optgen.spec.declare import Spec
from optgen.spec.read_spec import read_base, read_spec

ROOT = Path(__file__).parent.parent.parent
MODULE_NUMBERS = itertools.count()
SPEC = '''from optgen.spec import *

@optimizer(paper="https://example.org/paper")
def Example(
    p, g, t, /,
    m=state("buffer"),
    z=state("start", init="p", dtype="float32", eager=True),
    s=state("total", shape="scalar", init="scale"),
    w=state("weights", init=0.5, when="not careful"),
    *,
    lr=hyper(1e-3, gt=0, tensor="always"),
    scale=hyper(0.25, gt=0, le=1),
    shift=hyper(0),
    limit=hyper(None, lt=10, optional=True),
    rates=hyper((0.5, 0.75, 1.0), ge=0, le=1, error="Rate {index} is {}, not from 0 to 1"),
    beta=hyper(0.5, ge=0, error="{} as beta is too small"),
    careful=flag(True),
    norm=choice("first", "second", None),
    on=fixed(True),
):
    """One line.

    And a paragraph.
    """
    require(scale > 0 or careful, "careful={careful} with scale {scale}")
    require(not (careful and norm == "second"), "careful excludes the second norm")
    a, b, c = rates
    if fresh(m):
        m = a * z + b * g
    else:
        m = beta * m + scale * g + shift
    s = s * beta * c
    if norm == "first" and limit is None and on:
        m = 2 * m
    if not careful:
        w = w * 0.5
        m = m * w
    z = z + m
    p = p - lr * m * s
'''
DERIVED = '''from optgen.spec import *

@optimizer(paper="", base="Adam")
def Bold(
    p, g, t, /, *,
    lr=hyper(0.1, ge=0, le=1, tensor="capturable"),
    amsgrad=fixed(True),
):
    """Adam with a bold learning rate."""
'''


def class_file(source: str, name: str) -> str:
    """Return the file of a spec's class, formatted."""
    (algorithm,) = read_spec(Spec(name, source, "spec.py", 1))
    base = read_base(algorithm, ROOT / "specs")
    return emit.render(algorithm, OPTIMIZER, emit.require_ruff(), base)


def load_class(folder: Path, source: str = SPEC, name: str = "Example") -> Any:
    """Return the class of a spec, imported from a folder of its own."""
    path = folder / "__init__.py"
    path.write_text(class_file(source, name))
    module_spec = importlib.util.spec_from_file_location(f"made_{next(MODULE_NUMBERS)}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    module_spec.loader.exec_module(module)
    return getattr(module, name)


@pytest.fixture
def example(tmp_path: Path) -> Any:
    return load_class(tmp_path)


def refusal_message(cls: Any, **kwargs: Any) -> str:
    """Return the message of the ValueError that a constructor raises."""
    with pytest.raises(ValueError) as caught:
        cls([Parameter(torch.ones(2))], **kwargs)
    return str(caught.value)


def test_the_constructor_takes_the_specs_hyperparameters_in_order(example: Any) -> None:
    """The arguments that optgen adds follow, keyword-only."""
    positional, keyword_only = [], []
    for argument in list(inspect.signature(example).parameters.values())[1:]:
        is_positional = argument.kind is argument.POSITIONAL_OR_KEYWORD
        arguments = positional if is_positional else keyword_only
        arguments.append((argument.name, argument.default, argument.annotation))

    assert positional == [
        ("lr", 1e-3, float | torch.Tensor),
        ("scale", 0.25, float),
        ("shift", 0, float),
        ("limit", None, float | None),
        ("rates", (0.5, 0.75, 1.0), tuple[float, float, float]),
        ("beta", 0.5, float),
        ("careful", True, bool),
        ("norm", "first", str | None),
    ]
    assert keyword_only == [
        ("maximize", False, bool),
        ("foreach", None, bool | None),
        ("fused", None, bool | None),
        ("capturable", False, bool),
        ("differentiable", False, bool),
    ]


def test_a_group_has_every_hyperparameter(example: Any) -> None:
    """A group also has fixed hyperparameters. Options that optgen adds are last."""
    group = example([Parameter(torch.ones(2))], 0.5, norm=None).param_groups[0]

    assert " ".join(group) == (
        "params lr scale shift limit rates beta careful norm on "
        "maximize foreach fused capturable differentiable"
    )
    assert (group["lr"], group["norm"], group["on"]) == (0.5, None, True)


def test_the_class_has_the_properties_of_its_rule(example: Any) -> None:
    rule = example.rule

    assert issubclass(example, GeneratedOptimizer)
    assert example.lowerings == example.__module__
    assert rule.name == "example"
    assert rule.states == (
        State("buffer"),
        State("start", init="p", dtype="float32", eager=True),
        State("total", init="scale", shape="scalar", dtype="float64"),
        State("weights", init=0.5, when="not careful"),
    )
    assert rule.hypers == (
        *("lr", "scale", "shift", "limit", "rates", "beta", "careful", "norm", "on"),
        "maximize",
    )
    assert (rule.step, rule.fresh, rule.gradient) == ("tensor", ("buffer",), "dense")
    assert (rule.tensor_hypers, rule.backfill) == (("lr",), ())
    assert rule.fixed == (("on", True),)
    assert rule.choices == (("norm", ("first", "second", None)),)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"lr": 0.0}, "Invalid learning rate: 0.0"),
        ({"lr": torch.ones(2)}, "Tensor lr must be 1-element"),
        ({"scale": 0}, "Invalid scale value: 0"),
        ({"scale": 1.5}, "Invalid scale value: 1.5"),
        ({"scale": float("nan")}, "Invalid scale value: nan"),
        ({"limit": 10}, "Invalid limit value: 10"),
        ({"rates": (0.5, 0.5, 2)}, "Rate 2 is 2, not from 0 to 1"),
        ({"rates": (0.5, 0.5)}, "Invalid rates value, which must be 3 numbers: (0.5, 0.5)"),
        ({"beta": -1}, "-1 as beta is too small"),
        ({"norm": "third"}, "Invalid norm value: third"),
        ({"norm": "second"}, "careful excludes the second norm"),
    ],
)
def test_invalid_arguments_are_refused(example: Any, kwargs: dict[str, Any], message: str) -> None:
    assert refusal_message(example, **kwargs) == message


@pytest.mark.parametrize(
    "kwargs",
    [
        {"lr": torch.tensor([0.5])},
        {"scale": 1},
        {"scale": torch.tensor(0.5)},  # without `tensor=`, tensors are not checked
        {"rates": [0.5, 0.25, 0]},
        {"shift": -1e9},
        {"limit": 9.5},
        {"limit": None},
        {"rates": (0, 1, 0.5)},
        {"norm": "second", "careful": False},
    ],
)
def test_valid_arguments_are_accepted(example: Any, kwargs: dict[str, Any]) -> None:
    group = example([Parameter(torch.ones(2))], **kwargs).param_groups[0]

    assert {key: group[key] for key in kwargs} == kwargs


def test_the_message_of_a_requirement_has_the_values(tmp_path: Path) -> None:
    source = SPEC.replace("scale=hyper(0.25, gt=0, le=1)", "scale=hyper(0.25)")
    cls = load_class(tmp_path, source)

    assert refusal_message(cls, scale=-2, careful=False) == "careful=False with scale -2"


def test_the_docstring_describes_arguments_states_and_errors(example: Any) -> None:
    """The docstring has the rule, arguments with type, range and default, states, the paper."""
    text = inspect.getdoc(example)
    assert text is not None
    words = " ".join(text.split())

    assert text.startswith("One line.\n\nAnd a paragraph.\n\n.. math::\n    \\begin{aligned}\n")
    for expected in (
        r"lr (float or Tensor): Learning rate, above 0; :math:`\gamma` in the rule. Default: 1e-3.",
        r"scale (float): Scale, in (0, 1]; :math:`\text{scale}` in the rule. Default: 0.25.",
        "limit (float or None): Limit, below 10;",
        "rates (tuple[float, float, float]): Rates, each in [0, 1]; :math:`(a, b, c)` in the rule.",
        "careful (bool): Careful. Default: True.",
        "norm (str or None): Norm: one of 'first', 'second', None. Default: 'first'.",
        "capturable (bool): Let a CUDA graph capture the step. Default: False.",
        "ValueError: An argument is outside its range; or: careful={careful} with scale {scale}; "
        "or: careful excludes the second norm.",
        "buffer (Tensor): :math:`m_t`, like the parameter, at first 0.",
        "start (Tensor): :math:`z_t`, float32, of the parameter's shape, at first a copy of it.",
        "total (Tensor): :math:`s_t`, float64, 0-dimensional, at first `scale`.",
        "weights (Tensor): :math:`w_t`, like the parameter, at first 0.5, without `careful` only.",
        "Paper: https://example.org/paper",
    ):
        assert expected in words


def test_the_text_passes_the_linter_and_the_formatter() -> None:
    """The project's own linter and formatter find nothing, and no line is too long."""
    text = class_file(SPEC, "Example")
    settings = ["--config", str(ROOT / "pyproject.toml"), "--stdin-filename", "made.py", "-"]

    assert max(map(len, text.splitlines())) <= 100
    assert "math." not in text
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        run = subprocess.run(
            [emit.require_ruff(), *command, *settings],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr


def test_a_derived_class_checks_its_own_range_and_calls_its_base(tmp_path: Path) -> None:
    """The class checks its narrower range first; the base's constructor does the rest."""
    from optgen.optim import Adam

    cls = load_class(tmp_path, DERIVED, "Bold")
    group = cls([Parameter(torch.ones(2))]).param_groups[0]

    assert cls.__mro__[1] is Adam
    assert (cls.lowerings, cls.rule.name) == (Adam.lowerings, "adam")
    assert cls.rule.fixed == (("amsgrad", True),)
    assert (group["lr"], group["amsgrad"], group["eps"]) == (0.1, True, 1e-8)
    assert list(group) == list(Adam([Parameter(torch.ones(2))]).param_groups[0])
    assert "amsgrad" not in inspect.signature(cls).parameters
    assert refusal_message(cls, lr=2.0) == "Invalid learning rate: 2.0"
    assert refusal_message(cls, eps=-1) == "Invalid epsilon value: -1"
    assert "if not 0.0 <= eps" not in (tmp_path / "__init__.py").read_text()


def test_arguments_follow_the_order_in_keywords(tmp_path: Path) -> None:
    """Arguments that optgen adds follow, keyword-only, if they are not listed."""
    names = ("scale", "lr", "foreach", "*", "fused", "shift", "limit", "rates", "beta", "careful")
    cls = load_class(tmp_path, SPEC.replace('/paper"', f'/paper", keywords={(*names, "norm")}'))
    arguments = list(inspect.signature(cls).parameters.values())[1:]
    positional = [a.name for a in arguments if a.kind is a.POSITIONAL_OR_KEYWORD]

    assert positional == ["scale", "lr", "foreach"]
    assert " ".join(a.name for a in arguments[3:]) == (
        "fused shift limit rates beta careful norm maximize capturable differentiable"
    )
    assert dict(cls.rule.backfill) == {"foreach": None, "fused": None, "careful": True}
