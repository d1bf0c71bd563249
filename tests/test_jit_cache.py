"""Test the cached texts of optgen.load: a damaged text is written anew and never runs."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch

import optgen
import optgen.jit
from optgen.runtime.cache import files
from optgen.runtime.cache.texts import read_texts
from optgen.runtime.optimizer import GeneratedOptimizer

RULE = '''from optgen.spec import hyper, optimizer, state


@optimizer(paper="https://arxiv.org/abs/0000.00000")
def Heavy(p, g, /, b=state("momentum_buffer"), *, lr=hyper(1e-2, ge=0), beta=hyper(0.9, ge=0)):
    """A heavy ball."""
    b = beta * b + g
    p = p - lr * b
'''
EVIL = "open(__import__('os').environ['RAN'], 'a').write(__name__)\n"
CHILD = "import sys, optgen; optgen.load(sys.argv[1])"


@pytest.fixture
def ran_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a file that `EVIL` writes when it runs."""
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    return tmp_path / "ran"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Load a rule in this process; return the folder of its generated texts."""
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("optgen.jit._loaded_classes", {})
    (tmp_path / "heavy.py").write_text(RULE)
    optgen.load(tmp_path / "heavy.py")
    (found,) = (tmp_path / "cache" / "specs").iterdir()
    return found


def check_reload(folder: Path) -> None:
    """Load the class as a new process would, and check its steps."""
    optgen.jit._loaded_classes.clear()
    for name in [name for name in sys.modules if name.startswith("optgen_heavy_")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    check_steps(optgen.load(folder.parents[2] / "heavy.py"))


def check_steps(cls: type[GeneratedOptimizer]) -> None:
    """Check the steps of the Python lowerings, and that the C++ text can be read."""
    for lowering in ("forloop", "foreach"):
        parameter = torch.nn.Parameter(torch.zeros(4))
        parameter.grad = torch.ones(4)
        with optgen.use_lowering(lowering):
            cls([parameter], lr=0.5).step()
        assert parameter.tolist() == [-0.5] * 4
    assert b"optgen_step" in (pkgutil.get_data(cls.__module__, "fused_cpu.cpp") or b"")


def append_code(path: Path) -> None:
    path.write_text(path.read_text() + (EVIL if path.suffix == ".py" else "#error\n"))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_text(""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "altered": append_code,
    "missing": Path.unlink,
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "open to all": lambda path: path.chmod(0o666),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["__init__.py", "fused_cpu.cpp", "forloop.py", "sha256"])
def test_a_damaged_text_is_written_anew(
    folder: Path, ran_file: Path, name: str, damage: str
) -> None:
    texts = read_texts(folder)
    assert texts is not None
    DAMAGES[damage](folder / name)
    assert read_texts(folder) is None

    check_reload(folder)

    assert read_texts(folder) == texts
    assert not ran_file.exists()


def test_bytecode_is_not_read(folder: Path, ran_file: Path) -> None:
    """Python would accept this bytecode: it records the time and the size of its source."""
    for path in list(folder.glob("*.py")):
        text, stat = path.read_text(), path.stat()
        for optimize in (-1, 1, 2):
            path.write_text(EVIL.ljust(len(text.encode()), "#"))
            os.utime(path, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
            py_compile.compile(str(path), optimize=optimize)
        path.write_text(text)
        os.utime(path, ns=(stat.st_mtime_ns, stat.st_mtime_ns))

    check_reload(folder)

    assert not ran_file.exists()


def test_other_modules_in_the_folder_are_not_read(folder: Path, ran_file: Path) -> None:
    for name in ("torch.py", "optgen.py", "math.py", "sitecustomize.py", "dataclasses.py"):
        (folder / name).write_text(EVIL)
    for name in ("__init__", "forloop", "foreach"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(EVIL)
        (folder / f"{name}{EXTENSION_SUFFIXES[0]}").write_text("no library")

    check_reload(folder)

    assert not ran_file.exists()


@pytest.mark.parametrize("name", ["__init__.py", "sha256"])
def test_a_link_is_not_followed(folder: Path, ran_file: Path, tmp_path: Path, name: str) -> None:
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")

    check_reload(folder)

    assert not (folder / name).is_symlink()
    assert read_texts(folder)


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_an_inner_folder_that_others_may_write_to_is_not_read(folder: Path, mode: int) -> None:
    for inner in (folder, folder.parent):
        inner.chmod(mode)
        assert read_texts(folder) is None
        check_reload(folder)
        inner.chmod(0o700)
        assert read_texts(folder)


def test_an_inner_folder_that_is_a_link_is_not_read(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")

    assert read_texts(folder) is None
    check_reload(folder)


def test_a_folder_in_place_of_a_text_does_not_stop_a_load(folder: Path) -> None:
    """If a text cannot be written anew, optgen writes the texts to another folder."""
    (folder / "forloop.py").unlink()
    (folder / "forloop.py").mkdir()

    check_reload(folder)


def test_a_damaged_text_on_a_full_disk_does_not_stop_a_load(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be written anywhere, and the class still loads."""
    (folder / "forloop.py").write_text("")

    def raise_disk_full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(files, "write", raise_disk_full)
    monkeypatch.setattr("optgen.jit._loaded_classes", {})

    check_steps(optgen.load(tmp_path / "heavy.py"))


def test_the_cache_may_be_deleted_at_any_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache may also be deleted between a load and the first step, for any lowering."""
    monkeypatch.setattr("optgen.jit._loaded_classes", {})
    cls = optgen.load(tmp_path / "heavy.py")
    shutil.rmtree(folder.parent)

    check_steps(cls)
    assert inspect.getsource(cls).startswith("class Heavy(")


@pytest.mark.thorough
def test_several_processes_repair_one_cache_at_once(folder: Path) -> None:
    (folder / "forloop.py").write_text("")
    command = [sys.executable, "-c", CHILD, str(folder.parents[2] / "heavy.py")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]

    assert [(each.communicate()[1], each.returncode) for each in processes] == [("", 0)] * 3
    assert read_texts(folder)
    assert not list(folder.glob(".build-*"))
