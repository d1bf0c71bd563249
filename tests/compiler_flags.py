"""Find the flags that this machine's compiler takes, for tests that compile C++ themselves."""

import tempfile
from functools import cache
from pathlib import Path

from optgen.runtime.toolchain import compiler


def is_clang(command: list[str]) -> bool:
    """Tell by a compiler's name whether it is clang: `clang++` has `g++` in its name."""
    return any("clang" in Path(word).name for word in command)


def command_with_flags() -> list[str]:
    """Return this machine's compiler with the first of the runtime's flags that it accepts."""
    command = compiler.find()
    assert command is not None
    return [*command, *accepted_flags(tuple(command))]


@cache
def accepted_flags(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first of the runtime's sets of flags that a compiler accepts."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "nothing.cpp"
        source.write_text("")
        for flags in compiler.FLAG_SETS:
            words = [*command, *flags, str(source), "-o", str(source.with_suffix(".so"))]
            if compiler.run(words, Path(name), compiler.time_limit())[0] == 0:
                return flags
    return compiler.FLAG_SETS[-1]
