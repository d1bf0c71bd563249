"""Run the updates of sharded parameters together, phase by phase.

An update over shards is a generator. Where it needs data of the other ranks, it yields a request
and resumes with the answer. All updates of a step are resumed together. So one collective answers
the requests of all of them, whatever the number of tensors.
"""

from collections.abc import Generator, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeAlias

from torch import Tensor

from optgen.runtime.sharded.all_reduce import Partial, batched_all_reduce
from optgen.runtime.sharded.all_to_all import Gather, Scatter, gather, scatter

Request: TypeAlias = list[Partial] | list[Gather] | list[Scatter] | Gather | Scatter
Update: TypeAlias = Generator[Request, Any, None]
"""The update of one bucket.

A request for a partial reduction is answered in place; a request for matrices is answered by a list
of matrices; a list of requests, by a list of answers.
"""


def run(updates: Sequence[Update]) -> None:
    """Run updates to their ends; every rank must bring the same updates in the same order."""
    try:
        pending = [(update, next(update, None)) for update in updates]
        while pending := [(update, request) for update, request in pending if request is not None]:
            answers = _answer([request for _, request in pending if request is not None])
            pending = [
                (update, _resume(update, answer))
                for (update, _), answer in zip(pending, answers, strict=True)
            ]
    finally:
        for update in updates:
            update.close()


def _resume(update: Update, answer: Any) -> Request | None:
    """Send an update its answer; return its next request, or None at its end."""
    try:
        return update.send(answer)
    except StopIteration:
        return None


def _answer(requests: list[Request]) -> list[Any]:
    """Answer all requests of a round, in their order."""
    lists = [request if isinstance(request, list) else [request] for request in requests]
    flat = [each for listed in lists for each in listed]
    batched_all_reduce(each for each in flat if isinstance(each, Partial))
    gathered = iter(gather([each for each in flat if isinstance(each, Gather)]))
    scattered = iter(scatter([each for each in flat if isinstance(each, Scatter)]))
    answers: dict[type, Iterator[list[Tensor]]] = {Gather: gathered, Scatter: scattered}
    answered = [[next(answers.get(type(each), repeat([]))) for each in listed] for listed in lists]
    return [
        answer if isinstance(request, list) else answer[0]
        for request, answer in zip(requests, answered, strict=True)
    ]
