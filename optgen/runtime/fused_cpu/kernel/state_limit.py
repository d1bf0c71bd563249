"""Say whether a rule has too many states for a kernel: a table row has room for 14."""

import re

from optgen.runtime.fused_cpu.kernel.signature import shaped_and_scalar
from optgen.runtime.rule import Rule

# A 64-bit integer has four bits for each of 16 streams: parameter, gradient and 14 states.
_STATES = 14
# A byte has a bit for each state that the rule calls `fresh` on.
_FRESH = 8
_LOCALS = re.compile(r'optgen_locals = "(.*)"')


def excess(rule: Rule, source: str = "") -> str:
    """Return a short reason why a rule does not fit into a row of the table; "" if it fits.

    Operands and results of matrix ops are streams too; `source`, the rule's C++, names them.
    """
    if len(rule.fresh) > _FRESH:
        return f"the rule calls `fresh` on more than {_FRESH} states"
    shaped, scalar = shaped_and_scalar(rule)
    states = len(shaped) + len(scalar)
    if states > _STATES:
        return f"more than {_STATES} states"
    named = _LOCALS.search(source)
    matrices = len(named[1].split()) if named else 0
    return f"more than {_STATES} states and matrices" if states + matrices > _STATES else ""
