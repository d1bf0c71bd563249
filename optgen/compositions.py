"""Compose an optimizer and modifiers into a new optimizer class."""

from __future__ import annotations

import contextlib
import functools
import keyword
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optgen.jit import LoadedType, data_folder, load, named_spec
from optgen.runtime.light_optimizer import LightOptimizer
from optgen.runtime.optimizer import GeneratedOptimizer
from optgen.spec.declare import Modifier, Spec

if TYPE_CHECKING:
    from optgen.runtime.optimizer import LoadedOptimizer
    from optgen.spec.composition.find_parts import Part


@dataclass(frozen=True)
class Composition(Spec):
    """A composed spec, and the parts from which it was written: an optimizer and modifiers."""

    base: Spec
    modifiers: tuple[Modifier | StateDtype, ...]


@dataclass(frozen=True)
class StateDtype:
    """A choice of dtypes: a default for the optimizer's states, and others by checkpoint key."""

    default: str | None
    by_key: tuple[tuple[str, str | None], ...]
    quantized_options: tuple[tuple[str, int | str], ...] = ()  # for states of codes

    @property
    def name(self) -> str:
        """The name of the function in `optgen.modifiers` that returns such a choice."""
        return "quantized" if self.quantized_options else "state_dtype"


def state_dtype(default: str | None = None, **by_key: str | None) -> StateDtype:
    """Keep states in other dtypes: "float32", "bfloat16" or "float16"; None is the parameter's.

    A step computes in float32 or wider, and rounds a state when it is stored.

    Args:
        default: the dtype of the optimizer's states that hold rows, columns or a number for each
            element, and that declare no dtype.
        **by_key: the dtypes of some states, also of modifiers, by their checkpoint keys:
            `state_dtype("bfloat16", exp_avg_sq="float32")`.
    """
    return StateDtype(default, tuple(by_key.items()))


def quantized(
    default: str | None = "8bit",
    *,
    block: int | None = None,
    map: str | None = None,
    min_elements: int = 4096,
    **by_key: str | None,
) -> StateDtype:
    """Keep states in few bits: a code for each element, and a float32 scale for each block.

    A step computes in float32 or wider, and a checkpoint holds float32.

    Args:
        default: "8bit", "fp8" or "4bit" for all of the optimizer's states that have the parameter's
            shape, declare no dtype and do not begin as a copy of the parameter. None leaves them as
            they are.
        block: how many consecutive elements share a scale: 64, 128, 256 or 512. By default 256; for
            "4bit", 128.
        map: the values that codes of "8bit" stand for: "dynamic", which are closer together the
            smaller they are, or "linear". Codes of "fp8" are numbers of torch.float8_e4m3fn; those
            of "4bit" are "dynamic4", as "dynamic" with fewer values.
        min_elements: parameters with fewer elements have these states in float32.
        **by_key: the dtypes of some states, also of modifiers, by their checkpoint keys:
            `quantized(exp_avg_sq="float32")`, or `quantized("4bit", exp_avg="8bit")`: in 4 bits, a
            momentum does not decay where gradients become 0.
    """
    options = {"block": block, "map": map, "min_elements": min_elements}
    chosen = tuple((key, value) for key, value in options.items() if value is not None)
    return StateDtype(default, tuple(by_key.items()), chosen)


def compose(
    optimizer: type[GeneratedOptimizer] | str | os.PathLike[str] | Spec,
    *modifiers: Modifier | StateDtype,
    name: str | None = None,
) -> type[LoadedOptimizer]:
    """Make an optimizer class from an optimizer and modifiers.

    A step has stages in a fixed order: the modifiers of the gradient, the optimizer's rule, the
    modifiers of the update, and the modifiers that store or observe the parameter. All of them are
    compiled as one rule. Two modifiers of one stage take effect in the order of the arguments.

    Args:
        optimizer: a class of `optgen.optim`, a class that `load` or `compose` made, a name of the
            catalogue, the path of a spec file, or a function decorated with `@optimizer(…)`.
        *modifiers: modifiers of `optgen.modifiers`, or functions decorated with `@modifier(…)`.
            Their arguments are the defaults of the new class.
        name: the name of the class. By default it is put together from the names of the parts.

    Returns:
        The class. The modifiers' hyperparameters are arguments of its constructor and keys of its
        param groups. Its spec, `cls.spec.source`, is a text that `optgen build` takes.

    Raises:
        CompositionError: the parts do not go together; the message says which and why.
        SpecError: a part has a mistake, or the composed rule is not in the language.
        TypeError: an argument is neither an optimizer nor a modifier.
    """
    base = spec_of(optimizer)
    not_modifiers: list[object] = [
        each for each in modifiers if not isinstance(each, Modifier | StateDtype)
    ]
    if not_modifiers:
        wrong = not_modifiers[0]
        raise TypeError(
            f"compose takes modifiers after the optimizer, not {_what_it_is(wrong)}: "
            f"{_modifier_hint(wrong)}"
        )
    if isinstance(base, Composition):
        spec = composed_spec(base.base, (*base.modifiers, *modifiers), name)
    else:
        spec = composed_spec(base, modifiers, name)
    with errors_of_parts(spec):
        return load(spec)


def composed_spec(
    base: Spec, modifiers: tuple[Modifier | StateDtype, ...], name: str | None = None
) -> Composition:
    """Return the spec of an optimizer with modifiers; see `compose`."""
    from optgen.ir.nodes import Place
    from optgen.spec.composition.check_parts import CompositionError
    from optgen.spec.composition.rename_parts import with_fitting_names
    from optgen.spec.composition.write_spec import write_spec
    from optgen.spec.errors import located_errors

    parts = _parts(base, modifiers)
    name = name or parts[0].name + "".join(_camel(each.name) for each in modifiers)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CompositionError(
            f"{name!r} cannot name a class: write an identifier, such as MyAdamW"
        )
    named_parts = with_fitting_names(parts[0], parts[1:])
    with located_errors(Place(base.file, base.line, 1), base.source):
        text = write_spec(name, named_parts)
    return Composition(name, text, f"<{name}>", 1, base, modifiers)


def _parts(base: Spec, modifiers: tuple[Modifier | StateDtype, ...]) -> list[Part]:
    """Return the parts of a composition with their values, the optimizer first."""
    from optgen.spec.composition.check_parts import modifier_part
    from optgen.spec.composition.prepare_parts import (
        with_plain_update,
        with_state_dtypes,
        with_values,
    )

    rule_modifiers = [each for each in modifiers if isinstance(each, Modifier)]
    parts = [with_values(modifier_part(each.spec), dict(each.values)) for each in rule_modifiers]
    parts = [with_plain_update(_optimizer_part(base), parts), *parts]
    for each in modifiers:
        if isinstance(each, StateDtype):
            by_key, quantized_options = dict(each.by_key), dict(each.quantized_options)
            parts = with_state_dtypes(parts, each.default, by_key, quantized_options, each.name)
    return parts


@contextlib.contextmanager
def errors_of_parts(spec: Composition, names_parts: bool = True) -> Iterator[None]:
    """Convert errors about the composed text into errors at the places in the parts' files.

    With `names_parts`, the message names all parts.
    """
    from optgen.spec.composition.rename_parts import with_fitting_names
    from optgen.spec.composition.write_spec import error_of_part
    from optgen.spec.errors import SpecError

    try:
        yield
    except SpecError as error:
        if error.place.file != spec.file:
            raise
        optimizer, *others = _parts(spec.base, spec.modifiers)
        named_parts = with_fitting_names(optimizer, others)
        raise error_of_part(error, spec.name, named_parts, names_parts) from None


def _optimizer_part(spec: Spec) -> Part:
    """Return the part of an optimizer's spec; a derived spec gets the rule of its base."""
    from optgen.spec.composition.find_parts import optimizer_part
    from optgen.spec.composition.prepare_parts import derived
    from optgen.spec.read_spec import read_base, read_spec

    (algorithm, *_) = read_spec(spec)  # a spec with a mistake is refused at its place
    part, specs = optimizer_part(spec), data_folder("specs")
    base = read_base(algorithm, specs)
    return derived(part, optimizer_part(named_spec(specs / f"{base.module}.py"))) if base else part


def spec_of(optimizer: type[GeneratedOptimizer] | str | os.PathLike[str] | Spec) -> Spec:
    """Return the spec of an optimizer.

    Raises:
        TypeError: `optimizer` is no optimizer of optgen, or a class that has no spec.
    """
    match optimizer:
        case Spec() | str() | os.PathLike():
            return named_spec(optimizer)
        case LoadedType() if isinstance(spec := vars(optimizer).get("spec"), Spec):
            return spec
        case type() if f"{optimizer.__module__}.".startswith("optgen.optim."):
            with contextlib.suppress(FileNotFoundError):  # LBFGS has no spec
                return named_spec(optimizer.__name__)
    raise TypeError(
        f"compose takes a class of optgen.optim or of optgen.load, the name or the path of a spec, "
        f"or a function decorated with @optimizer(…), not {_what_it_is(optimizer)}"
        f"{_optimizer_hint(optimizer)}"
    )


def _what_it_is(value: object) -> str:
    """Return a short text for an argument. An optimizer prints all of its groups."""
    if hasattr(value, "param_groups"):
        return f"an optimizer that is built already, of class {type(value).__name__}"
    name = getattr(value, "__qualname__", "")
    if isinstance(value, type):
        is_loaded = isinstance(value, LoadedType)  # its module is named after a digest
        return f"the class {name if is_loaded else f'{value.__module__}.{name}'}"
    return f"the function {name}" if name else repr(value)


def _optimizer_hint(wrong: object) -> str:
    """Return what to write instead of a wrong first argument of `compose`, after a colon, or ""."""
    cls = wrong if isinstance(wrong, type) else type(wrong)
    if isinstance(wrong, Modifier | StateDtype):
        return ": the optimizer comes first, and modifiers after it"
    if cls.__module__.startswith("torch.optim"):
        return f": optgen.optim.{cls.__name__} has the same arguments, if optgen has it"
    if isinstance(wrong, type) and issubclass(wrong, LightOptimizer):
        return f": {wrong.__name__} is written by hand and has no rule that modifiers could change"
    if isinstance(wrong, GeneratedOptimizer):
        return f": compose the class, and build that: compose({cls.__name__}, …)(params, …)"
    return ""


def _modifier_hint(wrong: object) -> str:
    """Return what to write instead of a wrong modifier."""
    if wrong in (quantized, state_dtype):
        call = "quantized()" if wrong is quantized else 'state_dtype("bfloat16")'
        return f"call it: modifiers.{call}"
    if isinstance(wrong, str) and wrong in list_modifiers():
        return f"write modifiers.{wrong}"
    if isinstance(wrong, list | tuple):
        return "write the modifiers one after the other, without a list"
    if hasattr(wrong, "param_groups") or isinstance(wrong, type):
        return "one rule is composed with modifiers; create_optimizer splits a model between two"
    return "write modifiers.ema, or modifiers.ema(0.99)"


@functools.cache
def modifier(name: str) -> Modifier:
    """Return a modifier of the catalogue.

    Raises:
        FileNotFoundError: there is no modifier of that name.
    """
    return modifier_from_file(_modifiers_folder() / f"{name}.py")


def modifier_from_file(path: Path) -> Modifier:
    """Return the modifier of a spec file, after checking it."""
    from optgen.spec.composition.check_parts import modifier_part

    modifier = Modifier(named_spec(path))
    modifier_part(modifier.spec)
    return modifier


def list_modifiers() -> list[str]:
    """Return the names of the modifiers of the catalogue, sorted."""
    return sorted(path.stem for path in _modifiers_folder().glob("[!_]*.py"))


def _modifiers_folder() -> Path:
    return data_folder("specs") / "modifiers"


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
