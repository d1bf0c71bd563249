"""Run a compiler with a time limit, and report why it stopped."""

import errno
import os
import re
import shlex
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

_DEFAULT_LIMIT, _LIMIT_VARIABLE = 300.0, "OPTGEN_COMPILE_TIMEOUT"  # seconds
_LARGEST_LIMIT = 1e6  # seconds

# Messages of compilers and of the system about files that cannot be written.
_WRITE_ERRORS = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "File size limit exceeded": errno.EFBIG,
    "File too large": errno.EFBIG,
}
# Exit status of a process that wrote more to a file than the system allows.
_FILE_TOO_LARGE = -getattr(signal, "SIGXFSZ", 25)
_KILLED_MESSAGE = re.compile(r"\bKilled\b|\bTerminated signal")
_OUT_OF_MEMORY_MESSAGE = re.compile(
    r"out of memory|memory exhausted|Cannot allocate memory|std::bad_alloc"
)

_running_processes: set["subprocess.Popen[str]"] = set()
# One entry per call of `end_all_compilers`. A compiler that starts during a call is not yet in
# `_running_processes`; the entry tells the compiler's thread to end the compiler.
_end_calls: list[None] = []
_timed_out: set[tuple[str, float]] = set()  # compilers with their limits; not tried again


class CompileError(RuntimeError):
    """Error for a compiler that made no library.

    The first line of the message says why, and the way out. The compiler's output follows.
    """


def time_limit() -> float:
    """Return the number of seconds that a build may take."""
    text = os.environ.get(_LIMIT_VARIABLE) or str(_DEFAULT_LIMIT)
    with suppress(ValueError):
        if 0 < float(text) < _LARGEST_LIMIT:
            return float(text)
    raise CompileError(
        f"{_LIMIT_VARIABLE} is {text!r}: set it to seconds, such as 300, or not at all"
    )


def run(command: list[str], folder: Path, seconds: float) -> tuple[int, str]:
    """Run a compiler with a folder for temporary files; return its exit status and its output.

    Raises:
        CompileError: The compiler could not be started, took too long, or was killed.
        OSError: The compiler could not write a file.
    """
    name = shlex.join(command[:1])
    attempt = name, time_limit()
    if attempt in _timed_out or seconds <= 0:
        raise _too_long_error(name)
    calls_before = len(_end_calls)
    try:
        process = _start(command, folder)
    except OSError as error:
        raise CompileError(
            f"{name} cannot be started ({error.strerror}): set CXX to another compiler"
        ) from None
    with process:
        _running_processes.add(process)
        try:
            if len(_end_calls) > calls_before:
                _end(process)
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            _timed_out.add(attempt)
            raise _too_long_error(name) from None
        except BaseException:
            _end(process)
            raise
        finally:
            _running_processes.discard(process)
    _check_status(name, process.returncode, output, folder)
    return process.returncode, output


def end_all_compilers() -> None:
    """End all compilers that run or are starting; a keyboard interrupt does not reach them."""
    _end_calls.append(None)
    for process in list(_running_processes):
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
        start_new_session=True,  # a process group, so that `_end` ends the compiler's children too
    )


def _end(process: "subprocess.Popen[str]") -> None:
    """End a compiler and all processes that it has started."""
    with suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        elif process.poll() is None:
            process.kill()


def _too_long_error(name: str) -> CompileError:
    return CompileError(
        f"{name} took longer than {time_limit():g} seconds and was ended: set {_LIMIT_VARIABLE} to "
        "more seconds, or CXX to another compiler"
    )


def _check_status(name: str, status: int, output: str, folder: Path) -> None:
    """Raise an error if a compiler failed for another reason than its source."""
    if not status:
        return
    for message, code in _WRITE_ERRORS.items():
        if message in output or (code == errno.EFBIG and status == _FILE_TOO_LARGE):
            raise OSError(code, os.strerror(code), str(folder))
    if _OUT_OF_MEMORY_MESSAGE.search(output):
        raise CompileError(f"{name} ran out of memory: end other programs, and start again")
    if status < 0 or _KILLED_MESSAGE.search(output):
        raise CompileError(
            f"{name} was killed, as the system does if memory runs out: end other programs, and "
            "start again"
        )
