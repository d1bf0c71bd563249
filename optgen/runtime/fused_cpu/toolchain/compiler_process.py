"""A compiler as a process: it gets so much time and no more, and what stopped it is told."""

import errno
import os
import re
import shlex
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

_LIMIT, _LIMIT_NAME = 300.0, "OPTGEN_COMPILE_TIMEOUT"
_LONGEST = 1e6  # seconds

# Failures that are not the source's fault, in the words of compilers or of the system.
_SPACE = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "File size limit exceeded": errno.EFBIG,
    "File too large": errno.EFBIG,
}
_TOO_LARGE = -getattr(signal, "SIGXFSZ", 25)
_KILLED = re.compile(r"\bKilled\b|\bTerminated signal")
_MEMORY = re.compile(r"out of memory|memory exhausted|Cannot allocate memory|std::bad_alloc")

_running: set["subprocess.Popen[str]"] = set()
_ends: list[None] = []  # one for each time that all were ended: one may start at that moment
_hung: set[tuple[str, float]] = set()  # compilers and limits: they are not waited for again


class CompileError(RuntimeError):
    """A compiler made no library.

    The first line of the message says why, and the way out; more of its own words follow.
    """


def limit() -> float:
    """Return the number of seconds that a build may take."""
    text = os.environ.get(_LIMIT_NAME) or str(_LIMIT)
    with suppress(ValueError):
        if 0 < float(text) < _LONGEST:
            return float(text)
    raise CompileError(f"{_LIMIT_NAME} is {text!r}: set it to seconds, such as 300, or not at all")


def run(command: list[str], folder: Path, seconds: float) -> tuple[int, str]:
    """Run a compiler with a folder for temporary files; return its status and what it printed.

    Raises:
        CompileError: it could not be started, took too long, or was killed.
        OSError: it could not write what it had to.
    """
    name, known = shlex.join(command[:1]), (shlex.join(command[:1]), limit())
    if known in _hung or seconds <= 0:
        raise _too_long(name)
    ends = len(_ends)
    try:
        process = _start(command, folder)
    except OSError as error:
        raise CompileError(
            f"{name} cannot be started ({error.strerror}): set CXX to another compiler"
        ) from None
    with process:
        _running.add(process)
        try:
            if len(_ends) > ends:
                _end(process)
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            _hung.add(known)
            raise _too_long(name) from None
        except BaseException:
            _end(process)
            raise
        finally:
            _running.discard(process)
    _check(name, process.returncode, printed, folder)
    return process.returncode, printed


def end_all() -> None:
    """End the compilers that run or start. An interrupt by the keyboard reaches none by itself."""
    _ends.append(None)
    for process in list(_running):
        _end(process)


def _start(command: list[str], folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"},
        start_new_session=True,  # and so a process group: what the compiler starts ends with it
    )


def _end(process: "subprocess.Popen[str]") -> None:
    """End a compiler with all that it has started."""
    with suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        elif process.poll() is None:
            process.kill()


def _too_long(name: str) -> CompileError:
    return CompileError(
        f"{name} took longer than {limit():g} seconds and was ended: set {_LIMIT_NAME} to more "
        "seconds, or CXX to another compiler"
    )


def _check(name: str, status: int, printed: str, folder: Path) -> None:
    """Raise if it was something else than the source that stopped a compiler."""
    if not status:
        return
    for words, number in _SPACE.items():
        if words in printed or (number == errno.EFBIG and status == _TOO_LARGE):
            raise OSError(number, os.strerror(number), str(folder))
    if _MEMORY.search(printed):
        raise CompileError(f"{name} ran out of memory: end what takes it, and start again")
    if status < 0 or _KILLED.search(printed):
        raise CompileError(
            f"{name} was killed, as the system does where memory runs out: end what takes it, and "
            "start again"
        )
