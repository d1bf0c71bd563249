"""Create the state of a parameter: torch's keys, dtypes, shapes and devices."""

import gc
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.private import scalar_dtype
from optgen.runtime.rule import Rule, State

Group = dict[str, Any]
Created = tuple[dict[str, Any], str]  # a parameter's state, and a key that it did not have


def wanted(rule: Rule, group: Group) -> list[str]:
    """The keys of the states that parameters of this group have."""
    return [state.key for state in rule.states if state.when is None or state.present(group)]


def ensure(
    rule: Rule,
    states: MutableMapping[Tensor, Any],
    group: Group,
    params: Iterable[Tensor],
    defaults: Mapping[str, Any],
    ahead: bool = False,
) -> list[Created]:
    """Create what the parameters' states lack; return what the rule asks `fresh` of among it.

    An eager state begins with what the constructor was given, the optimizer's `defaults`, whatever
    the parameter's group says and whenever it joined; any other with a value of its group.

    A key can be missing after the first step too: a flag was switched on, a checkpoint was made
    without it, or an old one holds None. That a state is missing is what makes it fresh, in torch's
    checkpoints as in ours: so `ahead` of a step such a state is not created.
    """
    left = rule.fresh if ahead else ()
    present = [s for s in rule.states if s.present(group) and s.key not in left]
    fresh: list[Created] = []
    if not present and rule.step is None:
        return fresh
    with _uncollected():
        for param in params:
            values = states[param]
            if rule.step is not None and "step" not in values:
                values["step"] = 0 if rule.step == "int" else as_scalar(0.0, rule, group, param)
            elif rule.step == "tensor" and not isinstance(values["step"], Tensor):
                raise RuntimeError(_NO_TENSOR)
            for state in present:
                if rule.facts and not state.suits(param):
                    continue
                value = values.get(state.key)
                if value is None:
                    values[state.key] = initial(rule, state, group, param, defaults)
                    if state.key in rule.fresh:
                        fresh.append((values, state.key))
                elif value.is_sparse:  # torch keeps SGD's momentum as sparse as its gradients
                    values[state.key] = value.to_dense()
    return fresh


_NO_TENSOR = "API has changed, `state_steps` argument must contain a list of singleton tensors"


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the collector out: thousands of new tensors make it search all of torch for 90 ms."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def as_scalar(value: float, rule: Rule, group: Mapping[str, Any], param: Tensor) -> Tensor:
    """A 0-dim tensor where the rule and the group want it, in the dtype of scalars."""
    device = param.device if beside_params(rule, group) else "cpu"
    return torch.full((), value, dtype=scalar_dtype(bool(group.get("fused"))), device=device)


def beside_params(rule: Rule, group: Mapping[str, Any]) -> bool:
    """Tell whether scalars live on their parameter's device: always, or so that it reads them."""
    always = rule.scalar_device == "param"
    return always or bool(group.get("fused") or group.get("capturable"))


def counters(dicts: list[dict[str, Any]]) -> list[Tensor]:
    """Step counts that are Python ints, as lowerings count them: in tensors, exact ones."""
    known = {id(values): values["step"] for values in dicts}
    made = {
        key: torch.tensor(count, dtype=torch.float64, device="cpu") for key, count in known.items()
    }
    return [made[id(values)] for values in dicts]


def store_counts(dicts: list[dict[str, Any]], steps: list[Tensor]) -> None:
    """Write such counts back, as ints."""
    for values, step in zip(dicts, steps, strict=True):
        values["step"] = int(step)


def initial(
    rule: Rule,
    state: State,
    group: Mapping[str, Any],
    param: Tensor,
    defaults: Mapping[str, Any],
) -> Tensor:
    """The first value of a state."""
    dtype = param.dtype if state.dtype is None else getattr(torch, state.dtype)
    if state.init == "p":
        copy = param.detach().clone(memory_format=torch.preserve_format)
        return copy.to(dtype)
    given = defaults if state.eager else group
    start: Any = given[state.init] if isinstance(state.init, str) else state.init
    learnt = isinstance(start, Tensor) and start.requires_grad and torch.is_grad_enabled()
    number = float(start.detach() if isinstance(start, Tensor) else start)
    if state.shape == "scalar":
        made = as_scalar(number, rule, group, param)
        return made.copy_(start) if learnt else made
    if state.shape == "like":
        made = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
    else:
        made = param.new_zeros(state.shape_for(param), dtype=dtype)
    if learnt:
        made = made + (torch.complex(start, start) if made.is_complex() else start).to(dtype)
    elif number:
        # A lowering sees a complex state as pairs of reals, each of them a state of its own.
        made.fill_(complex(number, number) if made.is_complex() else number)
    return made
