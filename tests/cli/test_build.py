"""Test optgen build: the files that it writes or leaves alone, and its exit codes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.commands import ROOT, RULE, run, snapshot

from optgen import emit


def test_files_of_the_catalogue_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test builds three specs; tests/test_generated.py checks all."""
    monkeypatch.chdir(ROOT)

    result = run("build", "--check", "adafactor", "soap", "averaging")

    assert result.exit_code == 0, result.output


def test_build_outside_a_checkout_needs_a_folder(outside_checkout: Path) -> None:
    for arguments in (["build"], ["build", "heavy.py"]):
        result = run(*arguments)

        assert result.exit_code == 2
        assert "--out" in result.output


def test_a_spec_outside_a_checkout_becomes_a_package(
    outside_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own spec becomes a package that imports and trains."""
    result = run("build", "heavy.py", "--out", "my_package")

    assert result.exit_code == 0, result.output
    monkeypatch.syspath_prepend(outside_checkout)
    import torch

    cls = importlib.import_module("my_package.heavy").Heavy
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = cls([parameter], lr=0.5)
    optimizer.step()
    optimizer.step()
    assert parameter.tolist() == pytest.approx([1 - 0.5 * (1 + 1.9)] * 3)


def test_files_built_outside_a_checkout_name_their_spec(outside_checkout: Path) -> None:
    """Generated files name neither specs/ nor a bare `optgen build`, nor a path of this machine."""
    (outside_checkout / "specs").mkdir()
    (outside_checkout / "specs" / "light.py").write_text(RULE.replace("Heavy", "Light"))
    for name in (str(outside_checkout / "heavy.py"), "specs/light.py"):
        assert run("build", name, "--out", "out").exit_code == 0

    built = list(outside_checkout.glob("out/*/*.*"))
    assert {path.parent.name for path in built} == {"heavy", "light"}
    for path in built:
        module = path.parent.name
        comment = "//" if path.suffix == ".cpp" else "#"
        assert path.read_text().splitlines()[:2] == [
            f"{comment} {emit.MARK} from {module}.py.",
            f"{comment} Do not edit: change the spec, then run optgen build {module}.py --out DIR.",
        ]
        assert str(outside_checkout) not in path.read_text()


def test_build_does_not_overwrite_hand_written_files(outside_checkout: Path) -> None:
    """The error names hand-written modules in the way, and no file is written."""
    folder = outside_checkout / "my_package" / "heavy"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("by_hand = True\n")
    (folder / "foreach.py").write_bytes(b"\xff\xfe")
    before = snapshot(outside_checkout)

    for options in ([], ["--check"], ["--diff"]):
        result = run("build", "heavy.py", "--out", "my_package", *options)

        assert result.exit_code == 2
        message = " ".join(result.output.split())
        assert "my_package/heavy/__init__.py, my_package/heavy/foreach.py" in message
        assert "choose another folder with --out" in message
        assert snapshot(outside_checkout) == before


@pytest.mark.parametrize(
    ("out", "message"),
    [("heavy.py", "is a file"), ("/proc/x", "/proc/x"), ("blocked", "blocked/heavy")],
)
def test_a_folder_that_cannot_be_created_is_named(
    out: str, message: str, outside_checkout: Path
) -> None:
    (outside_checkout / "blocked").mkdir()
    (outside_checkout / "blocked" / "heavy").write_text("a file where a folder goes\n")

    result = run("build", "heavy.py", "--out", out)

    assert result.exit_code == 2
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert message in result.output


def test_a_second_build_writes_nothing(checkout: Path) -> None:
    before = snapshot(checkout)

    result = run("build")

    assert "nothing changed" in result.output
    assert snapshot(checkout) == before


def test_check_names_stale_files(checkout: Path) -> None:
    path = checkout / "generated" / "heavy" / "forloop.py"
    path.write_text(path.read_text() + "# edited\n")
    (checkout / "generated" / "heavy" / "__init__.py").unlink()
    before = snapshot(checkout)

    result = run("build", "--check")

    assert result.exit_code == 1
    assert "stale: generated/heavy/forloop.py (update)" in result.output
    assert "stale: generated/heavy/__init__.py (create)" in result.output
    assert snapshot(checkout) == before


def test_diff_prints_the_differences_of_stale_files(checkout: Path) -> None:
    path = checkout / "generated" / "heavy" / "forloop.py"
    path.write_text(path.read_text() + "# edited\n")
    before = snapshot(checkout)

    result = run("build", "--diff")

    assert result.exit_code == 1
    assert "\n-# edited\n" in result.output
    assert snapshot(checkout) == before


def test_build_removes_its_files_of_specs_that_are_gone(checkout: Path) -> None:
    """optgen's files of a lowering or a spec that is gone are removed; other files stay."""
    folder = checkout / "generated"
    (folder / "heavy" / "old.py").write_text(f"# {emit.MARK} from specs/heavy.py.\n")
    (folder / "heavy" / "notes.py").write_text("# by hand\n")
    (checkout / "specs" / "other.py").write_text(RULE.replace("Heavy", "Other"))
    assert run("build").exit_code == 0
    assert (folder / "other" / "forloop.py").is_file()
    (checkout / "specs" / "other.py").unlink()

    result = run("build")

    assert "remove generated/other/forloop.py" in result.output
    assert not (folder / "other").exists()
    assert not (folder / "heavy" / "old.py").exists()
    assert (folder / "heavy" / "notes.py").exists()


FAULTS = {
    "unknown name": ("p = p - lr * b", "p = p - lr * c"),
    "a for": ("p = p - lr * b", "for i in b: pass"),
    "if on a tensor": ("p = p - lr * b", "if b > 0:\n        p = p - lr * b"),
    "unused state": (
        '/, b=state("momentum_buffer")',
        '/, b=state("momentum_buffer"), c=state("c")',
    ),
    "duplicate key": (
        'b=state("momentum_buffer")',
        'b=state("momentum_buffer"), c=state("momentum_buffer")',
    ),
    "state never written": ("b = beta * b + g", "g = beta * b + g"),
    "shadows a word": ("beta", "sqrt"),
    "default out of range": ("hyper(0.9, ge=0)", "hyper(-0.9, ge=0)"),
    "not Python": ("def Heavy(", "def Heavy(("),
    "empty": (RULE, ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_spec_changes_no_file(fault: str, checkout: Path) -> None:
    """The exit code is 3, the message has the place, and no valid spec of the folder is built."""
    (checkout / "specs" / "another.py").write_text(RULE.replace("Heavy", "Another"))
    (checkout / "specs" / "heavy.py").write_text(RULE.replace(*FAULTS[fault]))
    before = snapshot(checkout)

    result = run("build")

    assert result.exit_code == 3
    assert "heavy.py:" in result.output
    assert snapshot(checkout) == before
    assert run("build", "--check").exit_code == 3
    assert run("check", "specs/heavy.py").exit_code == 3


def test_two_specs_with_one_name_are_refused(checkout: Path) -> None:
    (checkout / "specs" / "light.py").write_text(RULE)
    before = snapshot(checkout)

    result = run("build")

    assert result.exit_code == 3
    assert snapshot(checkout) == before
    assert "two specs are called `Heavy`" in result.output


def test_two_specs_with_one_folder_are_refused(checkout: Path) -> None:
    (checkout / "specs" / "heavy.py").write_text(RULE + RULE.replace("Heavy", "Light"))
    before = snapshot(checkout)

    result = run("build")

    assert result.exit_code == 3
    assert snapshot(checkout) == before
    assert "a spec file holds one optimizer, or functions" in result.output


def test_without_the_formatter_build_says_what_to_install(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emit, "find_ruff", lambda: None)

    result = run("build")

    assert result.exit_code == 4
    assert f"python -m pip install ruff=={emit.RUFF}" in " ".join(result.output.split())


def test_a_folder_of_a_spec_that_is_gone_is_stale(outside_checkout: Path) -> None:
    (outside_checkout / "light.py").write_text(RULE.replace("Heavy", "Light"))
    (outside_checkout / "out" / "mine").mkdir(parents=True)
    (outside_checkout / "out" / "mine" / "notes.py").write_text("# by hand\n")
    assert run("build", "heavy.py", "light.py", "--out", "out").exit_code == 0
    build_heavy = ("build", "heavy.py", "--out", "out")
    # out/light is not orphaned: light.py exists, although this command does not name it.
    assert run(*build_heavy, "--check").exit_code == 0

    (outside_checkout / "light.py").unlink()
    before = snapshot(outside_checkout)
    checked = run(*build_heavy, "--check")
    assert checked.exit_code == 1
    assert "orphaned: out/light (there is no light.py): remove it, or give its" in checked.output
    built = run(*build_heavy)
    assert built.exit_code == 0
    assert "note: orphaned: out/light" in built.output
    assert "mine" not in built.output + checked.output
    assert snapshot(outside_checkout) == before


def test_neighbours_of_the_output_are_not_searched(
    outside_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--out` may be a folder of anybody, with folders that nobody may read, such as /proc."""
    deep = outside_checkout / "out" / "mine" / "deep"
    deep.mkdir(parents=True)
    shut = outside_checkout / "out" / "shut"
    shut.mkdir()
    read_folder = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        assert folder != deep
        if folder == shut:
            raise PermissionError(13, "Permission denied", str(folder))
        return read_folder(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    result = run("build", "heavy.py", "--out", "out")

    assert result.exit_code == 0, result.output
    assert (outside_checkout / "out" / "heavy" / "__init__.py").is_file()
