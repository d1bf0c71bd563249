"""Write the spec of a composition: the optimizer's signature and rule with those of modifiers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import indent

from optgen.ir.ops import CALLABLE
from optgen.spec.composition.parts import STAGES, Part
from optgen.spec.composition.renaming import all_names, own_names, renamed, unused
from optgen.spec.composition.update_form import UpdateForm
from optgen.spec.reserved_names import DECLARATIONS

_ORDER = list(STAGES)


class CompositionError(ValueError):
    """Parts do not go together. The message says which, why, and what to do."""


def write_spec(name: str, base: Part, modifiers: Sequence[Part]) -> str:
    """Return the text of the spec of an optimizer with modifiers.

    Args:
        name: the name of the class.
        base: the optimizer; its decorator has no `base=`.
        modifiers: in the order in which the user lists them. They take effect in the order of their
            stages.

    Raises:
        CompositionError: a name or a checkpoint key is taken, or two modifiers store the parameter.
    """
    ordered = sorted(modifiers, key=lambda part: _ORDER.index(part.stage))
    return _Writer(name, base, ordered).text()


@dataclass
class _Writer:
    name: str
    base: Part
    modifiers: Sequence[Part]
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._check()
        self.param, self.grad, *steps = self.base.inputs
        self.step = steps[0] if steps else ""
        self.taken |= all_names(self.base)
        for part in self.modifiers:
            self.taken |= {argument.arg for argument, _ in part.hypers}
        if not self.step and any("t" in part.inputs for part in self.modifiers):
            self.step = unused("t", self.taken)
        self.update = unused("update", self.taken)
        self.seen_grad = self.grad
        self.modifiers = [self._with_names_of_base(part) for part in self.modifiers]

    def _check(self) -> None:
        hypers = {argument.arg: self.base.name for argument, _ in self.base.hypers}
        keys = {_key(state): self.base.name for _, state in self.base.states}
        storing = ""
        for part in self.modifiers:
            if part.changes == "store" and storing:
                message = f"{storing} and {part.name} both store the parameter: leave one out"
                raise CompositionError(message)
            storing = part.name if part.changes == "store" else storing
            for argument, _ in part.hypers:
                _take(hypers, argument.arg, part.name, "hyperparameter", self.base.name)
            for _, state in part.states:
                _take(keys, _key(state), part.name, "state", self.base.name)
            if "lr" in part.inputs and "lr" not in dict.fromkeys(
                argument.arg for argument, _ in self.base.hypers
            ):
                raise CompositionError(
                    f"{part.name} needs the learning rate `lr`, which {self.base.name} does not have"
                )

    def _with_names_of_base(self, part: Part) -> Part:
        """Return a modifier with the base's names for its inputs, and free names of its own."""
        inputs = {"p": self.param, "g": self.grad, "t": self.step, "u": self.update, "lr": "lr"}
        names = {name: inputs[name] for name in part.inputs}
        clashes = sorted(own_names(part) & self.taken)
        names |= {name: unused(f"{name}_{part.name}", self.taken) for name in clashes}
        if part.changes != "gradient" and "g" in part.inputs and self.grad in self.base.assigned:
            if self.seen_grad == self.grad:
                self.seen_grad = unused("gradient", self.taken)
            names["g"] = self.seen_grad
        result = renamed(part, names)
        self.taken |= all_names(result)
        return result

    def text(self) -> str:
        """Return the text of the whole file."""
        parts = (self.base, *self.modifiers)
        definitions = [ast.unparse(node) for part in parts for node in part.definitions]
        programs = [self._program(node) for part in parts for node in part.programs]
        written = "\n\n\n".join([*definitions, self._optimizer(), *programs])
        return f"{_imports(written)}\n\n\n{written}\n"

    def _optimizer(self) -> str:
        function = [
            self._decorator(),
            f"def {self.name}(",
            *(f"    {line}" for line in self._signature()),
            "):",
            indent(f'"""{self._doc()}"""', "    "),
            *(indent(line, "    ") if line else "" for line in self._rule()),
        ]
        return "\n".join(function)

    def _decorator(self) -> str:
        decorator = self.base.node.decorator_list[0]
        assert isinstance(decorator, ast.Call)
        added = [argument.arg for part in self.modifiers for argument, _ in part.hypers]
        arguments = []
        for keyword in decorator.keywords:
            if keyword.arg in ("gradient", "sparse_hint"):
                continue  # a composition takes dense gradients
            value = keyword.value
            if keyword.arg in ("keywords", "group") and isinstance(value, ast.Tuple):
                value = ast.Tuple([*value.elts, *map(ast.Constant, added)])
            arguments.append(f"{keyword.arg}={ast.unparse(value)}")
        return f"@optimizer({', '.join(arguments)})"

    def _signature(self) -> Iterator[str]:
        inputs = [self.param, self.grad, *([self.step] if self.step else [])]
        given = self.base.node.args.posonlyargs[len(self.base.inputs) :]
        defaults = self.base.node.args.defaults[: len(given)]
        pairs = zip(given, defaults, strict=True)
        extra = [f"{argument.arg}={ast.unparse(default)}" for argument, default in pairs]
        yield f"{', '.join([*inputs, *extra])}, /,"
        parts = (self.base, *self.modifiers)
        for argument, state in (each for part in parts for each in part.states):
            yield f"{argument.arg}={_for_dense_gradients(state)},"
        hypers = [each for part in parts for each in part.hypers]
        if hypers:
            yield "*,"
        for argument, declared in hypers:
            assert declared is not None
            yield f"{argument.arg}={_for_dense_gradients(declared)},"

    def _doc(self) -> str:
        first, *_ = self.base.doc.split("\n")
        listed = "\n".join(f"    * {part.name}: {_first_line(part.doc)}" for part in self.modifiers)
        return f"{first}\n\n    Modifiers:\n\n{listed}\n" if listed else first

    def _rule(self) -> Iterator[str]:
        parts = (self.base, *self.modifiers)
        yield from _printed([stmt for part in parts for stmt in part.requirements])
        for part in self._of("gradient"):
            yield from _commented(part, part.body)
        if self.seen_grad != self.grad:
            yield f"{self.seen_grad} = {self.grad}"
        updating = [*self._of("update"), *self._of("store")]
        if not updating:
            yield from _commented(self.base, self.base.body)
        else:
            names = (unused(f"{self.param}_next", self.taken) for _ in range(1000))
            form = UpdateForm(self.param, self.update, names)
            yield from _commented(self.base, form.block(self.base.body))
            for part in updating:
                yield from _commented(part, part.body)
            if updating[-1].changes != "store":
                yield f"{self.param} = {self.param} + {self.update}"
        for part in self._of("observe"):
            yield from _commented(part, part.body)

    def _of(self, changes: str) -> list[Part]:
        return [part for part in self.modifiers if part.changes == changes]

    def _program(self, node: ast.FunctionDef) -> str:
        for decorator in node.decorator_list:
            assert isinstance(decorator, ast.Attribute)
            decorator.value = ast.Name(self.name)
        return ast.unparse(node)


def _take(known: dict[str, str], name: str, part: str, what: str, base: str) -> None:
    """Note a name that a part declares; refuse it if another part has it."""
    if name in known:
        other = known[name]
        if other == part:
            raise CompositionError(f"{part} is listed twice: leave one out")
        raise CompositionError(f"{part} adds the {what} `{name}`, which {other} has already")
    known[name] = part


def _for_dense_gradients(declaration: ast.expr) -> str:
    """Return the text of a declaration without what it says about rows of sparse gradients."""
    if isinstance(declaration, ast.Call):
        kept = [keyword for keyword in declaration.keywords if keyword.arg != "rows"]
        declaration = ast.Call(declaration.func, declaration.args, kept)
    return ast.unparse(declaration)


def _key(state: ast.expr) -> str:
    match state:
        case ast.Call(args=[ast.Constant(value=str() as key), *_]):
            return key
    return ""


def _imports(written: str) -> str:
    used = {n.id for n in ast.walk(ast.parse(written)) if isinstance(n, ast.Name)}
    names = used & {*DECLARATIONS, *CALLABLE}
    return f"from optgen.spec import {', '.join(sorted(names))}"


def _commented(part: Part, statements: Sequence[ast.stmt]) -> Iterator[str]:
    yield ""
    yield f"# {part.name}"
    yield from _printed(statements)


def _printed(statements: Sequence[ast.stmt]) -> Iterator[str]:
    for stmt in statements:
        yield ast.unparse(ast.fix_missing_locations(stmt))


def _first_line(doc: str) -> str:
    return doc.partition("\n")[0]
