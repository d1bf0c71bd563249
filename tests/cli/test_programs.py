"""Test the command line with an optimizer that has programs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from cli.commands import make_checkout, run, snapshot
from spec_files import spec_file

TEXT = spec_file("schedule_free_sgd").read_text()
FILES = ("__init__.py", "forloop.py", "foreach.py", "fused_cpu.cpp", "fused_triton.py")
PROGRAMS = ("to_average", "to_gradient_point")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout with one spec file, freshly built."""
    monkeypatch.chdir(tmp_path)
    make_checkout(tmp_path, "average.py", TEXT)
    return tmp_path


def test_every_program_has_a_folder(folder: Path) -> None:
    files = snapshot(folder / "generated" / "average")
    assert set(files) == {*FILES, *(f"{name}/{file}" for name in PROGRAMS for file in FILES)}
    assert b"from specs/average.py." in files["to_average/foreach.py"][0]
    assert run("build", "--check").exit_code == 0
    assert snapshot(folder / "generated" / "average") == files


def test_a_build_removes_the_files_of_programs_that_are_gone(folder: Path) -> None:
    spec = folder / "specs" / "average.py"
    spec.write_text(TEXT.replace("to_average", "to_mean"))
    stale = run("build", "--check")
    assert stale.exit_code == 1
    for line in ("to_mean/forloop.py (create)", "to_average/fused_cpu.cpp (remove)"):
        assert f"stale: generated/average/{line}" in stale.output
    assert run("build").exit_code == 0
    assert not (folder / "generated" / "average" / "to_average").exists()
    spec.write_text(TEXT.partition("\n\n@ScheduleFreeSGD")[0])
    assert run("build").exit_code == 0
    assert set(snapshot(folder / "generated" / "average")) == set(FILES)


def test_check_names_the_programs(folder: Path) -> None:
    checked = run("check", "specs/average.py")

    assert checked.output == (
        "ScheduleFreeSGD: ok (state: lr_max, weight_sum, z, rest; "
        "train by to_gradient_point, eval by to_average)\n"
    )


def test_check_finds_an_error_in_a_program(folder: Path) -> None:
    (folder / "specs" / "average.py").write_text(TEXT.replace("p, z, 1 - 1 /", "p, y, 1 - 1 /"))
    checked = run("check", "specs/average.py")

    assert checked.exit_code == 3
    assert "unknown name `y`" in checked.output


def test_show_prints_every_program(folder: Path) -> None:
    assert run("show", "specs/average.py").output.count("@ScheduleFreeSGD.") == 2
    latex = run("show", "specs/average.py", "--latex").output
    assert latex.count(r"\begin{aligned}") == 3
    assert r"\operatorname{lerp}(\theta_{t-1}, z_t, 1 - \frac{1}{\mu})" in latex
    assert (
        "function to_average(p, z, *, momentum=0.9)"
        in run("show", "specs/average.py", "--ir").output
    )
    for lowering, files in (("foreach", 3), ("function", 2), ("optimizer", 1)):
        shown = run("show", "specs/average.py", "--lowering", lowering)
        assert shown.output.count("from specs/average.py.") == files


def test_a_built_package_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("build", "specs/average.py", "--out", "made_of_programs").exit_code == 0
    monkeypatch.syspath_prepend(str(folder))
    try:
        module = importlib.import_module("made_of_programs.average")
        optimizer = module.ScheduleFreeSGD([torch.nn.Parameter(torch.ones(2))])
        optimizer.eval()
        function = importlib.import_module("made_of_programs.average.to_average").to_average
        points = [torch.ones(3)]
        function(points, [torch.zeros(3)], momentum=0.5)
    finally:
        for name in [name for name in sys.modules if name.startswith("made_of_programs")]:
            del sys.modules[name]

    assert points[0].tolist() == [2.0] * 3
    assert "Move from the point where gradients are taken" in (function.__doc__ or "")
