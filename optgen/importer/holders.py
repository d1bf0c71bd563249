"""Dictionaries of an optimizer, its groups and states, that record what is stored in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from optgen.importer.numbers import Flag, Float, Int, plain, recorded
from optgen.importer.places import line_that_sets
from optgen.importer.recording import NotImportedError
from optgen.importer.values import Value, apply, constant, is_constant

if TYPE_CHECKING:
    from optgen.importer.run import Run


class Holder(dict[Any, Any]):
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
                super().__setitem__(key, counted(self.run, x))
            elif self.is_group and key not in self.run.subject.group_numbers:
                continue
            elif self.is_group:
                if x is None and self.run.number == 1:
                    continue  # the first step makes it a number
                if not isinstance(x, int | float | Tensor):
                    raise NotImportedError(
                        f"the group's `{key}` is {x!r} in a step, and a number in another one",
                        line_that_sets(self.run.subject.cls, key),
                        hint="begin with a number, and keep it in self.state[p]",
                    )
                word = self.run.subject.state_word(key)
                self.run.words.add(word)
                self.run.inits.setdefault(key, constant(self.run.subject.group_numbers[key]))
                super().__setitem__(key, recorded(float(plain(x)), Value("atom", name=word)))
            elif isinstance(x, Tensor):
                word = self.run.subject.state_word(key)
                self.run.words.add(word)
                self.run.recorder.declare(x, word, _state_atom(word, x))
            elif type(plain(x)) in (int, float):
                atom = Value("atom", name=self.run.subject.state_word(key))
                super().__setitem__(key, recorded(plain(x), atom))

    def __setitem__(self, key: Any, x: Any) -> None:
        run = self.run
        if key in run.subject.counters:
            x = counted(run, x)
        elif not self.is_group and isinstance(x, Tensor):
            self._store(key, x)
        elif self._is_kept_number(key, x):
            x = self._store_number(key, x)
        super().__setitem__(key, x)

    def _is_kept_number(self, key: Any, x: Any) -> bool:
        """Tell if a number is a state: of the parameter, or of the group."""
        is_number = isinstance(x, int | float) and not isinstance(x, bool)
        return is_number and (not self.is_group or key in self.run.subject.group_numbers)

    def _store(self, key: Any, x: Tensor) -> None:
        """Store a tensor: the first value of a state, or its next value."""
        run, word = self.run, self.run.subject.state_word(key)
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
            with torch._C.DisableTorchFunction():
                is_wide = x.numel() > 1
            if is_wide and not value.reads_tensors:  # a number for each element
                value = apply("add", _state_atom(word, x), value)
                run.record.add(value)
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
        names = {a.word for a in self.run.subject.arguments}
        return is_constant(value) or (value.op == "atom" and value.name in {"p", *names})

    def _store_number(self, key: Any, x: Any) -> Any:
        run, word = self.run, self.run.subject.state_word(key)
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


def counted(run: Run, x: Any) -> Any:
    """Return a number, or a tensor with a number, that records as the step count does."""
    count = run.count(float(plain(x)))
    if not isinstance(x, Tensor):
        return recorded(plain(x), count)
    run.recorder.declare(x, "", count)
    memory = run.recorder.memory_of(x)
    assert memory is not None
    memory.word = None
    return x


class Group(Holder):
    is_group = True


class States(dict[Any, Any]):
    """All states of an optimizer, by parameter."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.alone = Holder(run)
        """The counters that belong to no parameter."""

    def __missing__(self, key: Any) -> Holder:
        made = Holder(self.run)
        super().__setitem__(key, made)
        return made

    def __setitem__(self, key: Any, value: Any) -> None:
        if key in self.run.subject.counters:
            self.alone[key] = value
            super().__setitem__(key, self.alone[key])
            return
        made = Holder(self.run)
        super().__setitem__(key, made)
        made.update(value)

    def declare(self) -> None:
        """Let all stored tensors and numbers stand for the states before a step."""
        self.alone.declare()
        for key, x in self.alone.items():
            super().__setitem__(key, x)
        for holder in self.values():
            if isinstance(holder, Holder):
                holder.declare()


def _state_atom(word: str, x: Tensor) -> Value:
    """Return the value of a state before a step. A state of one number is a number."""
    return Value("atom", name=word, reads_tensors=x.ndim > 0)
