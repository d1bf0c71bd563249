"""Choose the lowering that takes the next step of some tensors, and say why."""

from collections.abc import Callable
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from optgen.runtime.private import foreach_devices, plain
from optgen.runtime.rule import Lowered, Rule
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer

TITLES = {
    "forloop": "for-loop",
    "foreach": "foreach",
    "fused_cpu": "fused C++",
    "fused_triton": "fused Triton",
}
FUSED = {"cpu": "fused_cpu", "cuda": "fused_triton"}
UNFUSED = ("forloop", "foreach")

DECIDING = ("foreach", "fused", "capturable", "differentiable")
"""What of a group decides which lowering takes it, beside its tensors and the type of its lr."""

F = TypeVar("F", bound=Callable[..., Any])
_forced: ContextVar[str | None] = ContextVar("forced lowering", default=None)


class use_lowering(ContextDecorator):
    """Take every step from here on through one lowering, or raise if it cannot run.

    As a statement it holds until the next call, and `use_lowering(None)` leaves the choice to the
    runtime again; in `with`, or as a decorator, it holds inside. It is a matter of each thread.

    Args:
        name: "forloop", "foreach", "fused_cpu" or "fused_triton"; on CPU tensors this last one
            means Triton's interpreter. None for no such wish.
    """

    def __init__(self, name: str | None) -> None:
        if name is not None and name not in TITLES:
            raise ValueError(f"unknown lowering {name!r}; there are {', '.join(TITLES)}")
        self._name, self._before = name, _forced.get()
        _forced.set(name)

    def __enter__(self) -> None:
        _forced.set(self._name)

    def __exit__(self, *raised: object) -> None:
        _forced.set(self._before)

    def __call__(self, function: F) -> F:
        """Decorate a function: it is called inside, and nothing holds before."""
        _forced.set(self._before)
        return super().__call__(function)

    def _recreate_cm(self) -> "use_lowering":
        return use_lowering(self._name)


def forced() -> str | None:
    """The lowering that `use_lowering` asks for here."""
    return _forced.get()


def kind(value: object) -> object:
    """What of a hyperparameter decides: a tensor may have to be computed with in its own dtype."""
    return getattr(value, "dtype", value.__class__)


def choose(optimizer: "GeneratedOptimizer", work: Work) -> tuple[str, str]:
    """Return the lowering for this work and the reason, in a few words."""
    group = work.group
    asked = (forced(), *map(group.get, DECIDING), kind(group.get("lr")))
    known = work.facts.get("choice")
    if known is None or known[0] != asked:
        known = work.facts["choice"] = (asked, _choose(optimizer, work))
    return cast(tuple[str, str], known[1])


def _choose(optimizer: "GeneratedOptimizer", work: Work) -> tuple[str, str]:
    group, rule, wish = work.group, optimizer.rule, forced()
    if wish is not None:
        if reason := why_not(optimizer, work, wish):
            name = type(optimizer).__name__
            raise RuntimeError(f"{name} cannot take a step through {wish!r}: {reason}")
        return wish, "asked for by use_lowering"
    if reason := only_forloop(work):
        return "forloop", reason
    if group.get("fused"):
        return _explicitly_fused(optimizer, work)
    if group.get("foreach"):
        return "foreach", "foreach=True"
    if group.get("foreach") is not None:
        return "forloop", "foreach=False"
    if group.get("capturable"):
        return "foreach", "capturable"
    if group.get("fused") is not None:
        return _best_unfused(rule, work, "fused=False")
    if "lr" in rule.tensor_hypers and _rounds_lr(work):
        return _best_unfused(rule, work, "lr is a tensor of lower precision than the parameters")
    device = work.trait.device
    if device not in FUSED:
        return _best_unfused(rule, work, f"no fused lowering for {device} tensors")
    if reason := why_not(optimizer, work, FUSED[device]):
        return _best_unfused(rule, work, reason)
    if work.trait.rows and device != "cpu":  # a table anew in every step, for few rows
        return _best_unfused(rule, work, "sparse gradients")
    return FUSED[device], _contents(work)


def why_not(owner: Lowered, work: Work, lowering: str) -> str:
    """Say in a few words why a lowering cannot take this work; nothing if it can."""
    if lowering == "forloop":
        return ""
    if reason := only_forloop(work):
        return f"only the for-loop can: {reason}"
    if lowering == "foreach":
        return ""
    if strange := _class_without_address(work):
        return f"a state of class {strange}"
    if lowering == "fused_triton":
        if work.trait.placed is not None:
            where = work.trait.placed.placements
            return f"the rule looks at whole parameters, and these are {where}"
        from optgen.runtime import fused_triton

        return fused_triton.obstacle(work.params[0].device)
    if work.trait.device != "cpu":
        return f"the tensors are on {work.trait.device}"
    from optgen.runtime import fused_cpu

    return fused_cpu.why_not(owner, work)


def _class_without_address(work: Work) -> str:
    """The class of a tensor that may be nowhere in memory, where a kernel would look for it."""
    kinds = dict.fromkeys(map(type, work.tensors()))
    return next((kind.__name__ for kind in kinds if not plain(kind)), "")


def only_forloop(work: Work) -> str:
    """The reason why nothing but the for-loop can take this work, if there is one."""
    if work.group.get("differentiable"):
        return "differentiable"
    if work.trait.sparse:
        return "sparse parameters"
    if work.trait.subclass:
        return f"tensors of class {work.trait.subclass}"
    return "a parameter stands in the group more than once" if work.trait.again else ""


def _explicitly_fused(optimizer: "GeneratedOptimizer", work: Work) -> tuple[str, str]:
    device = work.trait.device
    lowering = FUSED.get(device)
    reason = why_not(optimizer, work, lowering) if lowering else f"no kernel for {device} tensors"
    if reason and work.trait.rows:
        raise RuntimeError(f"`_fused_{optimizer.rule.name}` does not support sparse gradients")
    if lowering is None or reason:
        raise RuntimeError(f"{type(optimizer).__name__}(fused=True) cannot take a step: {reason}")
    return lowering, f"fused=True, {_contents(work)}"


def _best_unfused(rule: Rule, work: Work, reason: str) -> tuple[str, str]:
    if isinstance(work.group.get("lr"), Tensor) and "lr" in rule.tensor_hypers:
        return "forloop", reason  # it computes in the tensor's dtype, as torch does
    small = sum(param.numel() for param in work.params) < len(work.params) * 2**14
    many = work.trait.device in foreach_devices() or (small and len(work.params) > 1)
    return "foreach" if many else "forloop", reason


def _rounds_lr(work: Work) -> bool:
    """Tell whether torch's for-loop would compute the step size in less than the tensors' dtype."""
    lr = work.group.get("lr")
    return isinstance(lr, Tensor) and any(
        torch.promote_types(lr.dtype, param.dtype) != lr.dtype for param in work.params
    )


def _contents(work: Work) -> str:
    dtypes = sorted(
        str(each).removeprefix("torch.") for each in {param.dtype for param in work.params}
    )
    device = {"cpu": "CPU", "cuda": "CUDA"}.get(work.trait.device, work.trait.device)
    return f"{device} tensors, {' and '.join(dtypes)}"
