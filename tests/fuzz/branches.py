"""Draw random branches: nested, with elifs, and around states that exist only under a condition."""

from __future__ import annotations

from fuzz.statements import Statements


class Rules(Statements):
    """A generator of whole rules: statements, and branches with statements in them."""

    def branching(self, kind: str, level: int, depth: int) -> list[str]:
        """Return a statement that holds others."""
        if kind == "branch":
            return self.branch(level, depth)
        return (self.conditional if kind == "conditional" else self.factored)(level, depth)

    def block(self, level: int, depth: int, *holding: str) -> list[str]:
        """Return the statements of one arm, in which some conditions hold."""
        before = len(self.holding)
        self.holding += holding
        for symbol, nature, holds in self.states:
            if holds and holds in holding:
                names = getattr(self.known, nature)
                names += [symbol] * 2
        if "opt is not None" in holding:
            self.known.numbers.append("opt")
        count = int(self.draw.pick("1", "1", "2", "3"))
        lines = [s for _ in range(count) for s in self.statement(level, depth - 1)]
        del self.holding[before:]
        return lines

    def branch(self, level: int, depth: int) -> list[str]:
        """Return an if with its elifs and maybe an else."""
        indent = "    " * level
        before = self.draw.known
        ends, lines = [], []
        arms = int(self.draw.pick("1", "1", "1", "2", "2", "3"))
        for arm in range(arms):
            condition = self.draw.condition(2)
            if self.draw.chance(0.1):
                condition = "opt is not None"
            self.draw.known = before.copy()
            word = "elif" if arm else "if"
            lines += [f"{indent}{word} {condition}:"]
            lines += self.block(level + 1, depth, condition)
            ends.append(self.draw.known)
        self.draw.known = before.copy()
        if self.draw.chance(0.5):
            lines += [f"{indent}else:", *self.block(level + 1, depth)]
        ends.append(self.draw.known)
        common = ends[0]
        for end in ends[1:]:
            common = common.meet(end)
        self.draw.known = common
        self.forget()
        return lines

    def forget(self) -> None:
        """Forget states and numbers that do not exist after the branch."""
        for symbol, nature, holds in self.states:
            if not self.holds(holds):
                names = getattr(self.known, nature)
                names[:] = [n for n in names if n != symbol]

    def conditional(self, level: int, depth: int) -> list[str]:
        """Return a branch in which a conditional state exists."""
        symbol, nature, holds = self.draw.lot.choice([s for s in self.states if s[2]])
        if holds == "factored(p)":
            return self.factored(level, depth)
        if holds in self.holding:
            return ["    " * level + self.changed(symbol, nature)]
        before = self.draw.known
        self.draw.known = before.copy()
        lines = [f"{'    ' * level}if {holds}:"]
        for state, kind, other in self.states:
            if other == holds and state == symbol:
                getattr(self.known, kind).append(state)
        self.holding.append(holds)
        lines += ["    " * (level + 1) + self.changed(symbol, nature)]
        self.holding.pop()
        lines += self.block(level + 1, 1, holds)
        self.draw.known = self.draw.known.meet(before)
        self.forget()
        return lines

    def factored(self, level: int, depth: int) -> list[str]:
        """Return a branch in which rows and columns exist."""
        if self.draw.axes:
            return ["    " * level + self.own("tensors")]
        before = self.draw.known
        indent = "    " * level
        self.draw.known, self.draw.axes = before.copy(), True
        lines = [f"{indent}if factored(p):"]
        if self.draw.chance(0.3):
            lines += [f"{indent}    g = g - {self.draw.row()}"]
        else:
            lines += self.block(level + 1, depth, "factored(p)")
        if self.poly and level == 1 and self.draw.chance(0.3):
            lines += self.matrices(level + 1)
        after, self.draw.axes = self.draw.known, False
        self.draw.known = before.copy()
        if self.draw.chance(0.4):
            lines += [f"{indent}else:", *self.block(level + 1, depth)]
        self.draw.known = self.draw.known.meet(after)
        self.forget()
        return lines
