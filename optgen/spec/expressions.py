"""Python expressions to IR, in the author's order. Conditions are translated, never evaluated."""

from __future__ import annotations

import ast
from typing import NoReturn

from optgen.ir.nodes import Call, Const, Expr, Ref
from optgen.ir.words import FUNCTIONS, WORDS
from optgen.spec.errors import did_you_mean
from optgen.spec.scope import Scope
from optgen.spec.source import Source

_BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Pow: "**",
    ast.Mod: "%",
}
_COMPARE = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_TRUTHS = ("comparison", "logic")
_HINTS: dict[type[ast.expr], str] = {
    ast.IfExp: "write an if statement, or where(condition, a, b) for tensors",
    ast.Lambda: "write a plain helper function in the file",
    ast.Attribute: "the words of the language are plain names: sqrt(x), not x.sqrt()",
    ast.NamedExpr: "write an assignment of its own",
}


class Expressions:
    """Reads expressions in a scope. `inline` reads a call of one of the file's helper functions."""

    def __init__(self, source: Source, scope: Scope) -> None:
        self.source = source
        self.scope = scope

    def inline(self, node: ast.Call, name: str) -> Expr:
        raise NotImplementedError

    def value(self, node: ast.expr) -> Expr:
        """A number or a tensor."""
        place = self.source.place(node)
        match node:
            case ast.Constant(value=int() | float() | None as value):
                return Const(value, place)
            case ast.Constant(value=str() as text):
                return Const(text, place)
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.value(operand)
                if isinstance(inner, Const) and isinstance(inner.value, int | float):
                    return Const(-inner.value, place)
                return Call("neg", (inner,), place)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.value(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return Call(_BINARY[type(op)], (self.value(left), self.value(right)), place)
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.condition(node)
            case ast.Subscript(value=ast.Name() as values, slice=ast.Constant(value=int() as i)):
                return self._item(node, values, i)
            case ast.Call():
                return self._call(node)
        self._refuse(node)

    def condition(self, node: ast.expr) -> Expr:
        """Something that is true or false."""
        place = self.source.place(node)
        match node:
            case ast.BoolOp(op=op, values=values):
                word = "and" if isinstance(op, ast.And) else "or"
                return self._chain(word, [self.condition(v) for v in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Call("not", (self.condition(operand),), place)
            case ast.Compare(left=left, ops=ops, comparators=rights):
                sides = [left, *rights]
                pairs = zip(ops, sides, rights, strict=False)
                return self._chain("and", [self._compare(node, *pair) for pair in pairs])
        return self._truth(self.value(node))

    def _truth(self, value: Expr) -> Expr:
        if isinstance(value, Call) and (
            WORDS[value.word].sort in _TRUTHS or value.word in ("fresh", "is_none")
        ):
            return value
        if isinstance(value, Ref):
            hyper = self.scope.algorithm.hyper(value.name)
            if hyper is not None and hyper.sort == "flag":
                return value
        return Call("truth", (value,), value.place)

    def _chain(self, word: str, conditions: list[Expr]) -> Expr:
        result, *rest = conditions
        for condition in rest:
            result = Call(word, (result, condition), condition.place)
        return result

    def _compare(self, node: ast.Compare, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Expr:
        place = self.source.place(node)
        if isinstance(op, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                self.source.error(node, "`is` compares with None only", "write == for values")
            test = Call("is_none", (self.value(left),), place)
            return test if isinstance(op, ast.Is) else Call("not", (test,), place)
        if type(op) not in _COMPARE:
            self.source.error(
                node, "this comparison is not in the language", "use < <= > >= == != or is None"
            )
        return Call(_COMPARE[type(op)], (self.value(left), self.value(right)), place)

    def _name(self, node: ast.Name, name: str) -> Expr:
        scope = self.scope
        if scope.renamed is not None and name in scope.renamed:
            return scope.renamed[name]
        if name in scope.constants and name not in scope.kinds:
            return Const(scope.constants[name], self.source.place(node))
        if name not in scope.kinds:
            self._unknown(node, name)
        scope.read.add(name)
        return Ref(name, 0, self.source.place(node))

    def _unknown(self, node: ast.Name, name: str) -> NoReturn:
        if name in self.scope.partial:
            self.source.error(
                node,
                f"`{name}` is undefined on this path",
                "assign it in both arms of the if, or before it",
            )
        if name in WORDS or name in self.scope.helpers:
            self.source.error(node, f"`{name}` is a function", f"call it: {name}(…)")
        self.source.error(
            node,
            f"unknown name `{name}`",
            did_you_mean(name, self.scope.known(), "declare it in the signature or assign it"),
        )

    def _item(self, node: ast.Subscript, values: ast.Name, index: int) -> Expr:
        hyper = self.scope.algorithm.hyper(values.id)
        if hyper is None or hyper.sort != "tuple":
            self.source.error(node, "only a tuple hyperparameter has items")
        if not 0 <= index < hyper.size:
            self.source.error(node, f"`{values.id}` has items 0 to {hyper.size - 1}")
        place = self.source.place(node)
        return Call("item", (self.value(values), Const(index)), place)

    def _call(self, node: ast.Call) -> Expr:
        if not isinstance(node.func, ast.Name):
            self._refuse(node.func)
        name = node.func.id
        if name in self.scope.helpers:
            return self.inline(node, name)
        if name != "fresh" and name not in FUNCTIONS:
            hint = did_you_mean(name, [*FUNCTIONS, "fresh", *self.scope.helpers])
            self.source.error(node, f"unknown function `{name}`", hint)
        if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            self.source.error(node, f"`{name}` takes positional arguments only")
        arity = WORDS[name].arity
        if len(node.args) != arity:
            message = f"`{name}` takes {arity} argument{'s' * (arity > 1)}, not {len(node.args)}"
            self.source.error(node, message)
        if name == "fresh":
            return self._fresh(node)
        first = self.condition if name == "where" else self.value
        args = (first(node.args[0]), *(self.value(a) for a in node.args[1:]))
        return Call(name, args, self.source.place(node))

    def _fresh(self, node: ast.Call) -> Expr:
        match node.args[0]:
            case ast.Name(id=symbol) if self.scope.algorithm.state(symbol):
                return Call("fresh", (Ref(symbol),), self.source.place(node))
        self.source.error(node, "`fresh` asks about a state", "write fresh(b) for a state b")

    def _refuse(self, node: ast.expr) -> NoReturn:
        self.source.error(
            node,
            f"`{self.source.quote(node)}` is not in the language",
            _HINTS.get(type(node), "numbers, names, + - * / ** %, comparisons, and/or/not, words"),
        )

    def check_branch(self, node: ast.expr, condition: Expr) -> None:
        """An `if` needs one answer per parameter."""
        if self.scope.kind(condition).is_tensor:
            self.source.error(
                node, "`if` on a tensor has no single answer", "write where(condition, a, b)"
            )
