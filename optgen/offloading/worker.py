"""The thread that steps on the host: it takes jobs in order, and never waits without a limit.

The first exception of a job ends all later jobs. Callers see it at their next call, as the cause of
an `OffloadError`. A caller that waits sees how far the worker is: if the worker stays in one stage
for longer than the limit, the caller raises an error that names the stage.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

import torch

Job = Callable[[], None]


class OffloadError(RuntimeError):
    """A step on the host failed or did not end; its cause is the worker's exception."""


class Stage(NamedTuple):
    """A stage of the work: its name, its tensor, and when it began, in seconds."""

    name: str
    tensor: str
    since: float


_IDLE = Stage("idle", "", 0.0)
_JOIN_SECONDS = 5.0


class Worker:
    """A thread with a queue of jobs.

    Args:
        time_limit (float): The seconds that one stage may last while a caller waits.
    """

    def __init__(self, time_limit: float) -> None:
        self.time_limit = time_limit
        self._process = os.getpid()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._stage = _IDLE
        self._unfinished = 0
        self._failure: OffloadError | None = None
        self._abandons = False  # whether jobs end at once, because a caller has given up
        self._was_told = False  # whether a caller has seen the failure
        self.is_closed = False
        self._thread = threading.Thread(target=self._run, name="optgen-offload", daemon=True)
        self._thread.start()

    def enter(self, stage: str, tensor: str) -> None:
        """Note the stage that the calling job enters, and the tensor that it is about.

        Raises:
            OffloadError: A caller has given up waiting, so the job must end.
        """
        if self._failure is not None or self._abandons:
            raise OffloadError("a caller has given up waiting for this job")
        self._stage = Stage(stage, tensor, time.monotonic())

    def notify(self) -> None:
        """Let waiting callers look again at what they wait for."""
        with self._changed:
            self._changed.notify_all()

    def submit(self, job: Job) -> None:
        """Queue a job; it runs without autograd.

        Raises:
            OffloadError: An earlier job failed.
        """
        self.check()
        with self._changed:
            self._unfinished += 1
        self._stage = self._stage._replace(since=time.monotonic())
        self._jobs.put(job)

    def call(self, job: Job) -> None:
        """Run a job in the worker's thread, and wait for its end.

        Raises:
            OffloadError: The job failed.
        """
        self.submit(job)
        self.drain()

    def attempt(self, job: Job) -> None:
        """Run a job in the worker's thread; its exception is the caller's, and ends no later job.

        Raises:
            OffloadError: An earlier job failed, or the job did not end in time.
        """
        errors: list[Exception] = []

        def caught() -> None:
            try:
                job()
            except Exception as error:
                errors.append(error)

        self.call(caught)
        if errors:
            raise errors[0]

    def wait_for(self, event: torch.Event, stage: str, tensor: str) -> None:
        """Wait for an event of a device, in the worker's thread, so that the wait has a limit.

        Raises:
            OffloadError: An earlier job failed, or the event does not come in time.
        """

        def wait() -> None:
            self.enter(stage, tensor)
            event.synchronize()

        self.call(wait)

    def drain(self) -> None:
        """Wait until all jobs have ended.

        Raises:
            OffloadError: A job failed, or a stage lasted too long.
        """
        self.wait(lambda: not self._unfinished)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait until something is done that a job does, also after `close`.

        Raises:
            OffloadError: A job failed, or a stage lasted too long.
        """
        if is_done() and self._failure is None:
            return
        self._check_failure()
        with self._changed:
            while not (self._failure or is_done()):
                left = self._stage.since + self.time_limit - time.monotonic()
                if left <= 0:
                    self._failure = self._too_late()
                    break
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
        self._check_failure()

    def finish(self) -> None:
        """Wait until all jobs have ended, before `close`.

        Raises:
            OffloadError: A job failed, and no caller has seen the error yet.
        """
        if not (self.is_closed or self._was_told or self._process != os.getpid()):
            self.drain()

    def check(self) -> None:
        """Raise the error of an earlier job; or that the worker is closed, or another process's.

        Raises:
            OffloadError: An earlier job failed.
            RuntimeError: The worker is closed, or belongs to another process.
        """
        if self.is_closed and self._process == os.getpid():
            raise RuntimeError("this offloaded optimizer is closed: make a new one")
        self._check_failure()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(
                "this offloaded optimizer was made before a fork, and its thread is in the parent "
                "process: make the optimizer after the fork"
            )

    def _check_failure(self) -> None:
        self._check_process()
        if (failure := self._failure) is not None:
            self._was_told = True
            raise OffloadError(*failure.args) from failure.__cause__

    def refuse(self, error: OffloadError) -> None:
        """Let every later call raise this error, until `recover`; an earlier failure stays.

        The caller raises it, too.
        """
        with self._changed:
            if self._failure is None:
                self._failure, self._was_told = error, True

    def recover(self) -> OffloadError | None:
        """Forget a failure, once all jobs have ended; return it.

        Raises:
            OffloadError: A job still runs.
            RuntimeError: The worker belongs to another process.
        """
        self._check_process()
        with self._changed:  # else an error of the job that runs could be lost
            failure, self._failure = self._failure, None
            self._abandons, self._was_told = failure is not None, False
        self._stage = self._stage._replace(since=time.monotonic())
        try:
            self.drain()
        except OffloadError:
            self._failure = self._failure or failure
            raise
        self._abandons = False
        return failure

    def close(self) -> None:
        """End the thread after the jobs that are queued, or leave it if its job does not end."""
        if self.is_closed or self._process != os.getpid():
            return
        self.is_closed = True
        self._jobs.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(min(self.time_limit, _JOIN_SECONDS))

    def _run(self) -> None:
        with torch.no_grad():
            while (job := self._jobs.get()) is not None:
                try:
                    if self._failure is None and not self._abandons:
                        job()
                except BaseException as error:
                    if not self._abandons:
                        self._fail(error)
                del job  # a job may keep the optimizer alive
                with self._changed:
                    self._unfinished -= 1
                    if not self._unfinished:
                        self._stage = _IDLE
                    self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        failure = OffloadError(
            f"an offloaded step failed in the stage {self._stage.name!r}, at "
            f"{self._stage.tensor}: {error}. Parameters and states may be of two steps: load a "
            "checkpoint into the model and into this optimizer"
        )
        failure.__cause__ = error
        with self._changed:
            self._failure = self._failure or failure

    def _too_late(self) -> OffloadError:
        return OffloadError(
            f"an offloaded step has been in the stage {self._stage.name!r}, at "
            f"{self._stage.tensor}, for {self.time_limit:g} s, with {self._jobs.qsize()} further "
            "jobs queued: the device does not answer. Load a checkpoint to go on, or give "
            "offload a larger time_limit="
        )
