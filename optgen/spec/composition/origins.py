"""Trace a place in the text of a composition back to the file of the part that wrote it.

A composition changes the statements of its parts and prints them. The nodes of a changed statement
keep their places in the file of the part. The syntax tree of the printed text has the same form, so
both trees are walked side by side.
"""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from optgen.ir.nodes import Place
from optgen.spec.composition.names import NamedParts
from optgen.spec.composition.parts import Part
from optgen.spec.composition.write_rule import statements_of_parts
from optgen.spec.errors import SpecError
from optgen.spec.source import Source


def error_of_part(error: SpecError, named: NamedParts, names_parts: bool) -> SpecError:
    """Move an error from the text of a composition to the file of the part that it is about.

    The error keeps its place if no part wrote the text there, or if the user chose the value there.
    With `names_parts` the message names all parts.
    """
    text, place = error.source, error.place
    part_name = _part_above(text.split("\n")[: place.line], named)
    for part, node in _original_node(Source(text, place.file), place, named, part_name):
        original_place = part.source.place(node)
        message = error.message
        if names_parts:
            message += f" (in a composition of {_listed(named)})"
        return SpecError(original_place, message, error.hint, part.source.padded_text)
    if not part_name:
        return error
    message = f"{error.message} (in {part_name}, a part of the composition)"
    return SpecError(place, message, error.hint, text)


def _listed(named: NamedParts) -> str:
    """Return the names of all parts, as in "adamw, clip and ema"."""
    *names, last = (part.name for part in named.parts)
    return f"{', '.join(names)} and {last}" if names else last


def _original_node(
    composition: Source, place: Place, named: NamedParts, part_name: str
) -> Iterator[tuple[Part, ast.AST]]:
    """Yield the node of a part that was printed at a place, after its part; nothing if none was."""
    functions = [node for node in composition.parse().body if isinstance(node, ast.FunctionDef)]
    rule = next(f for f in functions if any(isinstance(d, ast.Call) for d in f.decorator_list))
    pairs = (
        *_function_matches(functions, named),
        *_declaration_matches(rule, named),
        *_statement_matches(composition, rule, named, part_name),
    )
    for composed, part, original in pairs:
        found = _follow(composed, original, place, composition)
        if found is not None and getattr(found, "lineno", 1) > 1:  # added nodes have line 1
            yield part, found


_Match = tuple[ast.AST | None, Part, ast.AST | None]
"""A node of the composed text, the part that wrote it, and the node of that part."""


def _function_matches(composed: Sequence[ast.FunctionDef], named: NamedParts) -> Iterator[_Match]:
    """Yield the helpers and the programs of modifiers."""
    originals = {
        node.name: (part, node)
        for part in named.modifiers
        for node in (*part.definitions, *part.programs)
        if isinstance(node, ast.FunctionDef)
    }
    for function in composed:
        if function.name in originals:
            yield function, *originals[function.name]


def _declaration_matches(rule: ast.FunctionDef, named: NamedParts) -> Iterator[_Match]:
    """Yield the states and the hyperparameters of modifiers."""
    originals = {
        argument.arg: (part, argument, value)
        for part in named.modifiers
        for argument, value in (*part.states, *part.hypers)
    }
    for argument, value in _declarations(rule):
        if argument.arg in originals:
            part, original, declaration = originals[argument.arg]
            yield argument, part, original
            yield value, part, declaration


def _statement_matches(
    composition: Source, rule: ast.FunctionDef, named: NamedParts, part_name: str
) -> Iterator[_Match]:
    """Yield the statements that the rule of one part has written.

    Equal statements of a part have the same order in both texts.
    """
    originals = defaultdict[str, deque[tuple[Part, ast.AST]]](deque)
    for part, stmt in statements_of_parts(named):
        if part.name == part_name:
            for unit in _units([stmt]):
                originals[ast.unparse(unit)].append((part, unit))
    lines = composition.text.split("\n")
    for unit in _units(rule.body):
        equal_originals = originals.get(ast.unparse(unit))
        if (
            equal_originals
            and _part_above(lines[: composition.place(unit).line], named) == part_name
        ):
            yield unit, *equal_originals.popleft()


def _part_above(lines: Sequence[str], named: NamedParts) -> str:
    """Return the part whose comment is the last among these lines; "" if there is none."""
    comments = {f"# {part.name}": part.name for part in named.parts}
    above = (line.strip() for line in reversed(lines))
    return next((comments[line] for line in above if line in comments), "")


def _declarations(rule: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Yield the states and the hyperparameters of a signature, with their declarations."""
    arguments = rule.args
    defaults = arguments.defaults[len(arguments.defaults) - len(arguments.args) :]
    yield from zip(arguments.args, defaults, strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def _units(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the condition of each branch, and each statement that is no branch."""
    for stmt in statements:
        if isinstance(stmt, ast.If):
            yield stmt.test
            yield from _units([*stmt.body, *stmt.orelse])
        else:
            yield stmt


def _follow(
    composed: ast.AST | None, original: ast.AST | None, place: Place, composition: Source
) -> ast.AST | None:
    """Return the original of the composed node that begins at a place; None if there is none.

    Both trees are walked side by side as long as they have the same form. Where the forms differ,
    return the original node above.
    """
    if composed is None or original is None or not _covers(composed, place, composition):
        return None
    if composition.place(composed) == place or type(composed) is not type(original):
        return original
    pairs = zip(_children(composed), _children(original), strict=False)
    inside = (_follow(each, other, place, composition) for each, other in pairs)
    default = None if isinstance(original, ast.arguments) else original
    return next((found for found in inside if found is not None), default)


def _children(node: ast.AST) -> list[ast.AST]:
    """Return the children of a node; the keywords of a call are in the order of their names."""
    if isinstance(node, ast.Call):
        keywords = sorted(node.keywords, key=lambda keyword: keyword.arg or "")
        return [node.func, *node.args, *keywords]
    return list(ast.iter_child_nodes(node))


def _covers(node: ast.AST, place: Place, composition: Source) -> bool:
    """Tell whether a place may lie in a node: always in `ast.arguments`, which has no place."""
    if not isinstance(node, ast.stmt | ast.expr | ast.arg | ast.keyword):
        return isinstance(node, ast.arguments)
    end = ast.Pass(lineno=node.end_lineno or node.lineno, col_offset=node.end_col_offset or 0)
    first, last = composition.place(node), composition.place(end)
    if isinstance(node, ast.FunctionDef):  # decorators stand above
        first_line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        return first_line <= place.line <= last.line
    return (first.line, first.column) <= (place.line, place.column) < (last.line, last.column)
