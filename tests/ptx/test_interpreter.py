"""Test the interpreter with short programs: what instructions mean, and which faults it finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("triton")

from ptx.faults import Fault, Unsupported
from ptx.launch import run
from ptx.memory import Memory
from ptx.program import read_program

THREADS = 64
TEMPLATE = """
.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(.param .u64 .ptr .global .align 1 input, .param .u64 output)
.reqntid 64
{{
    .reg .pred %p<9>;
    .reg .b16 %rs<9>;
    .reg .b32 %r<19>;
    .reg .b64 %rd<19>;
    ld.param.b64 %rd1, [input];
    ld.param.b64 %rd2, [output];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.wide.u32 %rd3, %r1, 8, %rd1;  // the thread's place in the input
    mad.lo.s32 %r3, %r2, 64, %r1;
    mad.wide.u32 %rd4, %r3, 8, %rd2;  // the thread's place in the output
    shl.b32 %r4, %r1, 3;              // and in shared memory
    xor.b32 %r5, %r1, 1;
    shl.b32 %r6, %r5, 3;              // the neighbour's place in shared memory
    setp.eq.u32 %p1, %r1, 0;
    ld.global.b64 %rd5, [%rd3];
    mov.b64 {{%r7, %r8}}, %rd5;
    {body}
    ret;
}}
"""


def execute(body: str, values: Sequence[Any] = (), dtype: Any = np.uint64, blocks: int = 1) -> Any:
    """Return what blocks of 64 threads write to the output, as numbers of 8 bytes each."""
    source: NDArray[Any] = np.zeros(THREADS, dtype)
    source[: len(values)] = values
    output = np.zeros(blocks * THREADS, dtype)
    memory = Memory()
    for name, array in (("the input", source), ("the output", output)):
        memory.allow(array.ctypes.data, array.nbytes, name)
    arguments = [source.ctypes.data, output.ctypes.data]
    run(read_program(TEMPLATE.format(body=body)), blocks, arguments, memory, 8 * THREADS)
    return output


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ("mov.b32 %r10, 0x11223344; mov.b32 %r11, 0x55667788; prmt.b32 %r9, %r10, %r11, 0x7120;",
         0x55332244),
        ("mov.b32 %r10, 0xF0; bfe.s32 %r9, %r10, 4, 4;", 0xFFFFFFFF),
        ("mov.b32 %r10, -7; div.s32 %r9, %r10, 2;", 0xFFFFFFFD),
        ("mov.b32 %r10, -7; rem.s32 %r9, %r10, 2;", 0xFFFFFFFF),
        ("mov.b32 %r10, 0x80000001; shf.l.wrap.b32 %r9, %r10, %r10, 4;", 0x18),
        ("mov.b32 %r10, -1; shr.s32 %r9, %r10, 99;", 0xFFFFFFFF),
        ("mov.b32 %r10, -1; shr.u32 %r9, %r10, 99;", 0),
        ("mov.b32 %r10, 0x80000000; mul.hi.u32 %r9, %r10, 6;", 3),
        ("mov.b32 %r10, 0x0001FFFF; mov.b32 %r11, 0x00010001; add.s16x2 %r9, %r10, %r11;", 0x20000),
        ("mov.b32 %r10, 0f3F800001; cvt.rn.bf16x2.f32 %r9, %r10, %r10;", 0x3F803F80),
        ("mov.b32 %r10, 0f3F818000; cvt.rn.bf16.f32 %rs1, %r10; cvt.u32.u16 %r9, %rs1;", 0x3F82),
        ("mov.b32 %r10, 0f4F800000; cvt.rzi.s32.f32 %r9, %r10;", 0x7FFFFFFF),
        ("mov.b32 %r10, 0f7FC00000; cvt.rni.s32.f32 %r9, %r10;", 0),
        ("mov.b32 %r10, 0f80000000; mov.b32 %r11, 0f00000000; max.f32 %r9, %r10, %r11;", 0),
        ("mov.b32 %r10, 0f80000000; mov.b32 %r11, 0f00000000; min.f32 %r9, %r11, %r10;", 1 << 31),
        ("mov.b32 %r10, 0f00000001; add.f32 %r9, %r10, %r10;", 2),  # denormal numbers are kept
        ("redux.sync.max.s32 %r9, %r1, -1; and.b32 %r9, %r9, 31;", 31),
    ],
)  # fmt: skip
def test_instructions_mean_what_nvidia_says(instructions: str, expected: int) -> None:
    body = f"{instructions} cvt.u64.u32 %rd6, %r9; st.global.b64 [%rd4], %rd6;"
    assert set(execute(body).tolist()) == {expected}


def test_a_product_and_a_sum_are_rounded_once() -> None:
    """The numbers cancel, are near the ends of the range, or differ much."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal(THREADS) * 2.0 ** rng.integers(-600, 500, THREADS)
    values[:4] = 0.0, -0.0, math.inf, 5e-324
    body = "fma.rn.f64 %rd6, %rd5, %rd5, 0dBFF0000000000001; st.global.b64 [%rd4], %rd6;"
    found = execute(body, values, np.float64)
    for x, result in zip(values.tolist(), found.tolist(), strict=True):
        assert result == (rounded(x) if math.isfinite(x) else math.inf)


def rounded(x: float) -> float:
    from fractions import Fraction

    exact = Fraction(x) * Fraction(x) - Fraction(math.nextafter(1.0, 2.0))
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.inf


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ld.global.b64 %rd6, [%rd3+8];", "outside of all tensors: 0 bytes after the end of"),
        ("st.global.b64 [%rd4+4], %rd5;", "not aligned"),
        ("st.shared.b64 [%r4+8], %rd5;", "8 bytes at 512 of shared memory, which has 512 bytes"),
        ("ld.shared.b64 %rd6, [%r4];", "to which nothing was stored"),
        ("st.shared.b64 [%r4], %rd5; ld.shared.b64 %rd6, [%r6];", "no barrier is between"),
        ("st.shared.b64 [%r4], %rd5; bar.sync 0; ld.shared.b64 %rd6, [%r6];"
         "st.shared.b32 [global_smem], %r3;", "two threads store different numbers to one place"),
        ("st.shared.b64 [%r4], %rd5; bar.sync 0; xor.b32 %r9, %r4, 256; ld.shared.b64 %rd6, [%r9];"
         "st.shared.b64 [%r4], %rd6;", "no barrier is between"),
        ("@%p1 bra $L1; bar.sync 0; $L1:", "only 63 of 64 threads of block 0 get here together"),
        ("@%p1 ret; bar.sync 0;", "only 63 of 64 threads"),
        ("mul.lo.u32 %r9, %r2, 512; cvt.u64.u32 %rd6, %r9; sub.s64 %rd4, %rd4, %rd6;"
         "st.global.b64 [%rd4], %rd5;", "no release and acquire are between"),
        ("$L1: bra $L1;", "no end after"),
    ],
)  # fmt: skip
def test_faults_are_found(body: str, message: str) -> None:
    with pytest.raises(Fault, match=message.replace("(", r"\(")):
        execute(body, blocks=2)


@pytest.mark.parametrize(
    "body",
    [
        "st.shared.b64 [%r4], %rd5; bar.sync 0; ld.shared.b64 %rd6, [%r6];",
        "st.shared.b64 [%r4], %rd5; bar.warp.sync -1; ld.shared.b64 %rd6, [%r6];",
        "@%p1 bra $L1; add.s64 %rd6, %rd5, 1; $L1: bar.sync 0;",
    ],
)
def test_ordered_accesses_are_no_faults(body: str) -> None:
    execute(body, blocks=2)


LAST_ARRIVAL = """
    st.global.b64 [%rd4], %rd5;
    {barrier}
    mov.b32 %r9, 0;
    @%p1 {atomic}.add.u32 %r9, [%rd1], 1;
    @%p1 st.shared.b32 [global_smem], %r9;
    bar.sync 0;
    ld.shared.b32 %r9, [global_smem];
    setp.ne.s32 %p2, %r9, 1;
    @%p2 ret;
    xor.b32 %r10, %r3, 97;            // a thread of the other block
    mad.wide.u32 %rd7, %r10, 8, %rd2;
    ld.global.b64 %rd8, [%rd7];
"""


@pytest.mark.parametrize(
    ("barrier", "atomic", "is_ordered"),
    [
        ("bar.sync 0;", "atom.global.gpu.acq_rel", True),
        ("bar.sync 0;", "atom.global.gpu.relaxed", False),
        ("bar.sync 0;", "atom.global.gpu.release", False),
        ("bar.sync 0;", "atom.global.cta.acq_rel", False),
        ("", "atom.global.gpu.acq_rel", False),  # other threads' stores may come after the atomic
    ],
)
def test_the_last_block_may_read_what_others_stored(
    barrier: str, atomic: str, is_ordered: bool
) -> None:
    # The counter is in the input, which each thread has loaded: those loads are unordered.
    body = LAST_ARRIVAL.format(barrier=barrier, atomic=atomic).replace("[%rd1]", "[%rd2+1024]")
    source, output = np.zeros(THREADS, np.uint64), np.zeros(2 * THREADS + 1, np.uint64)
    memory = Memory()
    for name, array in (("the input", source), ("the output", output)):
        memory.allow(array.ctypes.data, array.nbytes, name)
    program = read_program(TEMPLATE.format(body=body))
    arguments = [source.ctypes.data, output.ctypes.data]
    if is_ordered:
        run(program, 2, arguments, memory, 512)
    else:
        with pytest.raises(Fault, match="no release and acquire"):
            run(program, 2, arguments, memory, 512)


def test_divided_threads_meet_again() -> None:
    body = """
        setp.lt.u32 %p2, %r1, 40;
        mov.b64 %rd6, 1;
        @%p2 bra $L1;
        mov.b64 %rd6, 2;
        bra $L2;
        $L1: @%p1 bra $L2;
        mov.b64 %rd6, 3;
        $L2: add.s64 %rd6, %rd6, 10;
        st.global.b64 [%rd4], %rd6;
    """
    assert execute(body).tolist() == [11] + 39 * [13] + 24 * [12]


def test_an_unknown_instruction_is_named() -> None:
    with pytest.raises(Unsupported, match=r"tanh\.approx\.f32, in kernel: tanh\.approx\.f32 %r9"):
        execute("tanh.approx.f32 %r9, %r7;")
