"""Test the page that says what optimizers of other libraries are called here."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import pytest

import optgen
from optgen import modifiers
from optgen.verification.packages import NAMES, class_of
from website import names_elsewhere

EXPRESSIONS = sorted(
    {
        here
        for _, names in names_elsewhere.libraries().values()
        for here, _ in names.values()
        if here
    }
)
COMPOSITIONS = [each for each in EXPRESSIONS if " + " in each]


def parts(expression: str) -> tuple[str, dict[str, object], list[str]]:
    """Return the optimizer's name, its arguments, and the modifiers of an expression."""
    optimizer, *added = expression.split(" + ")
    call = ast.parse(optimizer, mode="eval").body
    if isinstance(call, ast.Name):
        return call.id, {}, added
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    arguments = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    return call.func.id, arguments, added


def test_the_page_shows_the_file() -> None:
    """Fix the page with `PYTHONPATH=docs python -m website.names_elsewhere`."""
    page = names_elsewhere.PAGE.read_text(encoding="utf-8")

    assert names_elsewhere.filled(page) == page


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_a_name_is_here_exists(expression: str) -> None:
    name, arguments, _ = parts(expression)

    assert name in NAMES
    if arguments:
        assert {*arguments} <= {*inspect.signature(class_of(name)).parameters}


@pytest.mark.one_case_in(6)
@pytest.mark.parametrize("expression", COMPOSITIONS)
def test_a_composition_of_the_page_can_be_made(expression: str) -> None:
    name, arguments, added = parts(expression)

    cls = optgen.compose(name, *(getattr(modifiers, each)() for each in added))

    assert {*arguments} <= {*inspect.signature(cls).parameters}


def test_a_name_that_is_not_here_has_a_reason() -> None:
    for _, names in names_elsewhere.libraries().values():
        for name, (here, note) in names.items():
            assert here or note, name


OPTIMIZERS_OF: dict[str, Callable[[Any], Iterable[str]]] = {
    "pytorch_optimizer": lambda library: library.get_supported_optimizers(),
    "timm": lambda library: import_module("timm.optim").list_optimizers(),
    "torch_optimizer": lambda library: {*library.__all__} - {"get"},
    "torchao": lambda library: import_module("torchao.optim").__all__,
}


@pytest.mark.parametrize("title", OPTIMIZERS_OF)
def test_the_names_are_those_of_an_installed_library(title: str) -> None:
    library = pytest.importorskip(title, reason=f"{title} is no dependency of the tests")

    assert {*names_elsewhere.libraries()[title][1]} == {*OPTIMIZERS_OF[title](library)}
