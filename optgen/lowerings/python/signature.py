"""Print the signature of generated Python functions: tensor lists, then hyperparameters."""

from __future__ import annotations

from dataclasses import replace

from optgen.ir.algorithm import Algorithm, Hyper
from optgen.ir.generated_names import plural
from optgen.ir.kinds import PARAM
from optgen.ir.nodes import Call, Expr, Ref, map_expressions, rebuild
from optgen.ir.plan import Plan


def list_names(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the names of the tensor lists, in the order in which the runtime passes them."""
    states = tuple(plural(s.symbol) for s in algorithm.states)
    steps = ("state_steps",) if algorithm.step else ()
    return (plural(algorithm.param), plural(algorithm.grad), *states, *steps)


def keywords(plan: Plan) -> tuple[str, ...]:
    """Return the annotated keyword-only arguments: hyperparameters, then `fresh_…` flags."""
    hypers = (f"{h.name}: {_annotation(h)}" for h in plan.algorithm.hypers)
    return (*hypers, *(f"fresh_{s.key}: bool" for s in plan.fresh_states()))


def fresh_as_keywords(plan: Plan) -> Plan:
    """Return the plan with every `fresh(s)` replaced by its keyword argument."""
    names = {s.symbol: Ref(f"fresh_{s.key}") for s in plan.fresh_states()}

    def with_keyword(expr: Expr) -> Expr:
        match expr:
            case Call("fresh", (Ref(name),)):
                return names[name]
        return rebuild(expr, with_keyword)

    renamed = plan.map_programs(lambda program: map_expressions(program, with_keyword))
    return replace(renamed, kinds={**plan.kinds, **dict.fromkeys(names.values(), PARAM)})


def _annotation(hyper: Hyper) -> str:
    number = "float | Tensor" if hyper.tensor != "never" else "float"
    numbers = [
        f"{number} | None" if hyper.may_be_none(index) else number for index in range(hyper.size)
    ]
    match hyper.type:
        case "flag":
            return "bool"
        case "choice":
            return "str | None"
        case "tuple":
            return f"tuple[{', '.join(numbers)}]"
        case _:
            return numbers[0]
