"""Optimizers with a mode: `train()` and `eval()` run programs over parameters and states.

A program is a generated function over lists, in a package beside the optimizer's lowerings. The
mode of each param group is in its key `train_mode`, and so in checkpoints.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, cast, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from optgen.runtime.batch.step_context import TrainingValues
from optgen.runtime.elementwise import Elementwise
from optgen.runtime.light_optimizer import with_step_hooks
from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.runtime.rule import Group, number
from optgen.runtime.torch_private import called_to_init_state, outside_dynamo

MODE = "train_mode"
_BEFORE_EVAL = "values_before_eval"
"""In a pickled optimizer, the key of the values before `eval`, a list for each group."""
_INCOMPLETE_BEFORE_EVAL = "before_eval"
"""The key in an earlier version, which did not notice changed states; its values are not used."""
COPY = "copy of "
"""Prefix of the key of a list of copies, which a program reads while it writes the originals."""


class Program(NamedTuple):
    """A generated function, and the lists of an optimizer's tensors that it takes."""

    name: str  # of the function, and of its package beside the optimizer's lowerings
    keys: tuple[str, ...]  # for each list, the key of its state; "param" for the parameters

    @property
    def stored_keys(self) -> tuple[str, ...]:
        """The keys of the lists that are no copies."""
        return tuple(key for key in self.keys if not key.startswith(COPY))

    def function(self, lowerings: str) -> Elementwise:
        """Import the function."""
        module = importlib.import_module(f"{lowerings}.{self.name}")
        return cast(Elementwise, vars(module)["_update"])


class ModeOptimizer(GeneratedOptimizer):
    """An optimizer whose parameters have other values in evaluation than in training.

    It begins in train mode. A parameter that lacks one of a program's states has the same value in
    both modes: it has taken no step, or its group has no such state.
    """

    train_program: ClassVar[Program]
    eval_program: ClassVar[Program]

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        super().__init__(params, {**defaults, MODE: True})

    @overload
    def step(self, closure: None = None, **inputs: Any) -> None: ...

    @overload
    def step(self, closure: Callable[[], float], **inputs: Any) -> float: ...

    @with_step_hooks
    def step(self, closure: Callable[[], float] | None = None, **inputs: Any) -> float | None:
        """Perform a single optimization step, in train mode.

        Args:
            closure: Reevaluates the model and returns the loss.
            **inputs: Extra inputs, if the rule has any.

        Raises:
            RuntimeError: A group is in eval mode.
        """
        if (
            not all(group[MODE] for group in self.param_groups)
            and not self._is_called_to_init_state()
        ):
            name = type(self).__name__
            raise RuntimeError(f"{name}.step in eval mode: call {name}.train() before training")
        step = cast(Any, super().step).__wrapped__  # without hooks: they run around this method
        return cast("float | None", step(self, closure, **inputs))

    def _is_called_to_init_state(self) -> bool:
        """Tell whether torch's checkpoints call `step` only to create the state."""
        return not self.state and called_to_init_state()

    @outside_dynamo
    def train(self) -> None:
        """Give parameters their values for training; skip groups already in train mode."""
        self._change_mode(train=True, program=self.train_program)

    @outside_dynamo
    def eval(self) -> None:
        """Give parameters their values for evaluation; skip groups already in eval mode."""
        self._change_mode(train=False, program=self.eval_program)

    def _change_mode(self, train: bool, program: Program) -> None:
        """Prepare a program for all groups in the other mode; then run it on each group.

        Parameters of 16 bits round what the program gives them. So `eval` keeps the values from
        before, and `train` puts them back if nothing has changed since.
        """
        groups = [group for group in self.param_groups if bool(group[MODE]) is not train]
        function = program.function(self.lowerings)
        calls = [self._prepare_call(function, program, group) for group in groups]
        for group, call in zip(groups, calls, strict=True):
            hypers = _numbers(function, group)
            exact = self._values_before_eval(program, group, hypers, train)
            call()
            group[MODE] = train
            if train:
                for each in exact:
                    _write(each.tensors, each.values)
            elif exact:
                self._context.before_eval[id(group)] = [e.after_program() for e in exact]

    def _values_before_eval(
        self, program: Program, group: Group, hypers: dict[str, Any], train: bool
    ) -> list[TrainingValues]:
        """Return the values of a group's parameters of 16 bits before `eval` that still hold."""
        keys = program.stored_keys
        if train:
            kept = self._context.before_eval.pop(id(group), [])
            return [e for e in kept if e.still_hold(self._tensors(e.param, keys), hypers)]
        params = {id(param): param for param in group["params"] if param.element_size() == 2}
        pairs = ((param, self._tensors(param, keys)) for param in params.values())
        return [
            TrainingValues(param, tensors, tuple(t.detach().clone() for t in tensors), hypers)
            for param, tensors in pairs
            if tensors
        ]

    def _prepare_call(
        self, function: Elementwise, program: Program, group: Group
    ) -> Callable[[], None]:
        """Check the tensors of one group, and return the call that runs a program on them."""
        params = {id(param): param for param in group["params"]}  # a parameter may be listed twice
        tensors_by_param = [self._tensors(param, program.keys) for param in params.values()]
        columns = [list(column) for column in zip(*filter(None, tensors_by_param), strict=True)]
        for index, key in enumerate(program.keys if columns else ()):
            if key.startswith(COPY):
                columns[index] = [tensor.detach().clone() for tensor in columns[index]]
        fused, foreach = group.get("fused"), group.get("foreach")
        may_fuse = fused or (fused is None and foreach is None)
        return (
            function.prepare(columns, _numbers(function, group), may_fuse)
            if columns
            else lambda: None
        )

    def _tensors(self, param: Tensor, keys: tuple[str, ...]) -> tuple[Tensor, ...]:
        """Return the tensors of a parameter that a program takes; () if one does not exist."""
        values = {**self.state.get(param, {}), "param": param}
        tensors: tuple[Any, ...] = tuple(values.get(key.removeprefix(COPY)) for key in keys)
        return () if any(tensor is None for tensor in tensors) else tensors

    def __getstate__(self) -> dict[str, Any]:
        packed, kept = super().__getstate__(), self._context.before_eval
        if kept:  # a copy goes back to train mode with the same values
            packed[_BEFORE_EVAL] = [kept.get(id(group), []) for group in self.param_groups]
        return packed

    def __setstate__(self, state: dict[str, Any]) -> None:
        for group in state.get("param_groups", ()):
            group.setdefault(MODE, True)  # pickled by a class without modes, which only trains
        kept_keys = (_BEFORE_EVAL, _INCOMPLETE_BEFORE_EVAL)
        super().__setstate__({key: each for key, each in state.items() if key not in kept_keys})
        pairs = zip(self.param_groups, state.get(_BEFORE_EVAL, ()), strict=False)
        self._context.before_eval = {id(group): kept for group, kept in pairs if kept}


def _numbers(function: Elementwise, group: Group) -> dict[str, Any]:
    """Return the hyperparameters of a program, as numbers."""
    return {key: number(group[key]) for key in function.rule.hypers}


@torch.no_grad()
def _write(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
