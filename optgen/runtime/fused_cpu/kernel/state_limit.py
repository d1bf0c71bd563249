"""Say whether a rule has too many states for a kernel: a table row has room for 14."""

import re

from optgen.runtime.reader.streams import shaped_states_and_scalar_keys
from optgen.runtime.rule import Rule

# A 64-bit integer has four bits for each of 16 streams: parameter, gradient and 14 states.
_MAX_STATES = 14
# A byte has a bit for each state that the rule calls `fresh` on.
_MAX_FRESH = 8
_LOCALS = re.compile(r'optgen_locals = "(.*)"')


def why_too_many_states(rule: Rule, source: str = "") -> str:
    """Return a short reason why a rule does not fit into a row of the table; "" if it fits.

    Operands and results of matrix ops are streams too; `source`, the rule's C++, lists them.
    """
    if len(rule.fresh) > _MAX_FRESH:
        return f"the rule calls `fresh` on more than {_MAX_FRESH} states"
    shaped_states, scalar_keys = shaped_states_and_scalar_keys(rule)
    state_count = len(shaped_states) + len(scalar_keys)
    if state_count > _MAX_STATES:
        return f"more than {_MAX_STATES} states"
    match = _LOCALS.search(source)
    matrix_count = len(match[1].split()) if match else 0
    if state_count + matrix_count > _MAX_STATES:
        return f"more than {_MAX_STATES} states and matrices"
    return ""
