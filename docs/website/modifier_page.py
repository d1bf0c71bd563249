"""Write the generated sections of a modifier's page: arguments, states, formulas and code."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from inspect import signature

from optgen import emit, modifiers
from optgen.compositions import composed_spec, spec_of
from optgen.ir.algorithm import Algorithm, State
from optgen.lowerings import LOWERINGS
from optgen.lowerings.optimizer.constructor import COMMON_ARGUMENTS, arguments
from optgen.lowerings.optimizer.doc import docstring
from optgen.passes.latex import to_latex
from optgen.passes.plan_rule import why_uncut
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec
from website.code_section import code_block, tab_block
from website.docstrings import Docstring, display_formula, parse
from website.entries import SPECS
from website.precisions import PRECISIONS
from website.rule_section import items_table, typewriter
from website.state_bytes import size_of
from website.state_section import state_description
from website.tables import table

FOLDER = SPECS / "modifiers"
_BASES = ("adamw", "sgd")
_CLASSES = {"adamw": "AdamW", "sgd": "SGD"}
_TITLES = {
    "forloop": "For-loop",
    "foreach": "Foreach",
    "fused_cpu": "C++",
    "fused_triton": "Triton",
}


def sections(name: str) -> str:
    """Return the generated sections of a modifier's page."""
    base, algorithm = compose_with_base(name)
    doc = _docstring_of(algorithm)
    title = _CLASSES[base]
    parts = [f"## {heading}\n\n{text}" for heading, text in _parts(name, base, algorithm, doc)]
    intro = (
        f"The sections below are generated from `specs/modifiers/{name}.py` and its composition "
        f"with {title}."
    )
    return "\n\n".join(["", intro, *parts]) + "\n"


def _parts(name: str, base: str, algorithm: Algorithm, doc: Docstring) -> Iterator[tuple[str, str]]:
    title = _CLASSES[base]
    yield "Turn it on", _adopted(name, title)
    yield f"The rule with {title}", display_formula(typewriter(algorithm, to_latex(algorithm)))
    if table_of_arguments := _arguments(name, doc):
        yield "Arguments", table_of_arguments
    yield "State and bytes", _states(base, algorithm, doc)
    yield "Lowerings", _lowerings(algorithm, title)
    yield "Spec and generated code", _code(name, algorithm)


@functools.cache
def compose_with_base(name: str) -> tuple[str, Algorithm]:
    """Return the first of adamw and sgd with which a modifier can be composed, and the result."""
    for base in _BASES:
        try:
            spec = composed_spec(
                spec_of(SPECS / f"{base}.py"), (getattr(modifiers, name),), "Composed"
            )
            return base, read_spec(spec)[0]
        except (SpecError, CompositionError):
            continue
    raise ValueError(f"the modifier {name} goes with none of {', '.join(_BASES)}")


def _adopted(name: str, title: str) -> str:
    """Return the lines that compose a class and make its optimizer."""
    lines = [
        "import optgen",
        "from optgen import modifiers",
        f"from optgen.optim import {title}",
        "",
        f"Mine = optgen.compose({title}, modifiers.{name})",
        "optimizer = Mine(model.parameters(), lr=1e-3)",
    ]
    return code_block("\n".join(lines), ".py")


def _docstring_of(algorithm: Algorithm) -> Docstring:
    """Return the docstring that the class of a composition has."""
    positional, keywords = arguments(algorithm)
    return parse("\n".join(docstring(algorithm, [*positional, *keywords])))


def _arguments(name: str, doc: Docstring) -> str:
    own = set(signature(getattr(modifiers, name)).parameters) - {
        each.name for each in COMMON_ARGUMENTS
    }
    lines = [f"{i.name} ({i.type}): {i.text}" for i in doc.items("Args") if i.name in own]
    own_items = Docstring("", (), {"Args": "\n".join(lines)})
    return items_table(own_items, "Args", "argument") if lines else ""


def _states(base: str, algorithm: Algorithm, doc: Docstring) -> str:
    """Return the states that the modifier adds, and their bytes."""
    (plain, *_) = read_spec(SPECS / f"{'adam' if base == 'adamw' else base}.py")
    base_keys = {state.key for state in plain.states}
    added = [state for state in algorithm.checkpoint_states() if state.key not in base_keys]
    if not added:
        return "The modifier adds no state."
    texts = {item.name: item.text for item in doc.items("State")}
    rows = [
        (f"`{s.key}`", state_description(algorithm, s.key, texts.get(s.key, "")), *_bytes(s))
        for s in added
    ]
    header = ("key", "", *(f"bytes, parameter in {each.title}" for each in PRECISIONS[:2]))
    return table(header, rows)


def _bytes(state: State) -> tuple[str, ...]:
    if state.of_group:
        return ("one number for all groups" if state.of_all else "one number for a group",) * 2
    if state.shape == "scalar":
        return ("4 for a parameter",) * 2
    return tuple(rf"\({size_of(state, each.dtype).formula()}\)" for each in PRECISIONS[:2])


def _lowerings(algorithm: Algorithm, title: str) -> str:
    refused = [
        f"{_TITLES[each.name]}: {each.refusal(algorithm)}"
        for each in LOWERINGS
        if each.name in _TITLES and each.refusal(algorithm)
    ]
    available = f"With {title}, the composition has all four lowerings."
    if refused:
        available = f"With {title}, these lowerings are missing. {'. '.join(refused)}."
    sharding = (
        "Under FSDP2 each rank steps its own shards."
        if algorithm.elementwise
        else "Under FSDP2 ranks complete the sums together."
    )
    return (
        f"{available} {sharding} Triton kernels have run in Triton's interpreter only, and nothing "
        "has run on a GPU ([what runs where](../what-runs-where.md))."
    )


def _code(name: str, algorithm: Algorithm) -> str:
    tabs = [("Spec", code_block((FOLDER / f"{name}.py").read_text(encoding="utf-8"), ".py"))]
    tabs.append(("Composition", code_block(algorithm.source, ".py")))
    ruff = emit.find_ruff()
    for each in LOWERINGS:
        if each.name in _TITLES and each.applies(algorithm) and not why_uncut(algorithm):
            suffix = f".{each.filename.rpartition('.')[2]}"
            text = emit.render(algorithm, each, ruff, None, catalogued=False)
            tabs.append((_TITLES[each.name], code_block(text, suffix)))
    return tab_block(tabs)
