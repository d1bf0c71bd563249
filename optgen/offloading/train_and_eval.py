"""Rules with a mode: `train()` and `eval()` change weights on the device, and states on the host.

An optimizer of the public class runs the programs on the host, over parameters there which hold
what the device has at that moment. So the bits are those of the composition on the CPU. Until
`train`, it keeps what `eval` has rounded to 16 bits, as there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from optgen.offloading.buckets import Bucket
from optgen.offloading.checkpoint import stand_in_groups
from optgen.offloading.optimizer import OffloadedOptimizer
from optgen.runtime.programs import MODE, ModeOptimizer
from optgen.runtime.tensors.dtensor import to_local


class OffloadedModeOptimizer(OffloadedOptimizer):
    """An offloaded optimizer whose parameters have other values in evaluation than in training.

    It begins in train mode. After `eval`, the host also keeps a copy of the weights, and of values
    that 16 bits cannot hold, until `train`.
    """

    _stand_in: ModeOptimizer | None = None  # from `eval` to `train`

    def train(self) -> None:
        """Give parameters their values for training; skip groups already in train mode.

        Raises:
            OffloadError: A step failed on the host, or a copy of weights.
            RuntimeError: A backward pass has stepped, and `step` has not sent the weights.
        """
        self._change_mode(train=True)

    def eval(self) -> None:
        """Give parameters their values for evaluation; skip groups already in eval mode.

        Raises:
            OffloadError: A step failed on the host, or a copy of weights.
            RuntimeError: A backward pass has stepped, and `step` has not sent the weights.
        """
        self._change_mode(train=False)

    @torch.no_grad()
    def _change_mode(self, train: bool) -> None:
        """Fetch the weights of groups in the other mode, run the program, and send them."""
        self._check_weights_are_sent("train" if train else "eval")
        self.synchronize()
        changing = [bool(group[MODE]) is not train for group in self.param_groups]
        if not any(changing):
            return
        stand_in = self._stand_in = self._stand_in or self._new_stand_in()
        pairs = [*zip(self.param_groups, stand_in.param_groups, strict=True)]
        on_host = dict[Tensor, Tensor]()
        for (own, other), changes in zip(pairs, changing, strict=True):
            other.update({key: each for key, each in own.items() if key != "params"})
            for param, host in zip(own["params"], other["params"], strict=True):
                if param not in self.state:  # it has taken no step: the modes do not differ
                    continue
                stand_in.state[host] = self.state[param]
                if changes and param in self._host_params:
                    on_host[param] = host
        pipeline, ring = self._stepper.host.pipeline, self._stepper.host.ring
        rows = [(bucket, _rows(bucket, on_host)) for bucket in self._stepper.host.buckets]
        rows = [(bucket, found) for bucket, found in rows if found]
        local = {param: to_local(host.detach()) for param, host in on_host.items()}
        for bucket, _ in rows:
            ring.copies_wait(bucket.device)
        self._worker.call(partial(pipeline.fetch_weights, rows, local))
        stand_in.train() if train else stand_in.eval()
        self._worker.call(partial(pipeline.send_weights, rows, local))
        increment_version([to_local(param) for param in on_host])
        for param in self._host_params:  # others may have changed through `.data`, too
            self._stepper.doubt_weights(param)
        for own, other in pairs:
            own[MODE] = other[MODE]
        if all(group[MODE] for group in self.param_groups):
            self._stand_in = None

    def _new_stand_in(self) -> ModeOptimizer:
        groups = stand_in_groups(self.param_groups, self._host_params)
        made: ModeOptimizer = self._rule.public(groups, **self._hyper)
        return made

    def _check_may_step(self) -> None:
        super()._check_may_step()
        self._check_mode("step")

    def _check_mode(self, call: str) -> None:
        """Raise a RuntimeError in eval mode."""
        if not all(group[MODE] for group in self.param_groups):
            raise RuntimeError(
                f"{self.rule.name}.{call} in eval mode: call train() of the optimizer before it"
            )

    def refresh_masters(self) -> None:
        """Let the float32 weights follow the parameters, in train mode.

        Raises:
            RuntimeError: A group is in eval mode, where parameters are not the weights.
        """
        self._check_mode("refresh_masters")
        super().refresh_masters()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, in train mode. Its states are allocated at once.

        Raises:
            MemoryError: The host has no room for the states.
            RuntimeError: A group is in eval mode.
            ValueError: A parameter cannot be offloaded; the message says why.
        """
        self._check_mode("add_param_group")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, with its mode: load the model's weights of that mode, too.

        Raises:
            ValueError: The groups or the shapes of states differ.
        """
        super().load_state_dict(state_dict)
        self._stand_in = None


def _rows(bucket: Bucket, params: dict[Tensor, Tensor]) -> list[int]:
    return [row for row, piece in enumerate(bucket.pieces) if piece.owner.param in params]
