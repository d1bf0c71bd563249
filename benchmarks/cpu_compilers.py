"""Compare fused steps on the CPU that two C++ compilers have built.

    python benchmarks/cpu_compilers.py g++ clang++-19
    python benchmarks/cpu_compilers.py g++ clang++-19 --dtype bfloat16 --only AdamW --rounds 3

A cell is a class and a list of tensors; the 36 cells are twelve classes with three lists. Each
compiler has a process of its own, with one thread, and the two take turns. A time is the shortest
CPU time of a step. Each line gives both times, and the second divided by the first; the last lines
give the geometric mean of these ratios for each list. Run nothing else that needs memory's speed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import geometric_mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import optgen
from benchmarks.cpu_targets import MEAN_LISTS, VECTOR_CLASSES
from optgen.bench.tensor_lists import LISTS
from optgen.bench.variants import OURS, Stepper, gradients

WARM_UP = 3
SECONDS = 0.15  # of CPU time, for the steps of a turn
LEAST_STEPS = 3  # in a turn


class Turns:
    """A process whose kernels one compiler builds; it takes steps when it is asked to."""

    def __init__(self, compiler: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        os.environ["CXX"] = compiler  # the process inherits it
        context.Process(target=take_turns, args=(there,), daemon=True).start()
        there.close()

    def begin(self, name: str, tensors: str, dtype: str) -> None:
        """Make an optimizer, and take its first steps."""
        self._connection.send((name, tensors, dtype))
        self._connection.recv()

    def shortest_step(self) -> float:
        """Take a turn, and return the milliseconds of its shortest step."""
        self._connection.send(None)
        milliseconds: float = self._connection.recv()
        return milliseconds


def take_turns(connection: Connection) -> None:
    """Serve a `Turns`: make an optimizer for three names, and take a turn for None."""
    torch.set_num_threads(1)
    stepper = None
    with suppress(EOFError):  # the other process has ended
        while True:
            if request := connection.recv():
                stepper = None  # frees its memory
                stepper = make_stepper(*request)
            connection.send(shortest_step(stepper) if stepper and not request else None)


def make_stepper(name: str, tensors: str, dtype: str) -> Stepper:
    """Return an optimizer that has taken fused steps."""
    torch_dtype = getattr(torch, dtype)
    stepper = Stepper(name, OURS, LISTS[tensors], torch_dtype)
    stepper.set_gradients(gradients(LISTS[tensors], torch_dtype))
    for _ in range(WARM_UP):
        stepper.step()
    explanation = str(optgen.explain(stepper.optimizer))
    if "fused C++" not in explanation:
        raise RuntimeError(f"the steps of {name} are not fused: {explanation}")
    return stepper


def shortest_step(stepper: Stepper) -> float:
    """Take steps for `SECONDS`, and return the milliseconds of the shortest."""
    times: list[float] = []
    while len(times) < LEAST_STEPS or sum(times) < SECONDS:
        begin = time.thread_time()
        stepper.step()
        times.append(time.thread_time() - begin)
    return 1e3 * min(times)


def main() -> None:
    """Measure the cells, and print them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("compilers", nargs=2, metavar="COMPILER")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", nargs="*", choices=VECTOR_CLASSES, default=VECTOR_CLASSES)
    parser.add_argument("--lists", nargs="*", choices=LISTS, default=MEAN_LISTS)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    first, second = processes = [Turns(compiler) for compiler in arguments.compilers]
    for tensors in arguments.lists:
        ratios = []
        for name in arguments.only:
            for each in processes:
                each.begin(name, tensors, arguments.dtype)
            turns = [
                (first.shortest_step(), second.shortest_step()) for _ in range(arguments.rounds)
            ]
            times = [min(each) for each in zip(*turns, strict=True)]
            ratios.append(times[1] / times[0])
            print(
                f"{name:10} {tensors:9} {arguments.dtype:9} {arguments.compilers[0]} "
                f"{times[0]:.3f} ms, {arguments.compilers[1]} {times[1]:.3f} ms: {ratios[-1]:.2f}",
                flush=True,
            )
        print(f"{tensors}: {geometric_mean(ratios):.3f}", flush=True)


if __name__ == "__main__":
    main()
