"""Find a C++ compiler and build a shared library with it."""

import os
import platform
import shlex
import shutil
import time
from functools import cache
from pathlib import Path

from optgen.runtime.fused_cpu.toolchain.compiler_process import CompileError as CompileError
from optgen.runtime.fused_cpu.toolchain.compiler_process import limit, run

# One sqrt without errno is worth a factor of ten: with it no loop that holds one vectorises. The
# explicit vector width is for compilers that know the machine only as an older one.
_LIBRARY = ("-std=c++17", "-shared", "-fPIC")
_PORTABLE = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fopenmp-simd", *_LIBRARY)
_NATIVE = (*_PORTABLE, "-march=native", "-fno-trapping-math", "-fno-exceptions")
# A copy of the loop for every branch takes three times as long to compile, and runs no faster.
_TUNED = (*_NATIVE, "-fno-unswitch-loops")
_WIDE = (*_TUNED, "-mprefer-vector-width=512")

_X86 = platform.machine().lower() in ("x86_64", "amd64")

# In the order of preference. The build is the probe: the first set that a compiler accepts is used.
FLAG_SETS: tuple[tuple[str, ...], ...] = (_WIDE if _X86 else _TUNED, _NATIVE, _PORTABLE)

INSTALL = "install g++ or clang++ (Debian, Ubuntu: apt install g++; macOS: xcode-select --install)"


# A small program that needs what kernels need: C++17, and the headers that they include.
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
    """A compiler accepted a source with no set of flags.

    Attributes:
        log: every command, and all that it printed.
    """

    def __init__(self, command: str, source: str, log: str) -> None:
        super().__init__(f"{command} could not build {source}\n{log}")
        self.log = log


def find() -> list[str] | None:
    """The compiler's command: `$CXX` if it is set, else g++, clang++ or c++; None without one."""
    chosen = os.environ.get("CXX", "").strip()
    for command in [_words(chosen)] if chosen else [["g++"], ["clang++"], ["c++"]]:
        path = shutil.which(command[0]) if command else None
        if path is not None:
            return [path, *command[1:]]
    return None


def absence() -> str:
    """Why `find` finds nothing, and the way out."""
    chosen = os.environ.get("CXX", "").strip()
    if not chosen:
        return f"no C++ compiler was found: {INSTALL}"
    way_out = "set it to a C++ compiler, or not at all"
    try:
        program = shlex.split(chosen)[0]
    except ValueError as error:
        return f"CXX is {chosen!r}, and a shell could not read it ({error}): {way_out}"
    path = Path(program)
    why = "is a folder" if path.is_dir() else "cannot be run" if path.exists() else "is not found"
    return f"no C++ compiler was found: CXX is {chosen!r}, and {program!r} {why}: {way_out}"


def _words(chosen: str) -> list[str]:
    """The words of a command, as a shell reads them; none if it could not."""
    if shutil.which(chosen):  # a path with spaces
        return [chosen]
    try:
        return shlex.split(chosen)
    except ValueError:
        return []


def identity(command: list[str]) -> str:
    """Return a text that changes with the compiler. A version would cost a process; this is a stat.

    Each word may be the program that compiles: `ccache g++`.
    """
    programs = [Path(path).resolve() for path in map(shutil.which, command) if path]
    facts = ((path, path.stat()) for path in programs)
    known = (f"{path} {fact.st_size} {fact.st_mtime_ns}" for path, fact in facts)
    return " ".join([shlex.join(command), *known])


@cache
def processor() -> str:
    """Names the processor and its features: a library built for one may not run on another."""
    names = ("model name", "flags", "Features", "CPU part")
    facts = [platform.system(), platform.machine()]
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        facts.append(platform.processor())
    else:
        facts += [line for line in first.splitlines() if line.startswith(names)]
    return "\n".join(facts)


def build(command: list[str], source: Path, target: Path) -> None:
    """Compile a source file to a shared library.

    Raises:
        RefusedError: the compiler found something wrong in the source, or in the flags.
        CompileError: something else kept it from making a library.
        OSError: neither it nor this process could write what had to be written.
    """
    end, log = time.monotonic() + limit(), []
    for flags in FLAG_SETS:
        whole = [*command, *flags, str(source), "-o", str(target)]
        status, printed = run(whole, target.parent, end - time.monotonic())
        if status == 0 and target.is_file():
            return
        log.append(f"{shlex.join(whole)}\n{printed}exit status {status}\n")
    raise RefusedError(shlex.join(command), source.name, "\n".join(log))


def builds_anything(command: list[str], folder: Path) -> bool:
    """Tell whether a compiler accepts a small program with what kernels need."""
    source = folder / "probe.cpp"
    source.write_text(_PROBE)
    try:
        build(command, source, folder / "probe.so")
    except RefusedError:
        return False
    return True
