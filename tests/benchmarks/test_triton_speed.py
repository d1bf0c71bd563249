"""Test the model that predicts the speed of sweeps from their machine code."""

import json
from types import SimpleNamespace

import pytest
import torch
from interpreter import outside_interpreter

pytest.importorskip("triton")

from benchmarks import triton_aot_assembly, triton_aot_sass, triton_model, triton_speed
from benchmarks.triton_aot_compile import Launch
from benchmarks.triton_catalogue import kernels
from benchmarks.triton_model import H100, REFERENCE, Prediction
from optgen.runtime.fused_triton import launch_options

SASS = """
        /*0000*/                   S2R R6, SR_TID.X ;
        /*0010*/                   LDG.E R2, desc[UR4][R4.64] ;
        /*0020*/                   ISETP.NE.AND P0, PT, R2, RZ, PT ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
        /*0040*/                   LDG.E.128 R8, desc[UR4][R6.64] ;
        /*0050*/                   FADD R12, R11, R11 ;
        /*0060*/                   STG.E desc[UR4][R6.64], R12 ;
        /*0070*/                   EXIT ;
.L_x_0:
        /*0080*/                   LDG.E R8, desc[UR4][R6.64] ;
        /*0090*/                   BRA `(.L_x_0) ;
        /*00a0*/                   EXIT ;
"""


def test_the_fast_path_has_the_wide_loads() -> None:
    code = triton_aot_sass.read(SASS)
    path = triton_aot_sass.fast_path(code, wide_loads=1)
    names = [each.name for each in path]
    assert names == ["S2R", "LDG.E", "ISETP.NE.AND", "BRA", "LDG.E.128", "FADD", "STG.E", "EXIT"]
    assert code[3].target == 8
    assert [each.loaded_bytes for each in code if each.name.startswith("LDG")] == [4, 16, 4]


def test_an_instruction_waits_for_its_operands() -> None:
    path = triton_aot_sass.fast_path(triton_aot_sass.read(SASS), wide_loads=1)
    run = triton_aot_sass.run(path)
    assert run.instructions == 8
    waits = triton_aot_sass.FROM_CACHE + triton_aot_sass.FROM_MEMORY  # for R2, and then for R11
    assert waits < run.cycles < waits + 4 * triton_aot_sass.ALU_LATENCY + 8


def test_registers_limit_the_blocks_of_a_multiprocessor() -> None:
    assert H100.resident_blocks(registers=32, warps=4, shared_bytes=0) == 16
    assert H100.resident_blocks(registers=104, warps=4, shared_bytes=0) == 4
    assert H100.resident_blocks(registers=16, warps=1, shared_bytes=0) == 32
    assert H100.resident_blocks(registers=16, warps=1, shared_bytes=100 * 1024) == 2


def test_loads_of_all_threads_are_no_loads_of_elements() -> None:
    code = triton_aot_sass.read(
        """
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   LDG.E.64 R2, desc[UR4][R4.64] ;
        /*0020*/                   LEA R6, P0, R0, R2, 0x3 ;
        /*0030*/                   LDG.E.64 R8, desc[UR4][R6.64] ;
        /*0040*/                   MOV R6, R4 ;
        /*0050*/                   LDG.E.64 R8, desc[UR4][R6.64] ;
        /*0060*/                   EXIT ;
"""
    )
    loads = [each for each in code if each.loaded_bytes]
    assert [triton_aot_sass.latency(each, width=8) for each in loads] == [
        triton_aot_sass.FROM_CACHE,
        triton_aot_sass.FROM_MEMORY,
        triton_aot_sass.FROM_CACHE,
    ]


def test_the_longest_path_takes_a_loop_once_and_avoids_calls() -> None:
    code = triton_aot_sass.read(
        """
        /*0000*/               @P0 BRA `(.L_x_1) ;
.L_x_0:
        /*0010*/                   LDG.E.64 R2, desc[UR4][R4.64] ;
        /*0020*/               @P1 BRA `(.L_x_0) ;
        /*0030*/               @P2 BRA `(.L_x_1) ;
        /*0040*/                   CALL.REL.NOINC `(.L_x_2) ;
.L_x_1:
        /*0050*/                   EXIT ;
"""
    )
    names = [each.name for each in triton_aot_sass.longest_path(code)]
    assert names == ["BRA", "LDG.E.64", "BRA", "BRA", "EXIT"]
    assert [each.name for each in triton_aot_sass.fast_path(code, 0)] == ["BRA", "EXIT"]


LINES = """
        scf.for %i = %0 to %1 {
          %x = tt.load %p, %m : tensor<16x128x!tt.ptr<f64>>
        }
        scf.for %j = %0 to %2 {
          %state = tt.load %q, %m : tensor<1x1024x!tt.ptr<bf16>>
          %value = tt.load %r, %m : tensor<1x1024x!tt.ptr<f32>>
          tt.store %q, %state, %m : tensor<1x1024x!tt.ptr<bf16>>
        }
"""


def test_a_loop_is_known_by_its_branch_backward() -> None:
    code = triton_aot_sass.read(SASS)
    assert [[each.name for each in body] for body in triton_aot_sass.loops(code)] == [
        ["LDG.E", "BRA"]
    ]


def test_loops_over_lines_are_known_by_the_extent_of_their_loads() -> None:
    assert triton_aot_assembly.bytes_per_round(LINES, "1x1024") == [1024 * (2 + 4)]
    assert triton_aot_assembly.bytes_per_round(LINES, "16x128") == [16 * 128 * 8]
    assert triton_aot_assembly.bytes_per_round(LINES, "1x512") == []


@pytest.mark.parametrize(
    ("names", "expected"), [(("partials", "arrivals"), 80.0), (("partials", "found_inf"), 0.0)]
)
def test_only_finishes_that_combine_lines_add_up_their_partial_sums(
    names: tuple[str, ...], expected: float
) -> None:
    compiled = SimpleNamespace(src=SimpleNamespace(fn=SimpleNamespace(arg_names=names)))
    partials = torch.zeros(10, dtype=torch.float64)
    sweep = Launch("x_step1", (4,), {}, None)
    finish = Launch("x_finish1", (1,), {"TILES": ()}, compiled, (partials, None))
    assert triton_model._bytes_to_add_up([sweep, finish]) == expected


def test_a_finish_goes_over_all_lines_of_a_matrix() -> None:
    code = triton_aot_sass.read(
        """
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_0:
        /*0010*/                   LDG.E.64 R2, desc[UR4][R4.64] ;
        /*0020*/               @P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0030*/                   LDG.E.64 R8, desc[UR4][R6.64] ;
        /*0040*/                   LDG.E R9, desc[UR4][R6.64] ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/                   EXIT ;
"""
    )
    compiled = SimpleNamespace(
        src=SimpleNamespace(fn=SimpleNamespace(arg_names=("shapes",))), asm={"ttir": LINES}
    )
    options = {"FINISH_TILES": ((1, 1024, 1024),)}
    shapes = torch.full((17, 1), 4096)
    finish = Launch("x_finish1", (1,), options, compiled, (shapes,))
    first, second = (triton_aot_sass.run(body, width=0) for body in triton_aot_sass.loops(code))
    per_warp = 32 * (8 + 4)
    rounds = 4096 * (2 + 4) / per_warp
    once, cycles = triton_model._line_by_line(code, finish, 3 * 32 * 8, warps=1)
    assert once.instructions == len(code)
    assert cycles == once.cycles + 2 * first.cycles + (rounds - 1) * second.cycles


@outside_interpreter
def test_a_simple_sweep_is_limited_by_memory(tmp_path: object) -> None:
    found = triton_speed.predictions("sgd", "float32", str(tmp_path))
    prediction = found["sgd sgd_step float32"]
    assert prediction.fraction == 1.0
    assert prediction.limit == "memory"
    assert prediction.loading_kib == 128  # 16 blocks of 1024 parameters and gradients
    microseconds = 1e6 * REFERENCE * 3 * 4 / H100.copy  # a parameter, its gradient, the new value
    assert prediction.microseconds == pytest.approx(microseconds, abs=0.1)
    assert found["sgd sgd_scalars float32"].fraction > 0.99


def test_every_generated_kernel_has_a_row() -> None:
    """A new kernel needs a row: run `python benchmarks/triton_speed.py --changed`."""
    assert sum(map(len, kernels().values())) > 250
    assert triton_speed.missing(triton_speed.recorded()) == []
    recorded = json.loads(triton_speed.RECORD.read_text(encoding="utf-8"))["rows"]
    assert set(recorded) == set(triton_speed.recorded()), "rows of kernels that are gone"


def test_every_recorded_prediction_is_good_or_explained() -> None:
    record = json.loads(triton_speed.RECORD.read_text(encoding="utf-8"))
    assert "prediction" in record["what"]
    column = {name: index for index, name in enumerate(record["columns"])}
    used = set()
    for name, row in record["rows"].items():
        fraction, reason = row[column["fraction"]], row[-1]
        assert (fraction < triton_speed.ENOUGH) == bool(reason), name
        assert not reason or record["reasons"][reason], name
        used.add(reason)
    assert used == {"", *triton_speed.REASONS}
    assert record["reasons"] == {key: text for key, (_, text) in triton_speed.REASONS.items()}


@outside_interpreter
def test_a_row_is_old_if_a_device_function_or_an_option_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = triton_speed.text_of("lion_8bit")
    assert triton_speed.text_of("lion_8bit") == text
    with monkeypatch.context() as patch:
        patch.setattr(launch_options, "TAIL_WITH_CODES", 2 * launch_options.TAIL_WITH_CODES)
        assert triton_speed.text_of("lion_8bit") != text
    from triton.runtime.jit import JITFunction

    from optgen.runtime.fused_triton import device_codes

    decoded = device_codes.decoded  # which the kernel calls through `load_coded`
    with monkeypatch.context() as patch:
        changed = JITFunction(decoded.fn)
        changed._unsafe_update_src(decoded.src + "    # changed")
        patch.setattr(device_codes, "decoded", changed)
        assert triton_speed.text_of("lion_8bit") != text
    assert triton_speed.text_of("lion_8bit") == text


def test_a_row_below_enough_needs_a_reason() -> None:
    good = Prediction("sweep", 0.95, "memory", 1.0, 32, 16, 128.0, 1000, 100)
    slow = good._replace(fraction=0.5)
    rows = {"sgd sgd_step float32": slow, "adam adam_step float32": good}
    assert triton_speed.unexplained(rows) == ["sgd sgd_step float32"]
    assert "sgd sgd_step" in triton_speed.missing({"adam adam_step float32": good})
