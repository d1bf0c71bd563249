"""Write the API reference: signatures and docstrings of all exported names."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import typer.main

import optgen
from optgen.cli.app import app
from website.docstrings import Docstring, parse
from website.entries import entries
from website.rule_section import items_table

_WIDTH = 80
_MODIFIERS_INTRO = (
    "Every modifier is a name here too: `modifiers.ema`, `modifiers.clip_norm(1.0)`. "
    "Each [has a page](../modifiers/README.md)."
)
_SCHEDULERS_INTRO = (
    "[Schedulers](../schedulers.md) is the guide; the [gallery](../schedule-gallery.md) shows the "
    "curves."
)
_KEYED_INTRO = (
    "[Keyed optimizers](../keyed.md) is the guide. "
    "[RowWiseAdagrad](../optimizers/row_wise_adagrad.md) has a page."
)
_DECLARATIONS = (
    *("optimizer", "elementwise", "modifier", "state", "hyper", "flag", "choice", "fixed", "given"),
)
_SPEC_INTRO = (
    "What a spec declares. The words of a rule are on the page of "
    "[the language](../spec-language.md)."
)
_HIDDEN_METHODS = {"hyper_annotations"}
"""Public methods that only generated code calls."""


@dataclass(frozen=True)
class Reference:
    """A page of the reference: some names of a module."""

    page: str
    title: str
    module: str
    names: tuple[str, ...]
    intro: str = ""


def references() -> tuple[Reference, ...]:
    """Return the pages of the reference."""
    own_names = tuple(
        name for name in optgen.__all__ if not inspect.ismodule(getattr(optgen, name))
    )
    optim_names = _functions_first(
        _names("optgen.optim", lambda value: not inspect.ismodule(value))
    )
    keyed_names = _names("optgen.keyed", lambda value: value.__name__ not in _pages())
    average_names = _names("optgen.optim.swa_utils", _is_ours)
    return (
        _reference("optgen", own_names),
        _reference("optgen.optim", optim_names, _optimizers_intro()),
        _reference("optgen.amp", ("GradScaler",)),
        _reference("optgen.modifiers", ("load", "quantized", "state_dtype"), _MODIFIERS_INTRO),
        _reference(
            "optgen.optim.lr_scheduler", _names("optgen.optim.lr_scheduler"), _SCHEDULERS_INTRO
        ),
        _reference("optgen.optim.swa_utils", average_names),
        _reference("optgen.keyed", keyed_names, _KEYED_INTRO),
        _reference("optgen.spec", _DECLARATIONS, _SPEC_INTRO),
    )


def _reference(module: str, names: tuple[str, ...], intro: str = "") -> Reference:
    page = {"lr_scheduler": "schedulers"}.get(name := module.rpartition(".")[2], name)
    return Reference(f"api/{page}.md", module, module, names, intro)


def _names(module: str, keep: Callable[[Any], bool] = lambda value: True) -> tuple[str, ...]:
    """Return the names that a module exports, without optimizers, which have their own pages."""
    imported = importlib.import_module(module)
    names = (name for name in imported.__all__ if keep(getattr(imported, name)))
    return tuple(name for name in names if name not in _pages() and name != "Optimizer")


def _functions_first(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of optgen.optim, those that start with `create_optimizer` first."""
    module = importlib.import_module("optgen.optim")
    return tuple(sorted(names, key=lambda name: inspect.isclass(getattr(module, name))))


def _pages() -> dict[str, str]:
    """Return the pages of optimizers by the names of their classes."""
    return {each.title: each.page for each in entries()}


def _is_ours(value: object) -> bool:
    return getattr(value, "__module__", "").startswith("optgen")


def _optimizers_intro() -> str:
    links = ", ".join(f"[{title}](../{page})" for title, page in _pages().items())
    return (
        "The classes have a page each, with arguments, formulas and memory: "
        f"{links}. `Optimizer` is torch's own class. Every class with a rule has torch's "
        "functional form in `optgen.optim.functional`."
    )


def page(reference: Reference) -> str:
    """Return a page of the reference."""
    module = importlib.import_module(reference.module)
    parts = [f"# {reference.title}", reference.intro]
    for name in reference.names:
        parts += _description(name, getattr(module, name), reference.module)
    return "\n\n".join(each for each in parts if each) + "\n"


def _description(name: str, value: Any, module: str, level: int = 2) -> Iterator[str]:
    """Yield the heading, the signature and the docstring of an object, and its methods."""
    yield f"{'#' * level} {name}"
    owner = f"{module}.{name}" if level == 2 else name
    yield f"```python\n{_signature(owner, value)}\n```"
    if inspect.isclass(value) and not _is_ours(value):
        yield f"torch's class, `{value.__module__}.{value.__name__}`."
        return
    yield from _docstring_parts(parse(_doc(value)))
    if inspect.isclass(value):
        for method, function in _methods(value):
            yield from _description(f"{name}.{method}", function, module, level + 1)


def _doc(value: Any) -> str:
    """Return the docstring of an object; of a class, with the constructor's docstring below it."""
    doc = inspect.cleandoc(value.__doc__ or "")
    if inspect.isclass(value) and (own := vars(value).get("__init__")) and own.__doc__:
        doc = f"{doc}\n\n{inspect.cleandoc(own.__doc__)}"
    return doc


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the name and the function of each public method that has a docstring."""
    for name, value in vars(cls).items():
        function = getattr(value, "__func__", value)
        if (
            not name.startswith("_")
            and name not in _HIDDEN_METHODS
            and inspect.isfunction(function)
            and function.__doc__
        ):
            yield name, function


def _signature(name: str, value: Any) -> str:
    """Return a signature, with each argument on its own line if it is long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    result = signature.return_annotation
    after = "" if result is inspect.Signature.empty else f" -> {_annotation(result)}"
    arguments = _plain(str(signature.replace(return_annotation=inspect.Signature.empty)))
    if len(name + arguments + after) <= _WIDTH:
        return f"{name}{arguments}{after}"
    lines = ",\n".join(f"    {each}" for each in _split_arguments(arguments[1:-1]))
    return f"{name}(\n{lines},\n){after}"


def _annotation(result: object) -> str:
    return _plain(result if isinstance(result, str) else inspect.formatannotation(result))


def _plain(text: str) -> str:
    """Return annotations without quotes and modules, and defaults without addresses."""
    text = re.sub(r"(?<=: )'([^']*)'", r"\1", text)
    text = re.sub(r"\b(?:collections\.abc|typing|torch\.nn\.modules\.\w+|torch)\.", "", text)
    return re.sub(r"<(?:function|object|built-in)[^>]*>", "…", text)


def _split_arguments(text: str) -> Iterable[str]:
    """Split a list of arguments at the commas outside of brackets and quotes."""
    depth, start = 0, 0
    for index, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
    yield text[start:].strip()


def _docstring_parts(doc: Docstring) -> Iterator[str]:
    """Yield a docstring in Markdown: its text, its arguments, its results and its errors."""
    yield doc.text
    if doc.items("Args"):
        yield items_table(doc, "Args", "argument")
    if returns := doc.sections.get("Returns"):
        yield f"**Returns**: {_text(returns)}"
    if yields := doc.sections.get("Yields"):
        yield f"**Yields**: {_text(yields)}"
    errors = [f"* **{e.name}**: {e.text}" if e.name else f"* {e.text}" for e in doc.items("Raises")]
    if errors:
        yield "\n".join(["**Raises**:", "", *errors])


def _text(section: str) -> str:
    return parse(section).text


def commands() -> str:
    """Return the page of the command line, from its own help."""
    group: Any = typer.main.get_command(app)
    parts = [
        "# The command optgen",
        "It needs the extra `build` ([install](../index.md#install)). Exit codes: 0 ok, 1 stale "
        "files, 2 wrong usage, 3 an error in a spec, 4 a tool is missing or fails, 5 a defect of "
        "optgen.",
    ]
    for name, command in group.commands.items():
        context = type(group.make_context("optgen", ["--help"], resilient_parsing=True))(
            command, info_name=f"optgen {name}"
        )
        parts += [f"## {name}", f"```text\n{command.get_help(context)}\n```"]
    return "\n\n".join(parts) + "\n"
