"""Load rules as optimizer classes, and compile the C++ of many rules together."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import optgen
from fuzz.eight_bits import in_float32
from optgen import emit
from optgen.ir.algorithm import Algorithm
from optgen.lowerings import LOWERINGS
from optgen.passes.maximize import add_maximize
from optgen.passes.outline_sweeps import outline_sweeps
from optgen.runtime.fused_cpu import kernel_loader
from optgen.runtime.fused_cpu.kernel.kernel import Kernel
from optgen.runtime.fused_cpu.kernel.signature import KernelSignature
from optgen.runtime.fused_cpu.kernel.state_limit import why_too_many_states
from optgen.runtime.fused_cpu.kernel.suspending_kernel import MACRO, SuspendingKernel
from optgen.runtime.fused_cpu.reader import tensor_reader
from optgen.runtime.fused_cpu.toolchain import compiler, dtype_variants, sweep_library
from optgen.runtime.fused_cpu.toolchain.source import inline_includes
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

_INCLUDE = re.compile(r'#include "optgen/runtime/fused_cpu/(?:include|reader)/\w+\.h"\n')
# Headers ask for optimizations, which take two thirds of the time, whatever the flags are.
_OPTIMIZE = re.compile(r"^#pragma GCC optimize.*\n", re.M)
_INLINE = "__attribute__((always_inline)) inline"
# names that every rule's C++ defines
_RULE_NAMES = re.compile(
    r"^struct (\w+)|\b(optgen_(?:step\w*|calls|locals|shapes|by_matrix|codes))\b", re.M
)
_FLAGS = (
    *("-O0", "-std=c++17", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno"),
    "-fno-exceptions",  # as for a user
    "-Werror=shadow=local",  # a loop's variable once hid the index of random numbers
)
TYPES = dtype_variants.bits_of_dtypes((torch.float64, torch.float32, torch.bfloat16, torch.float16))


@dataclass
class Built:
    """A rule that optgen has accepted."""

    text: str
    algorithm: Algorithm
    cls: Any
    types: int = 0  # the dtypes that its C++ knows, a bit each
    refused_by_cpp: str = ""  # the C++ compiler's message
    # the path of a shared library, and the suffix of the rule's names in it
    library: tuple[Path, str] | None = field(default=None, repr=False)
    programs: list[Built] = field(default_factory=list)
    sweeps: list[Built] = field(default_factory=list)  # the elementwise parts of a rule on matrices

    @property
    def source(self) -> str:
        """Return the C++ of the rule, as it is printed."""
        return (self.folder / "fused_cpu.cpp").read_text()

    @property
    def runs_fused(self) -> bool:
        """Tell whether the fused C++ kernel's table has room for all its tensors.

        A rule on whole matrices has no kernel of its own, but those of its sweeps.
        """
        if self.cls.rule.why_uncut:
            return bool(self.sweeps)
        rule = self.cls.rule
        return not (
            why_too_many_states(rule, self.source) or rule.why_codes_are_not_read("fused_cpu")
        )

    @property
    def waits(self) -> bool:
        """Tell whether the rule's C++ steps suspend, because parameters wait for one another."""
        return bool(self.cls.rule.wide)

    @property
    def folder(self) -> Path:
        """Return the folder of the generated text."""
        return Path(str(sys.modules[self.cls.lowerings].__file__)).parent


def load(text: str, only: str = "") -> Built:
    """Read a spec's text, and generate all lowerings of it or one, without the formatter."""
    spec = Spec(f"random_{only}" if only else "Random", text, "<drawn>", 1)
    always = ("optimizer", "function", "outlined")
    written = [each for each in LOWERINGS if not only or each.name in (*always, only)]
    with (
        mock.patch.object(emit, "find_ruff", return_value=None),
        mock.patch.object(emit, "LOWERINGS", tuple(written)),
    ):
        cls: Any = optgen.load(spec)
    (algorithm,) = read_spec(spec)
    programs = [
        Built(text, each.function, getattr(cls, f"{each.mode}_program").function(cls.lowerings))
        for each in algorithm.programs
    ]
    sweeps = [
        Built(text, each, importlib.import_module(f"{cls.lowerings}.{each.name}")._update)
        for each in outline_sweeps(algorithm).functions
    ]
    return Built(text, add_maximize(algorithm), cls, TYPES, programs=programs, sweeps=sweeps)


def types_of(algorithm: Algorithm, dtypes: Sequence[str]) -> int:
    """Return the dtypes, a bit each, that a rule's C++ needs for parameters of these dtypes."""
    of_states = (s.dtype for s in in_float32(algorithm).states if s.dtype and s.shape != "scalar")
    return dtype_variants.bits_of_dtypes(getattr(torch, name) for name in {*dtypes, *of_states})


def compile_together(rules: Sequence[Built], *flags: str) -> None:
    """Build the C++ of rules together; store the compiler's message in rules that do not compile.

    With the flag `-fsyntax-only` the compiler only checks the source.
    """
    groups: dict[tuple[str, int, bool], list[Built]] = {}
    for rule in filter(lambda rule: rule.runs_fused, _with_kernels(rules)):
        include = _INCLUDE.search(rule.source)
        assert include is not None
        groups.setdefault((include[0], rule.types, rule.waits), []).append(rule)
    for (include, types, waits), group in groups.items():
        defines = f"#define OPTGEN_TYPES {types}\n" + f"#define {MACRO}\n" * waits
        _compile(defines, include, group, flags)
    for rule in rules:
        messages = (sweep.refused_by_cpp for sweep in rule.sweeps)
        rule.refused_by_cpp = rule.refused_by_cpp or next(filter(None, messages), "")


def _with_kernels(rules: Iterable[Built]) -> Iterator[Built]:
    """Yield all that have kernels: rules, programs and sweeps; these get their rule's dtypes."""
    for rule in rules:
        if not rule.cls.rule.why_uncut:
            yield rule
        for function in (*rule.programs, *rule.sweeps):
            function.types = rule.types
            yield function


def _compile(define: str, include: str, rules: list[Built], flags: tuple[str, ...]) -> None:
    """Compile; leave out the rules that the compiler complains of, and compile again."""
    folder = Path(tempfile.mkdtemp(prefix="batch-", dir=_scratch()))
    command = compiler.find()
    assert command is not None
    while rules:
        source, library = folder / "batch.cpp", folder / f"{len(rules)}.so"
        parts = [_renamed(rule.source.replace(include, ""), i) for i, rule in enumerate(rules)]
        headers = _OPTIMIZE.sub("", inline_includes(include)).replace(_INLINE, "inline")
        source.write_text("".join([define, headers, *parts]))
        done = subprocess.run(
            [*command, *_FLAGS, *flags, str(source), "-o", str(library)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode == 0:
            for i, rule in enumerate(rules):
                rule.library = library, f"_r{i}"
            return
        named = {int(i) for i in re.findall(r"\bdrawn(\d+):\d+:\d+: error", done.stderr)}
        named |= {int(i) for i in re.findall(r"\w_r(\d+)\b", done.stderr)} if not named else set()
        for i in named or set(range(len(rules))):
            rules[i].refused_by_cpp = _first_error(done.stderr, i)
        rules = [rule for rule in rules if not rule.refused_by_cpp]


def _first_error(message: str, i: int) -> str:
    lines = [line for line in message.splitlines() if "error" in line]
    of_rule = [line for line in lines if re.search(rf"drawn{i}:|_r{i}\b", line)]
    first = re.sub(rf"_r{i}\b", "", (of_rule or lines or [message])[0])
    return first.partition("error: ")[2] or first


def _renamed(source: str, i: int) -> str:
    """Return a rule's C++ with names that no other rule has."""
    names = sorted({a or b for a, b in _RULE_NAMES.findall(source)})
    define = "".join(f"#define {name} {name}_r{i}\n" for name in names)
    undefine = "".join(f"#undef {name}\n" for name in names)
    return f'{define}#line 1 "drawn{i}"\n{source}\n{undefine}'


class _InBatch(KernelSignature):
    """A mixin of kernels whose names in a shared library end in a suffix.

    The functions that resume a step are those of all rules in the library.
    """

    suffix = ""

    def _has(self, name: str) -> bool:
        return super()._has(name if name == "optgen_advance" else name + self.suffix)

    def _text(self, name: str) -> str:
        if not self._has(name):
            return ""
        text = ctypes.c_char_p.in_dll(self._library, name + self.suffix)
        return (text.value or b"").decode()

    def _function(self, name: str) -> Any:
        return super()._function(name + self.suffix)


@contextlib.contextmanager
def batch_kernels(rules: Sequence[Built]) -> Iterator[None]:
    """Take the C++ kernels of these rules from the shared libraries."""
    rules_by_module = {rule.cls.lowerings: rule for rule in _with_kernels(rules)}
    build = kernel_loader._load

    def load_kernel(owner: Any, module: Any, suspends: bool, types: int) -> Any:
        rule = rules_by_module.get(module.__name__)
        if rule is None or suspends is not rule.waits:
            return build(owner, module, suspends, types)
        return _kernel(rule, owner)

    with mock.patch.object(kernel_loader, "_load", load_kernel):
        yield


def _kernel(rule: Built, owner: Any) -> Any:
    if rule.library is None:
        return rule.refused_by_cpp
    path, suffix = rule.library
    cls = type(
        "Suffixed", (_InBatch, SuspendingKernel if rule.waits else Kernel), {"suffix": suffix}
    )
    source = rule.source
    sweep_library_path = _sweeps() if "phased_kernel.h" in source else None
    return cls(owner, path, dtype_variants.ALL_DTYPE_BITS, source, sweep_library_path)


def load_shared_libraries() -> None:
    """Load the libraries that all rules share, for processes that are forked from this one."""
    _sweeps()
    tensor_reader.reader()


@functools.cache
def _sweeps() -> Path:
    """Build the library that sweeps the tensors of any rule, once."""
    traits = "#define OPTGEN_HAS_AXES 1\n#define OPTGEN_HAS_MAX 1\n"
    return dtype_variants.build("sweeps", traits + sweep_library._source(), TYPES, 0)


@functools.cache
def _scratch() -> str:
    """Make a folder that is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="optgen-fuzz-")
    _folders.append(folder)
    return folder.name


_folders: list[tempfile.TemporaryDirectory[str]] = []
