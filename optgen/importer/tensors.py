"""Tensors that record: a torch function mode that keeps a value for each piece of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from optgen.importer.numbers import Size, note, plain, recorded
from optgen.importer.recording import NotImportedError, Record, as_value, author_line
from optgen.importer.torch_words import (
    BINARY,
    BUILDERS,
    CREATIONS,
    IGNORED_OPTIONS,
    OF_ANSWERS,
    PLAIN,
    REDUCTIONS,
    SAME,
    UNARY,
)
from optgen.importer.values import Value, apply, constant

Key = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass
class Memory:
    """The current value of one piece of memory, and the word of the spec for it."""

    tensor: Tensor
    value: Value
    word: str | None = None
    is_copy: bool = False
    """The value is another memory's, such as a clone's. So its name is not this memory's."""


Operand = Any


class TensorRecorder(TorchFunctionMode):
    """Records every operation on tensors into a record."""

    def __init__(self, record: Record, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.record = record
        self.shape = shape
        self.memories: dict[Key, Memory] = {}
        self.kept: list[Any] = []

    def declare(self, tensor: Tensor, word: str, value: Value | None = None) -> None:
        """Let a tensor stand for a word of the spec: p, g, or a state."""
        atom = value or Value("atom", name=word, reads_tensors=True)
        memory = Memory(tensor, atom, word)
        self.memories[_key(tensor)] = memory
        self.kept.append(tensor)

    def value_of(self, tensor: Tensor) -> Value:
        """Return the current value of a tensor."""
        memory = self.memories.get(_key(tensor))
        if memory is None:
            if tensor.numel() == 1 and not tensor.requires_grad:
                return constant(float(tensor))
            raise NotImportedError("a tensor of unknown origin", author_line())
        return memory.value

    def memory_of(self, tensor: Tensor) -> Memory | None:
        """Return the memory of a tensor, if it is known."""
        return self.memories.get(_key(tensor))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch, and record it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            return self._property(func, args, kwargs)
        if name in ("numel", "size", "nelement"):
            return self._size(name, func(*args, **kwargs), args)
        if name == "__setitem__":
            return self._set_item(func, *args)
        if name in PLAIN or name in ("__set__", "backward", "_set_grad_enabled", "device", "set_"):
            return func(*args, **kwargs)
        if name in ("item", "__float__", "__int__", "tolist"):
            return self._item(func, args)
        if name == "__bool__":
            return self._bool(func, args)
        if name.startswith("_foreach_"):
            return self._foreach(name.removeprefix("_foreach_"), args, kwargs)
        return self._call(func, name, args, kwargs)

    def _property(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a property of a tensor. `data` and `T` are tensors; `ndim` is recorded."""
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and self.memory_of(result) is None:
            source = self.value_of(args[0])
            op = "transpose" if "'T'" in repr(func) or "'mT'" in repr(func) else None
            self._keep(result, Value(op, (source,)) if op else source)
        return result

    def _size(self, name: str, result: Any, args: tuple[Any, ...]) -> Any:
        """Return a number of elements, rows or columns that records."""
        p = Value("atom", name="p", reads_tensors=False)
        if tuple(args[0].shape) != self.shape or not isinstance(result, int):
            return result
        if name != "size" or len(self.shape) == 1:
            return _size_of(result, Value("numel", (p,)))
        axis = args[1] % len(self.shape) - len(self.shape)
        word = {-1: "cols", -2: "rows"}.get(axis)
        return _size_of(result, Value(word, (p,))) if word else result

    def _set_item(self, func: Any, x: Tensor, mask: Any, new: Any) -> None:
        """Record `x[mask] = new`."""
        if not (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == x.shape):
            raise NotImportedError("a part of a tensor is assigned", author_line())
        value = Value("where", (self.value_of(mask), self._operand(new), self.value_of(x)))
        func(x, mask, plain(new))
        self._assign(x, value)

    def _item(self, func: Any, args: tuple[Any, ...]) -> Any:
        value = self.value_of(args[0])
        result = func(args[0])
        if func is not Tensor.item:
            return result  # Python takes no number that records here; the proof finds the loss
        return note(result, value) if value.op == "atom" else recorded(result, value)

    def _bool(self, func: Any, args: tuple[Any, ...]) -> bool:
        return self.record.branch(self.value_of(args[0]), func(args[0]))

    def _keep(self, tensor: Tensor, value: Value) -> Tensor:
        self.kept.append(tensor)
        self.memories[_key(tensor)] = Memory(tensor, value, is_copy=self._is_held(value))
        return tensor

    def _is_held(self, value: Value) -> bool:
        """Tell if a known tensor has the value, as the operand of `x + 0` has that of the sum."""
        return any(each.value is value for each in self.memories.values())

    def _call(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        base, is_in_place = _base_name(name)
        plain_args = [plain(a) for a in args]
        if base in CREATIONS or base in SAME:
            return self._create(func, base, args, kwargs, is_in_place)
        operands = [self._operand(a) for a in args]
        if base not in OF_ANSWERS:
            operands = [
                _as_number(v) if isinstance(a, Tensor) and a.dtype == torch.bool else v
                for a, v in zip(args, operands, strict=True)
            ]
        options = {k: self._operand(v) for k, v in kwargs.items() if k != "out" and v is not None}
        value = self._build(base, operands, options, args, kwargs)
        plain_options = {k: plain(v) for k, v in kwargs.items()}
        result = func(*plain_args, **plain_options)
        return self._store(result, value, args[0] if is_in_place else kwargs.get("out"))

    def _store(self, result: Any, value: Value, target: Tensor | None) -> Any:
        """Record a result; an operation in place gives its memory a new value."""
        if not isinstance(result, Tensor):
            raise NotImportedError("a call that returns no tensor", author_line())
        if target is None:
            existing = self.memory_of(result)
            if existing is not None:
                return result
            if value.op not in ("constant", "atom") and not self._is_held(value):
                self.record.add(value)
            return self._keep(result, value)
        self._assign(target, value)
        return result

    def _assign(self, target: Tensor, value: Value) -> None:
        memory = self.memory_of(target)
        if memory is None:
            raise NotImportedError("a view is changed in place", author_line())
        previous = memory.value
        if previous is value:
            return
        if memory.word is None and value.op in ("constant", "atom"):
            memory.value = value
            return
        if value.op in ("constant", "atom") or value.name is not None:
            value = Value("copy", (value,))
        memory.value = self.record.add(value)
        is_own = previous.op != "atom" and not memory.is_copy
        value.name = memory.word or (previous.name if is_own else None)
        memory.is_copy = False

    def _create(
        self, func: Any, base: str, args: tuple[Any, ...], kwargs: dict[str, Any], in_place: bool
    ) -> Any:
        result = func(*map(_plain_all, args), **{k: plain(v) for k, v in kwargs.items()})
        if not isinstance(result, Tensor):
            return result
        if base in SAME:
            value = self.value_of(args[0])
            if args[0].dtype == torch.bool and result.dtype != torch.bool:
                value = self.record.add(_as_number(value))
            self._check_layout(base, args[0], result)
        else:
            number = CREATIONS[base]
            fill = kwargs.get("fill_value", args[-1] if args else 0)
            if number is not None:
                value = constant(number)
            elif isinstance(fill, Tensor):
                value = self.value_of(fill)
            else:
                value = as_value(fill)
        known = self.memory_of(result)
        if known is None:
            self._keep(result, value)
            self.memories[_key(result)].is_copy = base in SAME
        return result

    def _check_layout(self, base: str, x: Tensor, result: Tensor) -> None:
        """Raise an error if a new shape of a tensor cannot be said."""
        before, after = (tuple(n for n in each.shape if n != 1) for each in (x, result))
        if before != after and x.numel() != 1:
            raise NotImportedError(f"`{base}` to another shape", author_line())

    def _operand(self, x: Any) -> Operand:
        if isinstance(x, Tensor):
            return self.value_of(x)
        if isinstance(x, int | float | str) or x is None:
            return as_value(x)
        return x

    def _build(
        self,
        base: str,
        operands: list[Operand],
        options: dict[str, Operand],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Value:
        """Return the value of an operation by its name."""
        if base in REDUCTIONS:
            return self._reduction(REDUCTIONS[base], args, kwargs)
        if base == "max" and len(args) == 2 and isinstance(args[1], Tensor):
            return apply("maximum", *operands)
        if base == "min" and len(args) == 2 and isinstance(args[1], Tensor):
            return apply("minimum", *operands)
        options = {"b" if k in ("other", "exponent") else k: v for k, v in options.items()}
        renamed = {"weight": "weight", "b": "b"}
        options = {renamed.get(k, k): v for k, v in options.items() if k not in IGNORED_OPTIONS}
        if options.pop("b", None) is not None and len(operands) == 1:
            operands.append(self._operand(kwargs.get("other", kwargs.get("exponent"))))
        if base in ("matmul", "mm") and args[0].shape[-1] == 1:
            base = "mul"
        if base in ("dot", "inner", "vdot"):
            return Value("sum", (apply("mul", *operands),))
        if (builder := BUILDERS.get(base)) is not None:
            return builder(*operands, **options)
        if (word := UNARY.get(base)) is not None and len(operands) == 1:
            return apply(word, *operands)
        if (word := BINARY.get(base)) is not None and len(operands) == 2:
            return apply(word, *operands)
        raise NotImportedError(f"torch's `{base}` has no word in the language", author_line())

    def _reduction(self, word: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        """Return a sum, a mean or a norm: of all elements, of rows or of columns."""
        x: Tensor = args[0]
        axes, order = _axes(word, args, kwargs)
        value = self.value_of(x)
        if order in (float("inf"), "inf"):
            word = "max_abs"
        elif order == 1:
            word, value = "sum", apply("abs", value)
        elif order != 2:
            raise NotImportedError(f"a norm of order {order}", author_line())
        sizes = [size for axis, size in enumerate(x.shape) if axis in axes]
        kind = {(4, 1): "col", (1, 3): "row", (4,): "col", (3,): "row"}.get(tuple(x.shape))
        is_of_axis = args[1:] or "dim" in kwargs
        if kind and is_of_axis and len(self.shape) == 2 and word in ("sum", "mean", "norm"):
            return Value(f"{kind}_{word}", (value,))
        if len(axes) == x.ndim or all(s == 1 for a, s in enumerate(x.shape) if a not in axes):
            return Value(word, (value,))
        if len(axes) == 1 and sizes and x.ndim >= 2:
            if axes == {x.ndim - 1}:
                return Value(f"row_{word}", (value,))
            if axes == {x.ndim - 2}:
                return Value(f"col_{word}", (value,))
        raise NotImportedError(f"a {word} over some axes of {x.ndim}", author_line())

    def _foreach(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call on lists of one tensor as the call on the tensor."""
        base = name.rstrip("_")
        is_in_place = name.endswith("_")
        if any(isinstance(a, list | tuple) and len(a) != 1 for a in args):
            raise NotImportedError("a foreach call on several tensors", author_line())
        singles = [a[0] if isinstance(a, list | tuple) else a for a in args]
        options = {k: v[0] if isinstance(v, list | tuple) else v for k, v in kwargs.items()}
        function = getattr(Tensor, base + "_" * is_in_place, None) or getattr(torch, base, None)
        if base in ("add", "sub") and len(singles) == 2 and not isinstance(singles[1], Tensor):
            options.pop("alpha", None)
        if function is None:
            raise NotImportedError(f"torch's `_foreach_{name}`", author_line())
        if base in ("addcmul", "addcdiv") and len(singles) == 4:
            options["value"] = singles.pop()
        result = self._call(function, base + "_" * is_in_place, tuple(singles), options)
        return None if is_in_place else [result]


def _size_of(size: int, value: Value) -> Size:
    made = Size(size)
    made.value = value
    return made


def _as_number(answer: Value) -> Value:
    """Return 1 where an answer is true, else 0."""
    return Value("where", (answer, constant(1), constant(0)))


def _axes(word: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[set[int], Any]:
    """Return the axes that a reduction goes over, and the order of a norm."""
    rest = list(args[1:])
    order: Any = 2
    if word == "norm":
        order = rest.pop(0) if rest else kwargs.get("p", kwargs.get("ord", 2))
    dim = rest[0] if rest else kwargs.get("dim")
    ndim = args[0].ndim
    axes = range(ndim) if dim is None else [dim] if isinstance(dim, int) else dim or range(ndim)
    return {axis % ndim if ndim else 0 for axis in axes}, 2 if order in ("fro", None) else order


def _base_name(name: str) -> tuple[str, bool]:
    """Return the operation of a method's name, and if it works in place."""
    if name.startswith("__i") and name.endswith("__") and name not in ("__invert__",):
        return {"truediv": "div"}.get(name[3:-2], name[3:-2]), True
    if name in ("__invert__",):
        return "logical_not", False
    if name.startswith("__r") and name.endswith("__") and name not in ("__rpow__", "__rsub__"):
        other = {"radd": "add", "rmul": "mul"}.get(name[2:-2])
        return other or name, False
    if name.startswith("__") and name.endswith("__") and name[2:3] != "r":
        return {"truediv": "div"}.get(name[2:-2], name[2:-2]), False
    if name.endswith("_") and not name.endswith("__"):
        return name[:-1], True
    return name.removeprefix("linalg_"), False


def _plain_all(x: Any) -> Any:
    """Return an argument without records, in lists too."""
    return type(x)(map(plain, x)) if type(x) in (list, tuple) else plain(x)


def _key(tensor: Tensor) -> Key:
    with torch._C.DisableTorchFunction():
        return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride())
