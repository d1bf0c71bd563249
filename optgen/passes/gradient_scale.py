"""Find rules that scale all gradients together, and then ignore the size of each."""

from __future__ import annotations

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Call, assigns, expressions, refs, walk
from optgen.ir.ops import WIDE_OPS


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
