"""Run a class's constructor and step on recording values: one path at a time."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from optgen.importer.counts import MATRIX, VECTOR, count, groups_of, takes_split_groups
from optgen.importer.holders import Group, States, counted
from optgen.importer.names import (
    LETTERS_OF_STEP,
    first_argument,
    is_generated,
    is_taken,
    kept_word,
    state_words,
)
from optgen.importer.numbers import (
    Flag,
    Float,
    Int,
    Size,
    plain,
    recorded,
    recording_floats,
    recording_functions,
)
from optgen.importer.places import line_of_argument, line_of_property, line_that_sets
from optgen.importer.precision import precision
from optgen.importer.recording import (
    Branch,
    NotImportedError,
    Record,
    as_value,
    failed,
    is_author_file,
    set_current,
)
from optgen.importer.tensors import TensorRecorder
from optgen.importer.values import PROPERTIES, Value, apply, constant
from optgen.ir.ops import OPS
from optgen.spec.reserved_names import ADDED_ARGUMENTS, why_taken

OTHER_NAMES = ("atom", "constant", "copy", *PROPERTIES)
"""Values that a variable is only another name of."""


@dataclass(frozen=True)
class Argument:
    """An argument of the constructor that the spec takes over."""

    name: str
    default: Any

    @property
    def word(self) -> str:
        """Return the rule's name for it: p, g, t and some more are others' names there."""
        is_other = self.name in LETTERS_OF_STEP or self.name in OPS or is_generated(self.name)
        return f"{self.name}_argument" if is_other else self.name


@dataclass(frozen=True)
class Subject:
    """A class to import, with the arguments that are set and the counters of its steps."""

    cls: Any
    arguments: tuple[Argument, ...]
    settings: Mapping[str, Any]
    counters: Mapping[str, int]
    """Keys of a group or a state that count steps, with the value before the first step."""
    group_numbers: Mapping[str, float]
    """Numbers of the group that steps change, with their first values."""
    own_counters: frozenset[str]
    """Attributes of the optimizer that count steps."""
    step_state: str
    """The kind of the count in a parameter's state, "int" or "tensor"; "" if there is none. A state
    dict has it even if no rule reads it."""
    is_wide: bool = False
    """The class runs without its roundings to shorter dtypes."""
    rounded: frozenset[torch.dtype] = frozenset()
    """The dtypes of such roundings. Known of a subject that runs without them."""
    state_keys: frozenset[str] = frozenset()
    reduces_all: bool = False
    """A reduction goes over all parameters, as the runs have shown."""
    kept: frozenset[str] = frozenset()
    """The arguments that the steps read as the constructor got them, and not in the groups."""
    own: frozenset[str] = frozenset()
    """The arguments that the steps read both ways. The constructor's number is one of its own."""
    left_out: frozenset[str] = frozenset()
    """The keys of states that no step reads, as the runs have shown."""
    is_for_matrices: bool = False
    """The class is imported for matrices alone."""
    totals: str = ""
    """Sums that begin with 0 go over "all" parameters, a "group", or "", this parameter alone."""
    is_split: bool = False
    """The class takes groups that say `use_muon`; an import gives it matrices in such a group."""

    def can_be_own(self, name: str) -> bool:
        """Tell if the constructor's number may have a word of its own: it is one fraction."""
        is_fraction = any(a.name == name and type(a.default) is float for a in self.arguments)
        is_free = all(a.name not in (first_argument(name), kept_word(name)) for a in self.arguments)
        return is_fraction and is_free and name not in self.own

    def key(self, key: str) -> str:
        """Return the key of a state in the imported class: no argument or word has it as a name."""
        is_taken = any(a.name == key for a in self.arguments) or key in ("param", "grad")
        return f"{key}_state" if is_taken or why_taken(key) else key

    def state_word(self, key: str) -> str:
        """Return the name of a state in the rule. No two states have one name."""
        known = self._state_words
        return known.get(key) or self._words_of({key}, {*known.values()})[key]

    @functools.cached_property
    def _state_words(self) -> dict[str, str]:
        return self._words_of(self.state_keys | self.group_numbers.keys())

    def _words_of(self, keys: Set[str], known: Set[str] = frozenset()) -> dict[str, str]:
        words = {each.word for each in self.arguments}
        return state_words(keys, self.names, words, self.cls, known)

    @property
    def names(self) -> set[str]:
        """Return the names of the arguments."""
        return {each.name for each in self.arguments}


@dataclass
class Path:
    """The record of one run."""

    events: list[Value | Branch]
    decided: dict[str, bool]
    states: dict[str, tuple[tuple[int, ...], Any]]
    inits: dict[str, Value]
    aliases: dict[str, str]
    bindings: dict[str, Value]
    numbers: dict[tuple[str, str], list[str]]


def find_subject(
    cls: Any, settings: Mapping[str, Any], *, is_wide: bool = False, is_for_matrices: bool = False
) -> Subject:
    """Look at the constructor, and take some steps to see what counts them.

    `is_wide`: the class runs without its roundings to shorter dtypes. `is_for_matrices`: it gets no
    parameters but matrices.
    """
    if not (isinstance(cls, type) and hasattr(cls, "step")):
        raise NotImportedError(f"{cls!r} is no class with a step")
    fixed = dict(settings)
    arguments = _arguments_of(cls, fixed)
    names = {each.name for each in arguments}
    try:
        with precision(is_wide=is_wide) as replaced:
            is_split = takes_split_groups(cls, fixed)
            numeric = {a.name: a.default for a in arguments}
            shapes = (MATRIX,) if is_for_matrices else (MATRIX, VECTOR)
            counts = count(cls, numeric, fixed, shapes, is_split=is_split)
    except NotImportedError:
        raise
    except Exception as error:
        raise failed(error) from error
    if changed := names & set(counts.changed):
        raise NotImportedError(
            f"steps change an argument of the constructor: {', '.join(sorted(changed))}",
            line_that_sets(cls, min(changed)),
            hint="keep the number that changes in the state of the parameter",
        )
    return Subject(
        cls,
        tuple(arguments),
        fixed,
        counts.counters,
        counts.changed,
        counts.attributes,
        counts.kind,
        is_wide=is_wide,
        is_for_matrices=is_for_matrices,
        rounded=frozenset(replaced),
        state_keys=counts.state_keys,
        is_split=is_split,
    )


def _arguments_of(cls: Any, fixed: dict[str, Any]) -> list[Argument]:
    """Return the constructor's arguments that are numbers. Flags of all optimizers get fixed."""
    arguments: list[Argument] = []
    parameters = list(inspect.signature(cls).parameters.values())[1:]
    for each in parameters:
        if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) or each.name in fixed:
            continue
        if each.name in ADDED_ARGUMENTS:
            if each.name != "maximize":
                fixed[each.name] = False
            continue
        if each.default is each.empty:
            raise NotImportedError(
                f"the argument `{each.name}` has no default",
                line_of_argument(cls, each.name),
                hint=f"--set {each.name}=…",
            )
        if isinstance(each.default, list):
            raise NotImportedError(
                f"the default of the argument `{each.name}` is a list, which steps may change",
                line_of_argument(cls, each.name),
                hint=f"make it a tuple, or fix it: --set {each.name}=…",
            )
        if _is_number_like(each.default):
            arguments.append(Argument(each.name, each.default))
    return arguments


def _is_number_like(default: Any) -> bool:
    if isinstance(default, tuple):
        return bool(default) and all(type(each) in (int, float) for each in default)
    return type(default) in (bool, int, float)


@dataclass
class Run:
    """One run of a class: its recorder, its dictionaries of states, and the names of locals."""

    subject: Subject
    record: Record
    shape: tuple[int, ...]
    owned: frozenset[str] = frozenset()
    """Local variables that hold a value of their own in this run."""
    number: int = 1
    recorder: TensorRecorder = field(init=False)
    inits: dict[str, Value] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    bindings: dict[str, Value] = field(default_factory=dict)
    computed: set[str] = field(default_factory=set)
    """Local variables that hold a computed value in some run. All runs share the set."""
    words: set[str] = field(default_factory=set)
    numbers: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """The numbers that local variables were other names of, by function and variable, in order."""
    param: Any = None
    is_constructed: bool = False
    """The constructor accepted its arguments."""

    def take(self, *, is_fresh: bool) -> Path:
        """Run the constructor and a step: the first, or a later one."""
        self.words = {"p", "g", "t", *(a.word for a in self.subject.arguments)}
        self.words |= {kept_word(name) for name in self.subject.own}
        keys = self.subject.state_keys - self.subject.counters.keys()
        self.words |= {self.subject.state_word(key) for key in keys}
        generator = torch.Generator().manual_seed(1)
        self.param = torch.nn.Parameter(
            torch.randn(self.shape, dtype=torch.float64, generator=generator)
        )
        set_current(self.record)
        try:
            package = self.subject.cls.__module__.partition(".")[0]
            wide = precision(is_wide=self.subject.is_wide)
            with recording_functions(), recording_floats(package), wide:
                optimizer = self._construct()
                self.is_constructed = True
                for self.number in (1,) if is_fresh else (1, 2, 3, 4):
                    self.record.is_silent = not is_fresh and self.number < 4
                    self.param.grad = torch.randn(
                        self.shape, dtype=torch.float64, generator=generator
                    )
                    self._step(optimizer)
        finally:
            set_current(None)
        if self.record.refusal is not None:
            raise self.record.refusal  # the author's code has caught it
        states = {
            str(key): (tuple(x.shape), x.dtype) if isinstance(x, Tensor) else ((), None)
            for key, x in optimizer.state[self.param].items()
            if key not in self.subject.counters and x is not None
        }
        states |= dict.fromkeys(self.subject.group_numbers, ((), torch.float64))
        events, decided = self.record.events, self.record.decided
        return Path(events, decided, states, self.inits, self.aliases, self.bindings, self.numbers)

    def _construct(self) -> Any:
        arguments = {a.name: self._first(a) for a in self.subject.arguments}
        self.recorder = TensorRecorder(self.record, self.shape)
        self.recorder.declare(self.param, "p")
        with self._naming(), self.recorder:
            groups = groups_of([self.param], self.subject.is_split)
            optimizer = self.subject.cls(groups, **arguments, **self.subject.settings)
        created = optimizer.state.get(self.param, {})
        optimizer.param_groups[:] = [Group(self, each) for each in optimizer.param_groups]
        try:
            optimizer.state = States(self)
        except AttributeError:
            raise NotImportedError(
                "`state` is a property: a wrapper of another optimizer",
                line_of_property(self.subject.cls, "state"),
                hint="import the inner class; modifiers replace most wrappers",
            ) from None
        if created:
            with self.recorder:
                optimizer.state[self.param] = created
        self.record.scheduled = frozenset(self._renew_arguments(optimizer.param_groups))
        return optimizer

    def _renew_arguments(self, groups: Sequence[Any]) -> Iterator[str]:
        """Let the groups' numbers differ from those that the constructor keeps elsewhere.

        They get the number of the step, so that a number which an earlier step kept differs too.

        Yields:
            The arguments whose numbers the groups have, so that a schedule can change them.
        """
        for argument in self.subject.arguments:
            first = self._first(argument) if self.number == 1 else _argument(argument)
            for group in groups:
                if _has_atoms(group.get(argument.name), first):
                    number = _argument(argument, self.number)
                    dict.__setitem__(group, argument.name, number)
                    yield argument.name

    def _first(self, argument: Argument) -> Any:
        """Return an argument as the constructor gets it."""
        if argument.name not in self.subject.own:
            return _argument(argument)
        return recorded(argument.default, Value("atom", name=kept_word(argument.name)))

    def _step(self, optimizer: Any) -> None:
        """Take one step with a new recorder, which knows p, g and the states."""
        self.record.step = self.number
        if self.number > 1:
            list(self._renew_arguments(optimizer.param_groups))
        self.recorder = TensorRecorder(self.record, self.shape)
        self.recorder.declare(self.param, "p")
        self.recorder.declare(self.param.grad, "g")
        for holder in (*optimizer.param_groups, optimizer.state):
            holder.declare()
        for name in self.subject.own_counters:
            if hasattr(optimizer, name):  # else the step makes it
                setattr(optimizer, name, counted(self, getattr(optimizer, name)))
        step = inspect.unwrap(self.subject.cls.step)
        with torch.no_grad(), self._naming(), self.recorder:
            step(optimizer)

    def _naming(self) -> _Naming:
        return _Naming(self)

    def count(self, number: float) -> Value:
        """Return a counter's value as a value of t."""
        return apply("add", Value("atom", name="t"), constant(number - self.number))

    def see(self, name: str, x: Any) -> None:
        """Note that a local variable of the author has a value."""
        if isinstance(x, Tensor):
            memory = self.recorder.memory_of(x) if hasattr(self, "recorder") else None
            value = None if memory is None else memory.value
        else:
            value = as_value(x)
        if value is None:
            return
        self.bindings[self.local_name(name)] = value
        if value.op not in OTHER_NAMES and value.name is None:
            self.computed.add(name)
        if value.op in ("constant", *PROPERTIES):
            return
        if value.op == "atom":
            self.aliases.setdefault(str(value.name), name)
        elif value.name is None and value.place[0]:
            value.name = self.local_name(name)

    def note_number(self, code: CodeType, name: str, x: Any) -> None:
        """Note the number that a variable is another name of; a parameter of a function is none."""
        if name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            return
        key = as_value(x).key
        seen = self.numbers.setdefault((code.co_name, name), [])
        if key not in seen:
            seen.append(key)

    def own_value(self, name: str, x: Any) -> Any:
        """Return a value of the variable's own for another name of a number, or for a constant.

        Other runs compute the variable, `step_size = lr / correction`. So what follows reads the
        variable in all runs.
        """
        if name not in self.owned or isinstance(x, Tensor | bool | Flag):
            return x
        if type(x) is int or (isinstance(x, Float | Int) and x.value.reads_tensors):
            return x
        value, own = as_value(x), self.local_name(name)
        is_other_name = value.op in OTHER_NAMES or value.name is not None
        if value.name in (own, name) or not is_other_name:
            return x
        copy = Value("copy", (value,), name=own)
        self.record.add(copy)
        return recorded(plain(x), copy)

    def local_name(self, name: str) -> str:
        """Return the rule's name for an author's variable."""
        if name == self.aliases.get("g") or name in ("grad", "d_p"):
            return "g"
        is_free = not is_taken(name, self.subject.names)
        while name in self.words or not is_free:
            name, is_free = f"{name}_t", True
        return name


def _argument(argument: Argument, step: int = 0) -> Any:
    """Return an argument as the constructor gets it, or as a step reads it from its group."""
    default = argument.default
    if type(default) is int and default == 0:
        default = 0.0
    origins = frozenset([(argument.name, step)])
    if isinstance(default, tuple):
        return tuple(
            recorded(
                float(x) if x == 0 else x,
                Value("atom", name=f"{argument.word}[{i}]", origins=origins),
            )
            for i, x in enumerate(default)
        )
    return recorded(default, Value("atom", name=argument.word, origins=origins))


def _has_atoms(x: Any, argument: Any) -> bool:
    """Tell if a number, or a tuple of numbers, is an argument as the constructor got it."""
    if isinstance(argument, tuple):
        return (
            isinstance(x, tuple | list)
            and len(x) == len(argument)
            and all(_has_atoms(*each) for each in zip(x, argument, strict=True))
        )
    return isinstance(x, Float | Int) and x.value.op == "atom" and x.value.key == argument.value.key


class _Naming:
    """Names values after the author's local variables, line by line."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __enter__(self) -> None:
        self.before = sys.gettrace()
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if is_author_file(frame.f_code.co_filename) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event in ("line", "return"):
            for name, x in list(frame.f_locals.items()):
                if isinstance(x, Float | Size) or type(x) in (float, Int):
                    self.run.note_number(frame.f_code, name, x)
                if type(x) is float and x == 0:  # else `total += p.numel()` would not record
                    frame.f_locals[name] = x = recorded(x, constant(x))
                if isinstance(x, Tensor | float | int):
                    with torch._C.DisableTorchFunction():
                        self.run.see(name, x)
                    if (own := self.run.own_value(name, x)) is not x:
                        frame.f_locals[name] = own  # Python copies it into the variable
        return self._line
