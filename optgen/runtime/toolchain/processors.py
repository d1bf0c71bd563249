"""Levels of processors: the features that a compiled library may use.

A library that is built on the machine where it runs uses all features of its processor. A library
that travels is built for a level, and runs on every processor of this level. The levels of x86-64
are those of its psABI, without v2: a processor with v2 but not v3 is older than 2013.
"""

import hashlib
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


@dataclass(frozen=True)
class Level:
    """Features of a processor.

    Attributes:
        name: The name, as a person says it.
        flags: The compiler's flags that allow the features.
        features: The features, by the names of the system; `native` is known by its digest.
    """

    name: str
    flags: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()


# On ARM, clang knows -march=native since version 15 or so, and -mcpu=native much longer.
NATIVE = Level("native", ("-march=native",) if IS_X86 else ("-mcpu=native",))
"""All features of the processor on which a library is built."""

_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
V4 = Level("x86-64-v4", ("-march=x86-64-v4",), _V4)
BFLOAT16 = Level("x86-64-v4-bf16", (*V4.flags, "-mavx512bf16"), V4.features | {"avx512_bf16"})
"""V4 with products of bfloat16, which the compiled Newton-Schulz iterations need."""

_X86_LEVELS = (
    V4,
    Level("x86-64-v3", ("-march=x86-64-v3",), _V3),
    Level("x86-64", ("-march=x86-64",)),
)
SHARED_LEVELS: tuple[Level, ...] = _X86_LEVELS if IS_X86 else (Level("portable"),)
"""The levels of this architecture that processors share, the highest first."""

_LEVELS = (NATIVE, BFLOAT16, *SHARED_LEVELS) if IS_X86 else (NATIVE, *SHARED_LEVELS)


def find(name: str) -> Level:
    """Return the level of a name.

    Raises:
        ValueError: This architecture has no such level.
    """
    for each in _LEVELS:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in _LEVELS)
    raise ValueError(f"{platform.machine()} has no processor level {name!r}: choose from {known}")


def levels_here() -> tuple[Level, ...]:
    """Return the levels that the processor of this machine has, the highest first."""
    features = _features()
    return tuple(each for each in _LEVELS if each.features <= features)


def tag(level: Level) -> str:
    """Return the part of a library's file name that says where the library runs."""
    system = f"{platform.system()}-{platform.machine()}-{level.name}".lower()
    if level is not NATIVE:
        return system
    return f"{system}-{hashlib.sha256(description().encode()).hexdigest()[:16]}"


@cache
def description() -> str:
    """Describe the processor and its features: a library built for one may not run on another."""
    names = ("model name", "flags", "Features", "CPU part")
    texts = [platform.system(), platform.machine()]
    lines = _first_processor()
    if not lines:
        texts.append(platform.processor())
    return "\n".join([*texts, *(line for line in lines if line.startswith(names))])


@cache
def is_of_amd() -> bool:
    """Tell whether the processor is AMD's."""
    return "AuthenticAMD" in _words("vendor_id")


def _features() -> frozenset[str]:
    return frozenset(_words("flags"))


def _words(name: str) -> list[str]:
    """Return what the system says of the processor under a name, word by word."""
    lines = (line for line in _first_processor() if line.startswith(name))
    return next((line.partition(":")[2].split() for line in lines), [])


@cache
def _first_processor() -> tuple[str, ...]:
    """Return what Linux says of the first processor, in lines; other systems say nothing here."""
    try:
        return tuple(Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines())
    except OSError:
        return ()
