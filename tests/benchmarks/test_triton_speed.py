"""Test the model that predicts the speed of sweeps from their machine code."""

import json

import pytest
from interpreter import outside_interpreter

pytest.importorskip("triton")

from benchmarks import triton_aot_sass, triton_speed
from benchmarks.triton_speed import H100

SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
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
    assert names == ["LDC", "LDG.E", "ISETP.NE.AND", "BRA", "LDG.E.128", "FADD", "STG.E", "EXIT"]
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


@outside_interpreter
def test_a_simple_sweep_is_limited_by_memory(tmp_path: object) -> None:
    found = triton_speed.predictions("SGD", "", "float32", str(tmp_path))
    (prediction,) = (p for name, p in found.items() if name == "sgd_step float32")
    assert prediction.fraction == 1.0
    assert prediction.limit == "memory"
    assert prediction.loading_kib == 128  # 16 blocks of 1024 parameters and gradients


def test_every_recorded_prediction_is_good_or_explained() -> None:
    record = json.loads(triton_speed.RECORD.read_text(encoding="utf-8"))
    assert "prediction" in record["what"]
    rows = {
        name: row for name, row in record.items() if isinstance(row, list) and name != "columns"
    }
    assert {"adam_step float32", "adafactor_factored_step2 bfloat16"} <= set(rows)
    for name, row in rows.items():
        assert row[0] >= triton_speed.ENOUGH or row[-1], name
