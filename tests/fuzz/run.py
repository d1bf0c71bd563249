"""Search for failing rules in child processes.

They are forked from a process that has imported everything, so they start fast. A crash or a hang
ends only one child.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fuzz import built, kept
from fuzz.draw import draw
from fuzz.finding import CLASSES, Finding
from fuzz.hunt import BATCH, Draw, Tally, hunt
from fuzz.shrink import shrunk
from fuzz.trial import LOWERINGS

_HANGS_AFTER = 240
"""Seconds without a new rule in rule.txt, after which a job counts as hanging.

It is then in code that an alarm does not interrupt.
"""
_FINDINGS_PER_SIGNATURE = {"wrong": 8}
"""Limit of findings of one signature to shrink, by kind of finding; 1 for other kinds.

Wrong values get more, because different faults give them the same signature.
"""


@dataclass
class _Job:
    process: BaseProcess
    pipe: Connection
    folder: Path

    @property
    def rule(self) -> Path:
        """Return the path of the file with the rule that the job is running."""
        return self.folder / "rule.txt"


class Run:
    """A run of the command: jobs, counts and findings.

    `draw` gets each of `cases`, which are names of compositions. Without cases it gets numbered
    seeds without end.
    """

    def __init__(
        self, options: argparse.Namespace, draw: Draw = draw, cases: Sequence[str] = ()
    ) -> None:
        self.options, self.draw, self.cases = options, draw, cases
        self.lowerings = options.lowerings.split(",") if options.lowerings else LOWERINGS
        self.started = time.monotonic()
        self.tally = Tally()
        self.jobs: list[_Job] = []
        self.drawn = 0
        self.count_by_signature: Counter[tuple[str, ...]] = Counter()
        self.causes: dict[tuple[str, ...], Path] = {}
        for path in sorted(options.known.glob("*.py")) if options.known else ():
            finding = kept.read(path)
            self.causes[finding.cause] = path
            self.count_by_signature[finding.signature] += 1
        self.known = len(self.causes)
        self.scratch = Path(tempfile.mkdtemp(prefix="optgen-fuzz-run-"))

    def run(self) -> int:
        """Start jobs until time is up, and wait for those that run."""
        if "fused_cpu" in self.lowerings:
            built.load_shared_libraries()  # for all jobs
        try:
            while self.jobs or self.goes_on():
                while self.goes_on() and len(self.jobs) < self.options.processes:
                    self.start()
                self.gather()
        finally:
            for job in self.jobs:
                job.process.kill()
            shutil.rmtree(self.scratch, ignore_errors=True)
        print(self.report())
        return 1 if self.tally.failures else 0

    def goes_on(self) -> bool:
        """Tell whether to draw more rules."""
        seconds = time.monotonic() - self.started
        rules = min(self.options.rules, len(self.cases) or self.options.rules)
        return seconds < self.options.seconds and self.drawn < rules

    def start(self) -> None:
        """Fork a process for the next rules."""
        count = 2 * BATCH if self.cases else BATCH  # compositions are quick to run
        count = min(count, self.options.rules - self.drawn)
        seeds = [f"{self.options.seed}/{self.drawn + i}" for i in range(count)]
        seeds = list(self.cases[self.drawn : self.drawn + count]) or seeds
        self.drawn += count
        receiver, sender = multiprocessing.Pipe(duplex=False)
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        job = _Job(
            multiprocessing.get_context("fork").Process(
                target=self.work, args=(seeds, sender, folder)
            ),
            receiver,
            folder,
        )
        job.process.start()
        sender.close()
        self.jobs.append(job)

    def work(self, seeds: list[str], pipe: Connection, folder: Path) -> None:
        """Hunt in the forked process, shrink new findings, and send them."""
        os.environ["OPTGEN_CACHE_DIR"] = str(folder)
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        try:
            self.send_findings(seeds, pipe, folder)
        except Exception:
            pipe.send(traceback.format_exc())  # a fault of this tool
        pipe.send(None)
        pipe.close()
        os._exit(0)

    def send_findings(self, seeds: list[str], pipe: Connection, folder: Path) -> None:
        """Hunt, and send the counts and findings."""
        tally, findings = hunt(seeds, (folder / "rule.txt").write_text, self.lowerings, self.draw)
        pipe.send(tally)
        for finding in sorted(findings, key=lambda each: CLASSES.index(each.kind)):
            limit = _FINDINGS_PER_SIGNATURE.get(finding.kind, 1)
            if self.count_by_signature[finding.signature] >= limit:
                continue
            self.count_by_signature[finding.signature] += 1
            (folder / "rule.txt").write_text(finding.text)
            pipe.send(finding if self.options.no_shrink else shrunk(finding))

    def gather(self) -> None:
        """Receive what jobs send, and check whether any has died or hangs."""
        wait([job.pipe for job in self.jobs], timeout=5)
        for job in list(self.jobs):
            message: Tally | Finding | str | None = None
            if job.pipe.poll():
                with contextlib.suppress(EOFError):
                    message = job.pipe.recv()
                    if message is not None:
                        self.receive(message)
                        continue
                    job.process.join()
            elif job.process.is_alive():
                if not _hangs(job):
                    continue
                os.kill(job.process.pid or 0, signal.SIGKILL)
            job.process.join()
            self.jobs.remove(job)
            if job.process.exitcode:
                self.record_crash(job)
            shutil.rmtree(job.folder, ignore_errors=True)

    def receive(self, message: Tally | Finding | str) -> None:
        """Add a job's counts, or write a new finding to a file."""
        if isinstance(message, str):
            raise RuntimeError(f"the tool failed:\n{message}")
        if isinstance(message, Tally):
            self.tally.add(message)
            print(self.line(), flush=True)
        else:
            self.count_by_signature[message.signature] += 1
            self.keep(message)

    def keep(self, finding: Finding) -> None:
        if finding.cause in self.causes:
            return
        path = kept.write(finding, self.options.out or kept.FOUND)
        self.causes[finding.cause] = path
        print(f"{finding.kind}: {finding.lowering}: {finding.message[:200]}\n  {path}", flush=True)

    def record_crash(self, job: _Job) -> None:
        """Record the rule that ended its process."""
        text = job.rule.read_text() if job.rule.exists() else ""
        code = job.process.exitcode
        if text:
            self.tally.failures["crashed"] += 1
            self.keep(Finding("crashed", "process", f"the process ended with {code}", text))

    def line(self) -> str:
        """Return a line of progress."""
        return f"{time.monotonic() - self.started:5.0f} s: {self.tally}"

    def not_comparable(self) -> str:
        """Return a line for each composition of which no step could be compared with the oracle."""
        names = [name for name, count in self.tally.not_compared.items() if count]
        return "\nnot comparable:" + "".join(f"\n       {x}" for x in names) if self.cases else ""

    def report(self) -> str:
        """Return the result of the run, and where time went."""
        spent = ", ".join(f"{k} {v:.0f} s" for k, v in self.tally.spent.most_common())
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.tally.kinds.most_common())
        most = self.tally.refusals.most_common(None if self.cases else 15)
        refusals = "".join(f"\n  {n:4} {text}" for text, n in most)
        return (
            f"seed {self.options.seed}: {self.tally}\n"
            f"of the compared rules: {kinds}\n"
            f"{len(self.causes) - self.known} causes written down; "
            f"time: {spent}\nrefused:{refusals}{self.not_comparable()}"
        )


def _hangs(job: _Job) -> bool:
    last_change = job.rule.stat().st_mtime if job.rule.exists() else time.time()
    return time.time() - last_change > _HANGS_AFTER
