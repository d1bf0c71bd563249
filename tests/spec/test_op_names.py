"""Test the names that a spec imports: they have docstrings and arguments, and they never run."""

from __future__ import annotations

import inspect

import pytest

import optgen.spec
from optgen.ir.ops import CALLABLE_OPS
from optgen.spec import read_algorithm, signature
from optgen.spec.declare import DeclarationToken
from optgen.spec.op_calls import written_arity
from optgen.spec.wide_reductions import WIDE_REDUCTIONS

NAMES = [name for name in optgen.spec.__all__ if name != "Spec"]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_docstring_and_explicit_arguments(name: str) -> None:
    word = getattr(optgen.spec, name)
    parameters = inspect.signature(word).parameters.values()

    assert inspect.getdoc(word)
    assert word.__name__ == name
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters)


@pytest.mark.parametrize("name", CALLABLE_OPS)
def test_a_word_has_its_arity_and_never_runs(name: str) -> None:
    word = getattr(optgen.spec, name)
    parameters = inspect.signature(word).parameters
    required = [p for p in parameters.values() if p.default is p.empty]

    assert len(required) == written_arity(name)
    assert [*parameters][len(required) :] == ["over"] * (name in WIDE_REDUCTIONS)
    with pytest.raises(TypeError, match=rf"{name}\(\) is a function of the spec language"):
        word(*[1.0] * written_arity(name))


def test_require_never_runs() -> None:
    with pytest.raises(TypeError, match="never run"):
        optgen.spec.require(True, "")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("state", signature._STATE_OPTIONS),
        ("hyper", signature._HYPER_OPTIONS),
        ("choice", signature._CHOICE_OPTIONS),
        ("flag", signature._FLAG_OPTIONS),
        ("optimizer", read_algorithm._OPTIONS),
    ],
)
def test_keyword_arguments_are_the_options_that_the_reader_accepts(
    name: str, options: dict[str, object]
) -> None:
    parameters = inspect.signature(getattr(optgen.spec, name)).parameters.values()

    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == set(options)


def test_a_declaration_is_only_data() -> None:
    assert isinstance(optgen.spec.hyper(0.1, ge=0), DeclarationToken)
    assert optgen.spec.choice("a", None) == DeclarationToken(
        "choice", ("a", None), (("error", ""), ("about", ""), ("groups", "any"))
    )
    assert optgen.spec.flag(False) != optgen.spec.fixed(False)
