"""Train every class of optgen.optim on a few parameters, whole or sharded on a mesh of one rank."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sanitizers.tensor_changes import CHANGES, slots_of
from torch import Tensor

import optgen.optim

Shard = Callable[[Tensor], Tensor]
SHAPES = ((6, 10), (10,))
MATRICES = ((6, 10), (16, 3))


def class_names() -> list[str]:
    """Return the names of all optimizers, also of those that are imported when they are used."""
    found = {name: getattr(optgen.optim, name) for name in dir(optgen.optim) if name[0].isupper()}
    return sorted(
        name
        for name, value in found.items()
        if isinstance(value, type)
        and issubclass(value, torch.optim.Optimizer)
        and (hasattr(value, "rule") or value is optgen.optim.LBFGS)
    )


def sharded() -> Shard:
    """Return a function that makes DTensors, on a mesh of this process alone."""
    from torch.distributed.tensor import Shard, distribute_tensor

    folder = tempfile.mkdtemp()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
    )
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    return lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)])


class Training:
    """An optimizer, its parameters, and steps with new gradients."""

    def __init__(self, name: str, shard: Shard, shapes: tuple[tuple[int, ...], ...]) -> None:
        torch.manual_seed(0)
        self.shard = shard
        self.params = [torch.nn.Parameter(shard(torch.randn(shape))) for shape in shapes]
        self.optimizer: Any = getattr(optgen.optim, name)(self.params)
        self.rule: Any = getattr(self.optimizer, "rule", None)
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()

    def give_gradients(self) -> None:
        """Give each parameter a gradient of the shape that it had at first, or has now."""
        sparse = self.rule is not None and self.rule.gradient == "sparse_only"
        for param in self.params:
            grad = self.shard(torch.randn(param.shape))
            param.grad = grad.to_sparse(1) if sparse else grad.to(param.dtype)

    def step(self) -> None:
        """Take a step, with random extra inputs if the rule needs some."""
        if self.rule is None:  # LBFGS
            self.optimizer.step(self._evaluate)
            return
        inputs = {
            state.step_argument: [self.shard(torch.rand(param.shape)) for param in self.params]
            for state in self.rule.inputs
        }
        self.optimizer.step(**inputs)

    def _evaluate(self) -> float:
        """Return a loss, whose gradients the parameters have already."""
        return sum(param.detach().square().sum().item() for param in self.params)

    def train(self, steps: int) -> None:
        """Take steps with new gradients."""
        for _ in range(steps):
            self.give_gradients()
            self.step()


def trainings(name: str, shard: Shard) -> Callable[[], Training]:
    """Return a function that begins a training; of matrices only, if the class takes no vector."""
    for shapes in (SHAPES, MATRICES):
        try:
            Training(name, shard, shapes).train(1)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            reason = error
        else:
            return lambda: Training(name, shard, shapes)
    raise RuntimeError(f"{name} takes no step: {reason}")


def run_changes(name: str, shard: Shard) -> Iterator[str]:
    """Change each tensor in each way between steps; yield the name of a case before it runs.

    A step may raise an error, whatever it is. It must not leave its tensors.
    """
    warnings.simplefilter("ignore")
    begin = trainings(name, shard)
    probe = begin()
    probe.train(3)
    probe.give_gradients()
    slot_count = len(slots_of(probe.optimizer, probe.params))
    for index in range(slot_count):
        for change_name, change in CHANGES.items():
            training = begin()
            training.train(2)
            training.give_gradients()
            slots = slots_of(training.optimizer, training.params)
            yield f"{name}: {slots[index].name}: {change_name}"
            try:
                change(slots[index], slots)
                training.step()
                training.train(1)
            except Exception:  # any error is allowed
                continue
