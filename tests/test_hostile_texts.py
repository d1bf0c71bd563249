"""Test that texts of a spec never run as code: every generated file holds them as texts."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hostile import TEXTS, WITNESS, hostile_function_spec, hostile_spec
from torch.nn import Parameter

import optgen
from optgen import emit
from optgen.passes.latex import to_latex
from optgen.runtime.toolchain import compiler
from optgen.runtime.toolchain.library_cache import inline_includes
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

ROOT = Path(optgen.__file__).parent.parent
PLAIN = "plain"


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a folder of the test's own; check afterwards that no text has run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path / "cache"))
    yield
    assert not [*tmp_path.rglob(f"{WITNESS}*")]


def single_spaced(text: str | None) -> str:
    """Return a text in which every run of white space is one space."""
    return " ".join((text or "").split())


@functools.cache
def render(text: str, formatted: bool) -> dict[str, str]:
    """Return the generated files of a spec."""
    (algorithm,) = read_spec(Spec("hostile", text, "hostile.py", 1))
    ruff = emit.find_ruff()
    assert ruff
    return emit.render_all(algorithm, ruff if formatted else None)


class _EmptyTexts(ast.NodeTransformer):
    """Makes all texts of a module empty, so that only its code remains."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        values = [v for v in node.values if isinstance(v, ast.FormattedValue)]
        return ast.JoinedStr(list(values)) if values else ast.Constant("")


@functools.cache
def code_of(name: str, text: str) -> str:
    """Return the code of a generated file: Python as a tree without texts, C++ without comments."""
    if name.endswith(".py"):
        return ast.dump(_EmptyTexts().visit(ast.parse(text)))
    found = compiler.find()
    assert found
    command = [*found, "-fpreprocessed", "-E", "-P", "-std=c++17", "-x", "c++", "-"]
    run = subprocess.run(
        command, input=inline_includes(text), capture_output=True, text=True, check=True
    )
    return run.stdout


@pytest.mark.one_case_in(5)
@pytest.mark.parametrize("formatted", [True, False], ids=["formatted", "unformatted"])
@pytest.mark.parametrize("case", TEXTS)
def test_generated_code_does_not_depend_on_texts(case: str, formatted: bool) -> None:
    for spec in (hostile_spec, hostile_function_spec):
        expected = render(spec(PLAIN), formatted)
        found = render(spec(TEXTS[case]), formatted)

        assert found.keys() == expected.keys()
        for name, text in found.items():
            if formatted or name.endswith(".py"):
                assert code_of(name, text) == code_of(name, expected[name]), name


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("case", TEXTS)
def test_an_optimizer_has_the_texts_of_its_spec(case: str) -> None:
    """The docstring, the messages and the param group hold the text."""
    text = TEXTS[case]
    cls = optgen.load(Spec("Hostile", hostile_spec(text), "hostile.py", 1))

    assert single_spaced(cls.__doc__).startswith(single_spaced(f"Doc. {text}"))
    assert single_spaced(cls.__doc__).count(single_spaced(text)) >= 6
    raises_value_error(f"{text}-1.0", cls, lr=-1.0)
    raises_value_error(f"{text}12-3.0", cls, betas=(0.5, -3.0))
    raises_value_error(f"{text}wrong", cls, mode="wrong")
    raises_value_error(text, cls, lr=1000.0)
    with pytest.raises(ValueError) as raised:
        cls([Parameter(torch.zeros(1, 1, 1))])
    assert str(raised.value) == f"{text}torch.Size([1, 1, 1])"
    assert cls([Parameter(torch.zeros(1))]).param_groups[0]["mode"] == text
    sparse = Parameter(torch.zeros(2, 2))
    sparse.grad = torch.eye(2).to_sparse()
    with pytest.raises(RuntimeError) as refused:
        cls([sparse]).step()
    assert str(refused.value).endswith(text)


def raises_value_error(message: str, cls: type[torch.optim.Optimizer], **options: object) -> None:
    with pytest.raises(ValueError) as raised:
        cls([Parameter(torch.zeros(1))], **options)  # type: ignore[arg-type]
    assert str(raised.value) == message


@pytest.mark.parametrize("case", ["closed docstring", "trigraphs and backslashes", "braces"])
def test_every_lowering_compares_a_choice_with_its_text(case: str) -> None:
    text = TEXTS[case]
    cls = optgen.load(Spec("Hostile", hostile_spec(text), "hostile.py", 1))

    for mode, expected in ((text, -0.5 * (1 + 1.5 * 0.25)), ("other", -0.5 * 2), (None, -0.5 * 2)):
        for lowering in ("forloop", "foreach", "fused_cpu"):
            parameter = Parameter(torch.zeros(3, dtype=torch.float64))
            optimizer = cls([parameter], mode=mode)  # type: ignore[call-arg]
            for _ in range(2):
                parameter.grad = torch.ones_like(parameter)
                with optgen.use_lowering(lowering):
                    optimizer.step()
            assert parameter.tolist() == [expected] * 3


@pytest.mark.parametrize("case", TEXTS)
def test_a_function_has_the_texts_of_its_spec(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXTS[case]
    folder = Path("made")
    for name, content in render(hostile_function_spec(text), formatted=True).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    monkeypatch.syspath_prepend(".")
    for name in ("made.hostile", "made"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    function = importlib.import_module("made.hostile").hostile

    assert single_spaced(function.__doc__).startswith(single_spaced(f"Doc. {text}"))
    for decay, message in ((-1.0, f"{text}-1.0"), (1000.0, text)):
        with pytest.raises(ValueError) as raised:
            function([], [], decay=decay)
        assert str(raised.value) == message


def test_a_text_over_two_lines_is_quoted_in_one_line() -> None:
    """A statement may hold a triple-quoted text; generated files quote it in a one-line comment."""
    body = hostile_spec(PLAIN).replace("'plain'\n    if", '"""plain\\\n"""\n    if')
    assert body != hostile_spec(PLAIN)

    expected, found = render(hostile_spec(PLAIN), True), render(body, True)
    for name, text in found.items():
        assert code_of(name, text) == code_of(name, expected[name])


def test_latex_of_a_choice_has_no_commands() -> None:
    text = hostile_spec("\\input{x}_$^~ %#&").replace("t > 1", 'mode != "other"')
    (algorithm,) = read_spec(Spec("hostile", text, "hostile.py", 1))

    shown = r"\text{\textbackslash{}input\{x\}\_\$\textasciicircum{}\textasciitilde{} \%\#\&}"
    assert shown in to_latex(algorithm)
