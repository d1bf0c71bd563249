"""Test the command line and `optgen.load` with a spec file of functions over lists."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from cli.commands import make_checkout, run, snapshot

import optgen
from optgen.spec.errors import SpecError

TEXT = '''
from optgen.spec import elementwise, hyper


@elementwise
def nudge(low, high, /, *, by=hyper(0.5)):
    """Made up."""
    low = low + by * high


@elementwise
def swap_in(low, high, /):
    """Made up, and without numbers."""
    high = low
'''
FILES = ("__init__.py", "forloop.py", "foreach.py", "fused_cpu.cpp", "fused_triton.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout with one spec file, freshly built."""
    monkeypatch.chdir(tmp_path)
    make_checkout(tmp_path, "lists.py", TEXT)
    return tmp_path


def test_every_function_has_a_folder(folder: Path) -> None:
    files = snapshot(folder / "generated" / "lists")
    assert set(files) == {
        "__init__.py",
        *(f"{name}/{file}" for name in ("nudge", "swap_in") for file in FILES),
    }
    assert b"from specs/lists.py." in files["nudge/foreach.py"][0]
    assert run("build", "--check").exit_code == 0
    assert snapshot(folder / "generated" / "lists") == files


def test_a_build_removes_the_files_of_functions_that_are_gone(folder: Path) -> None:
    (folder / "specs" / "lists.py").write_text(TEXT.replace("nudge", "push"))
    stale = run("build", "--check")
    assert stale.exit_code == 1
    for line in ("lists/push/forloop.py (create)", "lists/nudge/fused_cpu.cpp (remove)"):
        assert f"stale: generated/{line}" in stale.output
    assert run("build").exit_code == 0
    assert not (folder / "generated" / "lists" / "nudge").exists()
    (folder / "specs" / "lists.py").unlink()
    assert run("build").exit_code == 0
    assert not (folder / "generated" / "lists").exists()


def test_check_tells_which_lists_a_function_writes(folder: Path) -> None:
    result = run("check", "lists")

    assert result.output == "nudge: ok (writes: low)\nswap_in: ok (writes: high)\n"


def test_the_list_command_has_a_table_of_functions(folder: Path) -> None:
    _, functions, _ = run("list").output.split("\n\n")
    header, _, first, second = functions.splitlines()

    assert header.split() == ["name", "function", "lists"]
    assert [first.split(), second.split()] == [
        ["lists", "nudge", "low,", "high"],
        ["lists", "swap_in", "low,", "high"],
    ]


def test_show_prints_every_function(folder: Path) -> None:
    for file in ("function", "forloop", "foreach", "fused_cpu", "fused_triton"):
        shown = run("show", "lists", "--lowering", file)
        assert shown.exit_code == 0
        # The C++ does not name the function: its struct is `Rule`.
        assert "nudge" in shown.output or file == "fused_cpu"
        assert shown.output.count("from specs/lists.py.") == 2
    assert r"\text{low}_t \leftarrow \text{low}_{t-1}" in run("show", "lists", "--latex").output
    assert "function nudge(low, high, *, by=0.5)" in run("show", "lists", "--ir").output
    wrong = run("show", "lists", "--lowering", "optimizer")
    assert wrong.exit_code == 2
    message = "nudge is a function, so it has no optimizer: use --lowering function"
    assert message in " ".join(wrong.output.split())


def test_a_file_with_functions_holds_no_optimizer(folder: Path) -> None:
    """A file holds one optimizer or functions, because both would be built into one folder."""
    spec = (
        "@optimizer()\ndef Heavy(p, g, /, *, lr=hyper(1)):\n"
        '    """Made up."""\n    p = p - lr * g\n'
    )
    text = TEXT.replace("import elementwise", "import optimizer, elementwise")
    (folder / "specs" / "lists.py").write_text(f"{text}\n\n{spec}")
    result = run("build")

    assert result.exit_code == 3
    assert "`Heavy` and `nudge` would both be generated into lists/" in result.stderr


def test_a_built_function_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("build", "specs/lists.py", "--out", "made_of_lists").exit_code == 0
    monkeypatch.syspath_prepend(str(folder))
    nudge = importlib.import_module("made_of_lists.lists.nudge").nudge
    low = [torch.ones(3), torch.ones(2, 2)]
    nudge(low, [torch.ones(3), torch.ones(2, 2)], by=2)
    importlib.import_module("made_of_lists.lists.swap_in").swap_in(
        low, high := [0 * t for t in low]
    )

    assert [t.unique().item() for t in (*low, *high)] == [3.0] * 4
    with pytest.raises(ValueError, match="lists of nudge differ in length"):
        nudge(low, [])


def test_load_refuses_a_file_of_functions(folder: Path) -> None:
    with pytest.raises(SpecError) as raised:
        optgen.load("specs/lists.py")

    assert "`nudge` is a function over lists, but load makes optimizer classes" in str(raised.value)
    assert "optgen build FILE --out DIR" in str(raised.value)
