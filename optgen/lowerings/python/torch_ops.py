"""Operations as torch calls: methods of one tensor, or `_foreach_` functions of a list."""

from __future__ import annotations

from collections.abc import Callable

from optgen.ir.generated_names import plural
from optgen.ir.nodes import Call
from optgen.lowerings.python.literals import comment
from optgen.lowerings.python.text import PythonText
from optgen.passes.instructions import Alias, Branch, Instruction, Op, Operand, Ops, Reduce, Step
from optgen.passes.scalars import is_number

_TEXT = PythonText({}, {})
_METHODS = {
    "**": "pow",
    "%": "remainder",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "==": "eq",
    "!=": "ne",
    "and": "logical_and",
    "or": "logical_or",
    "not": "logical_not",
}
_SCALED = {"add": "alpha", "addcmul": "value", "addcdiv": "value"}
_IN_PLACE = ("masked_fill",)
_PER_TENSOR = {"where", "clone", "full_like", "new_full", *_IN_PLACE, *_METHODS.values()}
_PER_TENSOR -= {"pow"}


def forloop_lines(program: tuple[Instruction, ...]) -> list[str]:
    """Every operation as a method call; operations on one result are chained."""
    return _lines(program, _forloop_steps)


def foreach_lines(program: tuple[Instruction, ...]) -> list[str]:
    """Every operation as one call for the whole list."""
    return _lines(program, lambda ops: [_foreach(step) for step in ops.steps])


def _lines(
    program: tuple[Instruction, ...], steps: Callable[[Ops], list[str]], indent: str = ""
) -> list[str]:
    out: list[str] = []
    quoted: tuple[str, ...] = ()
    for instruction in program:
        if isinstance(instruction, Branch):
            out += _branch(instruction, steps, indent)
            quoted = ()
            continue
        if instruction.quote != quoted:
            out += [indent + comment(q) for q in instruction.quote]
        quoted = instruction.quote
        out += [indent + line for line in steps(instruction)]
    return out


def _branch(branch: Branch, steps: Callable[[Ops], list[str]], indent: str) -> list[str]:
    deeper = indent + "    "
    condition, then, orelse = branch.condition, branch.then, branch.orelse
    if not then:
        condition, then, orelse = Call("not", (condition,)), orelse, ()
    lines = [f"{indent}if {_TEXT.text(condition)}:", *_lines(then, steps, deeper)]
    match orelse:
        case (Branch() as other,):
            first, *rest = _branch(other, steps, indent)
            lines += [f"{indent}el{first.removeprefix(indent)}", *rest]
        case (_, *_):
            lines += [f"{indent}else:", *_lines(orelse, steps, deeper)]
    return lines


def _forloop_steps(ops: Ops) -> list[str]:
    lines: list[str] = []
    last = ""
    for step in ops.steps:
        if isinstance(step, Reduce):
            lines.append(_reduced(step))
            last = ""
            continue
        if isinstance(step, Alias):
            if step.source == last and not lines[-1].startswith(f"{last} ="):
                lines[-1] = f"{step.target} = {lines[-1]}"
            else:
                lines.append(f"{step.target} = {step.source}")
            last = ""
            continue
        if step.inplace and step.source == last and _chains(step):
            lines[-1] += _method(step)
        elif step.inplace:
            lines.append(_call(step))
        else:
            lines.append(f"{step.target} = {_call(step)}")
        last = step.target
    return lines


def _reduced(step: Reduce) -> str:
    """One block's part of a reduction, joined to what the blocks before it left."""
    part = f"{reduction(step)}({step.source})"
    if step.word == "max_abs":
        return f"torch.maximum({step.target}, {part}, out={step.target})"
    return f"{step.target}.add_({part})"


def reduction(step: Reduce) -> str:
    """The function of optgen.runtime.reductions that reduces one tensor."""
    name = "total" if step.word == "sum" else step.word
    return f"{step.word}_of_squares" if step.squared else name


def _chains(op: Op) -> bool:
    """Whether it is a method, and of a value that none of its arguments names."""
    return op.word not in ("maximum", "minimum") and op.source not in op.args


def _call(op: Op) -> str:
    name = _METHODS.get(op.word, op.word)
    if op.word == "where":
        return f"torch.where({', '.join([_condition(op.source), *map(_operand, op.args)])})"
    if op.word == "new_full":
        return f"{op.source}.new_full((), {_operand(op.args[0])})"
    if op.word == "full_like":
        return f"torch.full_like({op.source}, {_operand(op.args[0])})"
    if op.word in ("maximum", "minimum") and op.inplace:
        return f"torch.{name}({op.source}, {_operand(op.args[0])}, out={op.source})"
    if not isinstance(op.source, str):
        return f"torch.{name}({', '.join([_operand(op.source), *map(_operand, op.args)])})"
    return op.source + _method(op)


def _method(op: Op) -> str:
    name = _METHODS.get(op.word, op.word)
    arguments = [_condition(a) if op.word in ("and", "or") else _operand(a) for a in op.args]
    if op.word == "add" and is_number(op.scalar, -1):
        name = "sub"
    elif op.word in _SCALED and not is_number(op.scalar, 1):
        arguments.append(f"{_SCALED[op.word]}={_TEXT.text(op.scalar)}")
    return f".{name}{'_' if op.inplace else ''}({', '.join(arguments)})"


def _operand(operand: Operand) -> str:
    return operand if isinstance(operand, str) else _TEXT.text(operand)


def _condition(operand: Operand) -> str:
    """A truth value as the tensor that torch wants."""
    return operand if isinstance(operand, str) else f"torch.tensor({_TEXT.text(operand)})"


def _foreach(step: Step) -> str:
    if isinstance(step, Reduce):
        parts = f"[{reduction(step)}({step.source}) for {step.source} in {plural(step.source)}]"
        joined = "maximum" if step.word == "max_abs" else "add"
        return f"torch._foreach_{joined}_({plural(step.target)}, {parts})"
    if isinstance(step, Alias):
        return f"{plural(step.target)} = {plural(step.source)}"
    name = _METHODS.get(step.word, step.word)
    if name in _PER_TENSOR or not isinstance(step.source, str):
        return _per_tensor(step)
    arguments = [plural(step.source), *(_listed(a) for a in step.args)]
    if step.word == "add" and is_number(step.scalar, -1):
        name = "sub"
    elif step.word == "add" and not is_number(step.scalar, 1):
        arguments.append(f"alpha={_TEXT.text(step.scalar)}")
    elif step.word in _SCALED and not is_number(step.scalar, 1):
        arguments.append(_TEXT.text(step.scalar))
    if name == "mul" and step.inplace and not isinstance(step.args[0], str):
        return f"scale_({', '.join(arguments)})"
    call = f"torch._foreach_{name}{'_' if step.inplace else ''}({', '.join(arguments)})"
    return call if step.inplace else f"{plural(step.target)} = {call}"


def _listed(operand: Operand) -> str:
    return plural(operand) if isinstance(operand, str) else _TEXT.text(operand)


def _per_tensor(op: Op) -> str:
    """A word torch has no `_foreach_` function for: one call a tensor."""
    if op.word == "new_full":
        params = plural(str(op.source))
        one = f"{params}[0].new_full((), {_operand(op.args[0])})"
        return f"{plural(op.target)} = [{one}] * len({params})"
    tensors = [o for o in (op.source, *op.args) if isinstance(o, str)]
    names = list(dict.fromkeys(tensors))
    lists = ", ".join(plural(n) for n in names)
    rows = lists if len(names) == 1 else f"zip({lists}, strict=True)"
    return f"{plural(op.target)} = [{_call(op)} for {', '.join(names)} in {rows}]"
