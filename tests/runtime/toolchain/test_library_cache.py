"""Test the cache of compiled libraries: keys, damaged files, other processes and other users."""

import ctypes
import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from optgen.runtime.cache import files
from optgen.runtime.toolchain import compiler, library_cache

SOURCE = 'extern "C" int answer() { return 42; }\n'
PROGRAM = f"""
import ctypes, os, sys
from optgen.runtime.toolchain import library_cache
for _ in range(int(sys.argv[1])):
    os.fork()
path = library_cache.library("answer", {SOURCE!r})
assert ctypes.CDLL(str(path)).answer() == 42
os.write(1, f"{{path}}\\n".encode())
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache for this test."""
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def use_logging_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Set CXX to a compiler that first runs a shell line and logs its arguments; return the log."""
    real = compiler.find()
    assert real is not None
    path, log = tmp_path / "logging-c++", tmp_path / "log"
    path.write_text(f'#!/bin/sh\necho "$@" >> {log}\n{script}\nexec {real[0]} "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    log.touch()
    return log


def run_count(log: Path) -> int:
    """Return how often the compiler was run."""
    return len(log.read_text().splitlines())


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).answer())


def start_process(forks: int = 0, **environment: str) -> subprocess.Popen[str]:
    """Start a process that forks `forks` times; all 2**forks processes ask for a library."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(forks)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_library_is_built_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = use_logging_compiler(tmp_path, monkeypatch, "")

    assert library_cache.find_built("answer", SOURCE) is None
    first = library_cache.library("answer", SOURCE)
    assert library_cache.find_built("answer", SOURCE) == first
    again = library_cache.library("answer", SOURCE)

    assert first == again
    assert first.parent == cache
    assert answer(first) == 42
    assert run_count(log) == 1
    assert sorted(path.name for path in cache.iterdir()) == [first.name, first.name + ".sha256"]


def test_source_and_compiler_are_part_of_the_key(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {
        library_cache.library("answer", SOURCE),
        library_cache.library("answer", SOURCE + "\n"),
    }
    use_logging_compiler(tmp_path, monkeypatch, "")
    paths.add(library_cache.library("answer", SOURCE))

    assert len(paths) == 3


@pytest.mark.parametrize("damage", ["truncated", "zeroed", "no checksum", "checksum is no text"])
def test_a_damaged_library_is_built_again(cache: Path, damage: str) -> None:
    path = library_cache.library("answer", SOURCE)
    whole = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "zeroed":
        path.write_bytes(bytes(len(whole)))
    elif damage == "no checksum":
        library_cache.checksum_of(path).unlink()
    else:
        library_cache.checksum_of(path).write_bytes(b"\xff\xfe")

    assert not library_cache.is_intact(path)
    assert library_cache.library("answer", SOURCE) == path
    assert library_cache.is_intact(path)
    assert answer(path) == 42


def test_without_a_compiler_a_cached_library_is_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = library_cache.library("answer", SOURCE)
    monkeypatch.setattr(compiler, "find", lambda: None)

    assert library_cache.library("answer", SOURCE) == path

    path.write_bytes(b"")
    with pytest.raises(library_cache.NoCompilerError, match="install g\\+\\+"):
        library_cache.library("answer", SOURCE)


def test_the_environment_chooses_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compiler.find()
    assert found is not None
    monkeypatch.setenv("CXX", f"{found[0]} -DX=1")
    assert compiler.find() == [found[0], "-DX=1"]
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert compiler.find() is None


def test_without_a_writable_cache_a_temporary_folder_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPTGEN_CACHE_DIR", "/proc/optgen")
    monkeypatch.setattr(files, "_warned_reasons", set())

    with pytest.warns(UserWarning, match="cannot keep the code"):
        path = library_cache.library("answer", SOURCE + "// lost\n")

    assert answer(path) == 42
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert library_cache.library("answer", SOURCE + "// lost\n") == path


def test_a_library_goes_to_another_folder_if_the_cache_is_full(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def fail_in_cache(source: Path, target: Path) -> None:
        if Path(target).parent == cache:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_in_cache)
    monkeypatch.setattr(files, "_warned_reasons", set())

    with pytest.warns(UserWarning, match=f"cannot keep .*{cache}: No space left on device"):
        path = library_cache.library("answer", SOURCE + "// full\n")

    assert answer(path) == 42
    assert not list(cache.iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_may_write_to_is_ignored(cache: Path, mode: int) -> None:
    cache.mkdir()
    cache.chmod(mode)

    with pytest.warns(UserWarning, match=f"neither keeps nor runs code in {cache}, since {cache}"):
        path = library_cache.library("answer", SOURCE)

    assert path.parent != cache
    assert not list(cache.iterdir())


def test_a_library_that_others_may_write_to_is_built_again(cache: Path) -> None:
    path = library_cache.library("answer", SOURCE)
    path.chmod(0o666)

    assert not library_cache.is_intact(path)
    assert library_cache.library("answer", SOURCE) == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_link_to_a_library_is_replaced(cache: Path, tmp_path: Path) -> None:
    path = library_cache.library("answer", SOURCE)
    os.rename(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    assert not library_cache.is_intact(path)
    assert library_cache.library("answer", SOURCE) == path
    assert not path.is_symlink()


@pytest.mark.parametrize("mask", [0, 0o002, 0o077])
def test_a_library_is_trusted_whatever_the_umask(cache: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        path = library_cache.library("answer", SOURCE)
    finally:
        os.umask(before)

    assert library_cache.is_intact(path)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_library_is_on_the_disk_before_its_name(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's contents reach the disk before its name, and each name before the next file."""
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        events.append("move")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)

    library_cache.library("answer", SOURCE)

    assert events == ["file", "move", "folder"] * 2


def test_a_temporary_folder_ends_with_its_process() -> None:
    process = start_process(OPTGEN_CACHE_DIR="/proc/optgen")
    printed, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert not Path(printed.strip()).parent.exists()


@pytest.mark.thorough
def test_eight_processes_build_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = use_logging_compiler(tmp_path, monkeypatch, "sleep 0.2")

    printed, _ = start_process(forks=3).communicate(timeout=60)

    lines = printed.splitlines()
    assert len(lines) == 8
    assert len(set(lines)) == 1
    assert run_count(log) == 1
    assert len(list(cache.iterdir())) == 2


def test_a_killed_build_does_not_stop_the_next(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    # Only the first run makes the folder, writes its process id, and hangs.
    line = f"mkdir {tmp_path}/first && echo $$ > {pid}.new && mv {pid}.new {pid} && exec sleep 60"
    use_logging_compiler(tmp_path, monkeypatch, line)
    process = start_process()
    while not pid.exists():
        time.sleep(0.01)
        assert process.poll() is None
    process.kill()  # the process's compiler lives on
    process.communicate()
    (abandoned,) = cache.glob(".build-*")

    with monkeypatch.context() as patch:
        clock = SimpleNamespace(
            monotonic=time.monotonic, sleep=lambda _: pytest.fail("the build waits")
        )
        patch.setattr(files, "time", clock)
        assert answer(library_cache.library("answer", SOURCE)) == 42
    os.kill(int(pid.read_text()), signal.SIGKILL)
    assert abandoned.exists()

    file, fresh_file = cache / ".build-file", cache / ".build-fresh"  # of a killed write
    yesterday = time.time() - 25 * 3600
    for path in (file, fresh_file):
        path.touch()
    for path in (abandoned, file):
        os.utime(path, (yesterday, yesterday))
    library_cache.library("answer", SOURCE + "\n")
    assert [*cache.glob(".build-*")] == [fresh_file]


def test_flags_that_the_compiler_does_not_know_are_left_out(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = use_logging_compiler(tmp_path, monkeypatch, 'case "$*" in *=native*) exit 1;; esac')

    assert answer(library_cache.library("answer", SOURCE)) == 42
    refused = [flags for flags in compiler.FLAG_SETS if "=native" in " ".join(flags)]
    assert run_count(log) == len(refused) + 1
