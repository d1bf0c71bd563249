"""Step through the for-loop and foreach lowerings: plain torch operations, bucket by bucket."""

import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from optgen.runtime import one_dtype
from optgen.runtime.collect import collect
from optgen.runtime.lists import pieces
from optgen.runtime.private import capturable_devices
from optgen.runtime.rows import check_rows, touched
from optgen.runtime.rule import Rule, number
from optgen.runtime.state import Group
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer

Update = Callable[..., Any]
Split = Callable[[Rule, list[list[Any]]], Iterable[list[list[Any]]]]


def prepare(
    optimizer: "GeneratedOptimizer", groups: list[Group], lowering: str
) -> Callable[[], None]:
    """Check these groups; return what updates them, one after the other."""
    calls = [_call(optimizer, collect(optimizer, group), lowering) for group in groups]

    def update() -> None:
        if not skipped(optimizer):
            for call in calls:
                unscale(optimizer, call.work)
                call.update(optimizer.rule)

    return update


class Call(NamedTuple):
    """A work, and the generated function that updates it."""

    work: Work
    function: Update
    hypers: dict[str, Any]
    functional: bool
    as_they_are: bool  # gradients are dense, or torch adds them where they go
    split: Split  # what makes of a bucket the lists of several calls

    def update(self, rule: Rule) -> None:
        """Update the work, bucket by bucket; of sparse gradients, the rows that they touch."""
        rows = None if self.as_they_are else touched(rule, self.work)
        dense = rows.rows if rows else self.work
        for columns, fresh, _ in buckets(rule, dense, by_value=not self.functional):
            for part in self.split(rule, columns):
                self.function(*part, **self.hypers, **fresh)
        if rows:
            rows.put_back()


def _call(optimizer: "GeneratedOptimizer", work: Work, lowering: str) -> Call:
    rule, group = optimizer.rule, work.group
    functional = bool(group.get("differentiable") or group.get("capturable"))
    taken = hypers(rule, group, functional, lowering)
    if functional:
        _check_functional(rule, work)
        taken["capturable"] = bool(group.get("capturable"))
    if work.trait.rows:
        check_rows(work)
    # The functional form is written for one tensor; lists of them compute like one.
    form = ("forloop", "update_functional") if functional else (lowering, "update")
    function = load(optimizer.lowerings, form[0], named(form[1], rule, work))
    as_they_are = not work.trait.rows or (
        rule.adds and not functional and not any(map(torch.is_complex, work.grads))
    )
    split = _split(rule, work, functional, lowering)
    return Call(work, function, taken, functional, as_they_are, split)


def _split(rule: Rule, work: Work, functional: bool, lowering: str) -> Split:
    """Return the function that splits a bucket into the lists of several calls."""
    split = _in_pieces if functional and lowering == "foreach" and rule.elementwise else _whole
    if not one_dtype.several(rule, work):
        return split

    def in_one_dtype(rule: Rule, columns: list[list[Any]]) -> Iterator[list[list[Any]]]:
        for lists in one_dtype.portions(rule, columns):
            yield from split(rule, lists)

    return in_one_dtype


def _in_pieces(rule: Rule, columns: list[list[Any]]) -> Iterable[list[list[Any]]]:
    return pieces(columns)


def _whole(rule: Rule, columns: list[list[Any]]) -> Iterable[list[list[Any]]]:
    return (columns,)


def skipped(optimizer: "GeneratedOptimizer") -> bool:
    """Tell whether a gradient scaler found infinities, so that this step must not happen."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def unscale(optimizer: "GeneratedOptimizer", work: Work) -> None:
    """Divide the gradients by what a gradient scaler multiplied the loss by, if it left that."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        for grad in work.grads:
            grad.div_(scale)


@cache
def load(package: str, module: str, function: str) -> Update:
    """Import one function of a generated lowering."""
    update: Update = getattr(importlib.import_module(f"{package}.{module}"), function)
    return update


@cache
def find(package: str, module: str, function: str) -> Update | None:
    """The same, or None where the rule needs no such function."""
    has = hasattr(importlib.import_module(f"{package}.{module}"), function)
    return load(package, module, function) if has else None


def named(function: str, rule: Rule, work: Work) -> str:
    """A function's name: one rule has several where parameters of different shapes differ in it."""
    answers = zip(rule.facts, work.trait.facts, strict=True)
    return "_".join([function, *(fact if holds else f"not_{fact}" for fact, holds in answers)])


class Bucket(NamedTuple):
    """What one call can take of a work."""

    columns: list[list[Any]]  # in the order of a lowering's arguments
    fresh: dict[str, bool]  # which states this step has created
    places: list[int]  # in the work


def buckets(rule: Rule, work: Work, by_value: bool) -> Iterator[Bucket]:
    """Split a work into what one call can take: equal devices, dtypes, counts and freshness.

    With `by_value` the step count and the scalar states of a bucket are equal numbers. The tensors
    of a rule that looks at more than single elements have one shape, and so have those that they
    are parts of: every process that holds parts of the same has the same buckets.
    """
    keys = [
        _kinds(rule, work),
        *_dtypes(work),
        *(work.fresh[key] for key in rule.fresh if work.any_fresh),
    ]
    states = list(zip(rule.states, work.states, strict=True))
    if by_value:
        scalars = [work.steps, *(column for state, column in states if state.shape == "scalar")]
        for column in filter(None, scalars):
            keys += [_values(column), _turns(column)]
    rows: dict[tuple[Any, ...], list[int]] = {}
    for index, key in enumerate(zip(*keys, strict=True)):
        rows.setdefault(key, []).append(index)
    suited = work.params[0]  # the other parameters of a work are like it
    lists = [work.params, work.grads, *(c for state, c in states if state.suits(suited))]
    if rule.step is not None:
        lists.append(work.steps)
    for places in rows.values():
        whole = len(places) == len(work.params)
        columns = [c if whole or not c else [c[place] for place in places] for c in lists]
        fresh = {f"fresh_{key}": work.fresh[key][places[0]] for key in rule.fresh}
        yield Bucket(columns, fresh, places)


def _kinds(rule: Rule, work: Work) -> list[int]:
    """Number the tensors by device, dtypes and maybe shape, which are a work's for good."""
    kinds: list[int] | None = work.facts.get("kinds")
    if kinds is None:
        known: dict[tuple[Any, ...], int] = {}
        columns = [work.members, work.params, *(column for column in work.states if column)]
        kinds = work.facts["kinds"] = [
            known.setdefault(
                (
                    row[1].device,
                    None if rule.elementwise else (row[0].shape, row[1].shape),
                    *(tensor.dtype for tensor in row[1:]),
                ),
                len(known),
            )
            for row in zip(*columns, strict=True)
        ]
    return kinds


def _dtypes(work: Work) -> list[list[torch.dtype]]:
    """The dtypes of gradients where they have several: these may be others in every step."""
    return [[grad.dtype for grad in work.grads]] if len(work.grad_dtypes) > 1 else []


def _turns(scalars: list[Tensor]) -> list[int]:
    """How often each tensor came before: parameters that share a step count take turns with it."""
    if len(set(map(id, scalars))) == len(scalars):
        return [0] * len(scalars)
    seen: dict[int, int] = {}
    turns = []
    for scalar in scalars:
        turns.append(seen.get(id(scalar), 0))
        seen[id(scalar)] = turns[-1] + 1
    return turns


def _values(scalars: list[Tensor]) -> list[float]:
    """Read 0-dim tensors; what is on a device comes in one transfer."""
    if all(scalar.is_cpu for scalar in scalars):
        return [scalar.item() for scalar in scalars]
    values: list[float] = torch.stack([s.to(scalars[0].device) for s in scalars]).tolist()
    return values


def hypers(rule: Rule, group: Group, functional: bool, lowering: str) -> dict[str, Any]:
    """The hyperparameters as the lowering takes them.

    Tensors reach autograd and graph capture as they are. Else they are numbers, but a learning rate
    in the for-loop: torch's computes the step size in the dtype of that tensor.
    """
    taken: dict[str, Any] = {}
    for key, value in zip(rule.hypers, rule.values(group), strict=True):
        if isinstance(value, (tuple, list)):
            taken[key] = tuple(map(_scalar_tensor if functional else number, value))
        elif functional:
            taken[key] = _scalar_tensor(value)
        elif lowering == "forloop" and key in rule.tensor_hypers and isinstance(value, Tensor):
            taken[key] = _scalar_tensor(value.detach())
        else:
            taken[key] = number(value)
    return taken


def _scalar_tensor(value: Any) -> Any:
    return value.squeeze() if isinstance(value, Tensor) and value.dim() else value


def _check_functional(rule: Rule, work: Work) -> None:
    """Raise torch's errors about graph capture and about differentiating through the step."""
    if work.group.get("capturable"):
        devices = capturable_devices()
        scalars = {
            f"{state.key}s": column
            for state, column in zip(rule.states, work.states, strict=True)
            if state.shape == "scalar" and column
        }
        counters = [*scalars.values(), *([work.steps] if work.steps else [])]
        for param, *counted in zip(work.params, *counters, strict=True):
            types = {tensor.device.type for tensor in (param, *counted)}
            if len(types) > 1 or not types.issubset(devices):
                named = ", ".join(["params", *reversed(scalars)])
                comma = "," if len(scalars) > 1 else ""
                raise AssertionError(
                    f"If capturable=True, {named}{comma} and state_steps must be on supported "
                    f"devices: {devices}."
                )
    recorded = [*work.members, *(t for column in work.states for t in column if t is not None)]
    if torch.is_grad_enabled() and any(t.is_leaf and t.requires_grad for t in recorded):
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation."
        )
    if any(step.requires_grad for step in work.steps):
        raise RuntimeError("`requires_grad` is not supported for `step` in differentiable mode")
