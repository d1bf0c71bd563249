"""Test the lock of a build: which builds wait for one another, and that none waits for ever."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Event, Thread

import pytest

from optgen.runtime.cache import files
from optgen.runtime.cache.files import exclusive

HOLDER = """
import runpy, sys, time
from pathlib import Path
with runpy.run_path(sys.argv[1])["exclusive"](Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a library to build; its lock is in this test's folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "library.so"


class LockingThread(Thread):
    """A thread that takes the lock and frees it at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path, self._got_lock = path, Event()
        self.start()

    def run(self) -> None:
        with exclusive(self._path):
            self._got_lock.set()

    def got_lock(self, within: float) -> bool:
        return self._got_lock.wait(within)


def test_a_second_thread_waits_for_the_first(path: Path) -> None:
    with exclusive(path):
        other = LockingThread(path)
        assert LockingThread(path.with_name("different")).got_lock(within=20)
        assert not other.got_lock(within=0.1)
    assert other.got_lock(within=20)


def test_an_error_releases_the_lock(path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), exclusive(path):
        raise KeyboardInterrupt
    assert not list(path.parent.iterdir())
    with exclusive(path):
        (lock,) = path.parent.iterdir()
    assert not lock.exists()


def test_the_death_of_its_process_releases_the_lock(path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, files.__file__, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        other = LockingThread(path)
        assert not other.got_lock(within=0.1)
        holder.kill()
        assert other.got_lock(within=20)


def test_a_copy_in_a_forked_child_does_not_keep_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `os.close` closes nothing: descriptors stay open, as their copies in a forked child would.
    copies: list[int] = []
    close = os.close
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", copies.append)
        with exclusive(path):
            lock = next(path.parent.iterdir())
            os.link(lock, path.with_name("second_name"))
    os.rename(path.with_name("second_name"), lock)  # the lock file exists again

    assert LockingThread(path).got_lock(within=20)
    for copy in copies:
        close(copy)


def test_no_build_waits_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_WAIT_LIMIT", 0.2)
    with exclusive(path):
        other = LockingThread(path)
        assert not other.got_lock(within=0.1)
        assert other.got_lock(within=20)
        assert list(path.parent.iterdir())  # the lock file is not removed


def test_a_build_goes_on_if_the_system_has_no_locks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", raise_no_locks)
    with exclusive(path):
        assert LockingThread(path).got_lock(within=20)


def test_a_build_goes_on_if_its_lock_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with exclusive(path):
        assert LockingThread(path).got_lock(within=20)


def test_a_symlink_in_place_of_the_lock_is_not_followed(path: Path) -> None:
    with exclusive(path):
        (lock,) = path.parent.iterdir()
    lock.symlink_to(path)
    with exclusive(path):
        assert not path.exists()


def test_a_build_does_not_wait_for_the_lock_of_another_user(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = os.geteuid()
    with exclusive(path), monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: user + 1)
        assert LockingThread(path).got_lock(within=20)
        assert list(path.parent.iterdir())  # the lock file is not removed
