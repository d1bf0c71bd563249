"""Choose LaTeX letters for names: Greek where papers write Greek, and unique per rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from optgen.ir.algorithm import Algorithm
from optgen.ir.nodes import Assign, Call, Const, Program, Ref, assigns

_GREEK = re.compile(
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|"
    "upsilon|phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega|ell"
)
_TORCH_LETTERS = {
    "p": "theta",
    "lr": "gamma",
    "eps": "epsilon",
    "weight_decay": "lambda",
    "lambd": "lambda",
    "momentum": "mu",
    "dampening": "tau",
    "momentum_decay": "psi",
    "lr_decay": "eta",
    "beta2_decay": "tau",
    "ns_coefficients": "a",
    "ns_steps": "k",
}
"""Names of letters that torch's documentation uses for the parameter and for hyperparameters."""

_ACCENTS = ("hat", "bar", "tilde")
_SUPERSCRIPTS = {
    "max": r"\max",
    "min": r"\min",
    "minus": "-",
    "plus": "+",
    "prev": r"\text{prev}",
}
_SUBSCRIPTS = {"inf": r"\infty"}


@dataclass(frozen=True)
class Letter:
    """Symbol with its superscript and subscript.

    With `ahead` it denotes the next step's value. With `timed` its name includes the step, as in
    `beta_t`.
    """

    base: str
    above: str = ""
    below: str = ""
    ahead: bool = False
    timed: bool = False

    def at(self, time: str = "") -> str:
        """Return the symbol at a time: "t", "t-1", or "" if it does not depend on time."""
        time = time or ("t" if self.timed else "")
        time = time + "+1" if self.ahead else time
        subscript = ",".join(part for part in (self.below, time) if part)
        superscript = f"^{_braced(self.above)}" if self.above else ""
        return self.base + superscript + (f"_{_braced(subscript)}" if subscript else "")


def _braced(text: str) -> str:
    return text if len(text) == 1 or text in _SUBSCRIPTS.values() else f"{{{text}}}"


def read_letter(name: str) -> Letter:
    """Return the letter of a name such as beta1, m_hat, v_max, mu_next or g_full.

    Other words and numbers are subscripts, because a superscript could be read as a power. A name
    that does not begin with a letter's name, such as `update`, becomes upright text.
    """
    if name[:-2] and name.endswith("_t"):
        return replace(read_letter(name[:-2]), timed=True)
    first, *rest = name.split("_")
    head = first.rstrip("0123456789")
    greek = _GREEK.fullmatch(head)
    if not greek and len(head) != 1:
        return Letter(rf"\text{{{name.replace('_', ' ')}}}")
    letter = Letter(f"\\{head}" if greek else head)
    above: list[str] = []
    below = [first[len(head) :]] if first != head else []
    for part in rest:
        if part in _ACCENTS:
            letter = replace(letter, base=rf"\{part}{{{letter.base}}}")
        elif part == "next":
            letter = replace(letter, ahead=True)
        elif part in _SUPERSCRIPTS:
            above.append(_SUPERSCRIPTS[part])
        elif part:
            below.append(_subscript(part))
    return replace(letter, above=r"\,".join(above), below=",".join(below))


def _subscript(word: str) -> str:
    return word if word.isdigit() else _SUBSCRIPTS.get(word, rf"\text{{{word}}}")


class Symbols:
    """Letters of all names of an algorithm. Two names have different letters where possible."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self._unpacked = {
            (tuple_ref.name, index): stmt.target.name
            for stmt in assigns(algorithm.rule)
            for tuple_ref, index in _unpacked_items(stmt)
        }
        self._letters: dict[str, Letter] = {}
        inputs = [algorithm.grad, *self._states()]
        inputs += [algorithm.step] if algorithm.step else []
        for name in [*inputs, *_assigned_names(algorithm.rule), algorithm.param, *self._hypers()]:
            self._choose_letter(name)

    def _hypers(self) -> Iterator[str]:
        return (h.name for h in self.algorithm.hypers if h.type == "number")

    def _choose_letter(self, name: str) -> None:
        """Choose the letter of a name."""
        if name in self._letters:
            return
        candidates = list(self._candidates(name))
        unique = (
            letter
            for letter in candidates
            if not any(self._looks_like(other, name, letter) for other in self._letters)
        )
        self._letters[name] = next(unique, candidates[-1])

    def _looks_like(self, other: str, name: str, letter: Letter) -> bool:
        """Tell whether a name with this letter would look like another name.

        Hyperparameters have no time index.
        """
        other_letter = self._letters[other]
        if other_letter.ahead:
            return False
        both_have_time = not self.algorithm.hyper(name) and not self.algorithm.hyper(other)
        return letter.at() == other_letter.at() or (
            both_have_time and letter.at("t") == other_letter.at("t")
        )

    def _candidates(self, name: str) -> Iterator[Letter]:
        """Yield the letters that a name may get, best first."""
        base = name.removesuffix("_next")
        if base != name and base in [self.algorithm.param, *self._states()]:
            yield replace(next(self._candidates(base)), above=r"\text{next}")
        elif self._is_conventional(name):
            yield read_letter(_TORCH_LETTERS[name])
        elif name.endswith("_t") and self._is_conventional(name[:-2]):
            yield read_letter(f"{_TORCH_LETTERS[name[:-2]]}_t")
        elif name in self._unpacked.values() and name.rstrip("0123456789") in _TORCH_LETTERS:
            head = name.rstrip("0123456789")
            yield read_letter(_TORCH_LETTERS[head] + name[len(head) :])
        yield read_letter(name)
        yield Letter(rf"\text{{{name.replace('_', ' ')}}}")

    def _states(self) -> Iterator[str]:
        return (state.symbol for state in self.algorithm.states)

    def _is_conventional(self, name: str) -> bool:
        """Tell whether a name is p or a hyperparameter for which torch's docs have a letter."""
        declared = name == self.algorithm.param or self.algorithm.hyper(name) is not None
        return declared and name in _TORCH_LETTERS

    def at(self, name: str, time: str = "") -> str:
        """Return a name's letter at a time: "t", "t-1", or "" for no time."""
        hyper = self.algorithm.hyper(name)
        if hyper is not None and hyper.type in ("flag", "choice"):
            escaped = name.replace("_", r"\_")
            return rf"\textit{{{escaped}}}"
        return self._letters[name].at(time)

    def item(self, name: str, index: int) -> str:
        """Return the letter of a tuple's item: that of its unpacked name, else the tuple's."""
        if (name, index) in self._unpacked:
            return self.at(self._unpacked[name, index])
        singular = name[:-1] if _GREEK.fullmatch(name[:-1]) else name
        return read_letter(f"{_TORCH_LETTERS.get(name, singular)}{index + 1}").at()

    def hyper(self, name: str) -> str:
        """Return a hyperparameter's letter; for a tuple, its items' letters in parentheses."""
        hyper = self.algorithm.hyper(name)
        if hyper is not None and hyper.type == "tuple":
            unpacked = any((name, i) in self._unpacked for i in range(hyper.size))
            if not unpacked and not _GREEK.fullmatch(name[:-1]) and name not in _TORCH_LETTERS:
                return read_letter(name).at()
            return f"({', '.join(self.item(name, i) for i in range(hyper.size))})"
        return self.at(name)


def is_unpacking(stmt: Assign) -> bool:
    """Tell whether a statement only names one item of a tuple."""
    return next(_unpacked_items(stmt), None) is not None


def _unpacked_items(stmt: Assign) -> Iterator[tuple[Ref, int]]:
    """Yield the tuple and the index of the item if a statement assigns an item to a name."""
    match stmt.value:
        case Call("item", (Ref() as tuple_ref, Const(int() as index))):
            yield tuple_ref, index


def _assigned_names(rule: Program) -> Iterator[str]:
    return (stmt.target.name for stmt in assigns(rule))
