"""Find a C++ compiler and build a shared library with it."""

import os
import platform
import shlex
import shutil
import time
from functools import cache
from pathlib import Path

from optgen.runtime.toolchain.compiler_process import CompileError as CompileError
from optgen.runtime.toolchain.compiler_process import run, time_limit
from optgen.runtime.toolchain.library_check import why_unusable, with_digest

_LIBRARY_FLAGS = ("-std=c++17", "-shared", "-fPIC")
# -fno-math-errno makes loops with a sqrt ten times as fast: sqrt then sets no errno, so the loops
# vectorise.
_PORTABLE = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp-simd", *_LIBRARY_FLAGS)
_NATIVE = (*_PORTABLE, "-march=native", "-fno-trapping-math", "-fno-exceptions")
# Loop unswitching copies a loop for every branch: builds take three times as long, and the loops
# run no faster. Jump threading joins branches on one flag; then g++ does not vectorise ADOPT.
_TUNED = (*_NATIVE, "-fno-unswitch-loops", "-fno-thread-jumps")
# The explicit vector width is for compilers that mistake the processor for an older one.
_WIDE_VECTORS = (*_TUNED, "-mprefer-vector-width=512")

_X86 = platform.machine().lower() in ("x86_64", "amd64")

# In order of preference. A build tries them in turn, and uses the first that the compiler accepts.
FLAG_SETS: tuple[tuple[str, ...], ...] = (_WIDE_VECTORS if _X86 else _TUNED, _NATIVE, _PORTABLE)

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


class RefusedError(CompileError):
    """Error for a source that a compiler rejects with every set of flags.

    Attributes:
        log: Every command with its output.
    """

    def __init__(self, command: str, source: str, log: str) -> None:
        super().__init__(f"{command} could not build {source}\n{log}")
        self.log = log


def find() -> list[str] | None:
    """Return the compiler's command: `$CXX` if set, else g++, clang++ or c++; None without one."""
    cxx = os.environ.get("CXX", "").strip()
    for command in [_split_command(cxx)] if cxx else [["g++"], ["clang++"], ["c++"]]:
        path = shutil.which(command[0]) if command else None
        if path is not None:
            return [path, *command[1:]]
    return None


def why_missing() -> str:
    """Say why `find` finds no compiler, and the way out."""
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


@cache
def processor() -> str:
    """Describe the processor and its features: a library built for one may not run on another."""
    names = ("model name", "flags", "Features", "CPU part")
    texts = [platform.system(), platform.machine()]
    try:
        first_processor = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        texts.append(platform.processor())
    else:
        texts += [line for line in first_processor.splitlines() if line.startswith(names)]
    return "\n".join(texts)


def build(command: list[str], source: Path, target: Path) -> None:
    """Compile a source file to a shared library.

    Raises:
        RefusedError: The compiler rejected the source or the flags.
        CompileError: The compiler made no library for another reason.
        OSError: The compiler or this process could not write a file.
    """
    end, log = time.monotonic() + time_limit(), []
    for flags in FLAG_SETS:
        full_command = [*command, *flags, str(source), "-o", str(target)]
        status, output = run(full_command, target.parent, end - time.monotonic())
        if status == 0 and target.is_file():
            return
        log.append(f"{shlex.join(full_command)}\n{output}exit status {status}\n")
    raise RefusedError(shlex.join(command), source.name, "\n".join(log))


def build_checked(command: list[str], text: str, folder: Path) -> Path:
    """Compile a source text in a folder, and check the library; return its path.

    The library exports one more function, by which it is checked. The errors are those of `build`.
    """
    source, library = folder / "fused_cpu.cpp", folder / "built.so"
    source.write_text(with_digest(text))
    build(command, source, library)
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
