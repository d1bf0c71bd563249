"""Test names that mean something to Python, to a compiler, or to the generated package itself."""

from __future__ import annotations

import subprocess

import pytest
from spec_texts import LR, UPDATE, read, spec

from optgen import emit
from optgen.lowerings.fused_cpu import FUSED_CPU
from optgen.runtime.fused_cpu.toolchain import compiler
from optgen.runtime.fused_cpu.toolchain.source import inline_includes
from optgen.spec.errors import SpecError

MACROS = ["vector", "inline", "apart", "VECTOR", "INLINE", "APART", "NAN", "EOF", "NULL"]
C_NAMES = ["main", "std", "u32", "i64", "errno", "printf", "y0", "system", "_x", "_Bool"]

FUNCTION = '''from optgen.spec import *


@elementwise
def {name}(average, {other}, /, *, {number}=hyper(0.5)):
    """Made up."""
    average = lerp(average, {other}, 1 - {number})
'''


@pytest.mark.parametrize("name", ["__class__", "__init__", "__import__", "__debug", "__x"])
def test_a_name_with_two_leading_underscores_is_refused(name: str) -> None:
    for text in (
        spec(f"p = p - {name} * g", hypers=f"{name}=hyper(0.5)"),
        spec(f"{name} = g", f"p = p - lr * {name}"),
        spec(f"{name} = {name} + g", f"p = p - lr * {name}", states=f'{name}=state("a")'),
        spec("m = m + g", "p = p - lr * m", states=f'm=state("{name}")'),
        spec(f"p = p - lr * {name}(g)", before=f"def {name}(x):\n    return x"),
        spec(f"p = p - lr * {name} * g", before=f"{name} = 2"),
        spec().replace("Made(", f"{name}("),
    ):
        with pytest.raises(SpecError, match="begins with two underscores"):
            read(text)


@pytest.mark.parametrize("name", ["forloop", "fused_cpu", "fused_triton"])
def test_a_class_may_not_have_the_name_of_a_generated_module(name: str) -> None:
    """The import at the first step would put the module in the class's place."""
    for text in (
        spec().replace("Made(", f"{name}("),
        FUNCTION.format(name=name, other="a", number="b"),
    ):
        with pytest.raises(SpecError, match="is the name of a generated file"):
            read(text)


def test_a_function_may_not_hide_what_it_calls() -> None:
    for names in ({"other": "_update", "number": "b"}, {"other": "a", "number": "_update"}):
        with pytest.raises(SpecError, match="means something else in the generated code"):
            read(FUNCTION.format(name="made", **names))


@pytest.mark.parametrize(
    "names", [MACROS[:3], MACROS[3:], C_NAMES], ids=["attributes", "macros", "C names"]
)
def test_names_with_a_meaning_in_cpp_compile(names: list[str]) -> None:
    """Names of hyperparameters, of locals, and of states, which C++ also writes in upper case."""
    hypers = "".join(f", {name}=hyper(0.5)" for name in names)
    states = ", ".join(f'{name}=state("key{i}")' for i, name in enumerate(names))
    for text in (
        spec(UPDATE, *(f"p = p - {name} * g" for name in names), hypers=LR + hypers),
        spec(*(f"{n} = lr * t" for n in names), *(f"p = p - {n} * g * {n}" for n in names)),
        spec(
            *(f"{n} = {n} + lr * g" for n in names), *(f"p = p - {n}" for n in names), states=states
        ),
    ):
        check_syntax(emit.render(read(text), FUSED_CPU, None))


def check_syntax(text: str) -> None:
    compiler_command = compiler.find()
    assert compiler_command
    command = [*compiler_command, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    run = subprocess.run(command, input=inline_includes(text), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
