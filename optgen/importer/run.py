"""Run a class's constructor and step on recording values: one path at a time."""

from __future__ import annotations

import inspect
import keyword
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from optgen.importer.counts import count, groups_of, takes_split_groups
from optgen.importer.numbers import Flag, Float, Int, Size, plain, recorded, recording_functions
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
from optgen.importer.values import Value, apply, constant, is_constant
from optgen.ir.ops import OPS
from optgen.spec.reserved_names import ADDED_ARGUMENTS, why_taken

LETTERS = {"exp_avg": "m", "exp_avg_sq": "v", "max_exp_avg_sq": "v_max", "momentum_buffer": "m"}
"""Letters of papers for common keys of states."""
SIZES = ("rows", "cols", "numel", "ndim")
OTHER_NAMES = ("atom", "constant", "copy", *SIZES)
"""Values that a variable is only another name of."""


@dataclass(frozen=True)
class Argument:
    """An argument of the constructor that the spec takes over."""

    name: str
    default: Any


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
    step_state: str
    """The kind of the count in a parameter's state, "int" or "tensor"; "" if there is none. A state
    dict has it even if no rule reads it."""
    is_wide: bool = False
    """The class runs without its roundings to shorter dtypes."""
    has_roundings: bool = False
    """There are such roundings. Known of a subject that runs without them."""
    state_keys: frozenset[str] = frozenset()
    reduces_all: bool = False
    """A reduction goes over all parameters, as the runs have shown."""
    is_split: bool = False
    """The class takes groups that say `use_muon`; an import gives it matrices in such a group."""

    def letter(self, key: str) -> str:
        """Return the name of a state in the rule."""
        name = letter(key)
        if any(other != key and LETTERS.get(other) == name for other in self.state_keys):
            name = key
        is_taken = name in {each.name for each in self.arguments}
        return f"{name}_state" if is_taken else name


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


def find_subject(cls: Any, settings: Mapping[str, Any], *, is_wide: bool = False) -> Subject:
    """Look at the constructor, and take some steps to see what counts them.

    `is_wide`: the class runs without its roundings to shorter dtypes.
    """
    if not (isinstance(cls, type) and hasattr(cls, "step")):
        raise NotImportedError(f"{cls!r} is no class with a step")
    fixed = dict(settings)
    arguments = []
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
                f"the argument `{each.name}` has no default", hint=f"--set {each.name}=…"
            )
        if _is_number_like(each.default):
            arguments.append(Argument(each.name, each.default))
    names = {each.name for each in arguments}
    try:
        with precision(is_wide=is_wide) as replaced:
            is_split = takes_split_groups(cls, fixed)
            numeric = {a.name: a.default for a in arguments}
            counts = count(cls, numeric, fixed, is_split=is_split)
    except NotImportedError:
        raise
    except Exception as error:
        raise failed(error) from error
    if changed := names & set(counts.changed):
        raise NotImportedError(
            f"steps change an argument of the constructor: {', '.join(sorted(changed))}",
            hint="keep the number that changes in the state of the parameter",
        )
    return Subject(
        cls,
        tuple(arguments),
        fixed,
        counts.counters,
        counts.changed,
        counts.kind,
        is_wide=is_wide,
        has_roundings=bool(replaced),
        state_keys=counts.state_keys,
        is_split=is_split,
    )


def _is_number_like(default: Any) -> bool:
    if isinstance(default, tuple):
        return bool(default) and all(type(each) in (int, float) for each in default)
    return type(default) in (bool, int, float)


def letter(key: str) -> str:
    """Return the name of a state in the rule."""
    name = LETTERS.get(key, key)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise NotImportedError(f"a state with the key {key!r}, which is no name")
    is_taken = why_taken(name) or name in OPS or name in ("p", "g", "t")
    return f"{name}_state" if is_taken else name


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
        self.words = {"p", "g", "t", *(a.name for a in self.subject.arguments)}
        generator = torch.Generator().manual_seed(1)
        self.param = torch.nn.Parameter(
            torch.randn(self.shape, dtype=torch.float64, generator=generator)
        )
        set_current(self.record)
        try:
            with recording_functions(), precision(is_wide=self.subject.is_wide):
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
        states = {
            str(key): (tuple(x.shape), x.dtype) if isinstance(x, Tensor) else ((), None)
            for key, x in optimizer.state[self.param].items()
            if key not in self.subject.counters
        }
        states |= dict.fromkeys(self.subject.group_numbers, ((), torch.float64))
        events, decided = self.record.events, self.record.decided
        return Path(events, decided, states, self.inits, self.aliases, self.bindings, self.numbers)

    def _construct(self) -> Any:
        arguments = {a.name: _argument(a) for a in self.subject.arguments}
        self.recorder = TensorRecorder(self.record, self.shape)
        self.recorder.declare(self.param, "p")
        with self._naming(), self.recorder:
            groups = groups_of([self.param], self.subject.is_split)
            optimizer = self.subject.cls(groups, **arguments, **self.subject.settings)
        created = optimizer.state.get(self.param, {})
        optimizer.param_groups[:] = [_Group(self, each) for each in optimizer.param_groups]
        try:
            optimizer.state = _States(self)
        except AttributeError:
            raise NotImportedError(
                "`state` is a property: a wrapper of another optimizer"
            ) from None
        if created:
            with self.recorder:
                optimizer.state[self.param] = created
        return optimizer

    def _step(self, optimizer: Any) -> None:
        """Take one step with a new recorder, which knows p, g and the states."""
        self.recorder = TensorRecorder(self.record, self.shape)
        self.recorder.declare(self.param, "p")
        self.recorder.declare(self.param.grad, "g")
        for holder in (*optimizer.param_groups, *optimizer.state.values()):
            holder.declare()
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
        if value.op in ("constant", *SIZES):
            return
        if value.op == "atom":
            self.aliases.setdefault(str(value.name), name)
        elif value.name is None:
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
        if value.name in (own, name) or value.op not in OTHER_NAMES:
            return x
        copy = Value("copy", (value,), name=own)
        self.record.add(copy)
        return recorded(plain(x), copy)

    def local_name(self, name: str) -> str:
        """Return the rule's name for an author's variable."""
        if name == self.aliases.get("g") or name in ("grad", "d_p"):
            return "g"
        if name in self.words or name in OPS or why_taken(name):
            return f"{name}_t"
        return name


def _argument(argument: Argument) -> Any:
    default = argument.default
    if type(default) is int and default == 0:
        default = 0.0
    if isinstance(default, tuple):
        return tuple(
            recorded(float(x) if x == 0 else x, Value("atom", name=f"{argument.name}[{i}]"))
            for i, x in enumerate(default)
        )
    return recorded(default, Value("atom", name=argument.name))


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
                if isinstance(x, Tensor | float | int):
                    with torch._C.DisableTorchFunction():
                        self.run.see(name, x)
                    if (own := self.run.own_value(name, x)) is not x:
                        frame.f_locals[name] = own  # Python copies it into the variable
        return self._line


class _Holder(dict[Any, Any]):
    """A dictionary of states that records what is stored in it."""

    is_group = False

    def __init__(self, run: Run, *args: Any) -> None:
        super().__init__(*args)
        self.run = run

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, x in dict(*args, **kwargs).items():
            self[key] = x

    def declare(self) -> None:
        """Let the stored tensors and numbers stand for the states before a step."""
        for key, x in list(self.items()):
            if key in self.run.subject.counters:
                count = self.run.count(float(plain(x)))
                if isinstance(x, Tensor):
                    self.run.recorder.declare(x, "", count)
                    self.run.recorder.memories[_memory_key(self.run, x)].word = None
                else:
                    super().__setitem__(key, recorded(plain(x), count))
            elif self.is_group and key not in self.run.subject.group_numbers:
                continue
            elif self.is_group:
                word = self.run.subject.letter(key)
                self.run.words.add(word)
                self.run.inits.setdefault(key, constant(self.run.subject.group_numbers[key]))
                super().__setitem__(key, recorded(float(plain(x)), Value("atom", name=word)))
            elif isinstance(x, Tensor):
                word = self.run.subject.letter(key)
                self.run.words.add(word)
                self.run.recorder.declare(x, word, _state_atom(word, x))
            elif type(plain(x)) in (int, float):
                atom = Value("atom", name=self.run.subject.letter(key))
                super().__setitem__(key, recorded(plain(x), atom))

    def __setitem__(self, key: Any, x: Any) -> None:
        run = self.run
        if key in run.subject.counters:
            x = self._counter(x)
        elif not self.is_group and isinstance(x, Tensor):
            self._store(key, x)
        elif self._is_kept_number(key, x):
            x = self._store_number(key, x)
        super().__setitem__(key, x)

    def _is_kept_number(self, key: Any, x: Any) -> bool:
        """Tell if a number is a state: of the parameter, or of the group."""
        is_number = isinstance(x, int | float) and not isinstance(x, bool)
        return is_number and (not self.is_group or key in self.run.subject.group_numbers)

    def _counter(self, x: Any) -> Any:
        run = self.run
        if isinstance(x, Tensor):
            run.recorder.declare(x, "", run.count(float(x)))
            run.recorder.memories[_memory_key(run, x)].word = None
            return x
        return recorded(plain(x), run.count(float(plain(x))))

    def _store(self, key: Any, x: Tensor) -> None:
        """Store a tensor: the first value of a state, or its next value."""
        run, word = self.run, self.run.subject.letter(key)
        run.words.add(word)
        memory = run.recorder.memory_of(x)
        value = memory.value if memory else run.recorder.value_of(x)
        if key not in self and self._is_first_value(value):
            run.inits[key] = value
            run.recorder.declare(x, word, _state_atom(word, x))
            return
        if memory is not None and memory.word == word:
            return
        if key not in self:
            run.inits[key] = constant(0)
        if value.name is None or value.op == "atom":
            copy = Value("copy", (value,)) if value.op in ("atom", "constant") else value
            if copy is not value:
                run.record.add(copy)
        else:
            copy = run.record.add(Value("copy", (value,)))
        copy.name = word
        run.recorder.declare(x, word, copy)

    def _is_first_value(self, value: Value) -> bool:
        """Tell if a state may be declared with a first value: a number, an argument, or p."""
        names = {a.name for a in self.run.subject.arguments}
        return is_constant(value) or (value.op == "atom" and value.name in {"p", *names})

    def _store_number(self, key: Any, x: Any) -> Any:
        run, word = self.run, self.run.subject.letter(key)
        run.words.add(word)
        value = x.value if isinstance(x, Float | Int | Flag) else constant(x)
        if key not in self and self._is_first_value(value):
            run.inits[key] = value
            return recorded(plain(x), Value("atom", name=word))
        if key not in self:
            run.inits[key] = constant(0)
        copy = run.record.add(Value("copy", (value,)))
        copy.name = word
        return recorded(plain(x), copy)


class _Group(_Holder):
    is_group = True


class _States(dict[Any, Any]):
    """All states of an optimizer, by parameter."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def __missing__(self, key: Any) -> _Holder:
        made = _Holder(self.run)
        super().__setitem__(key, made)
        return made

    def __setitem__(self, key: Any, value: Any) -> None:
        made = _Holder(self.run)
        super().__setitem__(key, made)
        made.update(value)


def _state_atom(word: str, x: Tensor) -> Value:
    """Return the value of a state before a step. A state of one number is a number."""
    return Value("atom", name=word, reads_tensors=x.ndim > 0)


def _memory_key(run: Run, x: Tensor) -> Any:
    memory = run.recorder.memory_of(x)
    return next(key for key, each in run.recorder.memories.items() if each is memory)
