"""Algorithms of torch's classes and of papers, and sequences of passes that plan them."""

from __future__ import annotations

from collections.abc import Callable

from spec_files import REPRESENTATIVES, TEST_SPECS, TORCH_SPECS, spec_file

from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import widens
from optgen.ir.plan import Plan
from optgen.passes.hoist_scalars import hoist_scalars
from optgen.passes.plan_rule import plan, why_uncut
from optgen.passes.sweep_algebra import fold_denominators, merge_square_roots
from optgen.spec.read_spec import read_specs

TORCH_ALGORITHMS = {a.name: a for a in read_specs(TORCH_SPECS)}
RULES = {name: a for name, a in TORCH_ALGORITHMS.items() if a.base is None and a.elementwise}
"""Elementwise specs that have a rule of their own; each has one sweep."""

_SPECS = read_specs([*sorted(TEST_SPECS.glob("*.py")), *map(spec_file, REPRESENTATIVES)])
WIDENING_RULES = {a.name: a for a in _SPECS if widens(a) and a.elementwise}
"""Elementwise rules that round to their parameter's dtype, draw numbers, or declare dtypes."""

WITH_PHASES = {name: a for name, a in TORCH_ALGORITHMS.items() if not a.elementwise}
WITH_PHASES |= {
    a.name: a
    for a in _SPECS
    if not (a.elementwise or a.has_storage_ops or a.has_random_ops or a.is_wide or why_uncut(a))
}
"""Rules with reductions or matrix ops, from the catalogue and from tests/specs."""

PASSES: dict[str, Callable[[Algorithm], Plan]] = {
    "plan": plan,
    "hoisted": lambda a: hoist_scalars(plan(a)),
    "folded": lambda a: fold_denominators(merge_square_roots(plan(a))),
    "folded and hoisted": lambda a: hoist_scalars(fold_denominators(merge_square_roots(plan(a)))),
}
