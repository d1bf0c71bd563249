"""Test the prediction of finishes, from machine code, and its record."""

import json

import pytest
from interpreter import outside_interpreter

pytest.importorskip("triton")

from benchmarks import triton_aot_sass, triton_finishes
from benchmarks.triton_finishes import Costs, Loop, microseconds
from optgen.runtime.fused_triton.folds import WORTH_A_LAUNCH

SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
""" + "".join(
    f"        /*00{n}0*/                   LDG.E.128 R{4 * n}, desc[UR4][R60.64] ;\n"
    for n in range(1, 5)
)
LOOP_END = """
        /*0050*/               @P0 BRA `(.L_x_0) ;
        /*0060*/                   EXIT ;
"""


def test_a_loop_loads_partial_sums() -> None:
    loop = triton_finishes.first_loop(triton_aot_sass.read(SASS + LOOP_END), threads=128)
    assert loop.partials == 4 * 2 * 128
    assert loop.cycles_for(2 * loop.partials) == 2 * 8 * loop.partials / triton_finishes.L2_BYTES
    with pytest.raises(ValueError, match="no loop"):
        triton_finishes.first_loop(triton_aot_sass.read(SASS), threads=128)


def test_a_loop_whose_loads_wait_takes_its_cycles() -> None:
    slow, fast = Costs(0, Loop(2000, 1024), 0), Costs(0, Loop(1, 1024), 0)
    assert microseconds(10240, slow)[0] > 10 * microseconds(10240, fast)[0]


@outside_interpreter
def test_the_record_folds_where_that_is_predicted_to_be_faster() -> None:
    record = json.loads(triton_finishes.RECORD.read_text(encoding="utf-8"))
    assert "prediction" in record["what"]
    assert record["folded above"] == WORTH_A_LAUNCH
    for count in triton_finishes.COUNTS:
        alone, folded = record[str(count)]
        assert (folded < alone) == (count >= WORTH_A_LAUNCH), count
