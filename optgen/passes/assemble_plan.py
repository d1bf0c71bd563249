"""Put a rule that is cut together as a plan, and check that its reads find their versions."""

from __future__ import annotations

from optgen.ir.nodes import Call, assigns, expressions, refs
from optgen.ir.plan import (
    Finish,
    MatrixCall,
    Phase,
    Plan,
    Sweep,
    streams_of,
    streams_of_sweep,
)
from optgen.ir.verify_reads import verify_reads
from optgen.passes.cut_phases import CutRule
from optgen.passes.hoist_between_sweeps import hoist_between_sweeps


def assemble_plan(cut: CutRule) -> Plan:
    """Return the plan of a rule, with the streams of each sweep."""
    return Plan(cut.algorithm, cut.scalars, _phases(cut), dict(cut.kinds))


def check_reads(cut: CutRule) -> CutRule:
    """Return the rule as it is.

    Raises:
        StaleReadError: Sweeps disagree about the value of a name.
    """
    complete = assemble_plan(cut)
    if complete.is_cut:
        verify_reads(hoist_between_sweeps(complete))
    return cut


def _phases(cut: CutRule) -> tuple[Phase, ...]:
    """Return the phases in order: for each sweep its matrix ops, its `Finish`, and the sweep.

    Empty phases are left out. A `Finish` reads no number, row or column from before the matrix ops
    of its sweep: see `cut_phases`.
    """
    results: dict[str, None] = {}  # names of the results of matrix ops so far
    phases: list[Phase] = []
    for index, sweep in enumerate(cut.sweeps):
        for stmt in assigns(cut.calls[index]):
            assert isinstance(stmt.value, Call)
            phases.append(MatrixCall(stmt.target, stmt.value.op, stmt.value.args, stmt.quote))
            results[stmt.target.name] = None
        if cut.finishes[index]:
            phases.append(Finish(cut.finishes[index]))
        if sweep:
            next_ops = (e for p in cut.calls[index + 1 : index + 2] for e in expressions(p))
            read_by_ops = {ref.name for expr in next_ops for ref in refs(expr)}
            inputs = tuple(name for name in cut.call_inputs[index] if name in read_by_ops)
            streams = streams_of_sweep(
                cut.algorithm, sweep, cut.stored[index], inputs, tuple(results)
            )
            phases.append(Sweep(streams, sweep))
    match phases:
        case [Sweep(_, body)]:  # a single sweep gets every tensor, read or not
            return (Sweep(streams_of(cut.algorithm, body), body),)
    return tuple(phases)
