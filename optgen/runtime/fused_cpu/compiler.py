"""Find a C++ compiler and build a shared library with it."""

import os
import platform
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

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


class CompileError(RuntimeError):
    """The compiler accepted a source with no set of flags.

    The first line of the message says which compiler, and the way out; its own words follow.
    """


def find() -> list[str] | None:
    """The compiler's command: `$CXX` if it is set, else g++, clang++ or c++; None without one."""
    chosen = os.environ.get("CXX")
    for command in [shlex.split(chosen)] if chosen else [["g++"], ["clang++"], ["c++"]]:
        path = shutil.which(command[0]) if command else None
        if path is not None:
            return [path, *command[1:]]
    return None


def identity(command: list[str]) -> str:
    """What changes when the compiler does; a stat, since asking for the version costs a process."""
    path = Path(command[0]).resolve()
    facts = path.stat()
    return f"{shlex.join(command)} {path} {facts.st_size} {facts.st_mtime_ns}"


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
    """Compile a source file to a shared library."""
    for flags in FLAG_SETS:
        done = subprocess.run(
            [*command, *flags, str(source), "-o", str(target)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode == 0:
            return
    raise CompileError(
        f"{shlex.join(command)} could not build {source.name}; "
        f"set CXX to a compiler that knows C++17\n{done.stderr}"
    )
