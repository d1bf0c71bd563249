"""Tensors that record: a torch function mode that keeps a value for each piece of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from optgen.importer.numbers import note, plain, recorded
from optgen.importer.recording import NotImportedError, Record, as_value, author_line
from optgen.importer.values import Value, apply, constant, is_constant

Key = tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass
class Memory:
    """The current value of one piece of memory, and the word of the spec for it."""

    tensor: Tensor
    value: Value
    word: str | None = None
    is_copy: bool = False
    """The value is another memory's, such as a clone's. So its name is not this memory's."""


_SAME = frozenset(
    "detach clone contiguous to float double type type_as view_as data real requires_grad_ "
    "alias positive cpu conj resolve_conj resolve_neg reshape view flatten ravel squeeze "
    "unsqueeze expand expand_as unsqueeze_ squeeze_ to".split()
)
_PLAIN = frozenset(
    "dim stride is_complex is_floating_point is_contiguous element_size is_same_size "
    "__len__ is_inference is_storage _is_zerotensor is_tensor data_ptr "
    "__hash__ __repr__ __format__ is_sparse get_device has_names storage_offset __reversed__ "
    "__array__ untyped_storage ndimension".split()
)
_UNARY = {
    **{word: word for word in "sqrt exp log abs sign sin cos tanh floor ceil round".split()},
    "neg": "neg",
    "negative": "neg",
    "absolute": "abs",
    "sgn": "sign",
    "__abs__": "abs",
    "__neg__": "neg",
}
_BINARY = {
    **{word: word for word in "mul pow maximum minimum atan2 matmul".split()},
    **{"multiply": "mul", "mm": "matmul", "true_divide": "div", "clamp_min": "maximum"},
    **{"clamp_max": "minimum", "remainder": "mod", "divide": "div", "float_power": "pow"},
    **{word: word for word in "gt lt ge le eq ne".split()},
    **{"greater": "gt", "less": "lt", "greater_equal": "ge", "less_equal": "le"},
    **{"logical_and": "and", "logical_or": "or", "bitwise_and": "and", "bitwise_or": "or"},
}
_REDUCTIONS = {"sum": "sum", "mean": "mean", "norm": "norm", "vector_norm": "norm"}

Operand = Any


def _linear(op: str) -> Callable[..., Value]:
    def build(a: Value, b: Value, alpha: Value | None = None) -> Value:
        return apply(op, a, b if alpha is None else apply("mul", alpha, b))

    return build


def _addc(op: str) -> Callable[..., Value]:
    def build(a: Value, b: Value, c: Value, value: Value | None = None) -> Value:
        if b.key == c.key and op == "mul" and b.name == c.name:
            product = apply("pow", b, constant(2))
            product = product if value is None else apply("mul", value, product)
        elif value is None:
            product = apply(op, b, c)
        else:
            product = apply(op, apply("mul", value, b), c)
        return apply("add", a, product)

    return build


def _divide(a: Value, b: Value, rounding_mode: Value | None = None) -> Value:
    if rounding_mode is not None:
        raise NotImportedError("a division that rounds", author_line(), "write floor(a / b)")
    return apply("div", a, b)


def _multiply(a: Value, b: Value) -> Value:
    return apply("pow", a, constant(2)) if a.key == b.key and a is b else apply("mul", a, b)


def _clamp(x: Value, min: Value | None = None, max: Value | None = None) -> Value:
    low = None if min is None or min.constant is None and is_constant(min) else min
    high = None if max is None or max.constant is None and is_constant(max) else max
    if low is not None and high is not None:
        return Value("clamp", (x, low, high))
    if low is not None:
        return Value("maximum", (x, low))
    return x if high is None else Value("minimum", (x, high))


def _masked_fill(x: Value, mask: Value, value: Value) -> Value:
    return Value("where", (mask, value, x))


def _where(condition: Value, a: Value, b: Value) -> Value:
    return Value("where", (condition, a, b))


def _not(x: Value) -> Value:
    return Value("not", (x,))


_BUILDERS: dict[str, Callable[..., Value]] = {
    "add": _linear("add"),
    "sub": _linear("sub"),
    "subtract": _linear("sub"),
    "rsub": lambda a, b: apply("sub", b, a),
    "__rsub__": lambda a, b: apply("sub", b, a),
    "__rdiv__": lambda a, b: apply("div", b, a),
    "__rtruediv__": lambda a, b: apply("div", b, a),
    "__rpow__": lambda a, b: apply("pow", b, a),
    "mul": _multiply,
    "multiply": _multiply,
    "div": _divide,
    "addcmul": _addc("mul"),
    "addcdiv": _addc("div"),
    "lerp": lambda a, b, weight: Value("lerp", (a, b, weight)),
    "square": lambda a: apply("pow", a, constant(2)),
    "reciprocal": lambda a: apply("div", constant(1), a),
    "rsqrt": lambda a: apply("div", constant(1), apply("sqrt", a)),
    "clamp": _clamp,
    "clip": _clamp,
    "masked_fill": _masked_fill,
    "where": _where,
    "logical_not": _not,
    "bitwise_not": _not,
    "sigmoid": lambda a: apply(
        "div", constant(1), apply("add", apply("exp", apply("neg", a)), constant(1))
    ),
    "copy": lambda a, b, **_: b,
    "zero": lambda a: constant(0),
    "fill": lambda a, b: b,
    "hypot": lambda a, b: apply("sqrt", apply("add", *(apply("pow", x, constant(2)) for x in (a, b)))),
}
_CREATIONS: dict[str, float | None] = {
    **{"zeros_like": 0, "zeros": 0, "ones_like": 1, "ones": 1, "new_zeros": 0, "new_ones": 1},
    **{"full_like": None, "full": None, "tensor": None, "new_full": None, "scalar_tensor": None},
    **{"as_tensor": None, "new_tensor": None},
    **{"empty": 0, "empty_like": 0},
}


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
        if name in _PLAIN or name in ("__set__", "backward", "_set_grad_enabled", "device", "set_"):
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
            return recorded(result, Value("numel", (p,)))
        axis = args[1] % len(self.shape) - len(self.shape)
        word = {-1: "cols", -2: "rows"}.get(axis)
        return recorded(result, Value(word, (p,))) if word else result

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
        self.memories[_key(tensor)] = Memory(tensor, value)
        return tensor

    def _call(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        base, is_in_place = _base_name(name)
        plain_args = [plain(a) for a in args]
        if base in _CREATIONS or base in _SAME:
            return self._create(func, base, args, kwargs, is_in_place)
        operands = [self._operand(a) for a in args]
        if base not in _OF_ANSWERS:
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
            if value.op not in ("constant", "atom"):
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
        if base in _SAME:
            value = self.value_of(args[0])
            if args[0].dtype == torch.bool and result.dtype != torch.bool:
                value = self.record.add(_as_number(value))
            self._check_layout(base, args[0], result)
        else:
            number = _CREATIONS[base]
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
            self.memories[_key(result)].is_copy = base in _SAME
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
        if base in _REDUCTIONS:
            return self._reduction(_REDUCTIONS[base], args, kwargs)
        if base == "max" and len(args) == 2 and isinstance(args[1], Tensor):
            return apply("maximum", *operands)
        if base == "min" and len(args) == 2 and isinstance(args[1], Tensor):
            return apply("minimum", *operands)
        options = {"b" if k in ("other", "exponent") else k: v for k, v in options.items()}
        renamed = {"weight": "weight", "b": "b"}
        options = {renamed.get(k, k): v for k, v in options.items() if k not in _IGNORED}
        if options.pop("b", None) is not None and len(operands) == 1:
            operands.append(self._operand(kwargs.get("other", kwargs.get("exponent"))))
        if base in ("matmul", "mm") and args[0].shape[-1] == 1:
            base = "mul"
        if base in ("dot", "inner", "vdot"):
            return Value("sum", (apply("mul", *operands),))
        if (builder := _BUILDERS.get(base)) is not None:
            return builder(*operands, **options)
        if (word := _UNARY.get(base)) is not None and len(operands) == 1:
            return apply(word, *operands)
        if (word := _BINARY.get(base)) is not None and len(operands) == 2:
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


_OF_ANSWERS = frozenset(
    "where masked_fill logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not".split()
)


def _as_number(answer: Value) -> Value:
    """Return 1 where an answer is true, else 0."""
    return Value("where", (answer, constant(1), constant(0)))


_IGNORED = ("dtype", "device", "memory_format", "non_blocking", "keepdim", "dim", "copy", "layout")


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

