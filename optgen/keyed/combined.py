"""Combine several keyed optimizers into one, with a key for each."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from optgen.keyed.errors import Refused
from optgen.keyed.keyed_optimizer import SAVE_GROUPS, KeyedOptimizer, check_keyed
from optgen.runtime.members import OptimizerOfMembers


class CombinedOptimizer(OptimizerOfMembers, KeyedOptimizer):
    """Several keyed optimizers as one, such as those of a model's submodules.

    The name of a parameter is its optimizer's key, a dot, and its name in that optimizer. With an
    empty key, the name has no prefix. Checkpoints hold one state under these names. Of the members'
    hooks, only those of `step` run.

    Args:
        optims: Keyed optimizers, or pairs of a key and a keyed optimizer; may be empty.

    Raises:
        ValueError: Two parameters have the same name; or some members save their groups and others
            do not.
        TypeError: A member is not a keyed optimizer.
    """

    _optims: list[tuple[str, KeyedOptimizer]]

    def __init__(self, optims: Sequence[KeyedOptimizer | tuple[str, KeyedOptimizer]]) -> None:
        keyed_members = [each if isinstance(each, tuple) else ("", each) for each in optims]
        for _, optimizer in keyed_members:
            check_keyed(optimizer)
        save_flags = {optimizer.defaults[SAVE_GROUPS] for _, optimizer in keyed_members}
        if len(save_flags) > 1:
            raise Refused(
                "Some optimizers save their param_groups and others do not: call "
                "save_param_groups on the combined one, not on some members"
            )
        self._begin(
            _optims=keyed_members,
            defaults={**_common_defaults(keyed_members), SAVE_GROUPS: save_flags == {True}},
        )
        seen: set[str] = set()
        for name in self._names():
            if name in seen:
                raise ValueError(f"Duplicate param key {name}")
            seen.add(name)

    def _names(self) -> list[str]:
        return [
            self.prepend_opt_key(name, key)
            for key, optimizer in self._optims
            for name in optimizer.params
        ]

    def __repr__(self) -> str:
        return ",".join(f"{key}: {optimizer!r}" for key, optimizer in self._optims)

    @property
    def members(self) -> tuple[KeyedOptimizer, ...]:  # type: ignore[override]
        """The combined optimizers."""
        return tuple(optimizer for _, optimizer in self._optims)

    @property
    def optimizers(self) -> list[tuple[str, KeyedOptimizer]]:
        """The members with their keys, as pairs (key, optimizer); "" is no key."""
        return self._optims

    @staticmethod
    def prepend_opt_key(name: str, opt_key: str) -> str:
        """Return the combined name of a parameter: its optimizer's key, a dot, and its own name."""
        return f"{opt_key}.{name}" if name and opt_key else name or opt_key

    @property
    def params(self) -> dict[str, Tensor]:  # type: ignore[override]
        """The parameters of all members by combined name, in a new dict."""
        return {
            self.prepend_opt_key(name, key): param
            for key, optimizer in self._optims
            for name, param in optimizer.params.items()
        }

    def post_load_state_dict(self) -> None:
        """Call `post_load_state_dict` of all members."""
        for _, optimizer in self._optims:
            optimizer.post_load_state_dict()

    def init_state(self, sparse_grad_parameter_names: set[str] | None = None) -> None:
        """Create the state of all members. `sparse_grad_parameter_names` are combined names."""
        sparse_names = sparse_grad_parameter_names or set()
        for key, optimizer in self._optims:
            names = {n for n in optimizer.params if self.prepend_opt_key(n, key) in sparse_names}
            optimizer.init_state(names)

    def save_param_groups(self, save: bool) -> None:
        """Choose whether groups are part of checkpoints, in saving and in loading."""
        super().save_param_groups(save)
        for _, optimizer in self._optims:
            optimizer.save_param_groups(save)

    def scratch_buffers(self) -> tuple[Tensor, ...]:
        """Return the scratch buffers of all members."""
        members_with_buffers = [
            each for _, each in self._optims if hasattr(each, "scratch_buffers")
        ]
        return tuple(buffer for each in members_with_buffers for buffer in each.scratch_buffers())

    def set_optimizer_step(self, step: int) -> None:
        """Call `set_optimizer_step` of the members that have it."""
        for _, optimizer in self._optims:
            if hasattr(optimizer, "set_optimizer_step"):
                optimizer.set_optimizer_step(step)

    def update_hyper_parameters(self, params_dict: dict[str, Any]) -> None:
        """Call `update_hyper_parameters` of the members that have it."""
        for _, optimizer in self._optims:
            if hasattr(optimizer, "update_hyper_parameters"):
                optimizer.update_hyper_parameters(params_dict)


def _common_defaults(keyed_members: list[tuple[str, KeyedOptimizer]]) -> dict[str, Any]:
    """Return the defaults that all members have, with the first member's values.

    Schedulers read them.
    """
    if not keyed_members:
        return {}
    (_, first), *others = keyed_members
    return {
        key: value
        for key, value in first.defaults.items()
        if all(key in other.defaults for _, other in others)
    }
