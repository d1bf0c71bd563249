"""Test rules with thin matrices against steps that are written from their authors' code."""

from __future__ import annotations

from typing import Any

import pytest
from lowerings.low_rank_papers import PAPERS, SHAPES, STEPS, Own, drawn
from spec_files import loaded, spec_file
from torch import Tensor

from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.spec.read_spec import read_spec


def right_params(name: str) -> list[Tensor]:
    """Return the parameters after all steps of the paper."""
    _, step_of, _ = PAPERS[name]
    own: list[Own] = [{"index": index} for index in range(len(SHAPES))]
    params = drawn(100)
    for step in range(STEPS):
        params = [step_of(*each) for each in zip(params, drawn(step), own, strict=True)]
    return params


def check(found: list[Tensor], name: str) -> None:
    assert difference(found, right_params(name)) <= 1e-10


def difference(found: list[Tensor], right: list[Tensor]) -> float:
    """Return the largest difference of an element."""
    return max((p - r).abs().max().item() for p, r in zip(found, right, strict=True))


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("name", PAPERS)
def test_equal_to_the_paper(name: str, lowering: Any) -> None:
    assert largest_error(name, lowering) <= 1e-10


def largest_error(name: str, lowering: Any) -> float:
    """Return the largest difference of an element from the paper."""
    params = drawn(100)
    spec, _, options = PAPERS[name]
    optimizer = loaded(spec)(params, **options)
    for step in range(STEPS):
        for param, grad in zip(params, drawn(step), strict=True):
            param.grad = grad
        with use_lowering(lowering):
            optimizer.step()
    return difference(params, right_params(name))


@pytest.mark.parametrize("name", PAPERS)
def test_the_oracle_is_equal_to_the_paper(name: str) -> None:
    spec, _, options = PAPERS[name]
    (algorithm,) = read_spec(spec_file(spec))
    hypers = {h.name: h.default for h in algorithm.hypers} | options
    params, states = drawn(100), [dict[str, Any]() for _ in SHAPES]
    for step in range(STEPS):
        for index, grad in enumerate(drawn(step)):
            given = hypers, params[index], grad, states[index]
            params[index], states[index] = evaluate(algorithm, *given, index=index)
    check(params, name)
