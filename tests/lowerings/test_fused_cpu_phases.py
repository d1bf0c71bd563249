"""Test rules with phases in C++: which steps share a pass, and that the loops are vectorized."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compiler_flags import is_clang
from conftest import Golden
from lowerings.test_fused_cpu import VECTORIZED_REMARK, compiler_output, cpp_of, vector_bytes

from optgen import emit
from optgen.ir.algorithm import Algorithm
from optgen.ir.kinds import Axes
from optgen.ir.plan import Plan
from optgen.lowerings.fused_cpu import FUSED_CPU
from optgen.lowerings.fused_cpu.kernel_steps import PhaseSteps, Step
from optgen.lowerings.fused_cpu.pass_schedule import Pass, tiling_strategies
from optgen.optim import Muon
from optgen.passes import all_passes
from optgen.passes.plan_rule import target_plans
from optgen.runtime import MatrixCall
from optgen.runtime.toolchain import compiler
from optgen.runtime.toolchain.library_cache import inline_includes
from optgen.spec.read_spec import read_spec

ROOT = Path(__file__).parents[2]
NAMED = '''
from optgen.spec import *

@optimizer(paper="https://example.org")
def Named(
    p, g, t, /,
    row=state("row", shape="row", when="factored"),
    count=state("numbers"),
    *,
    lr=hyper(1e-2),
    inputs=hyper(1.0),
    applies=flag(False),
):
    """Names that the C++ of a rule with phases uses itself."""
    if applies:
        count = count + inputs * g
    at = norm(count)
    if factored(p):
        row = maximum(row, row_mean(g**2))
        set = count / sqrt(row + at)
    else:
        set = count
    p = p - lr * set / (1 + max_abs(set) / t)
'''


def algorithm_of(path: str) -> Algorithm:
    (found,) = read_spec(ROOT / path)
    return found


def plan_for_cpp(path: str) -> Plan:
    """Return the first plan of a spec, as the C++ lowering schedules it."""
    return target_plans(algorithm_of(path), all_passes.FUSED_CPU)[0]


def pass_lines(passes: list[Pass]) -> list[str]:
    """Return lines of text that describe passes."""
    lines = []
    for each in passes:
        on_tiles, after_tiles = (
            [step.name for step in steps] for steps in (each.on_tiles, each.after_tiles)
        )
        lines += ["pass", f"  on every tile: {', '.join(on_tiles)}"]
        lines += [f"  after all tiles: {', '.join(after_tiles)}"] if after_tiles else []
        lines += [f"  stores: {', '.join(each.stores)}"] if each.stores else []
    return lines


@pytest.mark.parametrize("path", ["specs/adafactor.py", "specs/came.py"], ids=["adafactor", "came"])
def test_steps_share_passes(path: str, golden: Golden) -> None:
    plan = plan_for_cpp(path)
    axes_of_shape = {"like": Axes.TENSOR, "row": Axes.ROW, "col": Axes.COLUMN}
    states = {
        s.symbol: axes_of_shape[s.shape] for s in plan.algorithm.states if s.shape in axes_of_shape
    }
    streams = {"param": Axes.TENSOR, "grad": Axes.TENSOR, **states}
    steps = PhaseSteps(plan, streams, {}).steps
    lines = [
        line
        for strategy, passes in tiling_strategies(steps, streams, has_axes=True).items()
        for line in (f"{strategy}:", *pass_lines(passes))
    ]
    golden.check("\n".join(lines))


def test_a_pass_stores_no_state_that_a_later_pass_updates_again() -> None:
    """`rows1` runs in both passes, so the first must not store the row state that it updates."""
    streams = {"row": Axes.ROW, "param": Axes.TENSOR}
    steps = [
        Step("rows1", Axes.ROW, 0, reads=("row",), writes=("row", "factor")),
        Step("sweep1", Axes.TENSOR, 0, reads=("factor",), writes=("square",)),
        Step(
            "square_sum",
            Axes.NONE,
            0,
            reads=("square",),
            numbers_written=("square_sum",),
            reduction="sum",
        ),
        Step("sweep2", Axes.TENSOR, 1, ("factor",), ("param",), numbers_read=("square_sum",)),
    ]
    strategies = tiling_strategies(steps, streams, has_axes=True)
    first, second = strategies["WHOLE_MATRICES"]
    assert strategies["EXACT_MATRICES"] == [first, second]  # rows1 cannot read its state back
    assert strategies["WHOLE_COLUMNS"]
    assert [step.name for step in first.on_tiles] == ["rows1", "sweep1", "square_sum"]
    assert [step.name for step in second.on_tiles] == ["rows1", "sweep2"]
    assert (first.stores, second.stores) == ((), ("row", "param"))


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("path", ["specs/adafactor.py", "specs/came.py"], ids=["adafactor", "came"])
def test_every_loop_is_vectorized(path: str, tmp_path: Path) -> None:
    command = compiler.find()
    assert command is not None
    if is_clang(command):
        pytest.skip("only g++ reports on vectors in this form")
    text = emit.render(algorithm_of(path), FUSED_CPU, None)
    bytes_per_vector = vector_bytes(tmp_path)
    report = compiler_output(text, tmp_path, "-fopt-info-vec-optimized")
    lines = inline_includes(text).splitlines()
    rule_line = next(i for i, line in enumerate(lines, 1) if "struct Rule :" in line)
    loop_lines = [i for i, line in enumerate(lines, 1) if "for (i64 i = 0; i < n; " in line]
    assert loop_lines[-1] > rule_line
    for loop_line in (i for i in loop_lines if i > rule_line):
        # g++ 11 names the line of the pragma above the loop, others that of the loop or the next.
        places = "|".join(str(loop_line + offset) for offset in (-1, 0, 1))
        found = re.findall(rf":(?:{places}):\d+: optimized: {VECTORIZED_REMARK}", report)
        template = next(line for line in reversed(lines[:loop_line]) if "template <" in line)
        copies = 4 if "EXPANDED" in template else 2  # in float and in double
        assert found.count(str(bytes_per_vector)) >= copies, (
            loop_line,
            lines[loop_line - 1],
            report,
        )


def test_names_that_generated_cpp_uses_get_an_underscore(tmp_path: Path) -> None:
    text = cpp_of(NAMED, "Named")

    assert compiler_output(text, tmp_path, "-Wall", "-Wextra") == ""
    assert max(map(len, text.splitlines())) <= 100
    assert "NUMBERS_, STREAMS };" in text


def test_a_rule_lists_its_calls_of_matrix_ops() -> None:
    """The runtime calls them between the parts of the kernel."""
    rule = Muon.rule

    arguments = ("ns_coefficients", "ns_steps", "eps")
    assert rule.matrix_calls == (MatrixCall("o", "orthogonalize", "u", arguments),)
    assert rule.matrices == ("u", "o")
