"""Test the names that a spec imports: they have docstrings and arguments, and they never run."""

from __future__ import annotations

import inspect
import subprocess
import textwrap
from pathlib import Path

import pytest

import optgen.spec
from optgen.emit import require_ruff
from optgen.ir.ops import CALLABLE_OPS, WORDS
from optgen.spec import read_algorithm, signature
from optgen.spec.declare import DeclarationToken

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

    optional = [*WORDS[name].optional_arguments]
    assert len(required) == len(WORDS[name].arguments) - len(optional)
    assert [*parameters][len(required) :] == [*optional, *WORDS[name].keywords]
    with pytest.raises(TypeError, match=rf"{name}\(\) is a function of the spec language"):
        word(*[1.0] * len(WORDS[name].arguments))


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


def stub_text() -> str:
    """Return the text of `optgen/spec/__init__.pyi`: what editors and type checkers know."""
    declared = (name for name in NAMES if name not in WORDS)
    lines = [
        '"""Show what a spec file imports. tests/spec/test_op_names.py writes this file."""',
        "from typing import Any\n",
        *(f"from optgen.spec.declare import {name} as {name}" for name in ("Spec", *declared)),
    ]
    for name in WORDS:
        word = getattr(optgen.spec, name)
        doc = textwrap.indent(word.__doc__, "    ").lstrip()
        doc += "\n    " * ("\n" in doc)
        signature = str(inspect.signature(word))
        lines.append(f'def {name}{signature}:\n    """{doc}"""')
    command = [require_ruff(), "format", "--stdin-filename", "__init__.pyi"]
    text = "\n".join(lines)
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def test_the_stub_file_shows_the_words(request: pytest.FixtureRequest) -> None:
    path = Path(optgen.spec.__file__).with_suffix(".pyi")
    if request.config.getoption("--update-golden"):
        path.write_text(stub_text(), encoding="utf-8")

    assert path.read_text(encoding="utf-8") == stub_text(), "run pytest --update-golden"
