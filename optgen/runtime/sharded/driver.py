"""Take the steps of parameters of which each process holds a part: all of them, phase by phase.

An update over shards is a generator. Where it needs what the other ranks have it yields a request
and goes on with the answer. All updates of a step are resumed together, so that what they ask for
is answered by one collective, whatever the number of tensors.
"""

from collections.abc import Generator, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeAlias

from torch import Tensor

from optgen.runtime.sharded.all_reduce import Partial, complete
from optgen.runtime.sharded.all_to_all import Gather, Scatter, gather, scatter

Request: TypeAlias = list[Partial] | list[Gather] | list[Scatter] | Gather | Scatter
Update: TypeAlias = Generator[Request, Any, None]
"""An update of one bucket: sums are completed in place, matrices are what it is sent.

Of a list of requests it is sent a list.
"""


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


def _resume(update: Update, answer: Any) -> Request | None:
    try:
        return update.send(answer)
    except StopIteration:
        return None


def _answers(requests: list[Request]) -> list[Any]:
    """What all requests of a round ask for, in their order; of a list a list."""
    asked = [request if isinstance(request, list) else [request] for request in requests]
    every = [each for several in asked for each in several]
    complete(each for each in every if isinstance(each, Partial))
    gathered = iter(gather([each for each in every if isinstance(each, Gather)]))
    scattered = iter(scatter([each for each in every if isinstance(each, Scatter)]))
    answers: dict[type, Iterator[list[Tensor]]] = {Gather: gathered, Scatter: scattered}
    found = [[next(answers.get(type(each), repeat([]))) for each in several] for several in asked]
    return [
        answer if isinstance(request, list) else answer[0]
        for request, answer in zip(requests, found, strict=True)
    ]
