"""Load rules as optimizer classes, and compile the C++ of many rules together."""

from __future__ import annotations

import contextlib
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
from invariants import verify_form

import optgen
from fuzz.eight_bits import with_float32_states
from optgen import emit
from optgen.contract.states import AT_LEAST_FLOAT32
from optgen.ir.algorithm import Algorithm
from optgen.lowerings import LOWERINGS
from optgen.passes.outline_sweeps import outline_sweeps
from optgen.passes.plan_rule import plans
from optgen.passes.prepare_rule import add_maximize
from optgen.runtime.fused_cpu import kernel_loader
from optgen.runtime.fused_cpu.kernel import Kernel, KernelSignature
from optgen.runtime.fused_cpu.kernel_loader import why_too_many_states
from optgen.runtime.fused_cpu.suspending_kernel import MACRO, SuspendingKernel
from optgen.runtime.reader import tensor_reader
from optgen.runtime.toolchain import compiler, dtype_variants
from optgen.runtime.toolchain.library_cache import inline_includes
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

_INCLUDE = re.compile(r'#include "optgen/runtime/fused_cpu/(?:include|reader)/\w+\.h"\n')
# These pragmas override -O0. The optimizations take two thirds of the compile time.
_OPTIMIZE_PRAGMA = re.compile(r"^#pragma GCC optimize(?:.*\\\n)*.*\n", re.M)
_ALWAYS_INLINE = "__attribute__((always_inline)) inline"
# Names that the C++ of every rule defines.
_RULE_NAMES = re.compile(r"^struct (\w+)|\b(optgen_(?:step\w*|shapes|by_matrix))\b", re.M)
_FLAGS = (
    *("-O0", "-std=c++17", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno"),
    "-fno-exceptions",  # as in builds for users
    "-Werror=shadow=local",  # a loop variable once shadowed the index of random numbers
)
DRAWN_DTYPE_BITS = dtype_variants.bits_of_dtypes(
    (torch.float64, torch.float32, torch.bfloat16, torch.float16)
)


@dataclass
class BuiltRule:
    """A rule that optgen has accepted."""

    text: str
    algorithm: Algorithm
    cls: Any
    dtype_bits: int = 0  # a bit for each dtype that its C++ supports
    refused_by_cpp: str = ""  # the C++ compiler's message
    # the path of a shared library, and the suffix of the rule's names in it
    library: tuple[Path, str] | None = field(default=None, repr=False)
    programs: list[BuiltRule] = field(default_factory=list)
    sweeps: list[BuiltRule] = field(
        default_factory=list
    )  # the elementwise parts of a rule on matrices

    @property
    def source(self) -> str:
        """Return the generated C++ of the rule."""
        return (self.folder / "fused_cpu.cpp").read_text()

    @property
    def has_cpp_kernels(self) -> bool:
        """Tell whether fused C++ can step the rule.

        A rule on whole matrices has no kernel of its own, but each of its sweeps has one. The
        kernel of any other rule must take all its states.
        """
        if self.cls.rule.why_uncut:
            return bool(self.sweeps)
        rule = self.cls.rule
        return not (why_too_many_states(rule) or rule.why_codes_are_not_read("fused_cpu"))

    @property
    def suspends(self) -> bool:
        """Tell whether the rule's C++ steps suspend, because parameters wait for one another."""
        return bool(self.cls.rule.wide)

    @property
    def folder(self) -> Path:
        """Return the folder of the generated files."""
        return Path(str(sys.modules[self.cls.lowerings].__file__)).parent


def load(text: str, only_lowering: str = "") -> BuiltRule:
    """Read a spec's text, and generate all its lowerings or only one, without formatting them."""
    spec = Spec(f"random_{only_lowering}" if only_lowering else "Random", text, "<drawn>", 1)
    always_needed = ("optimizer", "function", "outlined")
    needed = [
        each
        for each in LOWERINGS
        if not only_lowering or each.name in (*always_needed, only_lowering)
    ]
    algorithms = read_spec(spec)
    with (
        mock.patch.object(emit, "find_ruff", return_value=None),
        mock.patch.object(emit, "LOWERINGS", tuple(needed)),
        # Plans are cached for the object of an algorithm, so the spec is read only once.
        mock.patch(
            "optgen.spec.read_spec.read_spec",
            side_effect=lambda given: algorithms if given is spec else read_spec(given),
        ),
    ):
        cls: Any = optgen.load(spec)
    algorithm = algorithms[0]
    for plan in plans(algorithm):
        if plan.is_cut:
            verify_form(plan, hoisted=False)
    programs = [
        BuiltRule(text, each.function, getattr(cls, f"{each.mode}_program").function(cls.lowerings))
        for each in algorithm.programs
    ]
    sweeps = [
        BuiltRule(text, each, importlib.import_module(f"{cls.lowerings}.{each.name}")._update)
        for each in outline_sweeps(algorithm).functions
    ]
    return BuiltRule(
        text, add_maximize(algorithm), cls, DRAWN_DTYPE_BITS, programs=programs, sweeps=sweeps
    )


def dtype_bits_of(algorithm: Algorithm, dtypes: Sequence[str]) -> int:
    """Return a bit for each dtype that a rule's C++ needs for parameters of these dtypes."""
    declared = {s.dtype for s in with_float32_states(algorithm).states if s.shape != "scalar"}
    # A library for 16 bits has float32 too, which states of at least float32 need.
    state_dtypes = filter(None, declared - {AT_LEAST_FLOAT32})
    return dtype_variants.bits_of_dtypes(getattr(torch, name) for name in {*dtypes, *state_dtypes})


def compile_together(rules: Sequence[BuiltRule], *flags: str) -> None:
    """Build the C++ of rules together; store the compiler's message in rules that do not compile.

    With the flag `-fsyntax-only` the compiler only checks the source.
    """
    # Rules that share a C++ file, by its headers, its dtypes, and whether steps suspend.
    batches: dict[tuple[str, int, bool], list[BuiltRule]] = {}
    for rule in filter(lambda rule: rule.has_cpp_kernels, _with_kernels(rules)):
        include = _INCLUDE.search(rule.source)
        assert include is not None
        batches.setdefault((include[0], rule.dtype_bits, rule.suspends), []).append(rule)
    for (include, dtype_bits, suspends), batch in batches.items():
        defines = f"#define OPTGEN_TYPES {dtype_bits}\n" + f"#define {MACRO}\n" * suspends
        _compile(defines, include, batch, flags)
    for rule in rules:
        messages = (sweep.refused_by_cpp for sweep in rule.sweeps)
        rule.refused_by_cpp = rule.refused_by_cpp or next(filter(None, messages), "")


def _with_kernels(rules: Iterable[BuiltRule]) -> Iterator[BuiltRule]:
    """Yield the rules with kernels; and programs and sweeps, which get the dtypes of their rule."""
    for rule in rules:
        if not rule.cls.rule.why_uncut:
            yield rule
        for function in (*rule.programs, *rule.sweeps):
            function.dtype_bits = rule.dtype_bits
            yield function


def _compile(defines: str, include: str, rules: list[BuiltRule], flags: tuple[str, ...]) -> None:
    """Compile rules together. If that fails, leave out the rules with errors, and compile again."""
    folder = Path(tempfile.mkdtemp(prefix="batch-", dir=_temporary_folder()))
    command = compiler.find()
    assert command is not None
    while rules:
        source, library = folder / "batch.cpp", folder / f"{len(rules)}.so"
        sources = [_renamed(rule.source.replace(include, ""), i) for i, rule in enumerate(rules)]
        headers = _OPTIMIZE_PRAGMA.sub("", inline_includes(include)).replace(
            _ALWAYS_INLINE, "inline"
        )
        source.write_text("".join([defines, headers, *sources]))
        completed = subprocess.run(
            [*command, *_FLAGS, *flags, str(source), "-o", str(library)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if completed.returncode == 0:
            for i, rule in enumerate(rules):
                rule.library = library, f"_r{i}"
            return
        failing_indices = {
            int(i) for i in re.findall(r"\bdrawn(\d+):\d+:\d+: error", completed.stderr)
        }
        failing_indices = failing_indices or {
            int(i) for i in re.findall(r"\w_r(\d+)\b", completed.stderr)
        }
        for i in failing_indices or set(range(len(rules))):
            rules[i].refused_by_cpp = _first_error(completed.stderr, i)
        rules = [rule for rule in rules if not rule.refused_by_cpp]


def _first_error(message: str, i: int) -> str:
    lines = [line for line in message.splitlines() if "error" in line]
    lines_of_rule = [line for line in lines if re.search(rf"drawn{i}:|_r{i}\b", line)]
    first = re.sub(rf"_r{i}\b", "", (lines_of_rule or lines or [message])[0])
    return first.partition("error: ")[2] or first


def _renamed(source: str, i: int) -> str:
    """Return a rule's C++ with a suffix on its names, so that they differ from other rules'."""
    names = sorted({a or b for a, b in _RULE_NAMES.findall(source)})
    define = "".join(f"#define {name} {name}_r{i}\n" for name in names)
    undefine = "".join(f"#undef {name}\n" for name in names)
    return f'{define}#line 1 "drawn{i}"\n{source}\n{undefine}'


class _WithSuffix(KernelSignature):
    """A mixin for kernels in a library of several rules, where each rule's names have a suffix.

    `optgen_advance`, which resumes a step, has no suffix: all rules of the library share it.
    """

    suffix = ""

    def _exports(self, name: str) -> bool:
        return super()._exports(name if name == "optgen_advance" else name + self.suffix)

    def _function(self, name: str) -> Any:
        return super()._function(name + self.suffix)


@contextlib.contextmanager
def batch_kernels(rules: Sequence[BuiltRule]) -> Iterator[None]:
    """Load the C++ kernels of these rules from the libraries that `compile_together` has built."""
    rules_by_module = {rule.cls.lowerings: rule for rule in _with_kernels(rules)}
    load_single = kernel_loader._load

    def load_kernel(owner: Any, module: Any, suspends: bool, dtype_bits: int) -> Any:
        rule = rules_by_module.get(module.__name__)
        if rule is None or suspends is not rule.suspends:
            return load_single(owner, module, suspends, dtype_bits)
        return _kernel(rule, owner)

    with mock.patch.object(kernel_loader, "_load", load_kernel):
        yield


def _kernel(rule: BuiltRule, owner: Any) -> Any:
    if rule.library is None:
        return rule.refused_by_cpp
    path, suffix = rule.library
    cls = type(
        "Suffixed", (_WithSuffix, SuspendingKernel if rule.suspends else Kernel), {"suffix": suffix}
    )
    source = rule.source
    sweep_library_path = _sweep_library() if "phased_kernel.h" in source else None
    return cls(owner, path, dtype_variants.ALL_DTYPE_BITS, source, sweep_library_path)


def load_shared_libraries() -> None:
    """Load the libraries that all rules share, for processes that are forked from this one."""
    _sweep_library()
    tensor_reader.reader()


@functools.cache
def _sweep_library() -> Path:
    """Build, once, the library of sweeps that all rules share."""
    traits = "#define OPTGEN_HAS_AXES 1\n#define OPTGEN_HAS_MAX 1\n"
    return dtype_variants.build(
        "sweeps", traits + dtype_variants._sweep_source(), DRAWN_DTYPE_BITS, 0
    )


@functools.cache
def _temporary_folder() -> str:
    """Make a folder that is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="optgen-fuzz-")
    _folders.append(folder)
    return folder.name


_folders: list[tempfile.TemporaryDirectory[str]] = []
