"""Print the C++ file of a rule with phases.

Matrix ops cut a plan into parts. Each part of each plan becomes one struct.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from optgen.ir.kinds import Axes
from optgen.ir.nodes import Call, Const, Expr, Ref, RuleError
from optgen.ir.plan import HostCall, MatrixCall, Phase, Plan
from optgen.lowerings.fused_cpu.line_layout import indented, wrapped_list
from optgen.lowerings.fused_cpu.phased_rule import PhasedRule
from optgen.lowerings.lowering import Context
from optgen.passes.plan import used_scalars

_END_OF_CALL = ">(*table, *threads);"


def phased_context(
    all_plans: Sequence[Plan], streams: Mapping[str, Axes], fresh_symbols: Sequence[str]
) -> Context:
    """Return the template's variables: structs, entry points, and the matrix ops between parts."""
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
        "calls": list(_call_texts(all_plans)),
        "locals": _locals(all_plans),
    }


def _needs_row_major_order(
    all_plans: Sequence[Plan], rules: Sequence[Sequence[PhasedRule]]
) -> bool:
    """Tell whether elements must lie in row-major order: for rows, or for random numbers."""
    has_axes = any(rule.has_axes for part_rules in rules for rule in part_rules)
    return has_axes or all_plans[0].algorithm.has_random_ops


def _qualified_names(rules: Sequence[PhasedRule]) -> list[str]:
    return [f"optgen::{rule.name}" for rule in rules]


def _locals(all_plans: Sequence[Plan]) -> list[str]:
    """Return the operands and results of matrix ops, in the order of the table."""
    streams = (s for plan in all_plans for sweep in plan.sweeps for s in sweep.streams)
    return list(dict.fromkeys(s.name for s in streams if s.role == "local"))


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


def _call_texts(all_plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the matrix ops as texts for the runtime, with the facts under which each runs."""
    texts = [list(map(_call_text, plan.matrix_calls)) for plan in all_plans]
    longest = max(texts, key=len)
    if any(each != longest[: len(each)] for each in texts):
        raise NotImplementedError("fused C++: plans with different matrix ops")
    facts = all_plans[texts.index(longest)].facts
    condition = " and ".join(f if holds else f"not {f}" for f, holds in facts.items())
    for number, text in enumerate(longest):
        in_all_plans = all(number < len(each) for each in texts)
        yield text + ("" if in_all_plans else f" if {condition}")


def _call_text(call: MatrixCall) -> str:
    """Return a matrix op as text, with names of locals and hyperparameters, and numbers."""
    return f"{call.target.name} = {call.op}({', '.join(map(_argument, call.args))})"


def _argument(expr: Expr) -> str:
    match expr:
        case Ref(name):
            return name
        case Const(int() | float() as value):
            return repr(value)
        case Call("neg", (Const(int() | float() as value),)):
            return repr(-value)
    message = "an operand of a matrix op beside its matrix is a hyperparameter or a number"
    raise RuleError(expr.place, message, "declare a hyper for the value that is computed here")
