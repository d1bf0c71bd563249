"""Shorten the rule of a finding, as long as it fails in the same way."""

from __future__ import annotations

import ast
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

from fuzz import build, trial
from fuzz.finding import Finding, finding_of_exception
from fuzz.time_limit import time_limit
from fuzz.trial import Setting
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

StillFails = Callable[[str, Setting | None], bool]


def shrink_finding(finding: Finding, seconds: float = 15.0) -> Finding:
    """Return the finding with the shortest rule that some seconds of processor time can find."""

    def still_fails(text: str, setting: Setting | None) -> bool:
        again = rerun_finding(replace(finding, text=text, setting=setting))
        return again is not None and again.signature == finding.signature

    deadline = _processor_seconds() + seconds
    text, setting = Shrinker(finding.text, finding.setting, still_fails, deadline).run()
    return rerun_finding(replace(finding, text=text, setting=setting)) or finding


def rerun_finding(finding: Finding) -> Finding | None:
    """Run the finding's rule and setting again; return the finding of this run, or None."""
    text = finding.text
    try:
        with time_limit(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _rerun(finding)
    except SpecError:
        return None
    except Exception as error:
        return finding_of_exception(error, "load", text, finding.setting)


def _rerun(finding: Finding) -> Finding | None:
    lowering_to_generate = {"functional": "forloop", "sharded": "foreach"}
    lowering_to_generate |= dict.fromkeys(("load", "process", "oracle"), "")
    read_spec(Spec("random", finding.text, "<drawn>", 1))  # most candidates are refused
    rule = build.load(finding.text, lowering_to_generate.get(finding.lowering, finding.lowering))
    if finding.lowering == "load":
        return None
    if finding.lowering == "fused_cpu":
        needs_only_syntax_check = finding.kind == "does not compile"
        build.compile_together([rule], *["-fsyntax-only"] * needs_only_syntax_check)
        if rule.refused_by_cpp:
            message = rule.refused_by_cpp
            return replace(finding, kind="does not compile", lowering="fused_cpu", message=message)
    if finding.setting is None or finding.kind == "does not compile":
        return None
    with build.batch_kernels([rule]):
        findings = trial.run(rule, finding.setting, [finding.lowering])
    return findings[0] if findings else None


def _processor_seconds() -> float:
    """Return the seconds that this process and its compilers have computed."""
    return sum(os.times()[:4])


class Shrinker:
    """A search for shorter texts and settings that still fail, until none fails or time is up."""

    def __init__(
        self, text: str, setting: Setting | None, still_fails: StillFails, deadline: float
    ) -> None:
        self.text, self.setting = text, setting
        self.still_fails, self.deadline = still_fails, deadline
        self.tried: set[str] = set()

    def run(self) -> tuple[str, Setting | None]:
        """Return the shortest text and setting found."""
        while self.try_each_part() and _processor_seconds() < self.deadline:
            pass
        return self.text, self.setting

    def try_each_part(self) -> bool:
        """Try to leave out each part, one after the other; tell whether any could be left out."""
        index, was_shortened = 0, False
        while _processor_seconds() < self.deadline:
            candidate = self.candidate(index)
            if candidate is None:
                break
            if candidate[0] and self.is_new(candidate) and self.still_fails(*candidate):
                self.text, self.setting = candidate
                was_shortened = True
            else:
                index += 1
        return was_shortened

    def is_new(self, candidate: tuple[str, Setting | None]) -> bool:
        """Tell whether a candidate has not been tried before, and remember it."""
        key = repr(candidate)
        if key in self.tried:
            return False
        self.tried.add(key)
        return True

    def candidate(self, index: int) -> tuple[str, Setting | None] | None:
        """Return the shorter text and setting at an index, settings first; None after the last."""
        settings = list(_simpler_settings(self.setting))
        if index < len(settings):
            return self.text, settings[index]
        text = text_after_change(self.text, index - len(settings))
        return None if text is None else (text, self.setting)


def _simpler_settings(setting: Setting | None) -> Iterator[Setting]:
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


def text_after_change(text: str, index: int) -> str | None:
    """Return the text after a change, by its index, without names that are unread then.

    A change leaves out or simplifies one part. Return None after the last change, and "" if the
    text did not get shorter.
    """
    tree = ast.parse(text)
    change = next(itertools.islice(_changes(tree), index, None), None)
    if change is None:
        return None
    change()
    result = text_without_unread_names(tree)
    return result if len(result) < len(text) else ""


def rule_of(tree: ast.Module) -> ast.FunctionDef:
    """Return the decorated function."""
    return next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list)


def _changes(tree: ast.Module) -> Iterator[Callable[[], None]]:
    rule = rule_of(tree)
    yield from _changes_of_blocks(rule)
    for call in (*rule.args.defaults, *rule.args.kw_defaults):
        if isinstance(call, ast.Call):
            for keyword in call.keywords:
                yield lambda call=call, keyword=keyword: call.keywords.remove(keyword)  # type: ignore[misc]
    if len(rule.args.posonlyargs) == 3:
        yield rule.args.posonlyargs.pop
    places = sorted(_expressions_with_parents(rule), key=lambda place: -_size(place[0]))
    for place in places:
        yield from _changes_of_expression(*place)


def _changes_of_blocks(rule: ast.FunctionDef) -> Iterator[Callable[[], None]]:
    """Yield changes that leave out a statement, or replace a branch by one of its arms."""
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

                        def replace_by_arm(
                            block: list[ast.stmt] = block,
                            statement: ast.stmt = statement,
                            arm: list[ast.stmt] = arm,
                        ) -> None:
                            index = block.index(statement)
                            block[index : index + 1] = arm

                        yield replace_by_arm


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _size(node: ast.AST) -> int:
    return sum(1 for _ in ast.walk(node))


def _expressions_with_parents(
    rule: ast.FunctionDef,
) -> Iterator[tuple[ast.expr, ast.AST, str, int | None]]:
    """Yield every expression with its parent node, and its field and index in the parent."""
    for statement in rule.body:
        for parent in ast.walk(statement):
            for name, value in ast.iter_fields(parent):
                for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                    if isinstance(node, ast.expr) and not isinstance(
                        getattr(node, "ctx", None), ast.Store
                    ):
                        yield node, parent, name, index


def _changes_of_expression(
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
    names, constants = [ast.Name(name, ast.Load()) for name in "gp"], map(ast.Constant, (2, 1))
    replacements: list[ast.expr] = [*names, *constants]
    if isinstance(node, ast.Name | ast.Constant):
        is_local = isinstance(node, ast.Name) and node.id not in "pg"
        parts, replacements = [], replacements if is_local else []
    for part in [*replacements, *parts]:

        def replace_by_part(part: ast.expr = part) -> None:
            if index is None:
                setattr(parent, name, part)
            else:
                getattr(parent, name)[index] = part

        yield replace_by_part


def text_without_unread_names(tree: ast.Module) -> str:
    """Return the rule's text without unread names; "" if the rule has no statement left."""
    rule = rule_of(tree)
    for owner in ast.walk(rule):
        if isinstance(owner, ast.If) and not owner.body:
            owner.body = [ast.Pass()]
    _drop_unread(tree, rule)
    if not [s for s in rule.body if not _is_docstring(s)]:
        return ""
    return ast.unparse(ast.fix_missing_locations(tree))


def _drop_unread(tree: ast.Module, rule: ast.FunctionDef) -> None:
    """Drop hyperparameters and states that the rule does not mention; underscore unread locals."""
    names = [n for s in rule.body for n in ast.walk(s) if isinstance(n, ast.Name)]
    mentioned = {n.id for n in names}
    read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
    defaults = [*rule.args.defaults, *rule.args.kw_defaults]
    strings = [n.value for d in defaults if d for n in ast.walk(d) if isinstance(n, ast.Constant)]
    quoted = {str(s).removeprefix("not ") for s in strings}
    pairs_of_hypers = [
        (a, d)
        for a, d in zip(rule.args.kwonlyargs, rule.args.kw_defaults, strict=True)
        if a.arg in read or a.arg in quoted
    ]
    rule.args.kwonlyargs = [a for a, _ in pairs_of_hypers]
    rule.args.kw_defaults = [d for _, d in pairs_of_hypers]
    split = len(rule.args.defaults) - len(rule.args.args)  # extra inputs have defaults too
    of_extra_inputs, of_states = rule.args.defaults[:split], rule.args.defaults[split:]
    pairs = [(a, d) for a, d in zip(rule.args.args, of_states, strict=True) if a.arg in mentioned]
    rule.args.args = [a for a, _ in pairs]
    rule.args.defaults = [*of_extra_inputs, *(d for _, d in pairs)]
    parameter_names = {a.arg for a in (*rule.args.args, *rule.args.posonlyargs)}
    for name in names:
        if name.id not in read and name.id not in parameter_names and not name.id.startswith("_"):
            name.id = f"_{name.id}"
    called = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    tree.body = [
        n
        for n in tree.body
        if not (isinstance(n, ast.FunctionDef) and n is not rule and n.name not in called)
        and not (isinstance(n, ast.Assign) and _is_unread_constant(n, tree))
    ]


def _is_unread_constant(constant: ast.Assign, tree: ast.Module) -> bool:
    target = constant.targets[0]
    loads = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }
    return isinstance(target, ast.Name) and target.id not in loads
