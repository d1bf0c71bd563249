"""Tensors that record: a torch function mode that keeps a value for each piece of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from optgen.importer.composites import COMPOSITES
from optgen.importer.numbers import note, plain, recorded
from optgen.importer.parameters import STACKS, begun, divided, each_in, one_for_each, over_all
from optgen.importer.recording import NotImportedError, Record, as_value, author_line
from optgen.importer.shapes import (
    Sizes,
    aligned,
    check_matrices,
    is_nonnegative,
    kind_of,
    recorded_size,
    reduced,
    reshaped,
    transposed,
    variance,
)
from optgen.importer.torch_words import (
    BINARY,
    BUILDERS,
    CREATIONS,
    IGNORED_OPTIONS,
    MATRIX_WORDS,
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
        self.sizes: dict[tuple[int, ...], Sizes] = {}

    def declare(self, tensor: Tensor, word: str, value: Value | None = None) -> None:
        """Let a tensor stand for a word of the spec: p, g, or a state."""
        atom = value or Value("atom", name=word, reads_tensors=True)
        memory = Memory(tensor, atom, word)
        self.memories[_key(tensor)] = memory
        self.kept.append(tensor)

    def value_of(self, tensor: Tensor) -> Value:
        """Return the current value of a tensor."""
        memory = self.memories.get(_key(tensor))
        if memory is None and (base := self._base_of(tensor)) is not None:
            return _seen_as(base.tensor, base.value, tensor, self.shape)
        if memory is None:
            if tensor.numel() == 1 and not tensor.requires_grad:
                return constant(float(tensor))
            raise NotImportedError(
                "a tensor of unknown origin",
                author_line(),
                hint="keep it in self.state[p] under a key of its own, in no list or dictionary",
            )
        return memory.value

    def _base_of(self, tensor: Tensor) -> Memory | None:
        """Return the memory that a tensor is a view of, with all elements, or None."""
        pointer = tensor.data_ptr()
        for (each, _, _), memory in self.memories.items():
            if each == pointer and memory.tensor.numel() == tensor.numel():
                return memory
        return None

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
            return self._size(name, func(*args, **kwargs))
        if name == "__setitem__":
            return self._set_item(func, *args)
        if name == "__getitem__":
            return self._get_item(func, *args)
        if name in PLAIN or name in ("__set__", "backward", "_set_grad_enabled", "device", "set_"):
            return func(*args, **kwargs)
        if name in ("item", "__float__", "__int__", "tolist"):
            return self._item(func, args)
        if name == "__bool__":
            return self._bool(func, args)
        if name in COMPOSITES:
            with self:
                return COMPOSITES[name](*args, **kwargs)
        if name.startswith("_foreach_"):
            return self._foreach(name.removeprefix("_foreach_"), args, kwargs)
        return self._call(func, name, args, kwargs)

    def _property(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a property of a tensor. `data` and `T` are tensors; `ndim` is recorded."""
        result = func(*args, **kwargs)
        if isinstance(result, torch.Size):
            return self._size("shape", result)
        if isinstance(result, Tensor) and self.memory_of(result) is None:
            source = self.value_of(args[0])
            is_turned = args[0].ndim == 2 and func.__self__.__name__ in ("T", "mT", "H", "mH")
            self._keep(result, transposed(source) if is_turned else source)
        return result

    def _size(self, name: str, result: Any) -> Any:
        """Return a size, or all sizes of a tensor, that record."""
        if isinstance(result, int):
            return recorded_size(result, self.shape)
        key = tuple(result)
        if key not in self.sizes:
            self.sizes[key] = Sizes(recorded_size(each, self.shape) for each in key)
        return self.sizes[key]

    def _set_item(self, func: Any, x: Tensor, mask: Any, new: Any) -> None:
        """Record `x[mask] = new`."""
        if not (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == x.shape):
            raise NotImportedError(
                "a part of a tensor is assigned",
                author_line(),
                hint="assign the whole tensor: x.copy_(torch.where(mask, new, x))",
            )
        value = Value("where", (self.value_of(mask), self._operand(new), self.value_of(x)))
        func(x, mask, plain(new))
        self._assign(x, value)

    def _get_item(self, func: Any, x: Tensor, index: Any) -> Tensor:
        """Record an index that only adds axes, `x[:, None]`."""
        parts = index if isinstance(index, tuple) else (index,)
        if any(i is not None and i is not ... and i != slice(None) for i in parts):
            raise NotImportedError(
                "a part of a tensor is read",
                author_line(),
                hint="compute with whole tensors, and choose by where(…)",
            )
        result: Tensor = func(x, index)
        before, after = tuple(x.shape), tuple(result.shape)
        return self._keep(result, reshaped(self.value_of(x), before, after, self.shape, "[ ]"))

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
        is_held = self._is_held(value)
        value.kind = kind_of(tuple(tensor.shape), self.shape)
        if not (is_held or value.place[0] or value.op in ("constant", "atom")):
            self.record.add(value)
        self.memories[_key(tensor)] = Memory(tensor, value, is_copy=is_held)
        return tensor

    def _is_held(self, value: Value) -> bool:
        """Tell if a known tensor has the value, as the operand of `x + 0` has that of the sum."""
        return any(each.value is value for each in self.memories.values())

    def _call(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        base, is_in_place = _base_name(name)
        plain_args = [plain(a) for a in args]
        if base in STACKS:
            return self._stack(func, args, kwargs)
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

    def _stack(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a list of tensors that becomes one: a number for each parameter."""
        if len(args[0]) != 1 or args[0][0].numel() != 1:
            raise NotImportedError(
                "tensors are joined",
                author_line(),
                hint="compute with whole tensors, one parameter at a time",
            )
        return self._keep(func(*args, **kwargs), one_for_each(self.value_of(args[0][0])))

    def _store(self, result: Any, value: Value, target: Tensor | None) -> Any:
        """Record a result; an operation in place gives its memory a new value."""
        if not isinstance(result, Tensor):
            raise NotImportedError("a call that returns no tensor", author_line())
        if target is None:
            existing = self.memory_of(result)
            if existing is not None:
                return result
            return self._keep(result, value)
        self._assign(target, value)
        return result

    def _assign(self, target: Tensor, value: Value) -> None:
        memory = self.memory_of(target)
        base = memory if memory is not None and memory.word else self._base_of(target)
        if base is None:
            raise NotImportedError("a part of a tensor is changed in place", author_line())
        seen = value
        if base is not memory:
            value = _seen_as(target, value, base.tensor, self.shape)
            if value is not seen and seen.op not in ("constant", "atom") and not seen.place[0]:
                seen.kind = kind_of(tuple(target.shape), self.shape)
                self.record.add(seen)
        memory = base
        previous = memory.value
        if previous is value:
            return
        self._forget_views(memory)
        if value is not seen:
            self.memories[_key(target)] = Memory(target, seen)
        if memory.word is None and value.op in ("constant", "atom"):
            memory.value = value
            return
        if value.op in ("constant", "atom") or value.name is not None:
            value = Value("copy", (value,))
        value.kind = kind_of(tuple(memory.tensor.shape), self.shape)
        memory.value = self.record.add(value)
        is_own = previous.op != "atom" and not memory.is_copy
        value.name = memory.word or (previous.name if is_own else None)
        memory.is_copy = False

    def _forget_views(self, memory: Memory) -> None:
        """Forget the values of other views of a memory: they change with it."""
        pointer = memory.tensor.data_ptr()
        for key in [k for k, m in self.memories.items() if k[0] == pointer and m is not memory]:
            del self.memories[key]

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
            value = reshaped(value, tuple(args[0].shape), tuple(result.shape), self.shape, base)
        else:
            number = CREATIONS[base]
            fill = kwargs.get("fill_value", args[-1] if args else 0)
            if isinstance(fill, list | tuple) and len(fill) == 1:
                fill = fill[0]
            if number is not None:
                value = constant(number)
            elif isinstance(fill, Tensor):
                value = self.value_of(fill)
            else:
                value = as_value(fill)
                if value.place[0]:  # the number keeps its kind
                    value = Value("copy", (value,))
        known = self.memory_of(result)
        if known is None:
            self._keep(result, value)
            self.memories[_key(result)].is_copy = base in SAME
        return result

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
        if base == "max" and len(args) == 2 and isinstance(args[1], Tensor):
            return apply("maximum", *operands)
        if base == "min" and len(args) == 2 and isinstance(args[1], Tensor):
            return apply("minimum", *operands)
        if base in REDUCTIONS:
            return self._reduction(REDUCTIONS[base], args, kwargs)
        options = {"b" if k in ("other", "exponent") else k: v for k, v in options.items()}
        renamed = {"weight": "weight", "b": "b"}
        options = {renamed.get(k, k): v for k, v in options.items() if k not in IGNORED_OPTIONS}
        if options.pop("b", None) is not None and len(operands) == 1:
            operands.append(self._operand(kwargs.get("other", kwargs.get("exponent"))))
        if base in ("outer", "ger") or (base in MATRIX_WORDS and args[0].shape[-1] == 1):
            base = "mul"
        elif base in MATRIX_WORDS:
            return self._matrix_word(base, operands, options, args)
        else:
            operands = aligned(operands, args, self.shape)
        if base in ("addcmul", "addcdiv") and len(args) == 4 and not isinstance(args[1], Tensor):
            x, factor, *others = operands  # the order of older versions of torch
            operands = [x, *others, factor]
        if (made := self._of_parameters(base, operands)) is not None and not options:
            return made
        if base in ("dot", "inner", "vdot"):
            return Value("sum", (apply("mul", *operands),))
        if (builder := BUILDERS.get(base)) is not None:
            return builder(*operands, **options)
        if (word := UNARY.get(base)) is not None and len(operands) == 1:
            return apply(word, *operands)
        if (word := BINARY.get(base)) is not None and len(operands) == 2:
            return apply(word, *operands)
        raise NotImportedError(f"torch's `{base}` has no word in the language", author_line())

    def _of_parameters(self, base: str, operands: list[Operand]) -> Value | None:
        """Return a sum or a mean over parameters that a loop makes; None for other operations."""
        if base not in ("add", "div") or len(operands) != 2:
            return None
        return divided(*operands) if base == "div" else begun(self.record, *operands)

    def _reduction(self, word: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        """Return a sum, a mean, a norm or the like: of all elements, of rows or of columns."""
        x: Tensor = args[0]
        axes, order = _axes(word, args, kwargs)
        value = self.value_of(x)
        if x.dtype == torch.bool:
            value = _as_number(value)
        if word == "max":
            word, order = "max_abs", 2
            if not is_nonnegative(value):
                raise NotImportedError(
                    "the largest element of numbers with a sign",
                    author_line(),
                    hint="the language has max_abs(x), the largest magnitude",
                )
        if order in (float("inf"), "inf"):
            word = "max_abs"
        elif order == 1:
            word, value = "sum", apply("abs", value)
        elif order != 2:
            return self._power_norm(value, x, axes, order)
        if each_in(value) is not None:
            self.record.reduces_all = True
            return over_all(word, value)
        is_kept = bool(kwargs.get("keepdim", args[-1] is True))
        is_of_axis = bool(args[1:]) or "dim" in kwargs
        if word in ("std", "var"):
            made = variance(value, x, axes, kwargs.get("correction", 1), self.shape)
            return apply("sqrt", made) if word == "std" else made
        return reduced(word, value, x, axes, self.shape, is_kept=is_kept, is_of_axis=is_of_axis)

    def _power_norm(self, value: Value, x: Tensor, axes: set[int], order: Any) -> Value:
        """Return a norm of another order: the root of a sum of powers."""
        if not isinstance(order, int | float):
            raise NotImportedError(f"a norm of the kind {order!r}", author_line())
        size = value if order % 2 == 0 else apply("abs", value)
        powers = apply("pow", size, constant(plain(order)))
        total = reduced("sum", powers, x, axes, self.shape)
        return apply("pow", total, constant(1 / plain(order)))

    def _matrix_word(
        self, base: str, operands: list[Operand], options: dict[str, Operand], args: tuple[Any, ...]
    ) -> Value:
        """Return a transpose, a product of matrices, or one that is added to another matrix."""
        if base in ("t", "transpose", "swapaxes", "adjoint"):
            return transposed(operands[0]) if args[0].ndim == 2 else operands[0]
        check_matrices(args, self.shape, base)
        if base != "addmm":
            return apply("matmul", *operands[:2])
        product = apply("matmul", *operands[1:3])
        added = operands[0]
        if "alpha" in options:
            product = apply("mul", options["alpha"], product)
        if "beta" in options:
            added = apply("mul", options["beta"], added)
        return apply("add", added, product)

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


def _seen_as(x: Tensor, value: Value, view: Tensor, param: tuple[int, ...]) -> Value:
    """Return the value of another view of a tensor: turned, or with axes of size 1."""
    before, after = tuple(x.shape), tuple(view.shape)
    is_square = len(before) == 2 and before == after and before[0] == before[1]
    if len(before) == 2 and (x.stride() != view.stride() if is_square else before == after[::-1]):
        return transposed(value) if 1 not in before else value
    return reshaped(value, before, after, param, "view")


def _as_number(answer: Value) -> Value:
    """Return 1 where an answer is true, else 0."""
    return Value("where", (answer, constant(1), constant(0)))


def _axes(word: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[set[int], Any]:
    """Return the axes that a reduction goes over, and the order of a norm."""
    rest = list(args[1:])
    order: Any = 2
    if word == "norm":
        order = rest.pop(0) if rest else kwargs.get("p", kwargs.get("ord", 2))
    if word in ("std", "var") and rest and isinstance(rest[0], bool):
        rest.pop(0)
    dim = rest[0] if rest else kwargs.get("dim", kwargs.get("axis"))
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
