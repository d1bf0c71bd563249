"""Choose the lowering that takes a group's next step, and take the step."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from optgen.runtime import unfused
from optgen.runtime.assemble import States, assemble, visible
from optgen.runtime.collect import release, survey, with_gradient
from optgen.runtime.gradients import all_plain
from optgen.runtime.private import foreach_devices
from optgen.runtime.rule import Lowered, Rule
from optgen.runtime.sharded.views import advance_versions
from optgen.runtime.state import Group
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer
    from optgen.runtime.sharded.agreement import Meeting

TITLES = {
    "forloop": "for-loop",
    "foreach": "foreach",
    "fused_cpu": "fused C++",
    "fused_triton": "fused Triton",
}
FUSED = {"cpu": "fused_cpu", "cuda": "fused_triton"}
UNFUSED = ("forloop", "foreach")
_IN_PARTS = "in parts"  # for both of them: they share a form for parts of parameters
_PHASE_BY_PHASE = "phase by phase with the processes that hold the other parts"

DECIDING = ("foreach", "fused", "capturable", "differentiable")
"""What of a group decides which lowering takes it, beside its tensors and the type of its lr."""

_forced: ContextVar[str | None] = ContextVar("forced lowering", default=None)


@contextmanager
def use_lowering(name: str) -> Iterator[None]:
    """Take every step in this context through one lowering, or raise if it cannot run.

    Triton on CPU tensors means Triton's interpreter.
    """
    if name not in TITLES:
        raise ValueError(f"unknown lowering {name!r}; there are {', '.join(TITLES)}")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def forced() -> str | None:
    """The lowering that `use_lowering` asks for here."""
    return _forced.get()


def kind(value: object) -> object:
    """What of a hyperparameter decides: a tensor may have to be computed with in its own dtype."""
    return getattr(value, "dtype", value.__class__)


def step(optimizer: "GeneratedOptimizer", given: Sequence[Tensor | None] | None = None) -> None:
    """Take one step of all groups: one call for all the groups that share a fused lowering.

    `given` are gradients for the parameters of the only group, instead of the parameters' own.
    """
    if given is None and _at_once(optimizer):
        return
    stepped = False
    try:
        with _together(optimizer) as meeting:
            works = survey(optimizer, given)
            batches = _batches(optimizer, works)
            take = _prepare(optimizer, batches, meeting) if meeting else None
        for lowering, groups in batches.items():
            if lowering in UNFUSED:
                unfused.step(optimizer, groups, lowering)
            else:
                importlib.import_module(f"optgen.runtime.{lowering}").step(optimizer, groups)
        if take:
            take()
        for work in works:
            advance_versions(work.members)
        # Only where it matters: on a device, the answer must be waited for.
        stepped = not (optimizer._survey.created and unfused.skipped(optimizer))
    finally:
        release(optimizer, stepped)


def _at_once(optimizer: "GeneratedOptimizer") -> bool:
    """Take the step as the one before it, or as a first one of ordinary tensors, if that can be."""
    from optgen.runtime import fused_cpu

    known = optimizer._repeat
    if known is not None and known.forced == forced() and fused_cpu.repeat(optimizer):
        return True
    return not optimizer._survey.works and fused_cpu.begin(optimizer)


def _batches(optimizer: "GeneratedOptimizer", works: list[Work]) -> dict[str, list[Group]]:
    """The groups of this step by the lowering that takes them."""
    batches: dict[str, list[Group]] = {}
    for work in (part for whole in works for part in whole.parts or (whole,)):
        if work.params:
            lowering, _ = choose(optimizer, work)
            if work.trait.placed is not None and lowering in UNFUSED:
                lowering = _IN_PARTS
            batches.setdefault(lowering, []).append(work.group)
    return batches


def _together(optimizer: "GeneratedOptimizer") -> AbstractContextManager["Meeting | None"]:
    """A context that is left on all ranks or on none, if the step has collectives."""
    if optimizer.rule.elementwise or all(all_plain(g["params"]) for g in optimizer.param_groups):
        return nullcontext()
    from optgen.runtime.sharded.agreement import agreed

    return agreed(optimizer)


def _prepare(
    optimizer: "GeneratedOptimizer", batches: dict[str, list[Group]], meeting: "Meeting"
) -> Callable[[], None] | None:
    """Say what is about to happen; return the step of what is in parts and not fused."""
    from optgen.runtime.sharded.step import announce, prepare

    in_parts = batches.pop(_IN_PARTS, [])
    announce(optimizer, batches, meeting)
    return prepare(optimizer, in_parts, meeting) if in_parts else None


def explain(optimizer: torch.optim.Optimizer) -> str:
    """Tell, in a line per parameter group, which lowering the next step will take, and why."""
    from optgen.runtime.base import LightOptimizer
    from optgen.runtime.optimizer import GeneratedOptimizer

    if isinstance(optimizer, LightOptimizer) and not isinstance(optimizer, GeneratedOptimizer):
        return f"group 0: by hand: {type(optimizer).__name__} has no rule to generate from"
    if not isinstance(optimizer, GeneratedOptimizer):
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        raise TypeError(
            "explain tells about an optimizer that optgen generated, made of its parameters; "
            f"this is {'the class ' * isinstance(optimizer, type)}{kind.__module__}.{kind.__name__}"
        )
    lines, rule = [], optimizer.rule
    for index, group in enumerate(optimizer.param_groups):
        for work in _preview(optimizer, group):
            if not work.params:
                lines.append(f"group {index}: no parameters")
                continue
            lowering, reason = choose(optimizer, work)
            if work.trait.placed is not None and lowering in UNFUSED:
                lowering, reason = "foreach", f"{reason}; in lists"
            if work.trait.placed is not None:
                reason = f"{reason}; {_PHASE_BY_PHASE}"
            lines.append(f"group {index}: {TITLES[lowering]}: {reason}{_sparse(rule, work)}")
    return "\n".join(lines)


def _preview(optimizer: "GeneratedOptimizer", group: Group) -> list[Work]:
    """The works of the next step, made without touching any state.

    Before the first backward pass there are no gradients; each parameter stands for its own.
    """
    members, grads = with_gradient(group)
    if not members:
        members = grads = list(group["params"])
        if optimizer.rule.gradient == "sparse_only":
            grads = [
                torch.zeros(p.shape, dtype=p.dtype, device=p.device, layout=torch.sparse_coo)
                for p in members
            ]
    seen, states = visible(optimizer, group, grads), States(optimizer.state)
    work = assemble(optimizer, group, members, seen, states)
    return work.parts or [work]


def _sparse(rule: Rule, work: Work) -> str:
    """Tell what becomes of sparse gradients, if there are any."""
    if work.trait.rows:
        return "; sparse gradients by the rows they touch"
    if not any(param.grad is not None and param.grad.is_sparse for param in work.members):
        return ""
    whole = [s.key for s in rule.states if not s.rows and s.present(work.group)]
    return f"; sparse gradients made dense: {whole[0]} changes as a whole" if whole else ""


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
