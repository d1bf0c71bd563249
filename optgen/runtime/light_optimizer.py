"""The base of optgen's optimizers: a torch Optimizer that does not import torch._dynamo."""

import functools
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature
from itertools import accumulate
from types import MappingProxyType
from typing import Any, TypeVar, cast

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from optgen.runtime.torch_private import (
    WARNS_OF_SETS,
    dynamo_has_read_groups,
    has_no_hooks,
    outside_dynamo,
    profile_hook_step,
    without_dynamo_wrapper,
    wrapped_by_torch,
)

F = TypeVar("F", bound=Callable[..., Any])

_UNORDERED_WARNING = (
    "optimizer parameters need to be organized in ordered collections, but the ordering of tensors "
    "in sets will change between runs. Please use a list instead. This will be an error in a "
    "future release."
)
"""torch's message since version 2.15."""


def with_step_hooks(step: F) -> F:
    """Decorate a step: run hooks and the profiler around it as torch does, if any are set.

    The attribute `hooked` keeps torch from wrapping the step again. `_wrapped_by_lr_sched` keeps
    schedulers from replacing the step; they need `_opt_called` only. If a subclass overrides the
    step, torch wraps the new step and runs the hooks there, so the decorated step runs none.
    """
    profiled_step = profile_hook_step(step)

    @functools.wraps(step)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        optimizer = args[0]
        optimizer._opt_called = True
        if has_no_hooks(optimizer) or wrapped_by_torch(optimizer):
            return step(*args, **kwargs)
        return profiled_step(*args, **kwargs)

    wrapper.hooked = True  # type: ignore[attr-defined]
    wrapper._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return cast(F, outside_dynamo(wrapper))


@contextmanager
def unchanged_after_error(optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Restore optimizers and their members if a load fails.

    A load replaces states, groups and defaults, and writes into none of the old ones.
    """
    waiting, attributes = [*optimizers], []
    while waiting:
        optimizer = waiting.pop()
        attributes.append((vars(optimizer), dict(vars(optimizer))))
        waiting += getattr(optimizer, "members", ())
    try:
        yield
    except BaseException:
        for current, before in attributes:
            current.clear()
            current.update(before)
        raise


class LightOptimizer(Optimizer):
    """A torch optimizer whose methods do not import torch._dynamo; torch's own methods do."""

    needs_closure = False
    """True if a step calls a closure, and does so several times, as that of LBFGS."""

    members: tuple[Optimizer, ...] = ()
    """The optimizers that this one steps, in the order of their groups; () for most."""

    _capturable_groups: frozenset[int] | None = None
    """The identities of the groups in which a user, not dynamo, has set `capturable`.

    None in an optimizer that reads no such key, or whose groups are those of another.
    """

    _loaded_tensors: Mapping[int, Tensor] = MappingProxyType({})
    """The tensors of the state dict that is being loaded, by their identities."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if isinstance(params, set) and not WARNS_OF_SETS:
            warnings.warn(_UNORDERED_WARNING, FutureWarning, stacklevel=2)
        super().__init__(params, defaults)

    def members_by_group(self) -> list[tuple[int, Optimizer]]:
        """Return the optimizers that step the groups, each with the index of its first group."""
        counts = [len(member.param_groups) for member in self.members]
        return [*zip(accumulate(counts, initial=0), self.members, strict=False)]

    def explained(self, first_index: int) -> list[str]:
        """Return what `explain` says about an optimizer that takes its steps in its own way.

        The indices of its groups begin at `first_index`. An empty list leaves it to `explain`.
        """
        return []

    @outside_dynamo
    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state as torch's class of the same name would."""
        self._undo_dynamo_writes()
        hooks = self._optimizer_state_dict_post_hooks
        self._optimizer_state_dict_post_hooks = OrderedDict()
        try:
            packed = without_dynamo_wrapper(Optimizer.state_dict)(self)
        finally:
            self._optimizer_state_dict_post_hooks = hooks
        packed = self._portable_state_dict(packed)
        for hook in hooks.values():
            replacement = hook(self, packed)
            packed = packed if replacement is None else replacement
        return packed

    @outside_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class, or of torch's class of the same name.

        Tensors are copied, as they are from a file, so later steps do not change `state_dict`. If a
        load fails, it changes nothing.
        """
        with unchanged_after_error([self]):
            hook = self.register_load_state_dict_pre_hook(_note_loaded_tensors)
            try:
                without_dynamo_wrapper(Optimizer.load_state_dict)(self, state_dict)
            finally:
                hook.remove()
                self._loaded_tensors = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._loaded_tensors:
            copies: dict[int, Tensor] = {}
            copied = {key: self._copied(values, copies) for key, values in self.state.items()}
            self.state = defaultdict(dict, copied)

    def _copied(self, value: Any, copies: dict[int, Tensor]) -> Any:
        """Return a loaded value with a copy of each tensor that the state dict holds, too.

        `copies` are the copies by the identities of the originals: a shared tensor stays shared.
        """
        if isinstance(value, Tensor):
            if id(value) not in self._loaded_tensors:
                return value  # converted by the load
            if id(value) not in copies:
                copies[id(value)] = value.clone()
            return copies[id(value)]
        if isinstance(value, dict):
            return {key: self._copied(each, copies) for key, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._copied(each, copies) for each in value)
        return value

    @outside_dynamo
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters, to None or to zeros."""
        without_dynamo_wrapper(Optimizer.zero_grad)(self, set_to_none)

    @outside_dynamo
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; the group's own hyperparameters override the defaults."""
        without_dynamo_wrapper(Optimizer.add_param_group)(self, param_group)
        if self._capturable_groups is not None and param_group.get("capturable"):
            self._capturable_groups |= {id(param_group)}

    def _note_capturable_groups(self) -> None:
        """Note the groups that are capturable now, before dynamo has seen them."""
        groups = (group for group in self.param_groups if group.get("capturable"))
        self._capturable_groups = frozenset(map(id, groups))

    def _undo_dynamo_writes(self) -> None:
        """Take `capturable=True` back out of groups into which dynamo wrote it.

        While dynamo traces a function that reads the groups, it takes each group for capturable. If
        the function writes to a group, dynamo writes this key back, too.
        """
        noted = self._capturable_groups
        if noted is None:
            return
        new = [g for g in self.param_groups if g.get("capturable") and id(g) not in noted]
        if new and not dynamo_has_read_groups(self.param_groups):
            self._note_capturable_groups()
            return
        for group in new:
            if "capturable" in self.defaults:
                group["capturable"] = self.defaults["capturable"]
            else:
                del group["capturable"]

    def _portable_state_dict(self, packed: dict[str, Any]) -> dict[str, Any]:
        """Convert torch's state dict to the one that post hooks and callers get."""
        return packed


def needs_closure(optimizer: Optimizer) -> bool:
    """Tell whether a step of an optimizer needs a closure, as LBFGS does, torch's too."""
    if isinstance(optimizer, LightOptimizer):
        return optimizer.needs_closure
    closure = signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


def _note_loaded_tensors(optimizer: Any, state_dict: dict[str, Any]) -> None:
    """Note the tensors that a load may share, after all other hooks."""
    tensors = _tensors_in(state_dict["state"])
    optimizer._loaded_tensors = {id(tensor): tensor for tensor in tensors}


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(each)
