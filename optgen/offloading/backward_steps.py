"""Know whether a backward pass has begun to take steps, and whether it has ended."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from optgen.keyed.apply_optimizer_in_backward import (
    after_backward,
    backward_is_compiled,
    backward_is_nested,
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
        self._number = -1  # of the pass

    def begin(self) -> None:
        """Note that the pass that runs takes steps.

        Raises:
            RuntimeError: Compiled autograd runs it, or it is a part of another pass.
        """
        if backward_is_compiled():
            raise RuntimeError(
                'hide="backward" cannot tell when a backward pass of compiled autograd ends: take '
                'hide="forward", or leave compiled autograd out'
            )
        if backward_is_nested():
            raise RuntimeError(
                'hide="backward" cannot tell when a backward pass ends that checkpoint() starts '
                "inside another one: give checkpoint() use_reentrant=False"
            )
        self._number = backward_pass()
        if self._number != -1:  # else `step` found a gradient that no hook has taken
            self.are_unfinished = True
            after_backward(self._end)

    def refuse_another(self, is_first: bool) -> None:
        """Refuse a gradient of another pass than the one that has begun, and all later steps.

        `is_first` tells that none has begun since the last step.

        Raises:
            RuntimeError: Another pass runs.
        """
        if not is_first and backward_pass() not in (-1, self._number):
            self.are_unfinished = True
            raise RuntimeError(
                'a second backward pass since the last step: with hide="backward", a step takes '
                "one. Call step() before it, or add the losses up; checkpoint() starts passes of "
                "its own with use_reentrant=True, so pass False"
            )

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

    def check_sent(self, call: str, counts: Mapping[Tensor, int]) -> None:
        """Refuse a call between a backward pass that has stepped, and `step`.

        Args:
            call: A method of the optimizer.
            counts: The numbers of gradients that parameters have had taken since the last step.

        Raises:
            OffloadError: The pass failed.
            RuntimeError: `step` has not sent the weights yet.
        """
        self.check()
        if counts:
            raise RuntimeError(
                f'{call}() between a backward pass and step(): with hide="backward", the '
                "parameters have been stepped, and step() sends their weights to the device: call "
                f"{call}() after step()"
            )
