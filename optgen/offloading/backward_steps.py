"""Know whether a backward pass has begun to take steps, and whether it has ended."""

from __future__ import annotations

from optgen.keyed.apply_optimizer_in_backward import (
    after_backward,
    backward_is_compiled,
    backward_pass,
)
from optgen.offloading.worker import OffloadError, Worker


class BackwardSteps:
    """The backward pass that takes steps.

    Args:
        worker: It refuses later calls after a pass that failed.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.are_unfinished = False  # it stays true if the pass fails

    def begin(self) -> None:
        """Note that the pass that runs takes steps.

        Raises:
            RuntimeError: Compiled autograd runs it.
        """
        if backward_is_compiled():
            raise RuntimeError(
                'hide="backward" cannot tell when a backward pass of compiled autograd ends: take '
                'hide="forward", or leave compiled autograd out'
            )
        if backward_pass() != -1:  # else `step` found a gradient that no hook has taken
            self.are_unfinished = True
            after_backward(self._end)

    def _end(self) -> None:
        self.are_unfinished = False

    def check(self) -> None:
        """Raise the error of a backward pass that failed after it had begun to step."""
        if self.are_unfinished:
            self._worker.refuse(
                OffloadError(
                    "the last backward pass failed after it had begun to step parameters, so their "
                    "states are of two steps: load a checkpoint into the model and this optimizer"
                )
            )
            self._worker.check()


def weights_not_sent(call: str) -> RuntimeError:
    """Return the error of a call between a backward pass that has stepped, and `step`."""
    return RuntimeError(
        f'{call}() between a backward pass and step(): with hide="backward", the parameters have '
        f"been stepped, and step() sends their weights to the device: call {call}() after step()"
    )
