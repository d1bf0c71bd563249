"""Train with a lowering, and compute each step's expected values with the oracle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lowerings.capture import capture_on_cpu
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.passes.prepare_rule import add_maximize
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

SHAPE = (37, 131)  # the number of elements is no multiple of a vector's length


class ComparedStep(NamedTuple):
    """The values after one step of a lowering, and those that the oracle expects."""

    param: Tensor
    state: dict[str, Tensor]
    expected_param: Tensor
    expected_state: dict[str, Any]


def rule_of(source: Path | Spec) -> Algorithm:
    """Return the algorithm of a spec, with the option `maximize` that every lowering has."""
    (algorithm,) = read_spec(source)
    return add_maximize(algorithm)


def random_tensors(
    count: int, dtype: torch.dtype, seed: int = 0, shape: tuple[int, ...] = SHAPE
) -> list[Tensor]:
    """Return tensors of normally distributed numbers, a few of them tiny or zero."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator) for _ in range(count)]
    for tensor in tensors:
        tensor.view(-1)[::101] = 0.0
        tensor.view(-1)[1::101] *= 1e-30
    return [tensor.to(dtype) for tensor in tensors]


def steps_beside_the_oracle(
    source: Path | Spec,
    lowering: str,
    dtype: torch.dtype,
    num_steps: int = 4,
    grad_dtype: torch.dtype | None = None,
    shape: tuple[int, ...] = SHAPE,
    num_others: int = 0,
    **hypers: Any,
) -> Iterator[ComparedStep]:
    """Yield the values after each step. The oracle starts each step from the lowering's values.

    `lowering` may also be "differentiable" or "capturable": then the optimizer has this flag.
    Before the parameter, the optimizer has `num_others` parameters of the same type.
    """
    rule = rule_of(source)
    initial_param, *grads = random_tensors(num_steps + 1, dtype, shape=shape)
    param = torch.nn.Parameter(initial_param.clone(), requires_grad=lowering != "differentiable")
    if grad_dtype:
        param.grad_dtype = grad_dtype  # type: ignore[attr-defined]
    flags = {lowering: True} if lowering in ("differentiable", "capturable") else {}
    others = random_tensors(num_others, dtype, seed=1, shape=shape)
    params = [*(torch.nn.Parameter(x, requires_grad=param.requires_grad) for x in others), param]
    optimizer = optgen.load(source)(params, **hypers, **flags)
    hyper_values = {h.name: optimizer.param_groups[0].get(h.name, h.default) for h in rule.hypers}
    for grad in grads:
        state = {key: torch.as_tensor(x).clone() for key, x in optimizer.state[param].items()}
        before, grad = param.detach().clone(), grad.to(grad_dtype or dtype)
        expected = evaluate(
            rule, hyper_values, before, grad, state, storage_dtype=dtype, index=num_others
        )
        for each in params:
            each.grad = grad.clone()
        with _context_of(lowering):
            optimizer.step()
        yield ComparedStep(param.detach(), optimizer.state[param], *expected)


def _context_of(lowering: str) -> contextlib.AbstractContextManager[Any]:
    if lowering == "capturable":
        return capture_on_cpu()
    return use_lowering("forloop" if lowering == "differentiable" else lowering)
