"""Test `pair`, the two processes of distributed tests: results, errors, time-outs, later calls."""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from distributed import pair
from torch import Tensor, distributed

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")


@pytest.fixture(scope="module", autouse=True)
def own_processes() -> Iterator[None]:
    """Start new processes for this module; keep the other tests' for later, as a start is slow."""
    processes_of_others, pair._pair = pair._pair, None
    yield
    pair.close()
    pair._pair = processes_of_others


def _sum_of_ranks(rank: int, number: float) -> dict[str, Any]:
    total = torch.tensor([rank + number])
    distributed.all_reduce(total)
    return {"rank": rank, "total": total, "process": os.getpid(), "random": torch.rand(1)}


def _fail_on_one_rank(rank: int) -> Tensor:
    if rank == 1:
        raise ValueError("only here")
    return _sum_of_ranks(rank, 0.0)["total"]


def _die(rank: int) -> None:
    if rank == 0:
        os._exit(3)


def _sleep(rank: int) -> None:
    if rank == 0:
        time.sleep(60)
    distributed.barrier()


def test_both_ranks_answer_and_stay_alive() -> None:
    first, second = pair.run(_sum_of_ranks, 0.5), pair.run(_sum_of_ranks, 1.0)
    assert [each["rank"] for each in first] == [0, 1]
    assert [each["total"].item() for each in first + second] == [2.0, 2.0, 3.0, 3.0]
    assert len({each["process"] for each in first + second}) == 2
    assert len({each["random"].item() for each in first + second}) == 1


def test_an_error_has_its_traceback_and_the_next_call_works() -> None:
    with pytest.raises(
        pair.RankError, match=r"(?s)rank 1: .*in _fail_on_one_rank.*ValueError: only here"
    ):
        pair.run(_fail_on_one_rank)
    assert pair.run(_sum_of_ranks, 0.0)[0]["total"].item() == 1.0


def test_a_rank_that_hangs_is_killed_and_its_stack_shown() -> None:
    began = time.monotonic()
    with pytest.raises(pair.RankError, match=r"(?s)in time.*rank 0: .*in _sleep.*in barrier"):
        pair.run(_sleep, limit=0.5)
    assert time.monotonic() - began < 30


def test_a_rank_that_dies_is_reported() -> None:
    with pytest.raises(pair.RankError, match="rank 0: died with exit code 3"):
        pair.run(_die)
    processes = [each["process"] for each in pair.run(_sum_of_ranks, 0.0)]
    pair.close()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
