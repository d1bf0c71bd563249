"""The commands: what they print, what they write, and their exit codes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import Golden
from typer.testing import CliRunner, Result

from optgen import emit
from optgen.bench.lists import LISTS, TensorList
from optgen.bench.results import load
from optgen.cli import bench
from optgen.cli.app import app

ROOT = Path(__file__).parent.parent
RULE = '''from optgen.spec import hyper, optimizer, state


@optimizer(paper="https://arxiv.org/abs/0000.00000")
def Heavy(p, g, /, b=state("momentum_buffer"), *, lr=hyper(1e-2, ge=0), beta=hyper(0.9, ge=0)):
    """A heavy ball."""
    b = beta * b + g
    p = p - lr * b
'''


def run(*arguments: str) -> Result:
    """One command line, in this process."""
    return CliRunner().invoke(app, list(arguments), prog_name="optgen")


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder: its bytes, and when it was written."""
    files = (p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc")
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is no checkout, with one spec in it, to stand in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heavy.py").write_text(RULE)
    return tmp_path


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of one spec to stand in, freshly built."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "optgen"\n')
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "heavy.py").write_text(RULE)
    monkeypatch.chdir(tmp_path)
    assert run("build").exit_code == 0
    return tmp_path


def test_help_names_every_command() -> None:
    text = run("--help").output

    for command in ("build", "list", "show", "new", "check", "bench"):
        assert command in text


def test_usage_error() -> None:
    assert run("build", "--nonsense").exit_code == 2


def test_build_of_the_catalogue_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)

    result = run("build", "--check")

    assert result.exit_code == 0, result.output


def test_build_outside_needs_a_folder(outside: Path) -> None:
    for arguments in (["build"], ["build", "heavy.py"]):
        result = run(*arguments)

        assert result.exit_code == 2
        assert "--out" in result.output


def test_build_outside(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec of one's own becomes a package that imports and trains."""
    result = run("build", "heavy.py", "--out", "my_package")

    assert result.exit_code == 0, result.output
    monkeypatch.syspath_prepend(outside)
    import torch

    cls = importlib.import_module("my_package.heavy").Heavy
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = cls([parameter], lr=0.5)
    optimizer.step()
    optimizer.step()
    assert parameter.tolist() == pytest.approx([1 - 0.5 * (1 + 1.9)] * 3)


def test_what_is_built_outside_says_where_it_comes_from(outside: Path) -> None:
    """Not from specs/, and not by a bare `optgen build`; no path of this machine either."""
    (outside / "specs").mkdir()
    (outside / "specs" / "light.py").write_text(RULE.replace("Heavy", "Light"))
    for name in (str(outside / "heavy.py"), "specs/light.py"):
        assert run("build", name, "--out", "out").exit_code == 0

    for path in outside.glob("out/*/*.*"):
        module = path.parent.name
        comment = "//" if path.suffix == ".cpp" else "#"
        assert path.read_text().splitlines()[:2] == [
            f"{comment} {emit.MARK} from {module}.py.",
            f"{comment} Do not edit: change the spec, then run optgen build {module}.py --out DIR.",
        ]
        assert str(outside) not in path.read_text()


def test_a_file_of_somebody_else_stays(outside: Path) -> None:
    """Hand-written modules in the way are named, and nothing at all is written."""
    folder = outside / "my_package" / "heavy"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("by_hand = True\n")
    (folder / "foreach.py").write_bytes(b"\xff\xfe")
    before = snapshot(outside)

    for more in ([], ["--check"], ["--diff"]):
        result = run("build", "heavy.py", "--out", "my_package", *more)

        assert result.exit_code == 2
        message = " ".join(result.output.split())
        assert "my_package/heavy/__init__.py, my_package/heavy/foreach.py" in message
        assert "choose another folder with --out" in message
        assert snapshot(outside) == before


@pytest.mark.parametrize(
    ("out", "says"),
    [("heavy.py", "is a file"), ("/proc/x", "/proc/x"), ("blocked", "blocked/heavy")],
)
def test_a_folder_that_cannot_be(out: str, says: str, outside: Path) -> None:
    (outside / "blocked").mkdir()
    (outside / "blocked" / "heavy").write_text("a file where a folder goes\n")

    result = run("build", "heavy.py", "--out", out)

    assert result.exit_code == 2
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert says in result.output


def test_second_build_writes_nothing(checkout: Path) -> None:
    before = snapshot(checkout)

    result = run("build")

    assert "nothing changed" in result.output
    assert snapshot(checkout) == before


def test_check_names_what_is_stale(checkout: Path) -> None:
    path = checkout / "generated" / "heavy" / "forloop.py"
    path.write_text(path.read_text() + "# edited\n")
    (checkout / "generated" / "heavy" / "__init__.py").unlink()
    before = snapshot(checkout)

    result = run("build", "--check")

    assert result.exit_code == 1
    assert "stale: generated/heavy/forloop.py (update)" in result.output
    assert "stale: generated/heavy/__init__.py (create)" in result.output
    assert snapshot(checkout) == before


def test_diff_prints_what_is_stale(checkout: Path) -> None:
    path = checkout / "generated" / "heavy" / "forloop.py"
    path.write_text(path.read_text() + "# edited\n")
    before = snapshot(checkout)

    result = run("build", "--diff")

    assert result.exit_code == 1
    assert "\n-# edited\n" in result.output
    assert snapshot(checkout) == before


def test_build_removes_what_it_left_over(checkout: Path) -> None:
    """Its own files of a lowering or a spec that went; a file of somebody else stays."""
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


BAD = {
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


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_spec_changes_no_file(fault: str, checkout: Path) -> None:
    """Exit code 3, the place, and not one byte written; not even of the good spec beside it."""
    (checkout / "specs" / "another.py").write_text(RULE.replace("Heavy", "Another"))
    (checkout / "specs" / "heavy.py").write_text(RULE.replace(*BAD[fault]))
    before = snapshot(checkout)

    result = run("build")

    assert result.exit_code == 3
    assert "heavy.py:" in result.output
    assert snapshot(checkout) == before
    assert run("build", "--check").exit_code == 3
    assert run("check", "specs/heavy.py").exit_code == 3


def test_two_specs_with_one_name(checkout: Path) -> None:
    (checkout / "specs" / "light.py").write_text(RULE)
    before = snapshot(checkout)

    result = run("build")

    assert result.exit_code == 3
    assert snapshot(checkout) == before
    assert "two specs are called `Heavy`" in result.output


def test_two_specs_with_one_folder(checkout: Path) -> None:
    (checkout / "specs" / "heavy.py").write_text(RULE + RULE.replace("Heavy", "Light"))
    before = snapshot(checkout)

    result = run("build")

    assert result.exit_code == 3
    assert snapshot(checkout) == before
    assert "one algorithm, one file" in result.output


def test_without_the_formatter(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "find_ruff", lambda: None)

    result = run("build")

    assert result.exit_code == 4
    assert "pip install 'optgen[build]'" in result.output


def test_check_says_ok_and_writes_nothing(outside: Path) -> None:
    before = snapshot(outside)

    result = run("check", "heavy.py")

    assert result.exit_code == 0, result.output
    assert result.output == "Heavy: ok (state: momentum_buffer)\n"
    assert snapshot(outside) == before


def test_check_finds_what_no_plan_can_cut(outside: Path) -> None:
    """A number on both sides of a matrix word; the other commands show the same error."""
    rule = """from optgen.spec import *


@optimizer()
def Both(p, g, /, *, lr=hyper(0.1), k=hyper((1.5, -0.5, 0.0))):
    \"\"\"Made up.\"\"\"
    require(ndim(p) == 2, "{shape}")
    n = norm(g)
    p = p - lr * n * orthogonalize(g * n, k, 3, 1e-7)
"""
    (outside / "both.py").write_text(rule)

    for command in (("check",), ("show", "--ir"), ("build", "--out", "made")):
        result = run(command[0], "both.py", *command[1:])

        assert result.exit_code == 3, result.output
        assert "both.py:8:5: what is computed here is read before `orthogon" in result.stderr
        assert "hint: numbers, rows and columns do not outlast" in result.stderr


def test_check_reports_every_file(outside: Path) -> None:
    """The first error of each, what is right beside it, and what is wrong between them."""
    (outside / "one.py").write_text(RULE.replace("p - lr * b", "p - lr * c"))
    (outside / "two.py").write_text("")
    (outside / "same.py").write_text(RULE)

    result = run("check", "one.py", "heavy.py", "two.py", "same.py")

    assert result.exit_code == 3
    assert "one.py:8:" in result.stderr
    assert "two.py:1:1: no spec in this file" in result.stderr
    assert "same.py:5:1: two specs are called `Heavy`" in result.stderr
    assert result.stdout == "Heavy: ok (state: momentum_buffer)\n" * 2


@pytest.mark.parametrize("name", ["adamw", "AdamW"])
def test_a_module_and_a_class_are_one_name(name: str) -> None:
    result = run("check", name)

    assert result.exit_code == 0, result.output
    assert result.output.startswith("AdamW: ok")
    assert run("show", name).output == run("show", "adamw").output


def test_version() -> None:
    result = run("--version")

    assert result.exit_code == 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert result.output == f"optgen {project['version']}\n"


def test_a_lowering_that_does_not_exist() -> None:
    result = run("show", "adam", "--lowering", "Forloop")

    assert result.exit_code == 2
    message = " ".join(result.output.split())
    assert "'Forloop' is not one of optimizer, function, forloop, foreach," in message


def test_new_makes_a_spec_that_builds(outside: Path) -> None:
    assert run("new", "my_rule").exit_code == 0
    assert run("check", "my_rule.py").exit_code == 0
    assert run("build", "my_rule.py", "--out", "out").exit_code == 0
    for command in (["format", "--check"], ["check", "--extend-select=B"]):
        found = subprocess.run(
            [emit.require_ruff(), *command, "--isolated", "--line-length=100", "my_rule.py"],
            check=False,
        )
        assert found.returncode == 0


def test_new_in_a_checkout(checkout: Path) -> None:
    """Its configuration allows declarations already; the spec starts with what it is."""
    assert run("new", "my_rule").exit_code == 0
    assert (checkout / "specs" / "my_rule.py").read_text().startswith('"""MyRule: ')


@pytest.mark.parametrize("name", ["heavy", "MyRule", "my-rule", "class", "../up"])
def test_new_refuses(name: str, outside: Path) -> None:
    """A file that exists, and what is no snake_case word."""
    before = snapshot(outside)

    assert run("new", name).exit_code == 2
    assert snapshot(outside) == before


def test_list(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)

    golden.check(run("list").output)


def test_list_without_a_checkout(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue that ships with the package."""
    elsewhere = run("list").output
    monkeypatch.chdir(ROOT)

    assert elsewhere == run("list").output


@pytest.mark.parametrize(
    "lowering", ["optimizer", "forloop", "foreach", "fused_cpu", "fused_triton"]
)
def test_show_lowering(lowering: str) -> None:
    """What show prints is what is checked in."""
    name = "__init__" if lowering == "optimizer" else lowering
    (path,) = (ROOT / "generated" / "adam").glob(f"{name}.*")

    assert run("show", "adam", "--lowering", lowering).output == path.read_text()


def test_show(golden: Golden, outside: Path) -> None:
    golden.check(run("show", "heavy.py").output, "spec")
    golden.check(run("show", "heavy.py", "--latex").output, "latex")
    golden.check(run("show", "heavy.py", "--ir").output, "ir")


def test_show_of_a_derived_class() -> None:
    result = run("show", "adamw", "--lowering", "forloop")

    assert result.exit_code == 2
    assert "see Adam" in result.output
    assert r"\beta_1 m_{t-1}" in run("show", "adamw", "--latex").output  # the rule is Adam's
    assert "m = beta1 * m" in run("show", "adamw", "--ir").output


def test_unknown_name_has_a_hint() -> None:
    result = run("show", "adamm")

    assert result.exit_code == 2
    assert "did you mean adam?" in result.output


def test_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each class and list beside torch's, results in a file, and a picture."""
    monkeypatch.setattr("optgen.bench.measure._LONG", 1e-5)
    monkeypatch.setitem(LISTS, "2000x256", TensorList("2000x256", "", [(2, 2)] * 3))
    plot, json = tmp_path / "bench.png", tmp_path / "bench.json"
    asked = ("--list", "2000x256", "--seconds", "0.01", "--json", str(json), "--plot", str(plot))

    result = run("bench", "SGD", "radam", *asked)

    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if "2000x256" in line]
    assert [row[0] for row in rows] == ["SGD", "RAdam"]
    assert {cell.name for cell in load(json)} == {"SGD", "RAdam"}
    assert plot.stat().st_size > 1000


def test_bench_says_what_there_is() -> None:
    assert run("bench", "Adamm").exit_code == 2
    assert "no class SparseAdam to measure; there are " in run("bench", "SparseAdam").output
    assert "no list 1e7; there are " in run("bench", "SGD", "--list", "1e7").output


def test_bench_measures_matrices_on_small_lists_only() -> None:
    found = bench.Request(["muon", "sgd"], ["1e6", "gpt2", "resnet50"]).cells()

    assert [(cell.name, cell.tensors) for cell in found] == [
        ("Muon", "1e6"),
        ("SGD", "1e6"),
        ("SGD", "gpt2"),
        ("SGD", "resnet50"),
    ]


def test_without_the_generators_libraries(tmp_path: Path) -> None:
    """The command says what to install where typer is absent."""
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')\n")
    result = subprocess.run(
        [sys.executable, "-m", "optgen", "list"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 4
    assert result.stderr == "optgen: typer is not installed: pip install 'optgen[build]'\n"
