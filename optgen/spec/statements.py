"""Read the body of a rule: assignments and ifs. Calls of the file's helpers are inlined."""

from __future__ import annotations

import ast

from optgen.ir.kinds import Axes, Kind, declared_kinds
from optgen.ir.nodes import Assign, Call, Const, Expr, If, Program, Ref, refs
from optgen.spec.expressions import BINARY
from optgen.spec.op_calls import OpCalls
from optgen.spec.reserved_names import why_taken
from optgen.spec.scope import SHAPE_NAMES, implied, type_of, why_not_a_number
from optgen.spec.source import nodes_of
from optgen.spec.substitutes import assignment_hint, in_place_hint, statement_hint

_ALLOWED = "allowed: assignment, if/else, docstring"
_HELPER_HINT = "branch in the rule that calls it; or choose values: where(condition, a, b)"


class Statements(OpCalls):
    """Reader of statements, which appends each of them to the `statements` of its scope."""

    def rule(self, body: list[ast.stmt]) -> Program:
        """Read the whole body of a rule, except its docstring."""
        self.scope.rule_names = frozenset(name.id for name in nodes_of(body, ast.Name))
        for node in body[1:] if body and _is_docstring(body[0]) else body:
            self._statement(node)
        return tuple(self.scope.statements)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=value_name)) if (
                name == value_name
            ):
                self.source.error(node, f"`{name} = {name}` changes nothing", "leave it out")
            case ast.Assign(targets=[ast.Name() as target], value=value):
                self._assign(target, self.not_none(value, self.value(value)), node)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                self._assign_tuple(node, targets, value)
            case ast.If():
                self._if(node)
            case ast.Pass():
                pass
            case ast.AugAssign(target=target, op=op):
                name, sign = self.source.quote(target), BINARY.get(type(op), "…")
                hint = f"write {name} = {name} {sign} …"
                self.source.error(node, f"a spec may not contain `{sign}=`", hint)
            case ast.Assign() | ast.AnnAssign():
                hint = "an assignment is `name = value` or `a, b = x, y`"
                match node:
                    case ast.Assign(targets=[ast.Subscript() | ast.Attribute() as target]):
                        hint = assignment_hint(target, self._names()) or hint
                self.source.error(node, "this assignment is not in the language", hint)
            case ast.Expr(value=ast.Call(func=ast.Name(id="require"))):
                hint = "put it before the rule: require(not flag or lr > 0, …)"
                self.source.error(node, "`require` may not stand inside an if", hint)
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method)) as call) if (
                method.endswith("_") and not method.endswith("__")
            ):
                message = f"`{self.source.quote(node)}` is in place, and a rule assigns"
                self.source.error(node, message, in_place_hint(call, self._names()))
            case ast.Expr(value=ast.Call(func=ast.Name(id="print" | "breakpoint" | "input"))):
                hint = "leave it out: a rule is read and never run"
                self.source.error(node, f"`{self.source.quote(node)}` does nothing", hint)
            case ast.Expr(value=value):
                quote = self.source.quote(value)
                self.source.error(node, f"`{quote}` alone changes nothing", "assign it to a name")
            case ast.Return():
                hint = "assign to p instead: the last assignment is the result"
                self.source.error(node, "a rule may not contain `return`", hint)
            case _:
                keyword = self.source.quote(node).split(maxsplit=1)[0].rstrip(":")
                hint = statement_hint(node) or _ALLOWED
                self.source.error(node, f"a spec may not contain `{keyword}`", hint)

    def _assign(self, node: ast.Name, value: Expr, statement: ast.stmt) -> None:
        kind = self.scope.kind(value)
        self._check_type(statement, value)
        name = self._checked_target(node)
        if value == Ref(name):  # `x = +x`, or a helper that returns its argument
            return
        self._record_shape_and_type(name, value, kind, node)
        quote = (self.source.quote(statement),)
        place = self.source.place(statement)
        self.scope.statements.append(Assign(Ref(name, 0, place), value, quote, place))
        state = self.scope.algorithm.state(name)
        if state is not None and state.on_device:  # it keeps its declared kind
            kind = declared_kinds(self.scope.algorithm)[name]
        self.scope.kinds[name] = kind
        self.scope.written.add(name)
        self.scope.items.pop(name, None)
        if isinstance(value, Call) and value.op == "item":
            self.scope.items[name] = value

    def _check_type(self, statement: ast.stmt, value: Expr) -> None:
        """Check that an assigned value is a number, a tensor or a truth value."""
        problem, hint = why_not_a_number(value, self.scope)
        if type_of(value, self.scope) == "truth":
            self.check_truths(value)
        elif problem:
            node = statement.value if isinstance(statement, ast.Assign) else statement
            self.source.error(node, f"`{self.source.quote(node)}` {problem}", hint)

    def _record_shape_and_type(self, name: str, value: Expr, kind: Kind, node: ast.AST) -> None:
        """Record a name's shape and type, which may not change: it is one variable of the code."""
        scope = self.scope
        is_boolean = type_of(value, scope) == "truth"
        before = (scope.axes.get(name, kind.axes), name in scope.booleans)
        now = (kind.axes, is_boolean)
        if name in scope.axes and before != now:
            message = f"`{name}` is {_shape_name(*before)}, and this is {_shape_name(*now)}"
            declared = name in declared_kinds(scope.algorithm)
            hint = f"its value is {_shape_name(*before)} too"
            self.source.error(node, message, hint if declared else "choose another name for it")
        state = scope.algorithm.state(name)
        if state is not None and state.shape == "scalar" and not kind.is_scalar:
            scope.scalars_from_reductions.add(name)
        scope.axes[name] = kind.axes
        if is_boolean:
            scope.booleans.add(name)

    def _checked_target(self, node: ast.Name) -> str:
        """Check that an assignment may write its target; return the name of the variable."""
        name, scope, error = node.id, self.scope, self.source.error
        if scope.helper_values is not None:
            new_name = scope.unused_name(name)
            scope.helper_values[name] = Ref(new_name)
            return new_name
        why = why_taken(name)
        if why:
            error(node, f"`{name}` {why}", "choose another name")
        state = scope.algorithm.state(name)
        is_input = name == scope.algorithm.step or bool(state is not None and state.step_argument)
        if scope.algorithm.hyper(name) or is_input:
            error(node, f"`{name}` is an input and cannot be assigned", "assign to another name")
        if name in scope.constants or name in scope.helpers:
            error(node, f"`{name}` is defined in the file already", "choose another name")
        self.check_exists(node, name)
        if name not in declared_kinds(scope.algorithm):
            scope.locals.setdefault(name, self.source.place(node))
        return name

    def _assign_tuple(self, node: ast.Assign, targets: list[ast.expr], value: ast.expr) -> None:
        name_nodes = [t for t in targets if isinstance(t, ast.Name)]
        if len(name_nodes) != len(targets):
            self.source.error(node, "the left side of an assignment is a name or names", "a, b = …")
        for position, name in enumerate(name_nodes):
            if name.id in {other.id for other in name_nodes[:position]}:
                hint = "write two assignments"
                self.source.error(name, f"`{name.id}` is on the left side twice", hint)
        values = self._items(node, value, len(name_nodes))
        later_reads = [
            {r.name for v in values[i + 1 :] for r in refs(v)} for i in range(len(values))
        ]
        delayed_writes: list[tuple[ast.Name, Expr]] = []
        for target, item, names_read_later in zip(name_nodes, values, later_reads, strict=True):
            if item == Ref(target.id):
                continue
            if target.id in names_read_later:  # a later value reads the old value of the target
                next_name = self.scope.unused_name(f"{target.id}_next")
                place = self.source.place(node)
                quote = (self.source.quote(node),)
                self.scope.statements.append(Assign(Ref(next_name), item, quote, place))
                self.scope.kinds[next_name] = self.scope.kind(item)
                self._record_shape_and_type(next_name, item, self.scope.kinds[next_name], target)
                delayed_writes.append((target, Ref(next_name)))
            else:
                self._assign(target, item, node)
        for target, item in delayed_writes:
            self._assign(target, item, node)

    def _items(self, node: ast.Assign, value: ast.expr, num_names: int) -> list[Expr]:
        """Return the values of the right side, one for each name on the left."""
        if isinstance(value, ast.Tuple):
            if len(value.elts) != num_names:
                hint = "one value for each name"
                self.source.error(node, f"{num_names} names and {len(value.elts)} values", hint)
            return [self.number(element) for element in value.elts]
        items = self.value(value)
        hyper = self.scope.hyper_of(items)
        if hyper is None or hyper.type != "tuple":
            hint = "beta1, beta2 = betas, or a, b = x, y"
            self.source.error(value, "only a tuple hyperparameter can be unpacked", hint)
        if hyper.size != num_names:
            hint = "one name for each number"
            message = f"{num_names} names, but `{hyper.name}` holds {hyper.size} numbers"
            self.source.error(node, message, hint)
        return [Call("item", (items, Const(i)), items.place) for i in range(num_names)]

    def _if(self, node: ast.If) -> None:
        if self.scope.in_helper:
            self.source.error(node, "a helper may not branch", _HELPER_HINT)
        condition = self.condition(node.test)
        self.check_branch(node.test, condition)
        kinds_before = dict(self.scope.kinds)
        with self.scope.branch(implied(condition)) as then:
            for statement in node.body:
                self._statement(statement)
        after_then, self.scope.kinds = self.scope.kinds, dict(kinds_before)
        with self.scope.branch(implied(Call("not", (condition,)))) as orelse:
            for statement in node.orelse:
                self._statement(statement)
        after_else = self.scope.kinds
        in_both = after_then.keys() & after_else.keys()
        self.scope.maybe_undefined |= after_then.keys() ^ after_else.keys()
        self.scope.kinds = {
            name: after_then[name].join(after_else[name]) for name in after_then if name in in_both
        }
        quote = (f"if {self.source.quote(node.test)}:",)
        place = self.source.place(node)
        self.scope.statements.append(If(condition, tuple(then), tuple(orelse), quote, place))

    def inline(self, node: ast.Call, name: str) -> Expr:
        """Append a helper's statements to the rule; return the helper's result."""
        helper = self.scope.helpers[name]
        if name in self.scope.inlined_helpers:
            self.source.error(
                node, f"`{name}` calls itself", "a helper is inlined where it is called"
            )
        parameters = self._parameters(helper)
        if node.keywords or len(node.args) != len(parameters):
            count = f"{len(parameters)} argument{'s' * (len(parameters) != 1)}"
            message = f"`{name}` takes {count} by position, not {len(node.args)}"
            self.source.error(node, message, f"{name}({', '.join(parameters)})")
        helper_values = {
            p: self._bind(p, self.value(a)) for p, a in zip(parameters, node.args, strict=True)
        }
        *body, last = helper.body
        if body and _is_docstring(body[0]):
            body = body[1:]
        if not isinstance(last, ast.Return) or last.value is None:
            message = f"helper `{name}` must end in `return` with a value"
            self.source.error(helper, message, "end it with: return …")
        outer_values = self.scope.helper_values
        self.scope.helper_values, self.scope.inlined_helpers = (
            helper_values,
            (*self.scope.inlined_helpers, name),
        )
        for statement in body:
            self._statement(statement)
        result = self.value(last.value)
        self.scope.helper_values, self.scope.inlined_helpers = (
            outer_values,
            self.scope.inlined_helpers[:-1],
        )
        return result

    def _parameters(self, helper: ast.FunctionDef) -> list[str]:
        """Check that a helper has positional parameters without defaults; return their names."""
        args = helper.args
        refused = (*args.posonlyargs, *args.kwonlyargs, args.vararg, args.kwarg, *args.defaults)
        for node in refused:
            if node is not None:
                hint = f"def {helper.name}(x, y):"
                self.source.error(node, f"helper `{helper.name}` takes plain names only", hint)
        return [a.arg for a in args.args]

    def _bind(self, parameter: str, argument: Expr) -> Expr:
        """Return the argument if it is a name or a number, else a new variable that holds it."""
        return (
            argument
            if isinstance(argument, Ref | Const)
            else self.new_variable(parameter, argument)
        )


def _shape_name(axes: Axes, is_boolean: bool) -> str:
    """Describe a variable, for error messages."""
    name = SHAPE_NAMES[axes]
    return name.replace("a number", "a truth value") if is_boolean else name


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
