"""Search for failing rules in child processes.

The children are forked from a process that has imported everything, so they start fast. A crash or
a hang ends only one child.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
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

import torch

from fuzz import build, finding_files
from fuzz.draw import draw
from fuzz.finding import KINDS, Finding
from fuzz.hunt import RULES_PER_JOB, Draw, Tally, hunt
from fuzz.shrink import shrink_finding
from fuzz.trial import LOWERINGS

_HANGS_AFTER = 240
"""Seconds without a new rule in rule.txt, after which a job is killed.

The timer of `time_limit` does not interrupt C++ code.
"""
_FINDINGS_PER_SIGNATURE = {"wrong": 8}
"""Largest number of findings of one signature to shrink, by kind; 1 for kinds not listed.

Different faults give wrong values the same signature, so their limit is higher.
"""


@dataclass
class _Job:
    process: BaseProcess
    pipe: Connection
    folder: Path

    @property
    def rule_file(self) -> Path:
        """Return the path of the file with the rule that the job is running."""
        return self.folder / "rule.txt"


class Run:
    """A run of the command: jobs, counts and findings.

    `draw` gets each of `cases`, which are names of compositions; without cases, it gets numbered
    seeds until time is up.
    """

    def __init__(
        self, options: argparse.Namespace, draw: Draw = draw, cases: Sequence[str] = ()
    ) -> None:
        self.options, self.draw, self.cases = options, draw, cases
        self.lowerings = options.lowerings.split(",") if options.lowerings else LOWERINGS
        self.started = time.monotonic()
        self.tally = Tally()
        self.jobs: list[_Job] = []
        self.drawn_count = 0
        self.count_by_signature: Counter[tuple[str, ...]] = Counter()
        self.path_by_cause: dict[tuple[str, ...], Path] = {}
        for path in sorted(options.known.glob("*.py")) if options.known else ():
            finding = finding_files.read_finding(path)
            self.path_by_cause[finding.cause] = path
            self.count_by_signature[finding.signature] += 1
        self.num_known_causes = len(self.path_by_cause)
        self.scratch = Path(tempfile.mkdtemp(prefix="optgen-fuzz-run-"))

    def run(self) -> int:
        """Start jobs until time is up, wait for all, and return 1 if there are findings."""
        if "fused_cpu" in self.lowerings:
            build.load_shared_libraries()  # once, before forks
        try:
            while self.jobs or self.has_time():
                while self.has_time() and len(self.jobs) < self.options.processes:
                    self.start_job()
                self.receive_results()
        finally:
            for job in self.jobs:
                job.process.kill()
            shutil.rmtree(self.scratch, ignore_errors=True)
        print(self.report())
        return 1 if self.tally.failures else 0

    def has_time(self) -> bool:
        """Tell whether to draw more rules."""
        seconds = time.monotonic() - self.started
        rules = min(self.options.max_rules, len(self.cases) or self.options.max_rules)
        return seconds < self.options.seconds and self.drawn_count < rules

    def start_job(self) -> None:
        """Fork a job for the next rules."""
        count = RULES_PER_JOB
        if self.cases:
            count *= 2  # compositions are quick to run
        elif self.options.feature:
            count *= 4  # most are not run
        count = min(count, self.options.max_rules - self.drawn_count)
        seeds = [f"{self.options.seed}/{self.drawn_count + i}" for i in range(count)]
        seeds = list(self.cases[self.drawn_count : self.drawn_count + count]) or seeds
        self.drawn_count += count
        receiver, sender = multiprocessing.Pipe(duplex=False)
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        job = _Job(
            multiprocessing.get_context("fork").Process(
                target=self.run_job, args=(seeds, sender, folder)
            ),
            receiver,
            folder,
        )
        job.process.start()
        sender.close()
        self.jobs.append(job)

    def run_job(self, seeds: list[str], pipe: Connection, folder: Path) -> None:
        """Search for failing rules in the forked process, and send the findings."""
        os.environ["OPTGEN_CACHE_DIR"] = str(folder)
        os.fsync = lambda descriptor: None  # the cache does not outlive the job
        gc.disable()  # a job ends before its garbage needs much memory
        torch.set_num_threads(1)  # threads that wait would take processors from other jobs
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        try:
            self.send_findings(seeds, pipe, folder)
        except Exception:
            pipe.send(traceback.format_exc())  # an error of the fuzzer itself
        pipe.send(None)
        pipe.close()
        os._exit(0)

    def send_findings(self, seeds: list[str], pipe: Connection, folder: Path) -> None:
        """Run rules, send the counts, and send new findings with shortened rules."""
        store_rule = (folder / "rule.txt").write_text
        feature = self.options.feature
        tally, findings = hunt(seeds, store_rule, self.lowerings, self.draw, feature)
        pipe.send(tally)
        for finding in sorted(findings, key=lambda each: KINDS.index(each.kind)):
            limit = _FINDINGS_PER_SIGNATURE.get(finding.kind, 1)
            if self.count_by_signature[finding.signature] >= limit:
                continue
            self.count_by_signature[finding.signature] += 1
            (folder / "rule.txt").write_text(finding.text)
            pipe.send(finding if self.options.no_shrink else shrink_finding(finding))

    def receive_results(self) -> None:
        """Receive what jobs send, and remove jobs that have ended or hang."""
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
            raise RuntimeError(f"the fuzzer failed:\n{message}")
        if isinstance(message, Tally):
            self.tally.add(message)
            print(self.progress(), flush=True)
        else:
            self.count_by_signature[message.signature] += 1
            self.write_once(message)

    def write_once(self, finding: Finding) -> None:
        """Write a finding to a file, unless an earlier one has the same cause."""
        if finding.cause in self.path_by_cause:
            return
        path = finding_files.write_finding(finding, self.options.out or finding_files.FOUND)
        self.path_by_cause[finding.cause] = path
        print(f"{finding.kind}: {finding.lowering}: {finding.message[:200]}\n  {path}", flush=True)

    def record_crash(self, job: _Job) -> None:
        """Record the rule that a job was running when it crashed."""
        text = job.rule_file.read_text() if job.rule_file.exists() else ""
        exit_code = job.process.exitcode
        if text:
            self.tally.failures["crashed"] += 1
            self.write_once(
                Finding("crashed", "process", f"the process ended with {exit_code}", text)
            )

    def progress(self) -> str:
        """Return a line with the time and the counts."""
        return f"{time.monotonic() - self.started:5.0f} s: {self.tally}"

    def list_not_comparable(self) -> str:
        """Return a line for each composition without a step that could be compared."""
        names = [name for name, count in self.tally.not_compared_by_seed.items() if count]
        return (
            "\nnot comparable:" + "".join(f"\n       {name}" for name in names)
            if self.cases
            else ""
        )

    def report(self) -> str:
        """Return a summary of the run: counts, times, and refusals by message."""
        seconds = ", ".join(f"{name} {s:.0f} s" for name, s in self.tally.seconds.most_common())
        features = ", ".join(f"{n} {feature}" for feature, n in self.tally.features.most_common())
        common_refusals = self.tally.refusals.most_common(None if self.cases else 15)
        refusals = "".join(f"\n  {n:4} {text}" for text, n in common_refusals)
        return (
            f"seed {self.options.seed}: {self.tally}\n"
            f"of the compared rules: {features}\n"
            f"{len(self.path_by_cause) - self.num_known_causes} causes written down; "
            f"time: {seconds}\nrefused:{refusals}{self.list_not_comparable()}"
        )


def _hangs(job: _Job) -> bool:
    last_change = job.rule_file.stat().st_mtime if job.rule_file.exists() else time.time()
    return time.time() - last_change > _HANGS_AFTER
