"""Draw random branches: nested, with elifs, and around states that exist only under a condition."""

from __future__ import annotations

import functools

from fuzz.expressions import Known
from fuzz.statements import StatementGenerator


class RuleGenerator(StatementGenerator):
    """A generator of whole rules: statements, and branches with statements in them.

    `level` is a statement's indentation, and `depth` bounds how many branches are nested below it.
    """

    def compound_statement(self, kind: str, level: int, depth: int) -> list[str]:
        """Return a compound statement."""
        if kind == "branch":
            return self.branch(level, depth)
        if kind == "conditional":
            return self.conditional_branch(level, depth)
        return self.factored_branch(level, depth)

    def block(self, level: int, depth: int, *new_conditions: str) -> list[str]:
        """Return the statements of one arm; inside it, the new conditions hold."""
        count_before = len(self.known_conditions)
        self.known_conditions += new_conditions
        for symbol, nature, condition in self.states:
            if condition and condition in new_conditions:
                names = getattr(self.known, nature)
                names += [symbol] * 2
        if "opt is not None" in new_conditions:
            self.known.numbers.append("opt")
        count = int(self.draw.pick("1", "1", "2", "3"))
        lines = [s for _ in range(count) for s in self.statement(level, depth - 1)]
        del self.known_conditions[count_before:]
        return lines

    def branch(self, level: int, depth: int) -> list[str]:
        """Return an if, perhaps with elifs and an else."""
        indent = "    " * level
        known_before = self.draw.known
        known_after_arms, lines = [], []
        arms = int(self.draw.pick("1", "1", "1", "2", "2", "3"))
        for arm in range(arms):
            condition = self.draw.condition(2)
            if self.draw.chance(0.1):
                condition = "opt is not None"
            self.draw.known = known_before.copy()
            word = "elif" if arm else "if"
            lines += [f"{indent}{word} {condition}:"]
            lines += self.block(level + 1, depth, condition)
            known_after_arms.append(self.draw.known)
        self.draw.known = known_before.copy()
        if self.draw.chance(0.5):
            lines += [f"{indent}else:", *self.block(level + 1, depth)]
        known_after_arms.append(self.draw.known)
        self.draw.known = functools.reduce(Known.intersection, known_after_arms)
        self.forget_states()
        return lines

    def forget_states(self) -> None:
        """Forget the states that may not exist after the branch."""
        for symbol, nature, condition in self.states:
            if not self.is_known_to_hold(condition):
                names = getattr(self.known, nature)
                names[:] = [n for n in names if n != symbol]

    def conditional_branch(self, level: int, depth: int) -> list[str]:
        """Return a branch on the condition under which some state exists."""
        symbol, nature, condition = self.draw.rng.choice([s for s in self.states if s[2]])
        if condition == "factored(p)":
            return self.factored_branch(level, depth)
        if condition in self.known_conditions:
            return ["    " * level + self.mix_into(symbol, nature)]
        known_before = self.draw.known
        self.draw.known = known_before.copy()
        lines = [f"{'    ' * level}if {condition}:"]
        getattr(self.known, nature).append(symbol)
        self.known_conditions.append(condition)
        lines += ["    " * (level + 1) + self.mix_into(symbol, nature)]
        self.known_conditions.pop()
        lines += self.block(level + 1, 1, condition)
        self.draw.known = self.draw.known.intersection(known_before)
        self.forget_states()
        return lines

    def factored_branch(self, level: int, depth: int) -> list[str]:
        """Return a branch for parameters with rows and columns."""
        if self.draw.has_axes:
            return ["    " * level + self.assign_local("tensors")]
        known_before = self.draw.known
        indent = "    " * level
        self.draw.known, self.draw.has_axes = known_before.copy(), True
        lines = [f"{indent}if factored(p):"]
        if self.draw.chance(0.3):
            lines += [f"{indent}    g = g - {self.draw.row()}"]
        else:
            lines += self.block(level + 1, depth, "factored(p)")
        if self.poly and level == 1 and self.draw.chance(0.3):
            lines += self.matrix_op(level + 1)
        known_after_if, self.draw.has_axes = self.draw.known, False
        self.draw.known = known_before.copy()
        if self.draw.chance(0.4):
            lines += [f"{indent}else:", *self.block(level + 1, depth)]
        self.draw.known = self.draw.known.intersection(known_after_if)
        self.forget_states()
        return lines
