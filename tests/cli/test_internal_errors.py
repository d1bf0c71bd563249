"""Test how commands report a defect of optgen: one line with a place, and exit code 5."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from cli.commands import RULE, run, snapshot

import optgen
from optgen.spec.errors import InternalError, SpecError

MESSAGE = "optgen failed here: a defect of optgen, not of the spec; please report it"


@pytest.fixture
def folder(outside_checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which a pass fails at the first tensor that heavy.py stores."""
    monkeypatch.setattr("optgen.passes.select_torch_ops._Selector._update", _raise_key_error)
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(outside_checkout / "cache"))
    monkeypatch.setattr("optgen.jit._loaded_classes", {})
    return outside_checkout


def _raise_key_error(*_: Any) -> NoReturn:
    raise KeyError("one\ntwo \x1b[31m" + "x" * 1000)


@pytest.mark.parametrize(
    "command", [("check",), ("show", "--lowering", "foreach"), ("build", "--out", "made")]
)
def test_a_command_reports_a_defect_in_one_line(command: tuple[str, ...], folder: Path) -> None:
    before = snapshot(folder)

    result = run(command[0], "heavy.py", *command[1:])

    assert result.exit_code == 5
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"heavy.py:7:5: {MESSAGE} together with the spec (KeyError: 'one")
    assert line.isprintable()
    assert len(line) < 400
    assert snapshot(folder) == before


def test_check_continues_with_other_files(folder: Path) -> None:
    (folder / "wrong.py").write_text(RULE.replace("p - lr * b", "p - lr * c"))

    result = run("check", "heavy.py", "wrong.py")

    assert result.exit_code == 5
    assert "heavy.py:7:5: optgen failed here" in result.stderr
    assert "wrong.py:8:18: unknown name `c`" in result.stderr


def test_load_reports_a_defect_and_keeps_the_cause(folder: Path) -> None:
    with pytest.raises(InternalError, match=r"heavy.py:7:5: optgen failed") as raised:
        optgen.load("heavy.py")

    assert isinstance(raised.value.__cause__, KeyError)
    assert not isinstance(raised.value, SpecError)
    assert not (folder / "cache").exists() or not [*(folder / "cache").rglob("*.py")]


def test_a_defect_of_the_reader_is_reported(
    outside_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is at the statement that the reader was reading."""
    from optgen.spec.op_calls import OpCalls

    monkeypatch.setattr(OpCalls, "_op_call", lambda *_: [][0])
    (outside_checkout / "root.py").write_text(
        RULE.replace("    p = p", "    b = sqrt(b)\n    p = p").replace("hyper,", "hyper, sqrt,")
    )

    result = run("check", "root.py", "heavy.py")

    assert result.exit_code == 5
    assert result.stderr.startswith("root.py:8:5: optgen failed here")
    assert "IndexError" in result.stderr
    assert result.stdout == "Heavy: ok (state: momentum_buffer)\n"


def test_generated_text_that_is_no_python_is_not_written(
    outside_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optgen.lowerings.python.expression_printer import PythonPrinter

    monkeypatch.setattr(PythonPrinter, "text", lambda *_: ")(")
    (outside_checkout / "root.py").write_text(RULE.replace("lr * b", "lr**2 * b"))

    result = run("build", "root.py", "--out", "made")

    assert result.exit_code == 5
    assert "SyntaxError" in result.stderr
    assert not (outside_checkout / "made").exists()


def test_an_error_of_the_system_is_no_defect(
    outside_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device", "ruff")

    monkeypatch.setattr("optgen.emit.format_files", raise_disk_full)

    assert run("check", "heavy.py").exit_code == 2
