"""Prepare parts: derive from a base, set values and dtypes, take out what goes with a flag."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from optgen.contract.quantization import QUANTIZATIONS
from optgen.contract.states import AT_LEAST_FLOAT32, RANK, Condition
from optgen.ir.algorithm import NARROW_DTYPES
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.composition.find_parts import Part, declared_key, option
from optgen.spec.errors import did_you_mean
from optgen.spec.source import is_call_of, nodes_of

_FROM_BASE = ("gradient", "step", "scalar_device")
"""Options that a derived optimizer always takes from its base."""
_INHERITED = ("sparse_hint", "group")
"""Options that a derived optimizer takes from its base if it has none of its own."""


def derived(part: Part, base: Part) -> Part:
    """Return an optimizer with the states, the hyperparameters and the rule of its base."""
    own, result = part.copy(), base.copy()
    defaults = {argument.arg: default for argument, default in own.hypers}
    result.node.args.kw_defaults = [
        _with_groups_of(declared, defaults.get(argument.arg, declared))
        for argument, declared in result.hypers
    ]
    result.node.name = own.name
    doc = [ast.Expr(ast.Constant(own.doc))]
    result.node.body = [*doc, *base.requirements, *own.requirements, *result.body]
    own_options, base_options = _decorator_options(own), _decorator_options(base)
    options = {name: own_options[name] for name in own_options if name not in ("base", *_FROM_BASE)}
    options |= {name: base_options[name] for name in _FROM_BASE if name in base_options}
    inherited = (name for name in _INHERITED if name in base_options and name not in own_options)
    options |= {name: base_options[name] for name in inherited}
    decorator = ast.Call(
        ast.Name("optimizer", ast.Load()), [], [ast.keyword(*each) for each in options.items()]
    )
    result.node.decorator_list = [decorator]
    return replace(result, definitions=(*result.definitions, *own.definitions))


def _with_groups_of(of_base: ast.expr | None, own: ast.expr | None) -> ast.expr | None:
    """Return an own declaration; what its groups must share follows from the base's rule."""
    if own is of_base or is_call_of(own, "fixed"):
        return own
    assert isinstance(of_base, ast.Call)
    assert isinstance(own, ast.Call)
    own.keywords = [each for each in own.keywords if each.arg != "groups"]
    own.keywords += [each for each in of_base.keywords if each.arg == "groups"]
    return own


def with_values(part: Part, values: Mapping[str, Any]) -> Part:
    """Return a modifier with other defaults of its hyperparameters."""
    part = part.copy()
    for argument, declaration in part.hypers:
        if argument.arg in values and isinstance(declaration, ast.Call):
            value = _constant(part, argument.arg, values[argument.arg])
            choices = [ast.unparse(each) for each in declaration.args]
            is_choice = is_call_of(declaration, "choice")
            if is_choice and ast.unparse(value) not in choices:
                requirement = f"`{argument.arg}` is one of {', '.join(choices)}"
                raise TypeError(f"{part.name}: {requirement}, not {ast.unparse(value)}")
            other_choices = [a for a in declaration.args if ast.unparse(a) != ast.unparse(value)]
            declaration.args = [value, *(other_choices if is_choice else declaration.args[1:])]
    return part


def with_plain_update(part: Part, modifiers: Sequence[Part]) -> Part:
    """Return an optimizer that leaves the rounding of its parameter to modifiers.

    A rule may compensate the rounding of 16 bits under a flag, `fixed("narrow")`. A modifier of the
    update or of its store would change what has been compensated. Beside such a modifier, the
    rule goes on without the flag, and takes 16 bits only if a modifier stores the parameter.
    """
    flags = {a.arg for a, flag in part.hypers if flag and ast.unparse(flag) == "fixed('narrow')"}
    changing = [each for each in modifiers if each.changed_value in ("update", "store")]
    if not flags or not changing:
        return part
    part = without_flags(part, flags)
    if not any(each.changed_value == "store" for each in changing):
        message = (
            f"{part.name} keeps an average in its parameter, and 16 bits do not hold the "
            f"increments beside {changing[0].name}: add kahan, master or stochastic_rounding"
        )
        condition = f"require(machine_eps({part.inputs[0]}) < 1e-4, {message!r})"
        part.node.body[1:1] = ast.parse(condition).body
    return part


def _constant(part: Part, name: str, value: Any) -> ast.expr:
    """Return a default as a node of the syntax tree.

    Raises:
        TypeError: the value is no number, text, None or tuple of these, so no spec can hold it.
    """
    scalar_types = (bool, int, float, str, type(None))
    if type(value) not in (*scalar_types, tuple) and isinstance(value, Real):
        value = float(value)  # a number of NumPy
    if isinstance(value, tuple) and all(isinstance(each, scalar_types) for each in value):
        return ast.Tuple([ast.Constant(each) for each in value], ast.Load())
    if not isinstance(value, scalar_types):
        allowed = "a number, a text, None or a tuple of these"
        raise TypeError(f"{part.name}: `{name}` is a default of a class: {allowed}, not {value!r}")
    return ast.Constant(value)


def _decorator_options(part: Part) -> dict[str, ast.expr]:
    decorator = part.node.decorator_list[0]
    assert isinstance(decorator, ast.Call)
    return {keyword.arg: keyword.value for keyword in decorator.keywords if keyword.arg}


_DTYPES = (None, AT_LEAST_FLOAT32, "float32", *NARROW_DTYPES)


def with_state_dtypes(
    parts: Sequence[Part],
    default: str | None,
    by_key: Mapping[str, str | None],
    quantized_options: Mapping[str, int | str],
    name: str,
) -> list[Part]:
    """Return an optimizer and its modifiers, with other dtypes of states.

    Args:
        parts: the optimizer first.
        default: the dtype of the optimizer's states that follow the parameter's dtype, except for
            single numbers; None leaves these states as they are. Codes apply only to states with
            a number for each element that do not begin as a copy of the parameter.
        by_key: the dtypes of some states, also of modifiers, by their checkpoint keys. None is the
            parameter's dtype.
        quantized_options: the options of quantized states; empty if no state may be one.
        name: the name of the modifier, for messages.

    Raises:
        CompositionError: a dtype or a key is unknown, or a state cannot have the dtype.
    """
    _check_dtypes((default, *by_key.values()), bool(quantized_options), name)
    copies = [part.copy() for part in parts]
    states = {declared_key(state): state for part in copies for _, state in part.states}
    _check_keys(by_key, states, name)
    _check_map((default, *by_key.values()), quantized_options, name)
    if default:
        suits = _may_have_codes if default in QUANTIZATIONS else _is_tensor
        _check_default(copies[0], default, suits, name)
        for _, state in copies[0].states:
            if suits(state) and _follows_param(state):
                _declare(state, default, quantized_options)
    for key, dtype in by_key.items():
        _declare(states[key], dtype, quantized_options)
    return copies


def _check_dtypes(dtypes: Iterable[str | None], may_quantize: bool, name: str) -> None:
    """Check that dtypes are allowed, and that none means codes unless states may be quantized."""
    allowed = (*_DTYPES, *QUANTIZATIONS) if may_quantize else _DTYPES
    for dtype in dtypes:
        if dtype in QUANTIZATIONS and not may_quantize:
            raise CompositionError(
                f"{name}: write modifiers.quantized() for states of {QUANTIZATIONS[dtype].name}"
            )
        if dtype not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise CompositionError(f"{name}: {dtype!r} is no dtype of a state; it is {listed}")


def _check_map(dtypes: Iterable[str | None], options: Mapping[str, int | str], name: str) -> None:
    """Check that one of the dtypes has the map that is asked for."""
    formats = [QUANTIZATIONS[dtype] for dtype in dtypes if dtype in QUANTIZATIONS]
    maps = [each for quantization in formats for each in quantization.maps]
    chosen = options.get("map")
    if maps and chosen is not None and chosen not in maps:
        listed = ", ".join(map(repr, maps))
        raise CompositionError(f"{name}: no state has the map {chosen!r}; there are {listed}")


def _check_default(
    optimizer: Part, default: str, suits: Callable[[ast.expr], bool], name: str
) -> None:
    """Check that a default dtype applies to a state, unless the optimizer has none."""
    tensors = [state for _, state in optimizer.states if _is_tensor(state)]
    fitting = [state for state in tensors if suits(state)]
    if any(map(_follows_param, fitting)) or not tensors:
        return
    if not fitting:
        codes = QUANTIZATIONS[default].name
        message = f"no state of {optimizer.name} has the parameter's shape, so none takes {codes}"
        raise CompositionError(f"{name}: {message}: leave it out")
    message = f"every state of {optimizer.name} declares its dtype, which {default!r} leaves as is"
    raise CompositionError(
        f"{name}: {message}: name a state, {declared_key(fitting[0])}={default!r}"
    )


def _check_keys(
    by_key: Mapping[str, str | None], states: Mapping[str, ast.expr], name: str
) -> None:
    """Check that each key belongs to a state, and that this state can have the dtype."""
    for key, dtype in by_key.items():
        if key not in states:
            hint = did_you_mean(key, states, f"there are {', '.join(states)}")
            raise CompositionError(f"{name}: no state is called `{key}`: {hint}")
        if not _is_tensor(states[key]):
            raise CompositionError(f"{name}: `{key}` is one number")
        if dtype in QUANTIZATIONS and not _is_like(states[key]):
            codes = QUANTIZATIONS[dtype].name
            raise CompositionError(
                f"{name}: `{key}` does not have the parameter's shape, so it takes no {codes}"
            )


def _is_tensor(state: ast.expr) -> bool:
    """Tell whether a state is more than one number of a parameter, of a group or of all groups."""
    return option(state, "shape") not in ("scalar", "group", "all")


def _follows_param(state: ast.expr) -> bool:
    """Tell whether a state's dtype depends on the parameter's."""
    return option(state, "dtype") in (None, AT_LEAST_FLOAT32)


def _is_like(state: ast.expr) -> bool:
    """Tell whether a state has the parameter's shape."""
    return option(state, "shape") in (None, "like")


def _may_have_codes(state: ast.expr) -> bool:
    """Tell whether a default of codes applies. A copy of the parameter would lose digits."""
    return _is_like(state) and option(state, "init") != "p"


def _declare(
    state: ast.expr, dtype: str | None, quantized_options: Mapping[str, int | str]
) -> None:
    """Give the declaration of a state a dtype, and a quantized state its options."""
    assert isinstance(state, ast.Call)
    names = ("dtype", "block", "map", "min_elements")
    state.keywords = [each for each in state.keywords if each.arg not in names]
    options: dict[str, int | str] = {} if dtype is None else {"dtype": dtype}
    if dtype in QUANTIZATIONS:
        options |= quantized_options
        if options.get("map") not in QUANTIZATIONS[dtype].maps:  # a map of another state
            options.pop("map", None)
    for name, value in options.items():
        state.keywords.append(ast.keyword(name, ast.Constant(value)))


def without_flags(part: Part, flags: Collection[str]) -> Part:
    """Return an optimizer without flags that are false, and without what exists only with them."""
    part = without_hypers(part, flags)
    _keep_states(part, [a for a in part.states if part.existence_condition(a[0].arg) not in flags])
    part.node.body = _WithoutFlags(flags).statements(part.node.body)
    return without_unread(part)


class _WithoutFlags(ast.NodeTransformer):
    """Transformer that computes every condition as far as the flags decide it."""

    def __init__(self, flags: Collection[str]) -> None:
        self.flags = flags

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return statements with only the arms that may run."""
        return [kept for stmt in body for kept in self._kept(self.visit(stmt))]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _truth_value(False, node) if node.id in self.flags else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        value = _truth(node.operand) if isinstance(node.op, ast.Not) else None
        return node if value is None else _truth_value(not value, node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        deciding = isinstance(node.op, ast.Or)
        if deciding in map(_truth, node.values):
            return _truth_value(deciding, node)
        node.values = [each for each in node.values if _truth(each) is None]
        return node if len(node.values) > 1 else (*node.values, _truth_value(not deciding, node))[0]

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Name("where"), [condition, a, b], []):
                value = _truth(condition)
                return node if value is None else (a if value else b)
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        node.test = self.visit(node.test)
        node.body, node.orelse = self.statements(node.body), self.statements(node.orelse)
        return node

    def _kept(self, stmt: ast.stmt) -> list[ast.stmt]:
        """Return the statements that remain of one; an arm without statements goes."""
        if not isinstance(stmt, ast.If):
            return [stmt]
        value = _truth(stmt.test)
        if value is not None:
            return stmt.body if value else stmt.orelse
        return [kept] if (kept := _without_empty_arm(stmt)) else []


def _without_empty_arm(stmt: ast.If) -> ast.If | None:
    """Return a branch whose first arm has statements; None if neither arm has any."""
    if not stmt.body and stmt.orelse:
        negated = ast.copy_location(ast.UnaryOp(ast.Not(), stmt.test), stmt.test)
        stmt.test, stmt.body, stmt.orelse = negated, stmt.orelse, []
    return stmt if stmt.body else None


def _truth_value(value: bool, node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Constant(value), node)


def _truth(node: ast.expr) -> bool | None:
    """Return the value of a condition that is known; else None."""
    match node:
        case ast.Constant(bool() as value):
            return value
    return None


def without_unread(part: Part) -> Part:
    """Return an optimizer without variables, states and hyperparameters that nothing reads.

    The language refuses these, and only the arms of a flag may have read them.
    """
    part = part.copy()
    while True:
        before = ast.dump(part.node)
        kept_names = {*_names(part, ast.Load), *part.state_names, *part.inputs}
        part.node.body = _WithoutAssignments(kept_names).statements(part.node.body)
        used_names = _names(part, ast.Load, ast.Store)
        _keep_states(part, [each for each in part.states if each[0].arg in used_names])
        if ast.dump(part.node) == before:
            break
    read_names = {*_names(part, ast.Load), *_named_by_states(part), RANK}
    return without_hypers(part, {a.arg for a, _ in part.hypers} - read_names)


def without_hypers(part: Part, names: Collection[str]) -> Part:
    """Return an optimizer without the declarations of some hyperparameters."""
    part = part.copy()
    kept = [each for each in part.hypers if each[0].arg not in names]
    part.node.args.kwonlyargs = [argument for argument, _ in kept]
    part.node.args.kw_defaults = [declared for _, declared in kept]
    (decorator,) = part.node.decorator_list
    for order in decorator.keywords if isinstance(decorator, ast.Call) else ():
        if order.arg in ("keywords", "group") and isinstance(order.value, ast.Tuple):
            order.value.elts = [
                each
                for each in order.value.elts
                if not (isinstance(each, ast.Constant) and each.value in names)
            ]
    return part


def _keep_states(part: Part, kept: Sequence[tuple[ast.arg, ast.expr]]) -> None:
    """Remove the other states."""
    arguments = part.node.args
    num_inputs = len(arguments.defaults) - len(part.states)
    arguments.args = [argument for argument, _ in kept]
    arguments.defaults[num_inputs:] = [declared for _, declared in kept]


def _names(part: Part, *contexts: type[ast.expr_context]) -> set[str]:
    """Return the names that a rule reads or writes, and those that its programs take."""
    used = nodes_of(part.node.body, ast.Name)
    names = {name.id for name in used if isinstance(name.ctx, contexts)}
    for program in part.programs:
        names |= {a.arg for a in (*program.args.posonlyargs, *program.args.kwonlyargs)}
    return names


def _named_by_states(part: Part) -> set[str]:
    """Return the hyperparameters that decide whether a state exists, or how it begins."""
    values = (option(declared, name) for _, declared in part.states for name in ("when", "init"))
    return {Condition.of(value).name for value in values if isinstance(value, str)}


class _WithoutAssignments(ast.NodeTransformer):
    """Transformer that removes assignments to names that are not kept."""

    def __init__(self, kept_names: Collection[str]) -> None:
        self.kept_names = kept_names

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements that remain."""
        return [kept for stmt in body if (kept := self.visit(stmt)) is not None]

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        (target,) = node.targets
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        for name in names:
            if isinstance(name, ast.Name) and name.id not in self.kept_names:
                name.id = "_"
        is_unread = all(isinstance(name, ast.Name) and name.id == "_" for name in names)
        return None if is_unread else node

    def visit_If(self, node: ast.If) -> ast.If | None:
        node.body, node.orelse = self.statements(node.body), self.statements(node.orelse)
        return _without_empty_arm(node)
