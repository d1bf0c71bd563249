"""What a spec file imports. A spec is read, not run: these names only have to exist.

See docs/spec-language.md for the whole grammar on one page.
"""

from optgen.spec.declare import Spec, choice, fixed, flag, hyper, optimizer, state
from optgen.spec.functions import (
    abs,
    clamp,
    exp,
    fresh,
    lerp,
    log,
    maximum,
    minimum,
    require,
    sign,
    sqrt,
    where,
)

__all__ = [
    "Spec",
    "abs",
    "choice",
    "clamp",
    "exp",
    "fixed",
    "flag",
    "fresh",
    "hyper",
    "lerp",
    "log",
    "maximum",
    "minimum",
    "optimizer",
    "require",
    "sign",
    "sqrt",
    "state",
    "where",
]
