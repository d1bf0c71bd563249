"""Define the names that a spec file imports. They do nothing, because a spec is never run.

See docs/spec-language.md for the whole grammar on one page. The functions are the words of
`optgen/ir/ops.py`; `__init__.pyi` shows them to editors and type checkers.
"""

from optgen.ir.ops import WORDS
from optgen.spec.declare import (
    Spec,
    choice,
    elementwise,
    fixed,
    flag,
    given,
    hyper,
    modifier,
    optimizer,
    require,
    state,
    word_function,
)

__all__ = [
    "Spec",
    "choice",
    "elementwise",
    "fixed",
    "flag",
    "given",
    "hyper",
    "modifier",
    "optimizer",
    "require",
    "state",
]
__all__ += WORDS
globals().update({name: word_function(word) for name, word in WORDS.items()})
