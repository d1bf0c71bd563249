"""Print the C++ file of a rule with phases.

Matrix ops cut a plan into parts. Each part of each plan becomes one struct.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from optgen.ir.kinds import Axes
from optgen.ir.plan import HostCall, MatrixCall, Phase, Plan
from optgen.lowerings.fused_cpu.line_layout import indented, wrapped_list
from optgen.lowerings.fused_cpu.phased_rule import PhasedRule
from optgen.lowerings.lowering import Context
from optgen.passes.dead_code import used_scalars

_END_OF_CALL = ">(*table, *threads);"


def phased_context(
    all_plans: Sequence[Plan], streams: Mapping[str, Axes], fresh_symbols: Sequence[str]
) -> Context:
    """Return the template's variables: structs and entry points."""
    rules: list[list[PhasedRule]] = []  # for each part, the rules of all plans
    for plan in all_plans:
        calls = plan.matrix_calls
        for part_index, part in enumerate(_parts(plan)):
            if part_index == len(rules):
                rules.append([])
            if not part.phases:  # no phase lies between two matrix ops
                continue
            name, about = _name(plan, calls, part_index), _about(plan, calls, part_index)
            is_last = part_index == len(calls)
            axes = dict.fromkeys(streams, Axes.TENSOR) if plan.facts.get("one_by_one") else streams
            rules[part_index].append(PhasedRule(name, about, part, axes, fresh_symbols, is_last))
    return {
        "form": "fused_cpu_phases.cpp.jinja",
        "header": "phased_kernel.h",
        "rules": [rule.context() for part_rules in rules for rule in part_rules],
        "parts": {
            "" if part_index == 0 else f"_{part_index + 1}": "\n".join(
                indented(
                    wrapped_list(
                        "optgen::step<", _qualified_names(part_rules), _END_OF_CALL, column=4
                    )
                )
            )
            for part_index, part_rules in enumerate(rules)
            if part_rules
        },
        "by_matrix": ", and works on matrices" if _needs_row_major_order(all_plans, rules) else "",
    }


def _needs_row_major_order(
    all_plans: Sequence[Plan], rules: Sequence[Sequence[PhasedRule]]
) -> bool:
    """Tell whether elements must lie in row-major order: for rows, or for random numbers."""
    has_axes = any(rule.has_axes for part_rules in rules for rule in part_rules)
    return has_axes or all_plans[0].algorithm.has_random_ops


def _qualified_names(rules: Sequence[PhasedRule]) -> list[str]:
    return [f"optgen::{rule.name}" for rule in rules]


def _parts(plan: Plan) -> Iterator[Plan]:
    """Yield the parts of a plan between its matrix ops, each with the scalars it reads."""
    phases: list[Phase] = []
    for phase in (*plan.phases, None):
        if phase is not None and not isinstance(phase, MatrixCall):
            phases.append(phase)
            continue
        bodies = [p.body for p in phases if not isinstance(p, HostCall)]
        scalars = used_scalars(plan.scalars, bodies, plan.algorithm)
        yield replace(plan, scalars=scalars, phases=tuple(phases))
        phases = []


def _name(plan: Plan, calls: Sequence[MatrixCall], part: int) -> str:
    """Return the name of a part's struct, such as MuonBefore or AdafactorNotFactoredRule.

    `part` is the index of the part in its plan.
    """
    facts = (f"{'' if holds else 'not_'}{fact}" for fact, holds in plan.facts.items())
    words = (word.capitalize() for fact in facts for word in fact.split("_"))
    suffix = "Rule" if not calls else f"Part{part + 1}"
    if len(calls) == 1:
        suffix = ("Before", "After")[part]
    return "".join([plan.algorithm.name, *words, suffix])


def _about(plan: Plan, calls: Sequence[MatrixCall], part: int) -> str:
    """Return the comment about a part of a plan: for which parameters, between which matrix ops."""
    facts = (f"{'' if holds else 'not '}{fact}" for fact, holds in plan.facts.items())
    text = " and ".join(facts).replace("_", " ")
    scope = f"Plan for parameters that are {text}" if plan.facts else "Plan for all parameters"
    before = [f"after {call.op}" for call in calls[part - 1 : part]] if part else []
    after = [f"until {call.op}" for call in calls[part : part + 1]]
    return ", ".join([scope, *before, *after])
