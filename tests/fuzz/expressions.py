"""Draw random expressions from the names that are known at one point of a rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from fuzz import grammar


@dataclass
class Known:
    """The names that an expression may read at one point of a rule.

    A name's nature, the list that it is in, says what kind of value the name has.
    """

    numbers: list[str] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)
    reduced_numbers: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    lefts: list[str] = field(default_factory=list)
    rights: list[str] = field(default_factory=list)
    thin_rows: list[str] = field(default_factory=list)
    thin_cols: list[str] = field(default_factory=list)
    wide_rows: list[str] = field(default_factory=list)
    wide_cols: list[str] = field(default_factory=list)
    ranks: list[str] = field(default_factory=list)

    THIN = ("thin_rows", "thin_cols", "wide_rows", "wide_cols", "ranks")
    NATURES = (
        *("numbers", "tensors", "reduced_numbers", "rows", "columns", "conditions", "masks"),
        *("lefts", "rights", *THIN),
    )

    def copy(self) -> Known:
        """Return an independent copy."""
        return Known(*(list(getattr(self, nature)) for nature in self.NATURES))

    def intersection(self, other: Known) -> Known:
        """Return the names that are known in both."""
        both = [
            [n for n in getattr(self, nature) if n in getattr(other, nature)]
            for nature in self.NATURES
        ]
        return Known(*both)


@dataclass
class ExpressionGenerator:
    """A generator of expressions; a depth bounds how many forms are nested."""

    rng: Random
    known: Known
    has_odd_forms: bool = False  # whether many forms and constants are unusual
    has_reductions: bool = False  # whether the rule may reduce parameters to numbers
    has_axes: bool = False  # whether rows and columns exist at this point
    has_matrices: bool = False  # whether the rule works on whole matrices
    has_thin_matrices: bool = False  # whether an axis of some matrices has length `rank`
    reads_step_count: bool = True
    conditions: Sequence[str] = ()  # conditions on names of the signature
    max_depth: int = 9  # how many forms may be nested
    has_random_numbers: bool = False
    has_roundings: bool = False  # whether the rule may round to the parameter's dtype

    def pick(self, *options: str) -> str:
        """Return one of these options."""
        return self.rng.choice(options)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < probability

    def fill(self, form: str, depth: int) -> str:
        """Return a form with an expression in place of `$` and its letter."""
        depth = min(depth, self.max_depth)
        drawn: dict[str, str] = {}
        for letter in re.findall(r"\$(\w)", form):
            if letter not in drawn:
                drawn[letter] = self._draw_by_letter[letter](self, depth - 1)
        return re.sub(r"\$(\w)", lambda match: drawn[match[1]], form)

    def constant(self, depth: int = 0) -> str:
        is_odd = self.chance(0.3 if self.has_odd_forms else 0.05)
        return f"({self.pick(*(grammar.ODD_CONSTANTS if is_odd else grammar.TIDY_CONSTANTS))})"

    def exponent(self, depth: int = 0) -> str:
        return f"({self.pick(*grammar.EXPONENTS)})"

    def extreme_exponent(self, depth: int = 0) -> str:
        return f"({self.pick(*grammar.EXTREME_EXPONENTS)})"

    def whole_exponent(self, depth: int = 0) -> str:
        return self.pick(*grammar.WHOLE_EXPONENTS)

    def number(self, depth: int = 2) -> str:
        """Draw a number that is known before a step reads a tensor."""
        if depth <= 0 or self.chance(0.3):
            return self.pick(*self.known.numbers) if self.chance(0.8) else self.constant()
        is_odd = self.chance(0.5 if self.has_odd_forms else 0.2)
        return self.fill(self.pick(*(grammar.ODD_NUMBERS if is_odd else grammar.NUMBERS)), depth)

    def tensor(self, depth: int = 3) -> str:
        if depth <= 0 or self.chance(0.2):
            return self.pick(*self.known.tensors)
        if self.has_random_numbers and self.chance(0.2):
            return self.fill(self.pick(*grammar.RANDOM), depth)
        if self.has_matrices and self.has_axes and self.chance(0.3):
            reads_thin = self.has_thin_matrices and self.chance(0.6)
            forms = grammar.TENSORS_WITH_THIN if reads_thin else grammar.TENSORS_WITH_SQUARES
            return self.fill(self.pick(*forms), depth)
        if self.has_reductions and self.chance(0.2):
            forms = (
                grammar.TENSORS_WITH_AXES
                if self._chooses_axes()
                else grammar.TENSORS_WITH_REDUCED_NUMBERS
            )
            return self.fill(self.pick(*forms), depth)
        if self.chance(0.02 if self.has_odd_forms else 0.0):
            return self.fill(self.pick(*grammar.EXTREME_TENSORS), depth)
        if self.has_roundings and self.chance(0.04 if self.has_odd_forms else 0.01):
            return self.fill(self.pick(*grammar.ROUNDINGS), depth)
        is_odd = self.chance(0.5 if self.has_odd_forms else 0.2)
        return self.fill(self.pick(*(grammar.ODD_TENSORS if is_odd else grammar.TENSORS)), depth)

    def _chooses_axes(self) -> bool:
        return self.has_axes and self.chance(0.6)

    def reduced_number(self, depth: int = 1) -> str:
        """Draw a number that a reduction makes."""
        if self.known.reduced_numbers and self.chance(0.35 if depth > 0 else 0.8):
            return self.pick(*self.known.reduced_numbers)
        forms = (
            grammar.REDUCED_NUMBERS_OF_AXES
            if self.has_axes and self.chance(0.25)
            else grammar.REDUCED_NUMBERS
        )
        return self.fill(self.pick(*forms) if depth > 0 else "mean($x)", depth)

    def reduction_operand(self, depth: int = 1) -> str:
        """Draw the operand of a reduction, mostly without another reduction in it."""
        before = self.has_reductions
        self.has_reductions = before and self.chance(0.15)
        operand = self.tensor(min(depth, 1))
        self.has_reductions = before
        return operand

    def row(self, depth: int = 1) -> str:
        return self._row_or_column(self.known.rows, depth, lambda form: form)

    def column(self, depth: int = 1) -> str:
        return self._row_or_column(self.known.columns, depth, swap_rows_and_columns)

    def _row_or_column(self, names: list[str], depth: int, transform: Callable[[str], str]) -> str:
        if names and self.chance(0.35 if depth > 0 else 0.8):
            return self.pick(*names)
        forms = grammar.ROWS if depth > 0 else grammar.ROWS[:3]
        return self.fill(transform(self.pick(*forms)), depth)

    def left(self, depth: int = 1) -> str:
        """Draw a matrix of rows by rows."""
        return self._square(self.known.lefts, grammar.LEFTS, depth)

    def right(self, depth: int = 1) -> str:
        """Draw a matrix of columns by columns."""
        return self._square(self.known.rights, grammar.RIGHTS, depth)

    def _square(self, names: list[str], forms: Sequence[str], depth: int) -> str:
        if names and self.chance(0.35 if depth > 0 else 0.8):
            return self.pick(*names)
        return self.fill(self.pick(*forms) if depth > 0 else forms[0], depth)

    def thin_rows(self, depth: int = 1) -> str:
        """Draw a matrix of rows by `rank`."""
        return self._of_rank(self.known.thin_rows, depth, grammar.THIN_ROWS)

    def thin_cols(self, depth: int = 1) -> str:
        """Draw a matrix of columns by `rank`."""
        return self._of_rank(self.known.thin_cols, depth, THIN_COLS)

    def wide_rows(self, depth: int = 1) -> str:
        """Draw a matrix of `rank` by rows."""
        return self._of_rank(self.known.wide_rows, depth, grammar.WIDE_ROWS)

    def wide_cols(self, depth: int = 1) -> str:
        """Draw a matrix of `rank` by columns."""
        return self._of_rank(self.known.wide_cols, depth, WIDE_COLS)

    def rank(self, depth: int = 1) -> str:
        """Draw a matrix of `rank` by `rank`."""
        return self._of_rank(self.known.ranks, depth, grammar.RANKS)

    def _of_rank(self, names: list[str], depth: int, forms: Sequence[str]) -> str:
        if names and (depth <= 0 or self.chance(0.5)):
            return self.pick(*names)
        forms = [form for form in forms if self.reads_step_count or "gaussian" not in form]
        return self.fill(self.pick(*forms) if depth > 0 else forms[0], depth)

    def condition(self, depth: int = 1) -> str:
        """Draw a condition that is known before a step reads a tensor."""
        if depth > 0 and self.chance(0.35):
            return self.fill(self.pick(*grammar.CONDITIONS), depth)
        if self.chance(0.3):
            return f"({self.fill(self.pick(*grammar.COMPARISONS), min(depth, 1))})"
        return f"({self.pick(*self.conditions, *self.known.conditions)})"

    def mask(self, depth: int = 1) -> str:
        """Draw a condition for each element: a comparison of tensors, or several comparisons."""
        if depth > 0 and self.chance(0.4):
            return self.fill(self.pick(*grammar.JOINED_MASKS), depth)
        if self.known.masks and self.chance(0.2):
            return self.pick(*self.known.masks)
        reads_reduced_number = self.has_reductions and self.chance(0.25)
        return self.fill(
            self.pick(
                *(grammar.MASKS_WITH_REDUCED_NUMBERS if reads_reduced_number else grammar.MASKS)
            ),
            min(depth, 1),
        )

    _draw_by_letter = {
        **dict.fromkeys("ab", tensor),
        **dict.fromkeys("nk", number),
        **dict.fromkeys("qp", condition),
        **dict.fromkeys("mo", mask),
        "l": reduced_number,
        "r": row,
        "c": column,
        "s": left,
        "z": right,
        "h": thin_rows,
        "j": thin_cols,
        "d": wide_rows,
        "i": wide_cols,
        "y": rank,
        "x": reduction_operand,
        "u": constant,
        "e": exponent,
        "v": extreme_exponent,
        "w": whole_exponent,
    }


def swap_rows_and_columns(form: str) -> str:
    """Return a form with rows and columns exchanged."""
    pairs = {"row": "col", "col": "row", "cols": "rows", "rows": "cols", "$r": "$c", "$c": "$r"}
    return re.sub(
        r"\brow(?=_)|\bcol(?=_)|\bcols\b|\brows\b|\$r|\$c", lambda match: pairs[match[0]], form
    )


def thin_form_of_columns(form: str) -> str:
    """Return a form of a matrix (rows, rank) as a form of a matrix (cols, rank)."""
    letters = {"h": "j", "j": "h", "d": "i", "i": "d", "s": "z", "z": "s"}
    letters = {letter: f"${other}" for letter, other in letters.items()}
    letters |= {"a": "transpose($a)", "r": "transpose($c)"}
    return re.sub(r"\$(\w)", lambda match: letters.get(match[1], match[0]), form)


THIN_COLS = ("(transpose($a) @ $h)", *map(thin_form_of_columns, grammar.THIN_ROWS))
WIDE_COLS = tuple(map(thin_form_of_columns, grammar.WIDE_ROWS))
