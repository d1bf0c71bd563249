"""Write a found rule as a spec."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence

from optgen.importer.layout import WIDTH, call, number
from optgen.importer.meanings import meanings, means_of_squares
from optgen.importer.names import LETTERS_OF_STEP, first_argument, is_generated, kept_word
from optgen.importer.places import line_of_argument
from optgen.importer.recording import NotImportedError
from optgen.importer.rules import Bound, Rule
from optgen.importer.run import Argument, Subject
from optgen.importer.source_of import paper_of, provenance
from optgen.importer.statements import Assign, If, Item, assigned, names_read, printed, renamed
from optgen.importer.states import FoundState
from optgen.importer.tidy import tidied
from optgen.ir.ops import OPS
from optgen.spec.reserved_names import why_taken, why_taken_verbatim


def spec_text(subject: Subject, rule: Rule, *, max_axes: int | None = None) -> str:
    """Return the text of a spec file. `max_axes`: 2 if parameters have no more axes."""
    first, items, parts = _code(subject, rule)
    if subject.is_for_matrices:
        first.insert(0, '    require(ndim(p) == 2, "a parameter is no matrix: {shape}")')
    elif max_axes == 2:
        first.insert(0, '    require(ndim(p) <= 2, "a parameter has more than two axes: {shape}")')
    kept = {subject.state_word(each.key) for each in rule.states}
    body = "\n".join([*first, *_paragraphs(items, kept)])
    used = {
        node.id for node in ast.walk(ast.parse("def f():\n" + body)) if isinstance(node, ast.Name)
    }
    states = [s for s in rule.states if subject.state_word(s.key) in used]
    arguments = [a for a in subject.arguments if _is_used(a, used, states)]
    inits = {subject.state_word(s.key): s.init for s in states}
    declared = [
        *(["t,"] if "t" in used or subject.step_state else []),
        "/,",
        *_states(subject, states, means_of_squares(items)),
        *_arguments(subject, rule, arguments, meanings(items, inits, parts)),
        *_first_arguments(subject, used),
    ]
    words = {"optimizer"} | {w for w in used if w in OPS or w == "require"}
    words |= {found[1] for line in declared if (found := re.match(r"\w+=(\w+)\(", line))}
    left_out = sorted(subject.left_out)
    paper = paper_of(subject.cls)
    options = [f'paper="{paper}"'] if paper else []
    options += ['step="int"'] if subject.step_state == "int" else []
    taken = _taken(subject, arguments, used)
    if "g" not in taken and (gradient := _gradient(rule, used, arguments)):
        taken["g"] = gradient
    others = [a.name for a in arguments if a.word != a.name]
    declared = [_with_letters(line, taken, others) for line in ("p,", "g,", *declared)]
    body = _with_letters(body, taken, others)
    lines = [
        f'"""{provenance(subject.cls)}"""',
        "",
        *_import_of(sorted(words)),
        "",
        "",
        f"@optimizer({', '.join(options)})",
        f"def {subject.cls.__name__}(",
        *(f"    {line}" for line in declared),
        "):",
        f'    """{subject.cls.__name__}, as {subject.cls.__module__} has it."""',
        *(f"    # The original also keeps {key}, which no step reads." for key in left_out),
        body,
        "",
    ]
    return "\n".join(lines)


def _import_of(words: list[str]) -> list[str]:
    """Return the lines that import words of the language."""
    line = f"from optgen.spec import {', '.join(words)}"
    if len(line) <= WIDTH:
        return [line]
    return ["from optgen.spec import (", *(f"    {word}," for word in words), ")"]


def _taken(subject: Subject, arguments: Sequence[Argument], used: set[str]) -> dict[str, str]:
    """Return the names of arguments that are others' names in the code, with new ones for these.

    Raises:
        NotImportedError: no spec may have an argument of the name.
    """
    made: dict[str, str] = {}
    for name in (a.name for a in arguments):
        if why := why_taken_verbatim(name) or "is a word that the rule calls" * (
            name in OPS and name in used
        ):
            raise NotImportedError(
                f"the argument `{name}` {why}",
                line_of_argument(subject.cls, name),
                hint=f"give it another name, or fix it: --set {name}=…",
            )
        if name in LETTERS_OF_STEP or (is_generated(name) and name in used):
            other = LETTERS_OF_STEP.get(name, f"{name}_t")
            while other in {*used, *made.values(), *(a.name for a in arguments)}:
                other += "_t"
            made[name] = other
    return made


def _with_letters(code: str, taken: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return code in which arguments have their own names.

    Args:
        code: some lines.
        taken: names, with those that other values have instead.
        arguments: the arguments that have other names in the code.
    """
    for name, other in taken.items():
        code = re.sub(rf"(?<![\"\w]){name}(?![\"\w])", other, code)
    return re.sub(rf"\b({'|'.join(arguments)})_argument\b", r"\1", code) if arguments else code


def _code(subject: Subject, rule: Rule) -> tuple[list[str], list[Item], dict[str, Sequence[str]]]:
    """Return the lines that give a tuple's numbers names, the rule's code, and these names."""
    items = list(rule.items)
    numbers = {"t", *(a.word for a in subject.arguments)}
    numbers |= {subject.state_word(each.key) for each in rule.states if each.shape == "scalar"}
    unpacked: list[str] = []
    parts: dict[str, Sequence[str]] = {}
    for argument in subject.arguments:
        names = _names_of_elements(subject, argument, rule, items)
        for n, name in enumerate(names):
            items = renamed(items, f"{argument.word}[{n}]", name)
        if names:
            unpacked.append(f"    {', '.join(names)} = {argument.word}")
            numbers |= set(names)
            parts[argument.word] = names
    if unpacked:
        unpacked.append("")
    for name in sorted(subject.own):
        unpacked += [
            f"    if {first_argument(name)} is None:",
            f"        {kept_word(name)} = {name}",
            "    else:",
            f"        {kept_word(name)} = {first_argument(name)}",
            "",
        ]
    numbers |= {kept_word(name) for name in subject.own}
    lasting = {"p", *(subject.state_word(each.key) for each in rule.states)}
    return unpacked, tidied(items, numbers, lasting), parts


def _paragraphs(items: Sequence[Item], states: set[str]) -> Iterator[str]:
    """Yield the lines of code, with empty lines around long ifs, and after the new states.

    What a long `if` reads stands right before it. `states`: the names of the states.
    """
    parts: list[list[Item]] = [[]]
    for item in items:
        before = parts[-1]
        if before and (_is_long_if(item) or _is_long_if(before[-1])):
            near = names_read([item]) - states - {"p", "g"}
            at = len(before)
            while _is_long_if(item) and at and _is_for(before[at - 1], near):
                at -= 1
            parts[-1:] = [*([before[:at]] if at else []), before[at:]]
        parts[-1].append(item)
    for part in parts:
        if part is not parts[0]:
            yield ""
        new = max((n + 1 for n, x in enumerate(part) if assigned([x]) & states), default=0)
        if min(map(_num_lines, (part[:new], part[new:]))) < 2:
            new = len(part)
        yield from printed(part[:new])
        if new < len(part):
            yield ""
            yield from printed(part[new:])


def _is_for(item: Item, names: set[str]) -> bool:
    """Tell if a statement gives a value to one of some names."""
    return isinstance(item, Assign) and item.name in names


def _is_long_if(item: Item) -> bool:
    return isinstance(item, If) and _num_lines([item]) > 3


def _num_lines(items: Sequence[Item]) -> int:
    return sum(1 for _ in printed(items))


def _gradient(rule: Rule, used: set[str], arguments: Sequence[Argument]) -> str:
    """Return the author's name for the gradient, if it says so and is free, else ""."""
    name = rule.aliases.get("g", "")
    is_free = name not in used and name not in (a.name for a in arguments) and not why_taken(name)
    return name if "grad" in name and is_free else ""


def _names_of_elements(
    subject: Subject, argument: Argument, rule: Rule, items: list[Item]
) -> list[str]:
    """Return names for the numbers of a tuple: the author's, or beta1, beta2 for `betas`.

    There are none if the code does not read all of them.
    """
    if not isinstance(argument.default, tuple):
        return []
    elements = [f"{argument.word}[{n}]" for n in range(len(argument.default))]
    body = "\n".join(printed(items))
    if not all(each in body for each in elements):
        return []
    names = [rule.aliases.get(each, "") for each in elements]
    others = assigned(items) | names_read(items) | {a.name for a in subject.arguments}
    if all(names) and len(set(names)) == len(names) and not set(names) & others:
        return names
    names = [f"{argument.name.removesuffix('s')}{n}" for n in range(1, len(elements) + 1)]
    return [] if set(names) & others else names


def _is_used(argument: Argument, used: set[str], states: list[FoundState]) -> bool:
    return argument.word in used or any(
        argument.word in (s.init, s.when, s.when.removeprefix("not ")) for s in states
    )


def _states(subject: Subject, states: list[FoundState], moments: set[str]) -> Iterator[str]:
    """Yield the declarations of states. A mean of squares that stands alone has its role."""
    is_alone = len(moments & {subject.state_word(each.key) for each in states}) == 1
    for each in states:
        name = subject.state_word(each.key)
        options = [f'"{subject.key(each.key)}"']
        if each.init != "0":
            options.append(
                f'init="{each.init}"' if each.init.isidentifier() else f"init={each.init}"
            )
        if each.shape != "like":
            options.append(f'shape="{each.shape}"')
        if each.dtype:
            options.append(f'dtype="{each.dtype}"')
        if each.when:
            options.append(f'when="{each.when}"')
        if is_alone and name in moments and each.shape == "like":
            options.append('role="second_moment"')
        yield f"{name}=state({', '.join(options)}),"


def _arguments(
    subject: Subject, rule: Rule, arguments: list[Argument], about: Mapping[str, str]
) -> Iterator[str]:
    """Yield the declarations of hyperparameters and flags. `about`: the meanings of some."""
    if arguments:
        yield "*,"
    annotations = inspect.signature(subject.cls).parameters
    for argument in arguments:
        word = "flag" if isinstance(argument.default, bool) else "hyper"
        options = [number(argument.default)]
        if word == "hyper":
            options += _bounds(argument, rule.bounds)
            if "Tensor" in str(annotations[argument.name].annotation):
                options.append('tensor="number"')
        if argument.word in about:
            options.append(f'about="{about[argument.word]}"')
        yield from call(f"{argument.word}={word}", options)


def _first_arguments(subject: Subject, used: set[str]) -> Iterator[str]:
    """Yield the declarations of numbers that the steps read as the constructor got them."""
    for name in sorted(subject.own):
        if kept_word(name) in used:
            about = f"The {name} that the class was made with, if a schedule changes {name}"
            options = ["None", "optional=True", f'about="{about}"']
            yield from call(f"{first_argument(name)}=hyper", options)


def _bounds(argument: Argument, bounds: tuple[Bound, ...]) -> list[str]:
    """Return the bounds of an argument; those of a tuple hold for each of its numbers."""
    names = [argument.word]
    if isinstance(argument.default, tuple):
        names = [f"{argument.word}[{i}]" for i in range(len(argument.default))]
    each = [{b.kind: b.number for b in bounds if b.name == name} for name in names]
    found = {}
    for strict, other in (("gt", "ge"), ("lt", "le")):
        numbers = {own.get(strict, own.get(other)) for own in each}
        if len(numbers) == 1 and None not in numbers:
            kind = strict if all(strict in own for own in each) else other
            found[kind] = numbers.pop()
    return [f"{kind}={x:g}" for kind, x in sorted(found.items())]
