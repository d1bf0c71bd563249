"""Assemble a generated Python file from the functions of each plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from optgen.ir.algorithm import Algorithm, State
from optgen.ir.execution import widens_in_python
from optgen.ir.generated_names import RUNTIME_NAMES, plural
from optgen.ir.plan import Plan, Stream
from optgen.lowerings.lowering import Context
from optgen.lowerings.python.scalar_program import BUCKET, scalar_lines
from optgen.lowerings.python.signature import fresh_as_keywords, keywords, list_names


@dataclass(frozen=True)
class Function:
    """Generated function: its name, tensor lists, keyword arguments and lines."""

    name: str
    doc: str
    lists: tuple[str, ...]
    keywords: tuple[str, ...]
    body: tuple[str, ...]
    returns: str = "None"


@dataclass(frozen=True)
class Body:
    """Lines of tensor operations, the numbers that the lines read, and a function's first lines."""

    lines: list[str]
    numbers_read: frozenset[str]
    opening: Sequence[str] = ()


def python_file(algorithm: Algorithm, functions: list[Function]) -> Context:
    """Return the template's variables: the functions, and the imports that they need."""
    used = _names_called(line for function in functions for line in function.body)
    used |= _names_in_annotations(functions)
    imports = {
        module: [name for name in names if name in used] for module, names in RUNTIME_NAMES.items()
    }
    return {
        "algorithm": algorithm,
        "functions": functions,
        "imports": {module: names for module, names in imports.items() if names},
    }


def _names_called(lines: Iterable[str]) -> set[str]:
    """Return the names of the functions that lines call, except in comments."""
    code_lines = (line for line in lines if not line.lstrip().startswith("#"))
    return {name for line in code_lines for name in re.findall(r"(?<![\w.])(\w+)\(", line)}


def _names_in_annotations(functions: Iterable[Function]) -> set[str]:
    """Return the names in the annotations of keyword arguments and results."""
    annotations = (keyword.partition(":")[2] for f in functions for keyword in f.keywords)
    texts = (*annotations, *(function.returns for function in functions))
    return {name for text in texts for name in re.findall(r"\w+", text)}


def bucket_function(plan: Plan, loop: Callable[[Plan], Body]) -> Function:
    """Return the `update` of one bucket: the scalar program, then the lines from `loop`."""
    arguments, plan = keywords(plan), fresh_as_keywords(plan)
    body = loop(plan)
    shape = "" if plan.algorithm.elementwise else "a shape and "
    return Function(
        function_name("update", plan.facts),
        f"Update a bucket in place. Its tensors share {shape}the results of the scalar program.",
        list_names(plan.algorithm),
        arguments,
        separated_blocks(
            [*body.opening, *scalar_lines(plan, BUCKET, body.numbers_read)], body.lines
        ),
        "Update" if plan.algorithm.is_wide else "None",
    )


def loop_iterable(plan: Plan, iterable: str, stored: Iterable[bool]) -> str:
    """Return the expression that a printed loop iterates over.

    The result is `iterable`, inside `in_wider_dtype` if the rule computes in a wider dtype.
    `stored` says for each column whether the loop writes it.
    """
    if not widens_in_python(plan.algorithm):
        return iterable
    return f"in_wider_dtype({iterable}, {tuple(stored)}, {plural(plan.algorithm.param)})"


def function_name(name: str, facts: Mapping[str, bool]) -> str:
    """Return a function's name with the facts of its plan, as in `update_factored`."""
    answers = (fact if holds else f"not_{fact}" for fact, holds in facts.items())
    return "_".join((name, *answers))


def indented(lines: Iterable[str], header: str) -> list[str]:
    """Return lines indented under the header of a loop or branch."""
    return [header, *(f"    {line}" if line else line for line in lines)]


def guarded_lines(tensor: Stream | State, line: str) -> list[str]:
    """Return a line, inside an `if` if the stream or state exists only under a condition."""
    return indented([line], f"if {tensor.when}:") if tensor.when else [line]


def unpacking_target(names: Sequence[str]) -> str:
    """Return the target of a tuple unpacking, with parentheses for a single name."""
    return ", ".join(names) if len(names) > 1 else f"({names[0]},)"


def separated_blocks(*blocks: list[str]) -> tuple[str, ...]:
    """Return blocks of lines with an empty line between them."""
    lines = [line for block in blocks if block for line in (*block, "")]
    return tuple(lines[:-1])
