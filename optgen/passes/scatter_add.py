"""Find rules that only scatter-add multiples of a sparse gradient into their parameter.

Several values of a sparse gradient may belong to one row. Usually they are summed before the rule
reads them. A scatter-add rule can skip that sum and add each value to its row directly. In such a
rule the new parameter is the old one plus terms that are linear in the gradient. The factors of
these terms are the same for all elements, and no state has a value per element.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Call, Const, Expr, Program, Ref, children
from optgen.passes.maximize import add_maximize


class Form(Enum):
    """Form of a value as a function of the parameter and its gradient."""

    NUMBER = "one number for all elements"
    GRADIENT = "a multiple of the gradient"
    PARAM = "the parameter and a multiple of the gradient"
    OTHER = "anything else"


Forms = Mapping[str, Form]


def is_scatter_add(algorithm: Algorithm) -> bool:
    """Tell whether a rule only adds multiples of a sparse gradient to its parameter."""
    has_row_states = any(state.rows for state in algorithm.tensor_states())
    if algorithm.gradient == "dense" or not algorithm.elementwise or has_row_states:
        return False
    flags = {state.when for state in algorithm.states if not state.rows}
    if None in flags:  # a state that always exists needs dense gradients
        return False
    # These are false whenever the rule reads a sparse gradient: while one of them is true, the
    # runtime refuses sparse gradients or makes them dense.
    false_flags = {flag for flag in flags if flag} | {
        h.name for h in algorithm.hypers if not h.rows
    }
    forms = {state.symbol: Form.OTHER for state in algorithm.tensor_states()}
    forms |= {algorithm.param: Form.PARAM, algorithm.grad: Form.GRADIENT}
    forms_after = _forms_after(add_maximize(algorithm).rule, forms, false_flags)
    return forms_after[algorithm.param] is Form.PARAM


def _forms_after(program: Program, forms: Forms, false_flags: set[str]) -> Forms:
    """Return the forms of all names after a program in which `false_flags` are false."""
    current = dict(forms)
    for stmt in program:
        if isinstance(stmt, Assign):
            current[stmt.target.name] = _form(stmt.value, current)
        elif _flag(stmt.condition) in false_flags:
            current = dict(_forms_after(stmt.orelse, current, false_flags))
        else:
            then, orelse = (
                _forms_after(arm, current, false_flags) for arm in (stmt.then, stmt.orelse)
            )
            for name in {*then, *orelse}:
                arm_forms = {arm.get(name, Form.NUMBER) for arm in (then, orelse)}
                current[name] = arm_forms.pop() if len(arm_forms) == 1 else Form.OTHER
    return current


def _flag(condition: Expr) -> str:
    """Return the name that a condition consists of, or "" for any other condition."""
    match condition:
        case Ref(name) | Call("truth", (Ref(name),)):
            return name
    return ""


def _form(expr: Expr, forms: Forms) -> Form:
    """Return the form of a value."""
    match expr:
        case Ref(name):
            return forms.get(name, Form.NUMBER)
        case Const():
            return Form.NUMBER
    operand_forms = [_form(child, forms) for child in children(expr)]
    if all(form is Form.NUMBER for form in operand_forms):
        return Form.NUMBER
    match expr, operand_forms:
        case Call("neg"), [Form.GRADIENT]:
            return Form.GRADIENT
        case Call("*"), [Form.NUMBER, Form.GRADIENT] | [Form.GRADIENT, Form.NUMBER]:
            return Form.GRADIENT
        case Call("/"), [Form.GRADIENT, Form.NUMBER]:
            return Form.GRADIENT
        case Call("+" | "-"), [Form.GRADIENT, Form.GRADIENT]:
            return Form.GRADIENT
        case Call("+" | "-"), [Form.PARAM, Form.GRADIENT]:
            return Form.PARAM
        case Call("+"), [Form.GRADIENT, Form.PARAM]:
            return Form.PARAM
    return Form.OTHER
