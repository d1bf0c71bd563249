"""Find the instruction at which threads that go different ways meet again.

A branch that divides the threads of a block runs both ways, one after the other, each with its own
threads. They meet at the first instruction that all ways from the branch lead to: the branch's
immediate postdominator. The PTX ISA (section "Divergence of Threads in Control Constructs") leaves
the place open.
"""

from __future__ import annotations

from functools import lru_cache

from ptx.program import Program, Symbol


@lru_cache(maxsize=256)
def meeting_points(program: Program) -> tuple[int, ...]:
    """Return the index of the immediate postdominator of each instruction.

    The end of the kernel has the index after the last instruction. Instructions that never reach
    the end have the end as their meeting point.
    """
    end = len(program.instructions)
    following = [_followers(program, index) for index in range(end)]
    leading: list[list[int]] = [[] for _ in range(end + 1)]
    for index, followers in enumerate(following):
        for each in followers:
            leading[each].append(index)
    order = _postorder_from(end, leading)
    rank = {index: number for number, index in enumerate(order)}
    meeting = {end: end}
    changed = True
    while changed:  # Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm"
        changed = False
        for index in reversed(order[:-1]):
            known = [each for each in following[index] if each in meeting]
            found = known[0]
            for other in known[1:]:
                while found != other:
                    while rank[found] < rank[other]:
                        found = meeting[found]
                    while rank[other] < rank[found]:
                        other = meeting[other]
            if meeting.get(index) != found:
                meeting[index], changed = found, True
    return tuple(meeting.get(index, end) for index in range(end))


def _followers(program: Program, index: int) -> list[int]:
    """Return the instructions that may be executed next."""
    instruction, end = program.instructions[index], len(program.instructions)
    kind = instruction.name.split(".")[0]
    targets: list[int] = []
    if kind == "bra":
        targets = [
            program.labels[each.name] for each in instruction.operands if isinstance(each, Symbol)
        ]
    elif kind == "brx":
        labels = instruction.operands[1]
        assert isinstance(labels, Symbol)
        table = program.instructions[program.labels[labels.name]].operands
        return [program.labels[each.name] for each in table if isinstance(each, Symbol)]
    elif kind == "ret":
        targets = [end]
    if kind in ("bra", "ret") and instruction.guard is None:
        return targets
    return [*targets, index + 1]


def _postorder_from(start: int, leading: list[list[int]]) -> list[int]:
    """Return the instructions that reach the start, each after those that it is reached through."""
    order, seen = [], {start}
    stack = [(start, iter(leading[start]))]
    while stack:
        index, others = stack[-1]
        unseen = next((each for each in others if each not in seen), None)
        if unseen is None:
            order.append(index)
            stack.pop()
        else:
            seen.add(unseen)
            stack.append((unseen, iter(leading[unseen])))
    return order
