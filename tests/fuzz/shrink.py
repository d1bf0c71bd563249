"""Shorten the rule of a finding, as long as it fails in the same way."""

from __future__ import annotations

import ast
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

from fuzz import built, trial
from fuzz.finding import Finding, of_exception
from fuzz.limit import limited
from fuzz.trial import Setting
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

Check = Callable[[str, Setting | None], bool]


def shrunk(finding: Finding, seconds: float = 15.0) -> Finding:
    """Return the finding with the shortest rule found in some seconds of processor time."""

    def fails(text: str, setting: Setting | None) -> bool:
        again = refound(replace(finding, text=text, setting=setting))
        return again is not None and again.signature == finding.signature

    short = Shrinker(finding.text, finding.setting, fails, _spent() + seconds).run()
    return refound(replace(finding, text=short[0], setting=short[1])) or finding


def refound(finding: Finding) -> Finding | None:
    """Return the finding that its rule and setting give now; None if all is well."""
    text = finding.text
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _refound(finding)
    except SpecError:
        return None
    except Exception as error:
        return of_exception(error, "load", text, finding.setting)


def _refound(finding: Finding) -> Finding | None:
    generated = {"functional": "forloop", "sharded": "foreach"}
    generated |= dict.fromkeys(("load", "process", "oracle"), "")
    read_spec(Spec("random", finding.text, "<drawn>", 1))  # most candidates are refused
    rule = built.load(finding.text, generated.get(finding.lowering, finding.lowering))
    if finding.lowering == "load":
        return None
    if finding.lowering == "fused_cpu":
        only_checks = finding.kind == "does not compile"
        built.compile_together([rule], *["-fsyntax-only"] * only_checks)
        if rule.refused_by_cpp:
            message = rule.refused_by_cpp
            return replace(finding, kind="does not compile", lowering="fused_cpu", message=message)
    if finding.setting is None or finding.kind == "does not compile":
        return None
    with built.batch_kernels([rule]):
        findings = trial.run(rule, finding.setting, [finding.lowering])
    return findings[0] if findings else None


def _spent() -> float:
    """Return the seconds that this process and its compilers have computed."""
    return sum(os.times()[:4])


class Shrinker:
    """A search for shorter texts and settings that still fail, until none is left or time is up."""

    def __init__(self, text: str, setting: Setting | None, fails: Check, until: float) -> None:
        self.text, self.setting, self.fails, self.until = text, setting, fails, until
        self.seen: set[str] = set()

    def run(self) -> tuple[str, Setting | None]:
        """Return the shortest text and setting found."""
        while self.once() and _spent() < self.until:
            pass
        return self.text, self.setting

    def once(self) -> bool:
        """Try to leave out each part, one after the other; tell whether any could be left out."""
        index, was_shortened = 0, False
        while _spent() < self.until:
            candidate = self.candidate(index)
            if candidate is None:
                break
            if candidate[0] and self.is_new(candidate) and self.fails(*candidate):
                self.text, self.setting = candidate
                was_shortened = True
            else:
                index += 1
        return was_shortened

    def is_new(self, candidate: tuple[str, Setting | None]) -> bool:
        """Tell whether a candidate has not been tried before."""
        key = repr(candidate)
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    def candidate(self, index: int) -> tuple[str, Setting | None] | None:
        """Return the candidate at an index of the list of shorter ones, or None after the last.

        Larger cuts come first.
        """
        settings = list(_settings(self.setting))
        if index < len(settings):
            return self.text, settings[index]
        text = shorter(self.text, index - len(settings))
        return None if text is None else (text, self.setting)


def _settings(setting: Setting | None) -> Iterator[Setting]:
    if setting is None:
        return
    if setting.hypers:
        yield replace(setting, hypers={})
    for shape in setting.shapes if len(setting.shapes) > 1 else ():
        yield replace(setting, shapes=(shape,))
    for name in setting.hypers:
        yield replace(setting, hypers={k: v for k, v in setting.hypers.items() if k != name})
    if setting.viewed:
        yield replace(setting, viewed=False)
    if setting.dtype != "float64":
        yield replace(setting, dtype="float64")


def shorter(text: str, index: int) -> str | None:
    """Return the text with one part left out or simplified, and then without what nothing needs.

    Return None if there are fewer changes, and "" if the text did not get shorter.
    """
    tree = ast.parse(text)
    change = next(itertools.islice(_changes(tree), index, None), None)
    if change is None:
        return None
    change()
    result = tidied(tree)
    return result if len(result) < len(text) else ""


def rule_of(tree: ast.Module) -> ast.FunctionDef:
    """Return the decorated function."""
    return next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list)


def _changes(tree: ast.Module) -> Iterator[Callable[[], None]]:
    rule = rule_of(tree)
    yield from _of_blocks(rule)
    for call in (*rule.args.defaults, *rule.args.kw_defaults):
        if isinstance(call, ast.Call):
            for keyword in call.keywords:
                yield lambda call=call, keyword=keyword: call.keywords.remove(keyword)  # type: ignore[misc]
    if len(rule.args.posonlyargs) == 3:
        yield rule.args.posonlyargs.pop
    for part in sorted(_parents(rule), key=lambda pair: -_size(pair[0])):
        yield from _of_expression(*part)


def _of_blocks(rule: ast.FunctionDef) -> Iterator[Callable[[], None]]:
    """Yield changes that leave out statements, or put one arm of a branch in its place."""
    for owner in ast.walk(rule):
        for name in ("body", "orelse"):
            block = getattr(owner, name, None)
            if not isinstance(block, list) or not block or isinstance(owner, ast.Lambda):
                continue
            for statement in block:
                if _is_docstring(statement):
                    continue

                def drop(block: list[ast.stmt] = block, statement: ast.stmt = statement) -> None:
                    block.remove(statement)

                yield drop
                if isinstance(statement, ast.If):
                    for arm in (statement.body, statement.orelse):

                        def take(
                            block: list[ast.stmt] = block,
                            statement: ast.stmt = statement,
                            arm: list[ast.stmt] = arm,
                        ) -> None:
                            index = block.index(statement)
                            block[index : index + 1] = arm

                        yield take


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _size(node: ast.AST) -> int:
    return sum(1 for _ in ast.walk(node))


def _parents(rule: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.AST, str, int | None]]:
    """Yield every expression of the rule, its parent, and the parent's field and index."""
    for statement in rule.body:
        for parent in ast.walk(statement):
            for name, value in ast.iter_fields(parent):
                for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                    if isinstance(node, ast.expr) and not isinstance(
                        getattr(node, "ctx", None), ast.Store
                    ):
                        yield node, parent, name, index


def _of_expression(
    node: ast.expr, parent: ast.AST, name: str, index: int | None
) -> Iterator[Callable[[], None]]:
    """Yield changes that replace an expression by a part of it, or by a plain name or number."""
    if isinstance(parent, ast.Call) and name == "func":
        return
    is_tuple_assignment = isinstance(parent, ast.Assign) and isinstance(
        parent.targets[0], ast.Tuple
    )
    if is_tuple_assignment and isinstance(node, ast.Tuple | ast.Name) and name == "value":
        return
    parts = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)]
    parts = [n for n in parts if not (isinstance(node, ast.Call) and n is node.func)]
    simple = [
        ast.Name("g", ast.Load()),
        ast.Name("p", ast.Load()),
        ast.Constant(2),
        ast.Constant(1),
    ]
    if isinstance(node, ast.Name | ast.Constant):
        parts, simple = [], simple if isinstance(node, ast.Name) and node.id not in "pg" else []
    for part in [*simple, *parts]:

        def put(part: ast.expr = part) -> None:
            if index is None:
                setattr(parent, name, part)
            else:
                getattr(parent, name)[index] = part

        yield put


def tidied(tree: ast.Module) -> str:
    """Return the text without unread names; "" if nothing is left of the rule."""
    rule = rule_of(tree)
    for owner in ast.walk(rule):
        if isinstance(owner, ast.If) and not owner.body:
            owner.body = [ast.Pass()]
    _drop_unread(tree, rule)
    if not [s for s in rule.body if not _is_docstring(s)]:
        return ""
    return ast.unparse(ast.fix_missing_locations(tree))


def _drop_unread(tree: ast.Module, rule: ast.FunctionDef) -> None:
    """Leave out hyperparameters and states that the rule does not name; mark unread locals."""
    names = [n for s in rule.body for n in ast.walk(s) if isinstance(n, ast.Name)]
    spoken, read = {n.id for n in names}, {n.id for n in names if isinstance(n.ctx, ast.Load)}
    defaults = [*rule.args.defaults, *rule.args.kw_defaults]
    strings = [n.value for d in defaults if d for n in ast.walk(d) if isinstance(n, ast.Constant)]
    named = {str(s).removeprefix("not ") for s in strings}
    pairs_of_hypers = [
        (a, d)
        for a, d in zip(rule.args.kwonlyargs, rule.args.kw_defaults, strict=True)
        if a.arg in read or a.arg in named
    ]
    rule.args.kwonlyargs = [a for a, _ in pairs_of_hypers]
    rule.args.kw_defaults = [d for _, d in pairs_of_hypers]
    inputs = len(rule.args.defaults) - len(rule.args.args)  # extra inputs have defaults too
    extra, declared = rule.args.defaults[:inputs], rule.args.defaults[inputs:]
    pairs = [(a, d) for a, d in zip(rule.args.args, declared, strict=True) if a.arg in spoken]
    rule.args.args = [a for a, _ in pairs]
    rule.args.defaults = [*extra, *(d for _, d in pairs)]
    given = {a.arg for a in (*rule.args.args, *rule.args.posonlyargs)}
    for name in names:
        if name.id not in read and name.id not in given and not name.id.startswith("_"):
            name.id = f"_{name.id}"
    called = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    tree.body = [
        n
        for n in tree.body
        if not (isinstance(n, ast.FunctionDef) and n is not rule and n.name not in called)
        and not (isinstance(n, ast.Assign) and _unused(n, tree))
    ]


def _unused(constant: ast.Assign, tree: ast.Module) -> bool:
    target = constant.targets[0]
    loads = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }
    return isinstance(target, ast.Name) and target.id not in loads
