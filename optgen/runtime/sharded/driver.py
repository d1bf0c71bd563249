"""Take the steps of parameters of which each process holds a part: all of them, phase by phase.

An update over shards is a generator. Where it needs what the other ranks have it yields a request
and goes on with the answer. All updates of a step are resumed together, so that what they ask for
is answered by one collective, whatever the number of tensors.
"""

from collections.abc import Generator, Iterator, Sequence
from itertools import repeat
from typing import TypeAlias

from torch import Tensor

from optgen.runtime.sharded.exchange import Gather, Scatter, gather, scatter
from optgen.runtime.sharded.partial import Partial, complete

Request: TypeAlias = list[Partial] | Gather | Scatter
Update: TypeAlias = Generator[Request, list[Tensor], None]
"""An update of one bucket: sums are completed in place, matrices are what it is sent."""


def run(updates: Sequence[Update]) -> None:
    """Run updates to their ends; every rank must bring the same ones, in the same order."""
    try:
        asked = [(update, next(update, None)) for update in updates]
        while asked := [(update, request) for update, request in asked if request is not None]:
            answers = _answers([request for _, request in asked if request is not None])
            asked = [
                (update, _resume(update, answer))
                for (update, _), answer in zip(asked, answers, strict=True)
            ]
    finally:
        for update in updates:
            update.close()


def _resume(update: Update, answer: list[Tensor]) -> Request | None:
    try:
        return update.send(answer)
    except StopIteration:
        return None


def _answers(requests: list[Request]) -> list[list[Tensor]]:
    """What all requests of a round ask for, in their order."""
    complete(partial for r in requests if isinstance(r, list) for partial in r)
    gathered = iter(gather([r for r in requests if isinstance(r, Gather)]))
    scattered = iter(scatter([r for r in requests if isinstance(r, Scatter)]))
    answers: dict[type, Iterator[list[Tensor]]] = {Gather: gathered, Scatter: scattered}
    return [next(answers.get(type(request), repeat([]))) for request in requests]
