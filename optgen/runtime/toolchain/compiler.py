"""Find a C++ compiler, build a shared library with it, and check the library before use.

A compiler runs with a time limit. It may exit with 0 and leave a library that is cut short, or no
library of this source. The first would crash every process that loads it. The second would lack the
kernels, and steps would do nothing. So each source ends with a function that returns the digest of
the source, and a child process calls it.
"""

import errno
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from optgen.runtime.toolchain import processors

_LIBRARY_FLAGS = ("-std=c++17", "-shared", "-fPIC")
# -fno-math-errno makes loops with a sqrt ten times as fast: sqrt then sets no errno, so the loops
# vectorise.
_PLAIN = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp-simd", *_LIBRARY_FLAGS)
_WITHOUT_TRAPS = ("-fno-trapping-math", "-fno-exceptions")
# Loop unswitching copies a loop for every branch: builds take three times as long, and the loops
# run no faster. Jump threading joins branches on one flag; then g++ does not vectorise ADOPT.
# clang has no such options, and refuses the second.
_TUNED = ("-fno-unswitch-loops", "-fno-thread-jumps")
# The explicit vector width is for compilers that mistake the processor for an older one.
_WIDE_VECTORS = ("-mprefer-vector-width=512",) if processors.IS_X86 else ()

FlagSets = tuple[tuple[str, ...], ...]
"""Flags in order of preference. A build uses the first set that the compiler accepts."""


def flag_sets_for(level: processors.Level) -> FlagSets:
    """Return the flags for processors of a level."""
    flags = (*_PLAIN, *level.flags, *_WITHOUT_TRAPS)
    wide = (*flags, *_WIDE_VECTORS)
    return tuple(dict.fromkeys([(*flags, *_TUNED, *_WIDE_VECTORS), wide, flags]))


FLAG_SETS: FlagSets = (
    *flag_sets_for(processors.NATIVE),
    (*_PLAIN, *_WITHOUT_TRAPS),  # a compiler of another machine knows no native processor
    _PLAIN,
)
"""The flags for this processor."""

INSTALL = "install g++ or clang++ (Debian, Ubuntu: apt install g++; macOS: xcode-select --install)"


# A small program with the requirements of kernels: C++17, and the headers that they include.
_PROBE = """
#include <cmath>
#include <cstdint>
#include <utility>
template <class... T> constexpr auto sum(T... x) { return (x + ... + 0); }
inline constexpr int three = sum(1, 2);
extern "C" double optgen_probe(double x) {
  auto [a, b] = std::pair{x, std::int64_t{three}};
  if constexpr (three == 3) return std::sqrt(a) + static_cast<double>(b);
  return 0;
}
"""


class CompileError(RuntimeError):
    """Error for a compiler that made no library.

    The first line of the message says why, and the way out. The compiler's output follows.
    """


class RefusedError(CompileError):
    """Error for a source that a compiler rejects with every set of flags.

    Attributes:
        log: Every command with its output.
    """

    def __init__(self, command: str, source: str, log: str) -> None:
        super().__init__(f"{command} could not build {source}\n{log}")
        self.log = log


def find() -> list[str] | None:
    """Return the compiler's command: `$CXX` if set, else g++, clang++ or c++.

    None if there is none, and on Windows, whose compilers were never tried.
    """
    if is_windows():
        return None
    cxx = os.environ.get("CXX", "").strip()
    for command in [_split_command(cxx)] if cxx else [["g++"], ["clang++"], ["c++"]]:
        path = shutil.which(command[0]) if command else None
        if path is not None:
            return [path, *command[1:]]
    return None


def why_missing() -> str:
    """Say why `find` finds no compiler, and the way out."""
    if is_windows():
        return (
            "optgen has not been tried with a C++ compiler of Windows: run Python in WSL, or leave "
            "it, with the numbers of a fused step"
        )
    cxx = os.environ.get("CXX", "").strip()
    if not cxx:
        return f"no C++ compiler was found: {INSTALL}"
    way_out = "set it to a C++ compiler, or not at all"
    try:
        program = shlex.split(cxx)[0]
    except ValueError as error:
        return f"CXX is {cxx!r}, and a shell could not read it ({error}): {way_out}"
    path = Path(program)
    problem = (
        "is a folder" if path.is_dir() else "cannot be run" if path.exists() else "is not found"
    )
    return f"no C++ compiler was found: CXX is {cxx!r}, and {program!r} {problem}: {way_out}"


def is_windows() -> bool:
    """Tell whether this is Windows, where nothing is compiled."""
    return platform.system() == "Windows"


def _split_command(cxx: str) -> list[str]:
    """Split a command as a shell does; return an empty list if a shell could not read it."""
    if shutil.which(cxx):  # a path with spaces
        return [cxx]
    try:
        return shlex.split(cxx)
    except ValueError:
        return []


def identity(command: list[str]) -> str:
    """Return a text that changes with the compiler.

    The text comes from the status of the program's file: to ask the compiler for its version would
    take a process. Each word of the command may be the program that compiles, as in `ccache g++`.
    """
    programs = [Path(path).resolve() for path in map(shutil.which, command) if path]
    statuses = ((path, path.stat()) for path in programs)
    texts = (f"{path} {status.st_size} {status.st_mtime_ns}" for path, status in statuses)
    return " ".join([shlex.join(command), *texts])


def build(command: list[str], source: Path, target: Path, flag_sets: FlagSets = FLAG_SETS) -> None:
    """Compile a source file to a shared library.

    Raises:
        RefusedError: The compiler rejected the source or the flags.
        CompileError: The compiler made no library for another reason.
        OSError: The compiler or this process could not write a file.
    """
    end, log = time.monotonic() + time_limit(), []
    for flags in flag_sets:
        full_command = [*command, *flags, str(source), "-o", str(target)]
        status, output = run(full_command, target.parent, end - time.monotonic())
        if status == 0 and target.is_file():
            return
        log.append(f"{shlex.join(full_command)}\n{output}exit status {status}\n")
    raise RefusedError(shlex.join(command), source.name, "\n".join(log))


def build_checked(
    command: list[str], text: str, folder: Path, flag_sets: FlagSets = FLAG_SETS
) -> Path:
    """Compile a source text in a folder, and check the library; return its path.

    The library exports one more function, by which it is checked. The errors are those of `build`.
    """
    source, library = folder / "fused_cpu.cpp", folder / "built.so"
    source.write_text(with_digest(text))
    build(command, source, library, flag_sets)
    if reason := why_unusable(library, text):
        log = f"the compiler exited with status 0, but left a library that is not usable: {reason}"
        raise RefusedError(shlex.join(command), source.name, log)
    return library


def builds_anything(command: list[str], folder: Path) -> bool:
    """Tell whether a compiler builds a small program with the requirements of kernels."""
    try:
        build_checked(command, _PROBE, folder)
    except RefusedError:
        return False
    return True


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
# Messages of clang++ on macOS, which starts the compiler of Xcode's tools, and the way out.
_XCODE_ERRORS = {
    "xcrun: error": "xcode-select --install",
    "xcode-select: note: No developer tools were found": "xcode-select --install",
    "You have not agreed to the Xcode license": "sudo xcodebuild -license accept",
}
_KILLED_MESSAGE = re.compile(r"\bKilled\b|\bTerminated signal")
_OUT_OF_MEMORY_MESSAGE = re.compile(
    r"out of memory|memory exhausted|Cannot allocate memory|std::bad_alloc"
)

_running_processes: set["subprocess.Popen[str]"] = set()
# One entry per call of `end_all_compilers`. A compiler that starts during a call is not yet in
# `_running_processes`; the entry tells the compiler's thread to end the compiler.
_end_calls: list[None] = []
_timed_out: set[tuple[str, float]] = set()  # compilers with their limits; not tried again


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
    for message, way_out in _XCODE_ERRORS.items():
        if message in output:
            raise CompileError(
                f"{name} needs Xcode's tools, which are not ready: run `{way_out}`, and start again"
            )
    if _OUT_OF_MEMORY_MESSAGE.search(output):
        raise CompileError(f"{name} ran out of memory: end other programs, and start again")
    if status < 0 or _KILLED_MESSAGE.search(output):
        raise CompileError(
            f"{name} was killed, as the system does if memory runs out: end other programs, and "
            "start again"
        )


_SYMBOL = "optgen_source_digest"
_STARTED = b"started\n"
_PROGRAM = f"""
import ctypes, sys
print({_STARTED.decode().strip()!r}, flush=True)
function = ctypes.CDLL(sys.argv[1])[{_SYMBOL!r}]
function.restype = ctypes.c_char_p
print(function().decode(), flush=True)
"""
_TIME_LIMIT = 60.0  # seconds; a check takes some hundredths of a second


def with_digest(source: str) -> str:
    """Return a source with a function that returns the source's digest."""
    return f'{source}\nextern "C" const char* {_SYMBOL}() {{ return "{_digest(source)}"; }}\n'


def why_unusable(library: Path, source: str) -> str:
    """Say why a library is not that of a source, compiled `with_digest`; "" if it is.

    If this process cannot start a Python interpreter, the library is trusted.
    """
    if not _is_whole(library.read_bytes()):
        return "it is cut short"
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(library)]
    if not sys.executable or getattr(sys, "frozen", False):  # a program that holds an interpreter
        return ""
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIME_LIMIT, check=False
        )
    except OSError:
        return ""
    except subprocess.TimeoutExpired:
        return "it does not load in time"
    if not child.stdout.startswith(_STARTED):
        return ""
    if child.returncode:
        last_line = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return f"a process that loads it ends with status {child.returncode}: {last_line}"
    return "" if _digest(source).encode() in child.stdout else "it is of another source"


def _is_whole(data: bytes) -> bool:
    """Tell whether an ELF file has its last part, the table of its sections.

    The file of another format counts as whole.
    """
    if data[:5] != b"\x7fELF\x02":  # 2: of 64 bits
        return bool(data)
    if len(data) < 64:
        return False
    (table,) = struct.unpack_from("=Q", data, 40)
    entry_bytes, entry_count = struct.unpack_from("=HH", data, 58)
    return bool(table + entry_bytes * entry_count <= len(data))


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()
