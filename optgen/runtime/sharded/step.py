"""The steps of rules that look at whole parameters, where each process holds a part of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from optgen.runtime import unfused
from optgen.runtime.collect import collect
from optgen.runtime.one_dtype import OneDtype, in_one_dtype
from optgen.runtime.sharded.agreement import Meeting
from optgen.runtime.sharded.driver import Update, run
from optgen.runtime.sharded.split import Split
from optgen.runtime.state import Group
from optgen.runtime.work import Work

if TYPE_CHECKING:
    from optgen.runtime.optimizer import GeneratedOptimizer


def announce(
    optimizer: "GeneratedOptimizer", batches: Mapping[str, Sequence[Group]], meeting: Meeting
) -> None:
    """Note which fused lowerings take which parameters that are in parts, and with what numbers."""
    for lowering, groups in batches.items():
        for group in groups:
            work = collect(optimizer, group)
            if work.trait.placed is not None:
                shapes = [tuple(member.shape) for member in work.members]
                numbers = _numbers([*map(group.get, optimizer.rule.hypers), *work.steps])
                meeting.note(work.trait.placed, lowering, shapes, work.trait.facts, numbers)


def _numbers(values: Iterable[Any]) -> list[Any]:
    """What values are, tensors among them too if no device has to be waited for.

    The text of a tensor would leave digits out, and take longer than the step.
    """
    found = []
    for value in values:
        if isinstance(value, (tuple, list)):
            found.append(_numbers(value))
        elif not isinstance(value, Tensor):
            found.append(value)
        elif value.is_cpu:
            found.append(value.tolist())
    return found


def prepare(
    optimizer: "GeneratedOptimizer", groups: Sequence[Group], meeting: Meeting
) -> Callable[[], None]:
    """Make the updates of these groups, and note what they are; return what runs them together.

    The buckets follow from the shapes of whole parameters, so that all ranks have the same.
    """
    works = [collect(optimizer, group) for group in groups]
    rounds: dict[int, list[Update]] = {}  # a parameter that comes twice is stepped twice
    for work in works:
        rounds.setdefault(work.trait.again, []).extend(_updates(optimizer, work, meeting))

    def take() -> None:
        if not unfused.skipped(optimizer):
            for work in works:
                unfused.unscale(optimizer, work)
            for updates in rounds.values():
                run(updates)

    return take


def _updates(optimizer: "GeneratedOptimizer", work: Work, meeting: Meeting) -> Iterator[Update]:
    rule, group, where = optimizer.rule, work.group, work.trait.placed
    assert where is not None
    if group.get("differentiable") or group.get("capturable"):
        raise RuntimeError(
            f"{type(optimizer).__name__} looks at a parameter as a whole, and this process holds a "
            f"part ({where.placements}): neither differentiable=True nor capturable=True can step"
        )
    taken = unfused.hypers(rule, group, functional=False, lowering="foreach")
    name, cuts = unfused.named("update_sharded", rule, work), where.cuts()
    sharded = unfused.find(optimizer.lowerings, "foreach", name)
    alone = unfused.named("update", rule, work)  # where parts of such parameters go by themselves
    update = sharded or unfused.load(optimizer.lowerings, "foreach", alone)
    meeting.note(where, name, taken)
    for columns, fresh, places in unfused.buckets(rule, work, by_value=True):
        whole = work.members[places[0]]
        count = columns[-1][0].item() if rule.step else None
        meeting.note(where, tuple(whole.shape), whole.dtype, places, fresh, count)
        split = {"split": Split(whole, cuts)} if sharded else {}
        yield _made(update, in_one_dtype(rule, columns), {**taken, **fresh, **split})


def _made(update: unfused.Update, taken: OneDtype, keywords: Mapping[str, Any]) -> Update:
    """An update of a bucket, as the driver takes it: one without phases asks for nothing."""
    asking = update(*taken.columns, **keywords)
    if asking is not None:
        yield from asking
    taken.put_back()
