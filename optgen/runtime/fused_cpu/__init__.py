"""The fused C++ lowering at run time: one call updates all tensors of all groups.

A step is either gathered, from the tensors that `collect` hands over, or repeated, where the step
before came through here and nothing has changed that could call for another lowering: then the C++
reader fetches every address anew, and Python touches groups only, no tensor. A first step of
ordinary tensors is read so too, once Python has made their states.
"""

import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch.autograd.graph import increment_version

from optgen.runtime.collect import collect
from optgen.runtime.fused_cpu import (
    build_cache,
    compiler,
    first_step,
    levels,
    rows,
    sweeps,
    tensor_reader,
)
from optgen.runtime.fused_cpu.again import Again
from optgen.runtime.fused_cpu.compiler_process import end_all
from optgen.runtime.fused_cpu.kernel import Kernel
from optgen.runtime.fused_cpu.portions import Portion, check_copies, portions, together
from optgen.runtime.fused_cpu.repeat import Repeat, whole_groups
from optgen.runtime.fused_cpu.repeat_rows import RowsRepeat
from optgen.runtime.fused_cpu.source import complete
from optgen.runtime.fused_cpu.table import CODES, Copied, Table, excess, gather
from optgen.runtime.rows import touched
from optgen.runtime.rule import Lowered
from optgen.runtime.unfused import skipped
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer

_dtype, _is_cpu = attrgetter("dtype"), attrgetter("is_cpu")
# By whether it is for parameters in parts, and the types it was asked for.
_kernels: WeakKeyDictionary[ModuleType, dict[tuple[bool, int], Kernel | str]] = WeakKeyDictionary()
_warned: set[str] = set()  # the reasons why kernels could not be built


def prepare(optimizer: "GeneratedOptimizer", groups: list[dict[str, Any]]) -> Callable[[], None]:
    """Check the groups, and look for their tensors; return what updates those with a gradient."""
    optimizer._repeat = None
    works = [collect(optimizer, group) for group in groups]
    in_parts = [work for work in works if work.trait.placed]
    whole = [work for work in works if not work.trait.placed]
    calls = []
    if any(work.trait.rows for work in whole):
        calls.append(_rows_ready(_loaded(optimizer), optimizer, whole))
    elif whole:
        calls.append(_dense_ready(_loaded(optimizer), optimizer, whole))
    if in_parts:
        kernel = _loaded(optimizer, in_parts=True)
        calls.append(_ready(kernel, optimizer, in_parts, [together(kernel, in_parts)]))

    def update() -> None:
        if skipped(optimizer):
            return
        lying = [call() for call in calls]
        if whole and all(lying) and not in_parts:
            optimizer._repeat = _repeated(optimizer, groups, whole)

    return update


def _repeated(
    optimizer: "GeneratedOptimizer", groups: list[dict[str, Any]], works: list[Work]
) -> Repeat | RowsRepeat | None:
    """Return what repeats a step that was taken in place, of dense or of sparse gradients."""
    kernel, stepped = _loaded(optimizer), whole_groups(optimizer, groups)
    if not any(work.trait.rows for work in works):
        return Repeat.of(kernel, optimizer, stepped)
    update = rows.function(kernel)
    listed = optimizer.param_groups
    every = stepped == set(map(id, listed)) and all(work.trait.rows for work in works)
    return RowsRepeat.of(kernel, update, listed) if update and every else None


def update(function: Lowered, work: Work) -> Again | None:
    """Update the lists of a function; return what can do so again, if all could where they lie."""
    kernel = _loaded(function)
    lying = _dense_ready(kernel, function, [work])()
    return Again.of(kernel, len(work.params)) if lying else None


Ready = Callable[[], bool]
"""Updates what it was made for; tells whether the reader could do so the next time."""


def _dense_ready(kernel: Kernel, optimizer: Lowered, works: list[Work]) -> Ready:
    """Get ready to update works of dense gradients, of whole parameters."""
    return _ready(kernel, optimizer, works, portions(kernel, works))


def _ready(
    kernel: Kernel, optimizer: Lowered, works: list[Work], parts: Iterable[Portion]
) -> Ready:
    """Get ready to update works part by part, where they lie if that can be."""
    calls = [_portion_ready(kernel, optimizer, part) for part in parts]

    def update() -> bool:
        copied = [call() for call in calls]
        for work in works:
            increment_version(work.params)
        return not any(copied)

    return update


def _portion_ready(kernel: Kernel, optimizer: Lowered, part: Portion) -> Ready:
    """Get ready for one call; copies are made when it comes, so that few are there at once."""
    scaled = getattr(optimizer, "grad_scale", None) is not None
    if part.copies:
        check_copies(kernel, part.works)
        types = levels.of_works(optimizer.rule, part.works)
        able = _loaded(optimizer, types, kernel.in_parts) if types & ~kernel.types else kernel
        return lambda: _run(able, optimizer, *gather(able, part.works, scaled, copies=True))
    table, copied = gather(kernel, part.works, scaled)
    able = _able(kernel, table, optimizer)
    return lambda: _run(able, optimizer, table, copied)


def _run(kernel: Kernel, optimizer: Lowered, table: Table, copied: Copied) -> bool:
    """Update the tensors of a table; return whether there are copies, which end here."""
    kernel.run(table, optimizer)
    for original, copy in copied:
        original.copy_(copy)
    return table.has_copies


def _able(kernel: Kernel, table: Table, optimizer: Lowered) -> Kernel:
    """The kernel, or one that knows more if a tensor is of a type that it does not know."""
    types = levels.of_table(table.types, kernel.streams)
    return _loaded(optimizer, types, kernel.in_parts) if types & ~kernel.types else kernel


def _rows_ready(kernel: Kernel, optimizer: "GeneratedOptimizer", works: list[Work]) -> Ready:
    """Get ready to update works of which some have sparse gradients."""
    sparse = [work for work in works if work.trait.rows]
    update = rows.function(kernel)
    suited = [work for work in sparse if update and rows.fits(work)]
    in_place = rows.ready(kernel, update, optimizer, suited) if update and suited else None
    taken = [touched(optimizer.rule, work) for work in sparse if work not in suited]
    dense = [*(work for work in works if not work.trait.rows), *(each.rows for each in taken)]
    others = _dense_ready(kernel, optimizer, dense) if dense else None

    def run() -> bool:
        if in_place:
            in_place()  # first: it may find that an index is no row
        if others:
            others()
        for each in taken:
            each.put_back()
        return not dense

    return run


def begin(optimizer: "GeneratedOptimizer") -> bool:
    """Take the first step of ordinary tensors; or at most make their states, and return False."""
    works = first_step.works(optimizer)
    if not works:
        return False
    optimizer._repeat = first_step.taken(_loaded(optimizer), optimizer, works)
    return optimizer._repeat is not None


def repeat(optimizer: "GeneratedOptimizer") -> bool:
    """Take the whole step as the one before was taken; or do nothing and return False."""
    known, optimizer._repeat = optimizer._repeat, None  # also if a group's values raise an error
    if known is None or not (skipped(optimizer) or known.run(optimizer)):
        return False
    optimizer._repeat = known
    return True


def why_not(owner: Lowered, work: Work) -> str:
    """Say in a few words why this work cannot run here; nothing if it can."""
    dtypes = {dtype.to_real() for dtype in set(map(_dtype, work.tensors()))}  # of sparse ones too
    types = levels.of_works(owner.rule, [work])
    kernel = _kernel(owner, types, work.trait.placed is not None)
    if isinstance(kernel, str):
        return kernel
    if work.trait.placed and work.trait.rows:
        return "sparse gradients of parameters in parts"
    if not all(map(_is_cpu, work.tensors())):
        return "states or gradients are on another device"
    strange = dtypes - set(CODES)
    return f"no kernel for {sorted(map(str, strange))[0]}" if strange else ""


def _loaded(owner: Lowered, types: int = 0, in_parts: bool = False) -> Kernel:
    """The kernel, or an error that says why there is none."""
    kernel = _kernel(owner, types, in_parts)
    if isinstance(kernel, str):
        raise RuntimeError(kernel)
    return kernel


def _kernel(owner: Lowered, types: int = 0, in_parts: bool = False) -> Kernel | str:
    """A kernel that knows these types, the one that knows most; or why there is none."""
    module = sys.modules[owner.lowerings]
    loaded = _kernels.setdefault(module, {})
    kernels = [each for each in loaded.values() if isinstance(each, Kernel)]
    alike = [kernel for kernel in kernels if kernel.in_parts == in_parts]
    for kernel in reversed(alike):  # each knows what those before it do
        if not types & ~kernel.types:
            return kernel
    for known in (_types_of_step(owner), *(kernel.types for kernel in alike)):
        types |= known
    asked = in_parts, types
    if asked not in loaded:
        loaded[asked] = _load(owner, module, *asked)
    return loaded[asked]


def _types_of_step(owner: Lowered) -> int:
    """The types of all tensors of the step at hand: one library is to take all its works."""
    survey = getattr(owner, "_survey", None)
    works = [work for work in survey.works.values() if not work.parts] if survey else []
    return levels.of_works(owner.rule, works)


def _load(owner: Lowered, module: ModuleType, in_parts: bool, types: int) -> Kernel | str:
    if reason := excess(owner.rule, _source(module)):
        return reason
    try:
        return _built(owner, module, in_parts, types)
    except (build_cache.NoCompilerError, compiler.CompileError, OSError) as error:
        message = str(error)
    reason = message.partition("\n")[0]  # what follows are words of the compiler
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"optimizer steps on CPU tensors will be slow: {message}", stacklevel=2)
    return reason


def _built(owner: Lowered, module: ModuleType, in_parts: bool, types: int) -> Kernel:
    kind, condition = _kind(in_parts)
    name, source = owner.rule.name, condition + complete(_source(module))
    # Two compilers take no longer than one; a third would wait for them where there are two cores.
    with ThreadPoolExecutor(1) as beside:
        try:
            swept = sweeps.begun(beside, source, types)
            if owner.rule.gradient == "sparse_only":
                beside.submit(rows.library, name, source)
            if not tensor_reader.is_built():
                beside.submit(tensor_reader.reader)  # it is asked for next
            built = levels.library(name, source, types, levels.made(source))
            return kind(owner, *built, source, swept())
        except KeyboardInterrupt:
            end_all()  # the other thread would wait for its compiler
            raise


def _source(module: ModuleType) -> str:
    return (pkgutil.get_data(module.__name__, "fused_cpu.cpp") or b"").decode()


def _kind(in_parts: bool) -> tuple[type[Kernel], str]:
    """The class of a kernel, and what its source begins with."""
    if not in_parts:
        return Kernel, ""
    from optgen.runtime.fused_cpu.shards import CONDITION, ShardKernel

    return ShardKernel, f"#define {CONDITION}\n"
