"""Test decorators of the language at run time: the specs that they return, and their errors."""

from __future__ import annotations

import importlib
import linecache
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from optgen.ir.print_ir import to_text
from optgen.spec import hyper, optimizer
from optgen.spec.declare import Modifier, Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

ROOT = Path(__file__).parents[2]
BARE = '''from optgen.spec import hyper, optimizer

@optimizer
def Plain(p, g, /, *, lr=hyper(0.1)):
    """Gradient descent."""
    p = p - lr * g
'''


@optimizer(paper="https://arxiv.org/abs/0000.00000")
def Plain(p, g, /, *, lr=hyper(0.1)):
    """Gradient descent."""
    p = p - lr * g


def test_the_repr_of_a_spec_has_its_file_and_line() -> None:
    assert repr(Plain) == f"<Spec Plain from test_decorators.py:{Plain.line}>"


@pytest.mark.parametrize("option", ["-c", "-"])
def test_a_spec_whose_text_cannot_be_found_is_refused(option: str) -> None:
    """The error for a spec that is typed at a prompt says what to do.

    From Python 3.13 on, the text of `-c` is kept, so the spec is read.
    """
    text = BARE.replace("@optimizer", "@optimizer()") + "\nprint(repr(Plain))\n"
    command = [sys.executable, option, text] if option == "-c" else [sys.executable, option]
    found = subprocess.run(
        command, input=text, cwd=ROOT, capture_output=True, text=True, check=False
    )

    if sys.version_info >= (3, 13) and option == "-c":
        assert found.stdout.startswith("<Spec Plain from "), found.stderr
        return
    last = found.stderr[found.stderr.index("SpecError: ") :].splitlines()
    assert "the text of `Plain` cannot be found" in last[0]
    assert "write it into a file or a notebook cell" in last[1]


def test_a_bare_decorator_raises_the_error_of_the_reader(tmp_path: Path) -> None:
    """The error at run time has the words and the place of the error that `optgen check` prints."""
    path = tmp_path / "plain.py"
    path.write_text(BARE)
    read = subprocess.run(
        [sys.executable, "-m", "optgen", "check", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    run = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "3:2: the only decorator" in read.stderr
    assert read.stderr.strip() in run.stderr


def test_a_spec_contains_the_constants_and_helpers_that_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper's constants are contained, too. Helpers that the rule does not call are left out."""
    text = """import math

from optgen.spec import hyper, optimizer

HALF = 1 / 2
g = math.inf  # the rule has a g of its own


def halved(x):
    return HALF * x


def unused(x):
    return math.sin(x)


print

@optimizer(paper="https://x.y/z")
def Halved(
    p, g, /, *, lr=hyper(0.5)
):
    \"\"\"Gradient descent with half a step.\"\"\"
    p = p - lr * halved(g)
"""
    (tmp_path / "a_cell_of_a_notebook.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.import_module("a_cell_of_a_notebook").Halved

    assert spec.line == 5
    assert [line for line in spec.source.splitlines() if line] == [
        line
        for line in text.splitlines()[4:]
        if line and not line.startswith(("g =", "def unused", "    return math", "print"))
    ]
    assert (
        spec.source.splitlines()[-1] == text.splitlines()[spec.line - 2 + spec.source.count("\n")]
    )
    (algorithm,) = read_spec(spec)
    assert algorithm.name == "Halved"


def test_a_bare_decorator_raises_a_spec_error() -> None:
    with pytest.raises(SpecError, match="the only decorator of the language"):
        optimizer(lambda p, g: None)


def test_a_spec_in_a_notebook_cell_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython keeps the text of a cell in linecache only."""
    name = "ipykernel_1/2.py"
    cell = BARE.replace("@optimizer", "HALF = 0.5\n\n@optimizer()").replace("* g", "* HALF * g")
    lines = cell.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, name, (len(cell), None, lines, name))
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    space: dict[str, Any] = {"__name__": "__main__"}

    exec(compile(cell, name, "exec"), space)

    assert repr(space["Plain"]) == "<Spec Plain from 2.py:3>"
    (algorithm,) = read_spec(space["Plain"])
    assert "p = p - lr * 0.5 * g" in to_text(algorithm)


def test_specs_and_modifiers_keep_the_module_that_pickles_name() -> None:
    """Pickles of loaded and composed classes hold a Spec; pickles of modifiers hold a Modifier."""
    assert {Spec.__module__, Modifier.__module__} == {"optgen.spec.declare"}
