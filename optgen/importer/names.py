"""The names of a rule: which ones an import makes itself, and what the author's are called then."""

from __future__ import annotations

import keyword
import re
from collections.abc import Set

from optgen.importer.places import line_that_sets
from optgen.importer.recording import NotImportedError
from optgen.ir.ops import OPS
from optgen.spec.reserved_names import why_taken

LETTERS_OF_STEP = {"p": "w", "g": "grad", "t": "step"}
"""The names of what training hands over. Where an argument has one of them, the other one."""
GENERATED = re.compile(
    r"total(_norm|_\d+)?|is_taken|x_of_\w+|\w+_(then|else|before|argument|state)"
)
"""The names that an import may make. What the author calls so has another one in the rule."""


def kept_word(name: str) -> str:
    """Return the word for an argument as the constructor got it, where a group's is read too."""
    return f"kept_{name}"


def first_argument(name: str) -> str:
    """Return the argument of the imported class that sets such a number."""
    return f"first_{name}"


def is_generated(name: str) -> bool:
    """Tell if an import may make a name itself, whatever the arguments are called."""
    return bool(GENERATED.fullmatch(name))


def is_taken(name: str, arguments: Set[str]) -> bool:
    """Tell if a name is a word of the language, or one that the import may make.

    `arguments`: the names of the class's arguments. The import may make others of them.
    """
    made = {made for each in arguments for made in (kept_word(each), first_argument(each))}
    return bool(why_taken(name)) or name in OPS or name in made or is_generated(name)


def state_words(
    keys: Set[str], arguments: Set[str], words: Set[str], cls: type, known: Set[str] = frozenset()
) -> dict[str, str]:
    """Return the names of states in the rule. A state is called as its key where that can be.

    A name that is taken gives way to its initial, if that is a letter and no other name is it.

    Args:
        keys: the states' keys.
        arguments: the names of the class's arguments.
        words: the arguments' names in the rule.
        cls: the class, for a refusal's line.
        known: the names that other states have. With some, no initial is used.

    Raises:
        NotImportedError: a key is no name.
    """
    for key in sorted(keys):
        if not key.isidentifier() or keyword.iskeyword(key):
            raise NotImportedError(
                f"a state with the key {key!r}, which is no name",
                line_that_sets(cls, key),
                hint="call it by a word, as in `self.state[p]['mean']`",
            )
    others = {*words, *LETTERS_OF_STEP, *known}
    taken = {key for key in keys if key in LETTERS_OF_STEP or is_taken(key, arguments)}
    initials = [key[0] for key in taken]
    made: dict[str, str] = {}
    for key in keys:
        initial = key[0]
        is_free = initials.count(initial) == 1 and initial not in {*others, *keys}
        if key in taken and is_free and initial.isalpha() and not known:
            made[key] = initial
        else:
            made[key] = f"{key}_state" if key in taken | others else key
    return made
