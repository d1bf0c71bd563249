"""The body of a rule: assignments and ifs. Helpers of the file are inlined."""

from __future__ import annotations

import ast
from typing import NoReturn

from optgen.ir.kinds import Kind
from optgen.ir.nodes import Assign, Call, Const, Expr, If, Program, Ref, refs
from optgen.ir.words import WORDS
from optgen.spec.expressions import Expressions

_ALLOWED = "allowed: assignment, if/else, docstring"


class Statements(Expressions):
    """Reads the statements of a rule into its scope, one after the other."""

    def rule(self, body: list[ast.stmt]) -> Program:
        """The whole rule, without the docstring."""
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        for node in body:
            self._statement(node)
        return tuple(self.scope.out)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=same)) if name == same:
                self.source.error(node, f"`{name} = {name}` changes nothing", "leave it out")
            case ast.Assign(targets=[ast.Name() as target], value=value):
                self._assign(target, self.value(value), node)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                self._assign_tuple(node, targets, value)
            case ast.If():
                self._if(node)
            case ast.Pass():
                pass
            case ast.AugAssign(target=target, value=value):
                hint = f"write {self.source.quote(target)} = {self.source.quote(target)} …"
                self.source.error(node, "a spec may not contain `+=` and its kin", hint)
            case _:
                self._refuse_statement(node)

    def _refuse_statement(self, node: ast.stmt) -> NoReturn:
        word = self.source.quote(node).split(maxsplit=1)[0].rstrip(":")
        self.source.error(node, f"a spec may not contain `{word}`", _ALLOWED)

    def _assign(self, node: ast.Name, value: Expr, statement: ast.stmt) -> None:
        kind = self.scope.kind(value)
        name = self._target(node, kind)
        quote = (self.source.quote(statement),)
        place = self.source.place(statement)
        self.scope.out.append(Assign(Ref(name, 0, place), value, quote, place))
        self.scope.kinds[name] = kind
        self.scope.written.add(name)

    def _target(self, node: ast.Name, kind: Kind) -> str:
        """The name an assignment writes, if it may be written."""
        name, scope, error = node.id, self.scope, self.source.error
        if scope.renamed is not None:
            fresh_name = scope.unused(name)
            scope.renamed[name] = Ref(fresh_name)
            return fresh_name
        if name in WORDS or name in ("fresh", "require"):
            error(node, f"`{name}` is a word of the language", "choose another name")
        if scope.algorithm.hyper(name) or name == scope.algorithm.step:
            error(node, f"`{name}` is given, not computed", "assign to a name of your own")
        if name in scope.constants or name in scope.helpers:
            error(node, f"`{name}` is defined in the file already", "choose another name")
        state = scope.algorithm.state(name)
        if state is not None and state.shape == "scalar" and kind.is_tensor:
            error(node, f"`{name}` is one number per parameter, and this is a tensor")
        if name == scope.algorithm.param and not kind.is_tensor:
            error(node, f"`{name}` is the parameter, and this is a number")
        return name

    def _assign_tuple(self, node: ast.Assign, targets: list[ast.expr], value: ast.expr) -> None:
        names = [t for t in targets if isinstance(t, ast.Name)]
        if len(names) != len(targets):
            self.source.error(node, "the left side of an assignment is a name or names")
        values = self._items(node, value, len(names))
        later_reads = [
            {r.name for v in values[i + 1 :] for r in refs(v)} for i in range(len(values))
        ]
        waiting: list[tuple[ast.Name, Expr]] = []
        for target, item, reads in zip(names, values, later_reads, strict=True):
            if item == Ref(target.id):
                continue
            if target.id in reads:  # simultaneous: a later value still needs the old one
                kept = self.scope.unused(f"{target.id}_next")
                place = self.source.place(node)
                self.scope.out.append(Assign(Ref(kept), item, (self.source.quote(node),), place))
                self.scope.kinds[kept] = self.scope.kind(item)
                waiting.append((target, Ref(kept)))
            else:
                self._assign(target, item, node)
        for target, item in waiting:
            self._assign(target, item, node)

    def _items(self, node: ast.Assign, value: ast.expr, count: int) -> list[Expr]:
        """The values of the right side, one for each name on the left."""
        if isinstance(value, ast.Tuple):
            if len(value.elts) != count:
                self.source.error(node, f"{count} names and {len(value.elts)} values")
            return [self.value(item) for item in value.elts]
        whole = self.value(value)
        hyper = self.scope.algorithm.hyper(whole.name) if isinstance(whole, Ref) else None
        if hyper is None or hyper.sort != "tuple":
            self.source.error(value, "only a tuple hyperparameter can be unpacked")
        if hyper.size != count:
            self.source.error(node, f"{count} names, but `{hyper.name}` holds {hyper.size} numbers")
        return [Call("item", (whole, Const(i)), whole.place) for i in range(count)]

    def _if(self, node: ast.If) -> None:
        if self.scope.renamed is not None:
            self.source.error(node, "a helper may not branch", "branch in the rule that calls it")
        condition = self.condition(node.test)
        self.check_branch(node.test, condition)
        before = dict(self.scope.kinds)
        with self.scope.branch() as then:
            for statement in node.body:
                self._statement(statement)
        after_then, self.scope.kinds = self.scope.kinds, dict(before)
        with self.scope.branch() as orelse:
            for statement in node.orelse:
                self._statement(statement)
        after_else = self.scope.kinds
        both = after_then.keys() & after_else.keys()
        self.scope.partial |= after_then.keys() ^ after_else.keys()
        self.scope.kinds = {
            name: after_then[name].join(after_else[name]) for name in after_then if name in both
        }
        quote = (f"if {self.source.quote(node.test)}:",)
        place = self.source.place(node)
        self.scope.out.append(If(condition, tuple(then), tuple(orelse), quote, place))

    def inline(self, node: ast.Call, name: str) -> Expr:
        """A helper's statements join the rule; its result is the value of the call."""
        helper = self.scope.helpers[name]
        if name in self.scope.inlining:
            self.source.error(node, f"`{name}` calls itself")
        parameters = [a.arg for a in helper.args.args]
        if node.keywords or len(node.args) != len(parameters):
            message = f"`{name}` takes {len(parameters)} positional arguments, not {len(node.args)}"
            self.source.error(node, message)
        bound = {
            p: self._bind(p, self.value(a)) for p, a in zip(parameters, node.args, strict=True)
        }
        *body, last = helper.body
        if isinstance(body[0] if body else last, ast.Expr):
            body = body[1:]
        if not isinstance(last, ast.Return) or last.value is None:
            self.source.error(helper, f"helper `{name}` must end in `return` with a value")
        outer = self.scope.renamed
        self.scope.renamed, self.scope.inlining = bound, (*self.scope.inlining, name)
        for statement in body:
            self._statement(statement)
        result = self.value(last.value)
        self.scope.renamed, self.scope.inlining = outer, self.scope.inlining[:-1]
        return result

    def _bind(self, parameter: str, argument: Expr) -> Expr:
        """An argument that is more than a name or a number gets a name, so it is computed once."""
        if isinstance(argument, Ref | Const):
            return argument
        name = self.scope.unused(parameter)
        self.scope.out.append(Assign(Ref(name), argument, (), argument.place))
        self.scope.kinds[name] = self.scope.kind(argument)
        return Ref(name)
