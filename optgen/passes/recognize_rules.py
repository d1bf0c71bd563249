"""Recognize rules that a step may treat in a special way.

There are four kinds: rules that only scatter-add sparse gradients, rules that skip steps whose
gradients are not finite, rules that scale all gradients together and then ignore their sizes, and
rules whose kernels read codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum

from optgen.ir.algorithm import Algorithm
from optgen.ir.execution import why_reductions_not_in_triton, widens
from optgen.ir.nodes import (
    Assign,
    Call,
    Const,
    Expr,
    Program,
    Ref,
    assigns,
    children,
    expressions,
    refs,
    walk,
)
from optgen.ir.ops import WIDE_OPS
from optgen.passes.plan_rule import plans, why_uncut
from optgen.passes.prepare_for_kernels import has_flat_sweeps, load_device_scalars
from optgen.passes.prepare_rule import add_maximize


class Form(Enum):
    """Form of a value as a function of the parameter and its gradient."""

    NUMBER = "one number for all elements"
    GRADIENT = "a multiple of the gradient"
    PARAM = "the parameter and a multiple of the gradient"
    OTHER = "anything else"


Forms = Mapping[str, Form]


def is_scatter_add(algorithm: Algorithm) -> bool:
    """Tell whether a rule only adds multiples of a sparse gradient to its parameter.

    Several values of a sparse gradient may belong to one row. Usually they are summed before the
    rule reads them. A scatter-add rule can skip that sum and add each value to its row directly. In
    such a rule the new parameter is the old one plus terms that are linear in the gradient. The
    factors of these terms are the same for all elements, and no state has a value per element.
    """
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


def skip_count(algorithm: Algorithm) -> str:
    """Return the key of the state that counts skipped steps; "" unless all of this holds.

    A rule that skips steps whose gradients are not finite checks all gradients itself. So a
    gradient scaler need not check them.

    * The rule computes `finite = 0 * max_abs(g, over="all") == 0` from the unchanged gradient.
    * The rule assigns `where(finite, s, s + 1)` to one scalar state `s`, outside of branches.
    * Everything else that the rule assigns to the parameter `p` or to a state is
      `where(finite, x, p)`, for any `x`.
    * No state has codes, because they change even if the same values are stored again.
    * The rule is cut into sweeps, because decompositions of matrices with NaN raise errors.
    """
    if algorithm.step is None or algorithm.counter != "tensor" or algorithm.has_codes:
        return ""
    if why_uncut(algorithm):
        return ""
    keys = (_counter_key(algorithm, finite) for finite in _finite_flags(algorithm))
    return next(filter(None, keys), "")


def _finite_flags(algorithm: Algorithm) -> Iterator[Ref]:
    """Yield the names that are true if and only if all gradients are finite."""
    assign_counts = Counter(each.target.name for each in assigns(algorithm.rule))
    grad = Ref(algorithm.grad)
    largest = Call("all_max", (Call("max_abs", (grad,)),))
    maxima: list[Expr] = []
    for statement in algorithm.rule:
        if grad in (each.target for each in assigns((statement,))):
            return
        if isinstance(statement, Assign) and assign_counts[statement.target.name] == 1:
            if statement.value == largest:
                maxima.append(statement.target)
            elif any(statement.value == _finiteness_test(each) for each in maxima):
                yield statement.target


def _finiteness_test(number: Expr) -> Expr:
    return Call("==", (Call("*", (Const(0), number)), Const(0)))


def _counter_key(algorithm: Algorithm, finite: Ref) -> str:
    """Return the key of the state that counts steps in which `finite` is false.

    Return "" if there is no such state, or if such a step changes anything else.
    """
    changes = [each for each in assigns(algorithm.rule) if each.target.name in algorithm.stored]
    changes = [each for each in changes if not _is_guarded(each, finite)]
    if len(changes) != 1 or changes[0] not in algorithm.rule:
        return ""
    counter = changes[0].target
    state = algorithm.state(counter.name)
    counted = Call("where", (finite, counter, Call("+", (counter, Const(1)))))
    if state is None or state.shape != "scalar" or state.of_group:
        return ""
    return state.key if changes[0].value == counted else ""


def _is_guarded(change: Assign, finite: Ref) -> bool:
    """Tell whether the target keeps its value if `finite` is false."""
    match change.value:
        case Call("where", (condition, _, old)):
            return condition == finite and old == change.target
    return False


def scale_is_ignored(algorithm: Algorithm) -> bool:
    """Tell whether a rule clips gradients by a norm of several parameters, and orthogonalizes.

    `orthogonalize` takes the size out of its operand. So the clip changes only the weight of this
    gradient in the momentum.
    """
    every_expression = list(expressions(algorithm.rule))
    ops = {e.op for each in every_expression for e in walk(each) if isinstance(e, Call)}
    if "orthogonalize" not in ops:
        return False
    of_several = set[str]()  # names computed from reductions over several parameters
    for statement in assigns(algorithm.rule):
        value, target = statement.value, statement.target.name
        is_wide = isinstance(value, Call) and value.op in WIDE_OPS
        if is_wide or any(ref.name in of_several for ref in refs(value)):
            if target == algorithm.grad:
                return True
            of_several.add(target)
    return False


def why_not_in_triton(algorithm: Algorithm) -> str:
    """Say in a few words why a rule is not lowered to Triton; "" if it is."""
    return why_uncut(algorithm) or why_reductions_not_in_triton(algorithm)


def widens_in_python(algorithm: Algorithm) -> bool:
    """Tell whether the for-loop and foreach compute in float32 or wider, as the kernels always do.

    In float16 an `eps` of 1e-8 is 0, and the square of a small gradient is, too. Only rules with
    `compute_dtype="param"` compute in 16 bits, as torch's classes do, and functions of lists, whose
    caller chooses. Rules on whole matrices widen each tensor where they read it.
    """
    in_param_dtype = algorithm.compute_dtype == "param" or algorithm.lists
    return widens(algorithm) or not (in_param_dtype or why_uncut(algorithm))


def codes_readers(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the fused lowerings that read the codes of an algorithm's quantized states.

    Kernels decode whole blocks of flat tensors. So no sweep may go over rows, columns or matrices.
    """
    if not algorithm.has_codes or why_uncut(algorithm):
        return ()
    if not all(map(has_flat_sweeps, plans(load_device_scalars(algorithm)))):
        return ()
    return ("fused_cpu",) if why_not_in_triton(algorithm) else ("fused_cpu", "fused_triton")
