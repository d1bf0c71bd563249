"""Draw programs for a drawn rule, and compute in float64 what they write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from torch import Tensor

from fuzz.expressions import ExpressionGenerator, Known
from fuzz.oracle import PARAM, Expected, StepArguments, step_by_rule
from optgen.ir.algorithm import Algorithm

LOWERINGS = ("forloop", "foreach", "fused_cpu", "fused_triton")
"""Lowerings of programs, which have neither a functional form nor phases."""

_STATE = re.compile(r'^    (\w+)=state\("key_\w+", init=[^,)]+\),$', re.M)
_ONLY_IN_STEPS = re.compile(r"\b(numel|ndim|machine_eps|fresh|factored)\(")
"""Words that a program may not use."""
_TEMPLATE = """

@Random.{mode}
def to_{mode}({lists}, /{hypers}):
{body}
"""


def draw_programs(seed: str | int, text: str) -> str:
    """Return two programs for a rule, or "" for most seeds and for rules without usable states."""
    rng = Random(f"programs {seed}")
    states = _STATE.findall(text)
    if not states or rng.random() > 0.35:
        return ""
    return "".join(_program(rng, mode, text, states) for mode in ("train", "eval"))


def _program(rng: Random, mode: str, text: str, states: list[str]) -> str:
    declared = [n for n in ("lr", "c", "eps", "betas", "fa", "fb") if f"\n    {n}=" in text]
    lists = ["p", *rng.sample(states, rng.randint(1, len(states)))]
    rng.shuffle(lists)
    body = _body(rng, lists, declared)
    read = [name for name in declared if re.search(rf"\b{name}\b", body)]
    hypers = f", *, {', '.join(read)}" if read else ""
    return _TEMPLATE.format(mode=mode, lists=", ".join(lists), hypers=hypers, body=body)


def _body(rng: Random, lists: list[str], declared: list[str]) -> str:
    """Return a body that uses all lists, and mostly leaves at least one unchanged."""
    numbers = [n for n in ("lr", "c", "eps") if n in declared] or ["0.5"]
    if "betas" in declared:
        numbers.append("betas[1]")
    conditions = [c for f in ("fa", "fb") if f in declared for c in (f, f"not {f}")]
    expressions = ExpressionGenerator(
        rng,
        Known(numbers=numbers, tensors=list(lists)),
        has_odd_forms=rng.random() < 0.4,
        conditions=conditions or ["0.5 > 0"],
    )
    while True:
        maybe_unchanged, *written = rng.sample(lists, rng.randint(2, len(lists)))
        if len(written) + 1 == len(lists) and rng.random() < 0.4:
            written.append(maybe_unchanged)  # the program writes every list
        lines = [f"x = {expressions.tensor(2)}"] if rng.random() < 0.4 else []
        lines += [f"{name} = {expressions.tensor(2)}" for name in written]
        unread = [n for n in lists if not re.search(rf"[=(].*\b{n}\b", "\n".join(lines))]
        added_terms = "".join(
            f" + 0.125 * {n}" for n in {maybe_unchanged: 0, **dict.fromkeys(unread)}
        )
        lines[-1] += f"{added_terms}{' - x' * (lines[0][0] == 'x')}"
        if conditions and rng.random() < 0.4:
            lines[-1:] = [f"if {rng.choice(conditions)}:", f"    {lines[-1]}"]
        body = "\n".join(f"    {line}" for line in lines)
        if not _ONLY_IN_STEPS.search(body):
            return body


def expected_values(
    optimizer: Algorithm,
    program: Algorithm,
    hypers: Mapping[str, Any],
    param: Tensor,
    state: Mapping[str, Tensor],
) -> tuple[dict[str, Expected], bool]:
    """Return what a program writes, by key, and whether no branch depends on rounding."""
    keys = {optimizer.param: PARAM, **{s.symbol: s.key for s in optimizer.states}}
    tensors = {name: param if key == PARAM else state.get(key) for name, key in keys.items()}
    states = {s.key: tensors[s.symbol] for s in program.states}
    hyper_values = {h.name: hypers[h.name] for h in program.hypers}
    program_param, grad = (
        tensors[program.param],
        tensors.get(program.grad, tensors[program.lists[0]]),
    )
    assert program_param is not None
    assert grad is not None
    dtypes = {
        key: str(x.dtype).removeprefix("torch.") for key, x in states.items() if x is not None
    }
    states_as_stored = tuple(replace(s, dtype=dtypes.get(s.key)) for s in program.states)
    step = step_by_rule(
        replace(program, states=states_as_stored),
        StepArguments(hyper_values, program_param, grad, states),
    )
    written = {s.symbol: s.key for s in program.states if s.written}
    written_values = {keys[symbol]: step.values[key] for symbol, key in written.items()}
    return {keys[program.param]: step.values[PARAM], **written_values}, step.sure
