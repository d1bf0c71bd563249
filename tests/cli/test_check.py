"""Test optgen check: errors of specs, and conflicts between specs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli.commands import ROOT, RULE, run, snapshot


def test_check_says_ok_and_writes_nothing(outside_checkout: Path) -> None:
    before = snapshot(outside_checkout)

    result = run("check", "heavy.py")

    assert result.exit_code == 0, result.output
    assert result.output == "Heavy: ok (state: momentum_buffer)\n"
    assert snapshot(outside_checkout) == before


def test_check_names_the_states_of_a_derived_rule() -> None:
    """AdamW has the states of Adam."""
    result = run("check", "adamw")

    assert result.output == "AdamW: ok (state: exp_avg, exp_avg_sq, max_exp_avg_sq)\n"


def test_check_finds_errors_of_a_lowering(outside_checkout: Path) -> None:
    """More flags decide which states exist than a kernel takes. A build shows the same error."""
    states = [f'm{i}=state("m{i}", when="f{i}")' for i in range(9)]
    flags = [f"f{i}=flag(False)" for i in range(9)]
    sums = [f"    if f{i}:\n        m{i} = m{i} + g\n" for i in range(9)]
    rule = f"""from optgen.spec import *


@optimizer()
def Many(p, g, /, {", ".join(states)}, *, lr=hyper(0.1), {", ".join(flags)}):
    \"\"\"Made up.\"\"\"
{"".join(sums)}    p = p - lr * g
"""
    (outside_checkout / "many.py").write_text(rule)

    for command in (("check",), ("build", "--out", "made")):
        result = run(command[0], "many.py", *command[1:])

        assert result.exit_code == 3, result.output
        assert "many.py:5:1: 9 flags decide which states exist; a kernel takes 8" in result.stderr
        assert "hint: give states that exist together one when=" in result.stderr


def test_check_reports_every_file(outside_checkout: Path) -> None:
    """The output has each file's first error, and the correct files."""
    (outside_checkout / "one.py").write_text(RULE.replace("p - lr * b", "p - lr * c"))
    (outside_checkout / "two.py").write_text("")

    result = run("check", "one.py", "heavy.py", "two.py")

    assert result.exit_code == 3
    assert "one.py:8:" in result.stderr
    assert "two.py:1:1: no spec in this file" in result.stderr
    assert result.stdout == "Heavy: ok (state: momentum_buffer)\n"


def test_check_takes_files_with_equal_names(outside_checkout: Path) -> None:
    """Classes of one name, and files of one name. `build` refuses both in one folder."""
    (outside_checkout / "same.py").write_text(RULE)
    (outside_checkout / "other").mkdir()
    (outside_checkout / "other" / "heavy.py").write_text(RULE)

    result = run("check", "heavy.py", "same.py", "other/heavy.py")

    assert result.exit_code == 0, result.output
    assert result.stdout == "Heavy: ok (state: momentum_buffer)\n" * 3


def test_check_compile_fills_the_cache(
    outside_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache holds the libraries of a first step: one for float32, one for all dtypes."""
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(outside_checkout / "cache"))

    result = run("check", "heavy.py", "--compile")

    assert result.exit_code == 0, result.output
    assert result.output == "Heavy: ok (state: momentum_buffer)\nHeavy: compiles\n"
    assert len(list((outside_checkout / "cache").glob("heavy-*.so"))) == 2


def test_check_says_why_a_rule_has_no_fused_step(
    outside_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(outside_checkout / "cache"))
    (outside_checkout / "clipped.py").write_text(
        """from optgen.spec import *


@optimizer()
def Clipped(p, g, /, *, lr=hyper(0.1)):
    \"\"\"Made up.\"\"\"
    require(ndim(p) == 2, "{shape}")
    p = p - lr * g @ transpose(g) @ g / (1 + norm(g, over="all"))
"""
    )

    result = run("check", "clipped.py", "--compile")

    assert result.exit_code == 0, result.output
    assert result.output == (
        "Clipped: ok (state: none)\nClipped: no fused step on the CPU: "
        "the rule has whole matrices and reduces over several parameters\n"
    )


def test_check_says_why_a_rule_does_not_compile(
    outside_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error equals a step's warning and the text of `explain`."""
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(outside_checkout / "cache"))
    monkeypatch.setattr(
        "optgen.runtime.toolchain.library_cache.inline_includes", lambda text: "no C++\n"
    )
    result = run("check", "heavy.py", "--compile")
    assert result.exit_code == 4
    message = (
        "C++17 programs but not the source that optgen generated for `heavy`, a defect of optgen"
    )
    assert message in result.stderr

    monkeypatch.setenv("CXX", "g++ '")
    result = run("check", "heavy.py", "--compile")
    assert result.exit_code == 4
    assert 'optgen: Heavy: CXX is "g++ \'", and a shell could not read it' in result.stderr


def test_a_check_imports_no_large_library() -> None:
    """torch alone takes most of a second to import, and a check then takes more than that.

    SymPy takes half a second. Coefficients as in these rules add up to 1 without a proof.
    """
    names = ("adamw", "adafactor", "apollo", "muon", "prodigy", "schedule_free_adamw", "soap")
    code = (
        "import sys; from optgen.cli.check import check; "
        f"assert len(list(check({names}))) >= {len(names)}; "
        "print({'torch', 'sympy', 'triton', 'numpy'} & {*sys.modules})"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert found.stdout == "set()\n"
