"""Test names that mean something to Python, to a compiler, or to the generated package itself."""

from __future__ import annotations

import builtins
import keyword
import re
import subprocess
from collections.abc import Callable

import pytest
import torch
from spec_texts import LR, UPDATE, read, spec

import optgen
from optgen import emit
from optgen.ir.evaluate import evaluate
from optgen.lowerings.fused_cpu import FUSED_CPU
from optgen.runtime.toolchain import compiler
from optgen.runtime.toolchain.library_cache import inline_includes
from optgen.spec import Spec
from optgen.spec.errors import SpecError

MACROS = ["vector", "inline", "apart", "VECTOR", "INLINE", "APART", "NAN", "EOF", "NULL"]
C_NAMES = ["main", "std", "u32", "i64", "errno", "printf", "y0", "system", "_x", "_Bool"]
KEYWORDS = ["_Complex", "_Pragma", "_Float32", "_Atomic", "_Generic", "_Nullable", "_Imaginary"]
SIMILAR = ["_LP64", "spec_LP64", "specspec_LP64", "_GNU_SOURCE", "spec_GNU_SOURCE", "_", "x_"]

FUNCTION = '''from optgen.spec import *


@elementwise
def {name}(average, {other}, /, *, {number}=hyper(0.5)):
    """Made up."""
    average = lerp(average, {other}, 1 - {number})
'''


@pytest.mark.parametrize("name", ["__class__", "__import__", "__debug", "__x", "__", "____"])
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


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize(
    "names",
    [MACROS[:3], MACROS[3:], C_NAMES, KEYWORDS, SIMILAR],
    ids=["attributes", "macros", "C names", "keywords", "similar names"],
)
def test_names_with_a_meaning_in_cpp_compile(names: list[str]) -> None:
    for text in texts_with(names):
        check_syntax(emit.render(read(text), FUSED_CPU, None))


def test_names_of_the_compilers_own_macros_compile() -> None:
    """Every macro that the compiler defines by itself, except those that begin with `__`."""
    command = [*the_compiler(), "-std=c++17", "-march=native", "-dM", "-E", "-x", "c++", "-"]
    lines = subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout
    macros = {re.split(r"\W", line.split()[1])[0] for line in lines.splitlines()}
    names = sorted({name for name in macros if not name.startswith("__")} | {"TARGET_OS_MAC"})
    assert "_LP64" in names
    for text in texts_with(names):
        source = emit.render(read(text), FUSED_CPU, None)
        check_syntax(source)
        words = set(re.findall(r"\w+", re.sub("//.*", "", source)))
        assert words.isdisjoint({*names, "TARGET_OS_MAC_T"})


def texts_with(names: list[str]) -> tuple[str, ...]:
    """Return specs that use names for hyperparameters, locals, states, keys, flags and lists."""
    hypers = "".join(f", {name}=hyper(0.5)" for name in names)
    flags = "".join(f", {name}=flag(True)" for name in names)
    symbols = [f"state{i}" for i, _ in enumerate(names)]
    keys = ", ".join(f'{s}=state("{name}")' for s, name in zip(symbols, names, strict=True))
    states = ", ".join(f'{name}=state("key{i}")' for i, name in enumerate(names))
    numbers = ", ".join(f'{name}=state("key{i}", shape="scalar")' for i, name in enumerate(names))
    rows = [f"{name} = {name} + lr * rms(g) * row_mean(g)" for name in names]
    row_states = ", ".join(f'{name}=state("key{i}", shape="row")' for i, name in enumerate(names))
    branches = [line for name in names for line in (f"if {name}:", f"    {UPDATE} * t")]
    lists = FUNCTION.format(name="made", other=", ".join(names), number="rest")
    return (
        spec(UPDATE, *(f"p = p - {name} * g" for name in names), hypers=LR + hypers),
        spec(*(f"{n} = lr * t" for n in names), *(f"p = p - {n} * g * {n}" for n in names)),
        spec(
            *(f"{n} = {n} + lr * g" for n in names), *(f"p = p - {n}" for n in names), states=states
        ),
        spec(
            *(f"{s} = {s} + lr * g" for s in symbols),
            *(f"p = p - {s}" for s in symbols),
            states=keys,
        ),
        spec(
            *(f"{n} = {n} + lr" for n in names),
            *(f"p = p - {n} * g" for n in names),
            states=numbers,
        ),
        spec(
            'require(ndim(p) == 2, "")', *rows, *(f"p = p - {n}" for n in names), states=row_states
        ),
        spec(UPDATE, *branches, hypers=LR + flags),
        lists.replace("lerp(average, " + ", ".join(names), "lerp(average, " + " + ".join(names)),
    )


def the_compiler() -> list[str]:
    command = compiler.find()
    assert command
    return command


def check_syntax(text: str) -> None:
    command = [*the_compiler(), "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    run = subprocess.run(command, input=inline_includes(text), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


ROLES: dict[str, Callable[[list[str]], str]] = {
    "hyperparameters": lambda names: spec(
        *(f"p = p - {name} * g" for name in names),
        hypers=", ".join(f"{name}=hyper(0.5)" for name in names),
    ),
    "tensors": lambda names: spec(
        *(f"{name} = lr * t + g" for name in names), *(f"p = p - {n} * {n}" for n in names)
    ),
    "keys": lambda names: spec(
        *(f"s{i} = s{i} + lr * g\n    p = p - s{i}" for i in range(len(names))),
        states=", ".join(f's{i}=state("{name}")' for i, name in enumerate(names)),
    ),
    "numbers": lambda names: spec(
        *(f"{name} = {name} + lr\n    p = p - {name} * g" for name in names),
        states=", ".join(f'{n}=state("k{i}", shape="scalar")' for i, n in enumerate(names)),
    ),
}


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("role", ROLES)
def test_names_of_python_and_triton_mean_the_same_in_every_role(role: str) -> None:
    """A name of the language, or one that the class needs as an argument, is refused instead."""
    wanted = {*dir(builtins), *keyword.softkwlist, "tl", "triton", "np", "cls", "args", "kwargs"}
    names = sorted(name for name in wanted if is_allowed(ROLES[role], name))
    assert {"print", "bool", "id", "match", "type"} <= set(names)
    for first in range(0, len(names), 40):
        text = ROLES[role](names[first : first + 40])
        algorithm = read(text)
        start = torch.linspace(-1, 1, 5, dtype=torch.float64)
        hypers = {hyper.name: hyper.default for hyper in algorithm.hypers}
        expected, _ = evaluate(algorithm, hypers, start, start / 50, {})
        for lowering in ("forloop", "foreach"):
            parameter = torch.nn.Parameter(start.clone())
            optimizer = optgen.load(Spec("Made", text, "made.py", 1))([parameter])
            parameter.grad = start / 50
            with optgen.use_lowering(lowering):
                optimizer.step()
            torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-14)


def is_allowed(role: Callable[[list[str]], str], name: str) -> bool:
    try:
        read(role([name]))
    except SpecError:
        return False
    return not name.startswith("_")
