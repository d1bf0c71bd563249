"""Test the cached texts of an optimizer's programs, in folders inside the optimizer's folder."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from spec_files import spec_file

import optgen
import optgen.jit
from optgen.runtime.cache import files
from optgen.runtime.cache.texts import read_texts
from optgen.runtime.eager import call

SPEC = spec_file("schedule_free_sgd")
EVIL = "open(__import__('os').environ['RAN'], 'a').write(__name__)\n"


@pytest.fixture
def ran_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a file that `EVIL` writes when it runs."""
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    return tmp_path / "ran"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Load the rule in this process; return the folder of its generated texts."""
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("optgen.jit._loaded_classes", {})
    optgen.load(SPEC)
    (found,) = (tmp_path / "cache" / "specs").iterdir()
    return found


def check_change_of_mode() -> None:
    """Load the class as a new process would, and check a change from train() to eval()."""
    optgen.jit._loaded_classes.clear()
    call.load_function.cache_clear()
    call.find_function.cache_clear()
    for name in [name for name in sys.modules if name.startswith(f"optgen_{SPEC.stem}_")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    optimizer: Any = optgen.load(SPEC)([torch.nn.Parameter(torch.ones(2))], momentum=0.5)
    (param,) = optimizer.param_groups[0]["params"]
    param.grad = torch.ones(2)
    with optgen.use_lowering("forloop"):
        optimizer.step()
        param.grad = torch.ones(2)
        optimizer.step()  # z is -1, x is -0.5, and y is between them
        assert param.tolist() == [-0.75] * 2
        optimizer.eval()
    assert param.tolist() == [-0.5] * 2


def test_a_program_is_a_package_of_its_own(folder: Path) -> None:
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        "to_average",
        "to_gradient_point",
    }
    check_change_of_mode()
    modules = [sys.modules[n] for n in sys.modules if n.endswith(".to_average.forloop")]
    assert str(folder / "to_average" / "forloop.py") in {module.__file__ for module in modules}


@pytest.mark.parametrize("damage", ["altered", "missing", "open to all", "a link", "no folder"])
def test_a_damaged_program_is_written_anew(
    folder: Path, ran_file: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = read_texts(folder)
    assert texts is not None
    inner = folder / "to_average"
    path = inner / "forloop.py"
    if damage == "altered":
        path.write_text(path.read_text() + EVIL)
    elif damage == "missing":
        path.unlink()
    elif damage == "open to all":
        path.chmod(0o666)
    elif damage == "a link":
        elsewhere = folder.parents[1] / "elsewhere"
        inner.rename(elsewhere)
        inner.symlink_to(elsewhere)
    else:
        for each in inner.iterdir():
            each.unlink()
        inner.rmdir()
    assert read_texts(folder) is None
    monkeypatch.setattr(files, "_warned_reasons", set())
    is_link = damage == "a link"
    with pytest.warns(UserWarning, match="is a link") if is_link else nullcontext():
        check_change_of_mode()

    assert not ran_file.exists()
    if damage != "a link":  # optgen writes to another folder instead of a linked one
        assert read_texts(folder) == texts


def test_modules_beside_a_program_are_not_read(folder: Path, ran_file: Path) -> None:
    for name in ("torch.py", "optgen.py", "foreach.so"):
        (folder / "to_average" / name).write_text(EVIL)
    check_change_of_mode()

    assert not ran_file.exists()
