"""Write the spec of a composition: one signature and one rule for the optimizer and modifiers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from textwrap import indent

from optgen.ir.ops import CALLABLE_OPS
from optgen.spec.composition.names import NamedParts
from optgen.spec.composition.parts import Part, declared_key, declares
from optgen.spec.composition.write_rule import write_rule
from optgen.spec.reserved_names import DECLARATIONS

_NOT_OF_COMPOSITIONS = ("gradient", "sparse_hint", "zero_grad", "compute_dtype")
"""Options that a composition does not take from its optimizer as they are.

Torch has no compositions, so none computes in 16 bits, as torch's classes do.
"""


def write_spec(name: str, named: NamedParts) -> str:
    """Return the text of the spec of an optimizer with modifiers; `name` is that of the class."""
    definitions = [ast.unparse(node) for part in named.parts for node in part.definitions]
    programs = [_program_text(name, node) for part in named.parts for node in part.programs]
    functions_text = "\n\n\n".join([*definitions, _optimizer_text(name, named), *programs])
    return f"{_import_line(functions_text)}\n\n\n{functions_text}\n"


def _import_line(functions_text: str) -> str:
    """Return the line that imports the words of the language that a text uses."""
    used_names = {n.id for n in ast.walk(ast.parse(functions_text)) if isinstance(n, ast.Name)}
    return (
        f"from optgen.spec import {', '.join(sorted(used_names & {*DECLARATIONS, *CALLABLE_OPS}))}"
    )


def _optimizer_text(name: str, named: NamedParts) -> str:
    body_lines = [_doc(named), *write_rule(named)]
    lines = [
        _decorator(named),
        f"def {name}(",
        *(indent(line, "    ") for line in _signature(named)),
        "):",
        *(indent(line, "    ") if line else "" for line in body_lines),
    ]
    return "\n".join(lines)


def _decorator(named: NamedParts) -> str:
    """Return the optimizer's decorator; modifiers' arguments come last. Gradients are dense."""
    decorator = named.base.node.decorator_list[0]
    assert isinstance(decorator, ast.Call)
    hypers = [each for part in named.modifiers for each in part.hypers]
    added = {"group": [argument.arg for argument, _ in hypers]}
    added["keywords"] = [a.arg for a, declared in hypers if not declares(declared, "fixed")]
    options = []
    for keyword in decorator.keywords:
        value = keyword.value
        if keyword.arg in ("keywords", "group") and isinstance(value, ast.Tuple):
            value = ast.Tuple([*value.elts, *map(ast.Constant, added[keyword.arg])], ast.Load())
        if keyword.arg not in _NOT_OF_COMPOSITIONS:
            options.append(f"{keyword.arg}={ast.unparse(value)}")
    if named.base.option("zero_grad") or any(part.zero_grad for part in named.modifiers):
        options.append("zero_grad=True")
    return f"@optimizer({', '.join(options)})"


def _signature(named: NamedParts) -> Iterator[str]:
    """Yield the lines of the signature: inputs, states, hyperparameters."""
    arguments = named.base.node.args
    extra_inputs = arguments.posonlyargs[len(named.base.inputs) :]
    pairs = zip(extra_inputs, arguments.defaults, strict=False)
    extra = [f"{argument.arg}={ast.unparse(default)}" for argument, default in pairs]
    inputs = [named.param, named.grad, *([named.step] if named.step else []), *extra]
    yield f"{', '.join(inputs)}, /,"
    for argument, declaration in (each for part in named.parts for each in part.states):
        yield f"{argument.arg}={_for_dense_gradients(declaration)},"
    for state, waits in named.waiting_states.items():
        keys = {
            a.arg: declared_key(declared) for part in named.parts for a, declared in part.states
        }
        yield f'{waits}=state("{keys[state]}_waits", shape="scalar"),'
    hypers = [each for part in named.parts for each in part.hypers]
    if hypers:
        yield "*,"
    for argument, declared in hypers:
        yield f"{argument.arg}={_for_dense_gradients(declared)},"


def _for_dense_gradients(declaration: ast.expr | None) -> str:
    """Return the text of a declaration without `rows=`, which is for sparse gradients."""
    assert isinstance(declaration, ast.Call)
    kept = [keyword for keyword in declaration.keywords if keyword.arg != "rows"]
    return ast.unparse(ast.Call(declaration.func, declaration.args, kept))


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


def _program_text(name: str, node: ast.FunctionDef) -> str:
    """Return the text of a program, decorated with the name of the composition."""
    for decorator in node.decorator_list:
        assert isinstance(decorator, ast.Attribute)
        decorator.value = ast.Name(name, ast.Load())
    return ast.unparse(node)
