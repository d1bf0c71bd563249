"""Compose an optimizer with the modifiers for low precision."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from optgen import modifiers
from optgen.compositions import composed_spec, spec_of
from optgen.ir.algorithm import Algorithm
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec
from website.entries import SPECS, Entry


@dataclass(frozen=True)
class Precision:
    """A way to store parameters and states. `modifiers` are added to the optimizer for it."""

    title: str
    dtype: str
    modifiers: str = ""


PRECISIONS = (
    Precision("float32", "float32"),
    Precision("bfloat16", "bfloat16"),
    Precision("bfloat16, float32 masters", "bfloat16", 'master, state_dtype("float32")'),
    Precision("float32, states of 8 bits", "float32", "quantized()"),
)


def refusal(entry: Entry, modifier: str) -> str:
    """Return why a modifier does not go with an optimizer; "" if it does."""
    try:
        read_spec(
            composed_spec(spec_of(SPECS / f"{entry.name}.py"), (getattr(modifiers, modifier),))
        )
    except (SpecError, CompositionError) as error:
        return str(error).splitlines()[0]
    return ""


@functools.cache
def in_precision(entry: Entry, precision: Precision) -> Algorithm | str:
    """Return the optimizer with a precision's modifiers, or why they do not go together."""
    added = {
        "": (),
        'master, state_dtype("float32")': (modifiers.master, modifiers.state_dtype("float32")),
        "quantized()": (modifiers.quantized(),),
    }[precision.modifiers]
    if not added:
        return entry.algorithm
    try:
        spec = composed_spec(spec_of(SPECS / f"{entry.name}.py"), added)
        (algorithm, *_) = read_spec(spec)
    except (SpecError, CompositionError) as error:
        return str(error).splitlines()[0]
    return algorithm
