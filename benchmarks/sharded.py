"""Measure what rounds of matrices hide of a slow link: `python benchmarks/sharded.py`.

Ranks are processes of this machine, which communicate through gloo. A link of a given speed is
simulated: a transfer ends no earlier than its bytes would take on the link, one transfer after the
other, and some latency. Steps alternate: as they are; with transfers that end where they begin,
so that nothing travels meanwhile; and without the link.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn
from torch.nn import Parameter

from optgen.optim import SOAP, Muon
from optgen.runtime.sharded import driver

SHAPES = [(576, 192), (192, 192), (768, 192), (192, 768)] * 6
CLASSES: dict[str, Callable[[list[Parameter]], Any]] = {
    "Muon": partial(Muon, lr=1e-4),
    "SOAP": partial(SOAP, lr=1e-4),
}


class Link:
    """A link over which one transfer travels at a time."""

    def __init__(self, gigabytes: float, latency: float) -> None:
        self._bytes_per_second, self._latency = gigabytes * 1e9, latency
        self._free_at = 0.0

    def arrival(self, sent_bytes: int) -> float:
        """Return the time at which bytes arrive that are sent now."""
        self._free_at = (
            max(self._free_at, time.perf_counter()) + sent_bytes / self._bytes_per_second
        )
        return self._free_at + self._latency


@contextmanager
def slow_link(link: Link, at_once: bool) -> Iterator[None]:
    """Let transfers take their time; with `at_once`, each is waited for where it begins."""
    real = distributed.all_to_all_single

    def exchange(output: Any, source: Any, received: Any, sent: list[int], **options: Any) -> Any:
        others = sum(sent) - sent[distributed.get_rank()]
        arrival = link.arrival(others * source.itemsize)
        work = real(output, source, received, sent, **options)

        def wait() -> None:
            work.wait()
            time.sleep(max(0.0, arrival - time.perf_counter()))

        if at_once:
            wait()
        return mock.Mock(wait=(lambda: None) if at_once else wait)

    with mock.patch.object(distributed, "all_to_all_single", exchange):
        yield


def measure(rank: int, ranks: int, folder: str, name: str, options: argparse.Namespace) -> None:
    """Measure steps of a class on one rank; rank 0 prints a line of a table."""
    from torch.distributed.tensor import Shard, distribute_tensor

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    driver.ROUND_BYTES = options.round_bytes
    meeting = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    values = [torch.randn(shape) for shape in SHAPES]
    params = [Parameter(distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)) for x in values]
    for param in params:
        param.grad = torch.cos(param.detach())
    optimizer = CLASSES[name](params)
    optimizer.step()
    times: dict[str, list[float]] = {"rounds": [], "at once": [], "no link": []}
    end = time.monotonic() + options.seconds
    while True:
        goes_on = torch.tensor(time.monotonic() < end)
        distributed.broadcast(goes_on, 0)
        if not goes_on and len(times["rounds"]) > 2:
            break
        for label, each in times.items():
            speed = 1e9 if label == "no link" else options.gigabytes
            latency = 0.0 if label == "no link" else options.milliseconds / 1e3
            with slow_link(Link(speed, latency), at_once=label == "at once"):
                distributed.barrier()
                start = time.perf_counter()
                optimizer.step()
                distributed.barrier()
                each.append((time.perf_counter() - start) * 1e3)
    if rank == 0:
        cells = " | ".join(f"{min(each):.0f} {median(each):.0f}" for each in times.values())
        waited = min(times["at once"]) - min(times["no link"])
        hidden = (min(times["at once"]) - min(times["rounds"])) / waited
        print(f"| {name} | {ranks} | {cells} | {hidden:.0%} |", flush=True)
    distributed.destroy_process_group()


def main() -> None:
    """Print a table: minima and medians in milliseconds of wall time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=0.03, help="of the link, per second")
    parser.add_argument("--milliseconds", type=float, default=1, help="latency of the link")
    parser.add_argument("--seconds", type=float, default=20, help="for each line of the table")
    parser.add_argument("--round-bytes", type=int, default=2**20, help="of these small matrices")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2])
    options = parser.parse_args()
    print("| class | ranks | rounds | at once | no link | hidden |\n|---|---|---|---|---|---|")
    for name in CLASSES:
        for ranks in options.ranks:
            with tempfile.TemporaryDirectory() as folder:
                spawn(measure, (ranks, folder, name, options), nprocs=ranks)


if __name__ == "__main__":
    main()
