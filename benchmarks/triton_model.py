"""Predict how fast a compiled Triton kernel is on a card, from its machine code.

A prediction, not a measurement. The model is rough: latencies are fixed, real kernels reach 70 to
80 percent of the issue slots, and nothing is known of banks, of the caches' bandwidth and of the
tail of a launch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil, prod
from typing import Any, NamedTuple

from benchmarks.triton_aot_assembly import (
    all_bytes,
    block_accesses,
    bytes_per_element,
    bytes_per_round,
    resources,
)
from benchmarks.triton_aot_compile import Launch
from benchmarks.triton_aot_sass import (
    Instruction,
    Run,
    disassemble,
    fast_path,
    longest_path,
    loops,
    read,
    run,
)
from optgen.runtime.fused_triton.device_reductions import COLUMNS, ROWS, TERMS

REFERENCE = 2**26
"""The elements of the tensor whose launches are predicted."""
WIDEST = 16
"""The bytes that one instruction loads at most."""
_KINDS = {"scalars": r"_scalars$", "sweep": r"_step\d*$", "fold": r"_fold\d*$", "finish": ""}


class Card(NamedTuple):
    """The limits of a card. The figures are those of an H100 (SXM)."""

    multiprocessors: int = 132
    clock: float = 1.755e9  # Hz
    copy: float = 3.0e12  # bytes per second, read and written, of a copy; measured on such a card
    registers: int = 65536
    threads: int = 2048
    blocks: int = 32
    shared_bytes: int = 227 * 1024
    schedulers: int = 4

    @property
    def copied_per_clock(self) -> float:
        """The bytes that a multiprocessor copies in a clock cycle."""
        return self.copy / self.multiprocessors / self.clock

    def resident_blocks(self, registers: int, warps: int, shared_bytes: int) -> int:
        """Return how many blocks of a kernel a multiprocessor holds."""
        registers_per_warp = -(-registers * 32 // 256) * 256
        return min(
            self.registers // (registers_per_warp * warps),
            self.threads // (32 * warps),
            self.shared_bytes // (shared_bytes + 1024),
            self.blocks,
        )


H100 = Card()


class Prediction(NamedTuple):
    """The prediction for one kernel."""

    kind: str  # "scalars", "sweep", "fold" or "finish"
    fraction: float  # of a copy's speed; of a kernel beside a sweep, what it leaves of its speed
    limit: str  # "memory", "latency" or "issue"
    microseconds: float  # of a launch for one tensor of REFERENCE elements
    registers: int
    resident_blocks: int
    loading_kib: float  # bytes of loads in flight on a multiprocessor
    cycles: int  # of one block, loops taken once
    instructions: int  # of one warp, loops taken once


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel, by its name. A fold adds up partial sums before a finish."""
    return next(kind for kind, pattern in _KINDS.items() if re.search(pattern, kernel))


def predict_step(launches: Sequence[Launch], card: Card = H100) -> list[Prediction]:
    """Return a prediction for each launch of a step on one parameter, in their order.

    A finish is compared with the sweep before it, and scalars with the sweep after them; so is a
    finish that comes first. If there are finishes, the parameter must have REFERENCE elements.
    """
    sweeps = [i for i, each in enumerate(launches) if kind_of(each.name) == "sweep"]
    found = {i: predict(launches[i], card) for i in sweeps}
    for index, each in enumerate(launches):
        if index not in sweeps:
            before, after = [i for i in sweeps if i < index], [i for i in sweeps if i > index]
            is_first = kind_of(each.name) == "scalars" or not before
            if not sweeps:
                found[index] = predict(each, card)
                continue
            beside = after[0] if is_first else before[-1]
            to_load = _bytes_to_add_up(launches[beside : index + 1]) if beside < index else 0.0
            prediction, time = predict(each, card, to_load), found[beside].microseconds
            fraction = time / (time + prediction.microseconds)
            found[index] = prediction._replace(fraction=round(fraction, 2))
    return [found[index] for index in range(len(launches))]


def predict(launch: Launch, card: Card = H100, to_load: float = 0.0) -> Prediction:
    """Return the prediction for a launch; a kernel that is no sweep has the fraction 1.

    `to_load` is the bytes of partial sums that the programs of a finish add up.
    """
    kind, code = kind_of(launch.name), read(disassemble(launch.compiled.asm["cubin"]))
    registers = resources(launch.compiled.asm["cubin"])["REG"]
    warps, shared = launch.compiled.metadata.num_warps, launch.compiled.metadata.shared
    blocks = card.resident_blocks(registers, warps, shared)
    if kind == "sweep":
        loaded, moved, elements, cost = _whole_block(code, launch, warps)
        fraction, limit = _fraction_of_copy(moved, cost, blocks, warps, card)
        time = REFERENCE * moved / elements / card.copy / fraction
    else:
        loaded = all_bytes(launch.compiled.asm["ttir"])[0]
        fraction, limit = 1.0, "latency"
        if "FINISH_TILES" in launch.options:
            cost, cycles = _line_by_line(code, launch, to_load / launch.grid[0], warps)
        else:
            cost, cycles = _repeated(code, max(loaded, to_load / launch.grid[0]), warps)
        waves = ceil(launch.grid[0] / (card.multiprocessors * blocks))
        time = waves * cycles / card.clock
    return Prediction(
        kind,
        round(fraction, 2),
        limit,
        round(time * 1e6, 1),
        registers,
        blocks,
        round(blocks * loaded / 1024, 1),
        cost.cycles,
        cost.instructions,
    )


def _fraction_of_copy(
    moved: float, cost: Run, blocks: int, warps: int, card: Card
) -> tuple[float, str]:
    """Return the fraction of a copy's speed, and what limits it, for a card full of blocks."""
    slots = (cost.instructions + cost.double_precision) * warps / card.schedulers
    by_limit = {
        "memory": 1.0,
        "latency": blocks * moved / cost.cycles / card.copied_per_clock,
        "issue": moved / slots / card.copied_per_clock,
    }
    limit = min(by_limit, key=by_limit.__getitem__)
    return by_limit[limit], limit


def _repeated(code: Sequence[Instruction], to_load: float, warps: int) -> tuple[Run, float]:
    """Return the cost of a block that takes each loop once, and the cycles of one that loads more.

    The assembler unrolls loops, so how often they go round is read from the bytes that they load.
    """
    shortest, longest = fast_path(code, 0), longest_path(code)
    once, least = run(longest, width=0), run(shortest, width=0)
    loaded = 32 * warps * (_loaded_bytes(longest) - _loaded_bytes(shortest))
    rounds = to_load / loaded if loaded else 1.0
    return once, least.cycles + rounds * (once.cycles - least.cycles)


def _line_by_line(
    code: Sequence[Instruction], launch: Launch, to_add_up: float, warps: int
) -> tuple[Run, float]:
    """Return the cost of a block that takes each loop once, and the cycles of one with a matrix.

    Its first loop adds up partial sums of lines. The last loops go over all rows, or all columns,
    of the matrix: one program finishes all of them.
    """
    depth, height, _ = launch.options["FINISH_TILES"][0]
    rounds = _arguments(launch)["shapes"][[ROWS.value, COLUMNS.value], 0].max().item() / height
    of_lines = bytes_per_round(launch.compiled.asm["ttir"], f"{depth}x{height}")
    loading = [body for body in loops(code) if _loaded_bytes(body)]
    to_load = [to_add_up, *(size * rounds for size in of_lines)]
    bodies = [loading[0], *loading[len(loading) - len(of_lines) :]]
    once = run(longest_path(code), width=0)
    more = 0.0
    for size, body in zip(to_load, bodies, strict=True):
        times = size / (32 * warps * _loaded_bytes(body))
        more += max(times - 1, 0.0) * run(body, width=0).cycles
    return once, once.cycles + more


def _loaded_bytes(path: Sequence[Instruction]) -> int:
    """Return the bytes that a thread loads."""
    return sum(each.loaded_bytes for each in path)


def _bytes_to_add_up(launches: Sequence[Launch]) -> float:
    """Return the bytes that all programs of the last launch add up, after a sweep and folds.

    Of the finishes of matrices, those whose programs count arrivals combine the partial sums of
    rows and columns. The others add up one sum of each group of matrices: a single one.
    """
    sweep, *folds, finish = launches
    if "TILES" in finish.options:
        arguments = _arguments(finish)
        partials = arguments["partials"]
        return float(partials.numel() * partials.itemsize) if "arrivals" in arguments else 0.0
    is_folded = any(kind_of(each.name) == "fold" for each in folds)
    rounds: float = sweep.grid[0] / TERMS.value ** (2 if is_folded else 1)
    return all_bytes(finish.compiled.asm["ttir"])[0] * rounds


def _arguments(launch: Launch) -> dict[str, Any]:
    """Return the arguments that a kernel is launched with by position, by their names."""
    return dict(zip(launch.compiled.src.fn.arg_names, launch.arguments, strict=False))


class _Block(NamedTuple):
    """A whole, aligned block of a sweep."""

    loaded: float  # bytes
    moved: float  # bytes that it loads or stores
    elements: int
    cost: Run


def _whole_block(code: Sequence[Instruction], launch: Launch, warps: int) -> _Block:
    """Follow a block of a sweep."""
    ttir, options = launch.compiled.asm["ttir"], launch.options
    accesses = list(block_accesses(ttir, options))
    read_bytes, written_bytes = bytes_per_element(ttir, options)
    elements = max(prod(each.extent) for each in accesses)
    loads = [each for each in accesses if each.kind == "load" and each.sharing == 1]
    itemsize = max(each.itemsize for each in loads)
    widest = [each for each in loads if each.itemsize == itemsize]
    width = min(WIDEST, itemsize * max(each.elements_at_once(options) for each in widest))
    wide_loads = sum(prod(each.extent) * itemsize // width for each in widest)
    paths = len(options.get("TILES", ())) or 1
    path = fast_path(code, wide_loads // paths // (32 * warps), width)
    moved = (read_bytes + written_bytes) * elements
    return _Block(read_bytes * elements, moved, elements, run(path, width))
