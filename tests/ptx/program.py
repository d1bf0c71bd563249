"""Read the text of a PTX kernel into frozen instructions.

The source of facts is NVIDIA's "Parallel Thread Execution ISA", chapters "Syntax" (statements,
constants), "Directives" (.entry, .reg, .reqntid) and "Instruction Operands".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptx.faults import Unsupported

_ENTRY = re.compile(r"\.entry\s+(\w+)\s*\((.*?)\)(.*?)\{", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+\.(\w+)[^,]*?\b(\w+)\s*(?:,|$)")
_THREADS = re.compile(r"\.reqntid\s+(\d+)(?:,\s*1)*\s")
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.+)")
_REGISTER_RANGE = re.compile(r"(%?[\w$]+)<(\d+)>")
_TABLE = re.compile(r"\.(?:global|const)\s+\.align\s+\d+\s+\.b8\s+(\w+)\[(\d+)\]\s*=\s*\{([^}]*)\}")
_LOCAL = re.compile(r"\.local\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[(\d+)\]")
_LOCATION = re.compile(r"\.loc\s[^/]*//\s*(\S+)")
_LABEL = re.compile(r"([\w$]+):\s*(.*)", re.DOTALL)
_STATEMENT = re.compile(r"(?:@(!?)(%?[\w$]+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$")
_SPECIAL = re.compile(r"%(tid|ntid|ctaid|nctaid)\.[xyz]$|%laneid$|%warpid$")


class Register(NamedTuple):
    """A register, by name."""

    name: str


class SpecialRegister(NamedTuple):
    """A read-only register with a number of the thread, as %tid.x."""

    name: str


class Immediate(NamedTuple):
    """A constant: a whole number, or the bits of a floating-point number of `float_bytes` bytes."""

    value: int
    float_bytes: int = 0


class Symbol(NamedTuple):
    """The name of a label, a parameter or a shared variable."""

    name: str


class Address(NamedTuple):
    """An operand in brackets: a base and an offset in bytes."""

    base: Register | Symbol | Immediate
    offset: int


class Vector(NamedTuple):
    """An operand in braces: several registers or constants."""

    parts: tuple[Register | Immediate, ...]


Operand = Register | SpecialRegister | Immediate | Symbol | Address | Vector


class Guard(NamedTuple):
    """The predicate of an instruction: only lanes in which it holds execute it."""

    register: Register
    negated: bool


@dataclass(frozen=True)
class Instruction:
    """An instruction of a kernel."""

    name: str  # with all modifiers and types, as "add.s64"
    operands: tuple[Operand, ...]
    guard: Guard | None
    text: str  # as written
    source: str  # file, line and column of the Triton code, as the debug information tells them


@dataclass(frozen=True, eq=False)  # equal if it is the same object, so that it can be a key
class Program:
    """A kernel as instructions."""

    name: str
    parameters: Mapping[str, str]  # type by name, in the order of the arguments
    threads: int  # of a block
    registers: Mapping[str, str]  # type by name
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]  # index of an instruction by name
    memory_symbols: frozenset[str]  # names of the start of shared and of local memory
    constants: Mapping[str, NDArray[np.uint8]]  # tables in global memory by name
    local_size: int  # size of a thread's own memory in bytes


@lru_cache(maxsize=1024)
def read_program(ptx: str) -> Program:
    """Read the only kernel of a PTX text.

    Raises:
        Unsupported: The text has a construct that the interpreter does not know.
    """
    entry = _ENTRY.search(ptx)
    if entry is None:
        raise Unsupported("a PTX text without a kernel (.entry)")
    threads = _THREADS.search(entry[3] + " ")
    if threads is None:
        raise Unsupported(f"kernel {entry[1]} does not say how many threads a block has (.reqntid)")
    before = ptx[: entry.start()]
    shared = re.findall(r"\.extern\s+\.shared\s+[^;]*?\b(\w+)\s*\[", before)
    body = _Body(_body_of(ptx, entry.end()))
    return Program(
        name=entry[1],
        parameters={name: kind for kind, name in _PARAMETER.findall(entry[2].strip())},
        threads=int(threads[1]),
        registers=body.registers,
        instructions=tuple(body.instructions),
        labels=body.labels,
        memory_symbols=frozenset((*shared, *body.local_sizes)),
        constants={name: _bytes(size, values) for name, size, values in _TABLE.findall(before)},
        local_size=max(body.local_sizes.values(), default=0),
    )


def _bytes(size: str, values: str) -> NDArray[np.uint8]:
    """Return a table's bytes, at an address that is a multiple of 16."""
    numbers = list(map(int, values.split(",")))
    padded = np.zeros(int(size) + 16, np.uint8)
    start = -padded.ctypes.data % 16
    table = padded[start : start + int(size)]
    table[: len(numbers)] = numbers
    return table


def _body_of(ptx: str, start: int) -> str:
    """Return the text up to the brace that closes the one before `start`."""
    depth = 1
    for brace in re.finditer(r"[{}]|//[^\n]*", ptx[start:]):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return ptx[start : start + brace.start()]
    raise Unsupported("the text ends inside a kernel")


class _Body:
    """Reads the statements of a kernel's body, line by line."""

    def __init__(self, text: str) -> None:
        self.registers: dict[str, str] = {}
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.local_sizes: dict[str, int] = {}  # by name
        self._source = ""
        self._scopes = [""]  # prefixes of registers that inline assembly declares in braces
        self._scope_count = 0
        self._local: list[set[str]] = [set()]
        for statement in self._statements(text):
            self._read(statement)

    def _statements(self, text: str) -> Iterator[str]:
        """Yield statements without `;`, and braces of scopes."""
        pending = ""
        for line in text.splitlines():
            if location := _LOCATION.search(line):
                self._source = location[1]
            code = line.split("//")[0].strip()
            if code.split()[:1] in ([".loc"], [".file"], []):
                continue
            pending = f"{pending} {code}".strip()
            while match := re.match(r"([{}])\s*|([\w$]+:)(?!:)\s*|([^;]*);\s*", pending):
                yield next(filter(None, match.groups()), "")
                pending = pending[match.end() :]

    def _read(self, statement: str) -> None:
        if statement == "{":
            self._scope_count += 1
            self._scopes.append(f"scope{self._scope_count}:")
            self._local.append(set())
        elif statement == "}":
            self._scopes.pop()
            self._local.pop()
        elif label := _LABEL.fullmatch(statement):
            self.labels[label[1]] = len(self.instructions)
        elif statement.startswith(".reg"):
            self._declare(statement)
        elif local := _LOCAL.fullmatch(statement):
            self.local_sizes[local[1]] = int(local[2])
        elif statement.startswith(".param"):
            pass  # an argument of a call, which `decode_call` refuses
        elif statement.startswith(".branchtargets"):
            self._append(statement[1:], statement)
        elif statement and not statement.startswith(".pragma"):
            self._append(statement, statement)

    def _declare(self, statement: str) -> None:
        declaration = _REGISTERS.fullmatch(statement)
        if declaration is None:
            raise Unsupported(f"the declaration {statement}")
        for part in declaration[2].split(","):
            name, prefix = part.strip(), self._scopes[-1]
            span = _REGISTER_RANGE.fullmatch(name)
            names = [f"{span[1]}{i}" for i in range(int(span[2]))] if span else [name]
            self._local[-1].update(names)
            self.registers.update({prefix + each: declaration[1] for each in names})

    def _append(self, statement: str, text: str) -> None:
        match = _STATEMENT.fullmatch(statement)
        if match is None:
            raise Unsupported(f"the statement {statement}")
        negated, guard, name, rest = match.groups()
        operands = tuple(map(self._operand, _split(rest)))
        self.instructions.append(
            Instruction(
                name,
                operands,
                Guard(self._register(guard), negated == "!") if guard else None,
                " ".join(text.split()),
                self._source,
            )
        )

    def _register(self, name: str) -> Register:
        for prefix, local in zip(reversed(self._scopes), reversed(self._local), strict=True):
            if name in local:
                return Register(prefix + name)
        raise Unsupported(f"the register {name}, which is not declared")

    def _operand(self, text: str) -> Operand:
        if text.startswith("["):
            base, sign, offset = re.fullmatch(
                r"\[\s*([%\w$]+)\s*(?:(\+)\s*(-?\w+)\s*)?\]", text
            ).groups()  # type: ignore[union-attr]
            return Address(self._simple(base), int(offset, 0) if sign else 0)  # type: ignore[arg-type]
        if "|" in text:  # two results
            return Vector(tuple(self._register(each.strip()) for each in text.split("|")))
        if text.startswith("{"):
            return Vector(tuple(map(self._simple, _split(text[1:-1]))))  # type: ignore[arg-type]
        return self._simple(text)

    def _simple(self, text: str) -> Register | SpecialRegister | Immediate | Symbol:
        """Read an operand without brackets and braces."""
        if _SPECIAL.match(text):
            return SpecialRegister(text)
        if re.match(r"0[fF][0-9a-fA-F]{8}$", text):
            return Immediate(int(text[2:], 16), float_bytes=4)
        if re.match(r"0[dD][0-9a-fA-F]{16}$", text):
            return Immediate(int(text[2:], 16), float_bytes=8)
        if _INTEGER.match(text):
            return Immediate(int(text.removesuffix("U"), 0))
        if text == "_" or any(text in names for names in self._local):
            return Register(text) if text == "_" else self._register(text)
        if text.startswith("%"):
            raise Unsupported(f"the register {text}, which is not declared")
        return Symbol(text)


def _split(text: str) -> list[str]:
    """Split operands at commas outside of braces, brackets and parentheses."""
    parts = re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{\[(])+", text)
    return [part.strip() for part in parts if part.strip()]
