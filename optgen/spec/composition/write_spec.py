"""Write the spec of a composition, and tell which part wrote the text at a place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from optgen.ir.nodes import Place
from optgen.ir.ops import CALLABLE_OPS
from optgen.spec.composition.find_parts import Part, declared_key, option
from optgen.spec.composition.rename_parts import NamedParts
from optgen.spec.composition.write_rule import Block, indented, write_rule
from optgen.spec.errors import SpecError
from optgen.spec.reserved_names import DECLARATIONS
from optgen.spec.source import Source, is_call_of, nodes_of

_NOT_OF_COMPOSITIONS = ("gradient", "sparse_hint", "zero_grad", "compute_dtype")
"""Options that a composition does not take from its optimizer as they are.

Torch has no compositions, so none computes in 16 bits, as torch's classes do.
"""
_FIRST_LINE = 4
"""The line of the first function, after the imports and two empty lines."""


def write_spec(name: str, named: NamedParts) -> str:
    """Return the text of the spec of an optimizer with modifiers; `name` is that of the class."""
    functions = "\n".join(line for block in _blocks(name, named) for line in block.lines)
    used_names = {name.id for name in nodes_of([ast.parse(functions)], ast.Name)}
    imported = sorted(used_names & {*DECLARATIONS, *CALLABLE_OPS})
    return f"from optgen.spec import {', '.join(imported)}\n\n\n{functions}\n"


def error_of_part(error: SpecError, name: str, named: NamedParts, names_parts: bool) -> SpecError:
    """Move an error from the text of a composition to the file of the part that it is about.

    The error keeps its place if no part wrote the text there, or if the user chose the value there.
    With `names_parts` the message names all parts.
    """
    heading, first_line = "", _FIRST_LINE
    for block in _blocks(name, named) if error.place.line >= _FIRST_LINE else ():
        if block.part is not None and block.node is None:
            heading = block.part.name
        next_line = first_line + len(block.lines)
        if first_line <= error.place.line < next_line:
            node = _original(block, first_line, error.place)
            if block.part is not None and node is not None:
                source = block.part.source
                *names, last = (part.name for part in named.parts)
                listed = f"{', '.join(names)} and {last}" if names else last
                message = error.message + f" (in a composition of {listed})" * names_parts
                return SpecError(source.place(node), message, error.hint, source.padded_text)
            break
        first_line = next_line
    if not heading:
        return error
    message = f"{error.message} (in {heading}, a part of the composition)"
    return SpecError(error.place, message, error.hint, error.source)


def _original(block: Block, first_line: int, place: Place) -> ast.AST | None:
    """Return the node of a part that a block prints at a place; None if the node is an added one.

    The trees of the text and of the part are walked side by side as long as they have one form.
    """
    if block.node is None:
        return None
    declares_argument = isinstance(block.node, ast.keyword)  # a line of the signature
    block_text = f"f(\n{block.text}\n)" if declares_argument else f"\n{block.text}"
    printed = Source(block_text, place.file, first_line - 1)
    node: ast.AST = printed.parse().body[0]
    if declares_argument:
        node = next(each for each in ast.walk(node) if isinstance(each, ast.keyword))
    original: ast.AST = block.node
    place = replace(place, column=place.column - len(block.indentation))
    while printed.place(node) != place and type(node) is type(original):
        pairs = _pairs_of_children(node, original)
        inside = next((pair for pair in pairs if _covers(printed, pair[0], place)), None)
        if inside is None:
            break
        node, original = inside
    return original if getattr(original, "lineno", 1) > 1 else None  # added nodes have line 1


def _pairs_of_children(node: ast.AST, original: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield the children of two nodes of one type, in pairs; keywords of a call by their names."""
    if isinstance(node, ast.Call) and isinstance(original, ast.Call):
        yield from zip((node.func, *node.args), (original.func, *original.args), strict=False)
        originals = {keyword.arg: keyword for keyword in original.keywords}
        yield from ((each, originals[each.arg]) for each in node.keywords if each.arg in originals)
        return
    for child, other in zip(
        ast.iter_child_nodes(node), ast.iter_child_nodes(original), strict=False
    ):
        if isinstance(child, ast.arguments):  # which has no place
            yield from _pairs_of_children(child, other)
        else:
            yield child, other


def _covers(source: Source, node: ast.AST, place: Place) -> bool:
    """Tell whether a place lies in a node."""
    if not isinstance(node, ast.stmt | ast.expr | ast.arg | ast.keyword):
        return False
    end = ast.Pass(lineno=node.end_lineno or node.lineno, col_offset=node.end_col_offset or 0)
    first, last = source.place(node), source.place(end)
    return (first.line, first.column) <= (place.line, place.column) < (last.line, last.column)


def _blocks(name: str, named: NamedParts) -> Iterator[Block]:
    """Yield the blocks of the text after the imports."""
    for part in named.parts:
        for node in part.definitions:
            yield from (_function(named, part, node), Block("\n"))
    yield Block(_decorator(named))
    yield Block(f"def {name}(")
    yield from indented(_signature(named))
    yield Block("):")
    yield from indented([Block(_doc(named)), *write_rule(named)])
    for part in named.parts:
        for node in part.programs:
            for decorator in node.decorator_list:
                assert isinstance(decorator, ast.Attribute)
                decorator.value = ast.Name(name, ast.Load())
            yield from (Block("\n"), _function(named, part, node))


def _function(named: NamedParts, part: Part, node: ast.stmt) -> Block:
    """Return the block of a helper, a constant or a program."""
    of_modifier = part is not named.base and isinstance(node, ast.FunctionDef)
    return Block(ast.unparse(node), *((part, node) if of_modifier else ()))


def _decorator(named: NamedParts) -> str:
    """Return the optimizer's decorator; modifiers' arguments come last. Gradients are dense."""
    decorator = named.base.node.decorator_list[0]
    assert isinstance(decorator, ast.Call)
    hypers = [each for part in named.modifiers for each in part.hypers]
    added = {"group": [argument.arg for argument, _ in hypers]}
    added["keywords"] = [a.arg for a, declared in hypers if not is_call_of(declared, "fixed")]
    options = []
    for keyword in decorator.keywords:
        value = keyword.value
        if keyword.arg in ("keywords", "group") and isinstance(value, ast.Tuple):
            value = ast.Tuple([*value.elts, *map(ast.Constant, added[keyword.arg])], ast.Load())
        if keyword.arg not in _NOT_OF_COMPOSITIONS:
            options.append(f"{keyword.arg}={ast.unparse(value)}")
    if option(decorator, "zero_grad") or any(part.zero_grad for part in named.modifiers):
        options.append("zero_grad=True")
    return f"@optimizer({', '.join(options)})"


def _signature(named: NamedParts) -> Iterator[Block]:
    """Yield the blocks of the signature: inputs, states, hyperparameters."""
    arguments = named.base.node.args
    extra_inputs = arguments.posonlyargs[len(named.base.inputs) :]
    pairs = zip(extra_inputs, arguments.defaults, strict=False)
    extra = [f"{argument.arg}={ast.unparse(default)}" for argument, default in pairs]
    inputs = [named.param, named.grad, *([named.step] if named.step else []), *extra]
    yield Block(f"{', '.join(inputs)}, /,")
    yield from (_declaration(named, part, *state) for part in named.parts for state in part.states)
    keys = {a.arg: declared_key(declared) for part in named.parts for a, declared in part.states}
    for state, waits in named.waiting_states.items():
        yield Block(f'{waits}=state("{keys[state]}_waits", shape="scalar"),')
    hypers = [(part, *hyper) for part in named.parts for hyper in part.hypers]
    if hypers:
        yield Block("*,")
    yield from (_declaration(named, *hyper) for hyper in hypers)


def _declaration(
    named: NamedParts, part: Part, argument: ast.arg, declared: ast.expr | None
) -> Block:
    """Return the block of a state or a hyperparameter, without `rows=`, for sparse gradients."""
    assert isinstance(declared, ast.Call)
    kept = [keyword for keyword in declared.keywords if keyword.arg != "rows"]
    text = f"{argument.arg}={ast.unparse(ast.Call(declared.func, declared.args, kept))},"
    if part is named.base:
        return Block(text)
    return Block(text, part, ast.copy_location(ast.keyword(argument.arg, declared), argument))


def _doc(named: NamedParts) -> str:
    """Return the docstring, made of the first lines of the parts' docstrings."""
    first = _first_line(named.base)
    listed = [f"* {part.name}: {_first_line(part)}" for part in named.modifiers]
    doc = "\n\n".join([first, "\n".join(["Modifiers:", "", *listed])]) if listed else first
    if "\\" in doc or '"' in doc:
        return ast.unparse(ast.Constant(doc))
    return f'"""{doc}\n"""' if listed else f'"""{doc}"""'


def _first_line(part: Part) -> str:
    return part.doc.partition("\n")[0]
