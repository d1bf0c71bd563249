"""Test `use_lowering`: as a statement, as a context, as a decorator."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import optgen
from optgen.runtime.batch.step_context import current_forced_lowering


@pytest.fixture(autouse=True)
def reset_lowering() -> Iterator[None]:
    """End every test with no lowering forced."""
    yield
    optgen.use_lowering(None)


def test_a_statement_forces_a_lowering_until_the_next_statement() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    param.grad = torch.ones(2)
    optimizer = optgen.optim.SGD([param])
    optgen.use_lowering("foreach")
    assert optgen.explain(optimizer) == "group 0: foreach: asked for by use_lowering"
    optimizer.step()
    optgen.use_lowering("forloop")
    assert current_forced_lowering() == "forloop"
    optgen.use_lowering(None)
    assert "asked for" not in optgen.explain(optimizer)


def test_the_end_of_a_context_restores_the_lowering_before() -> None:
    optgen.use_lowering("foreach")
    with optgen.use_lowering("forloop") as target:
        assert target is None  # __enter__ returns nothing
        assert current_forced_lowering() == "forloop"
        with optgen.use_lowering(None):
            assert current_forced_lowering() is None
        assert current_forced_lowering() == "forloop"
        with pytest.raises(KeyError), optgen.use_lowering("fused_cpu"):
            raise KeyError
        assert current_forced_lowering() == "forloop"
    assert current_forced_lowering() == "foreach"


def test_a_context_may_be_made_before_it_is_entered_and_be_entered_twice() -> None:
    """The call forces the lowering at once; the end of the context restores the one before."""
    context = optgen.use_lowering("forloop")
    assert current_forced_lowering() == "forloop"
    for _ in range(2):
        with context:
            assert current_forced_lowering() == "forloop"
        assert current_forced_lowering() is None


def test_a_decorator_forces_a_lowering_inside_the_function_only() -> None:
    @optgen.use_lowering("foreach")
    def lowerings_inside(depth: int) -> list[str | None]:
        nested = lowerings_inside(depth - 1) if depth else []
        return [current_forced_lowering(), *nested]

    assert current_forced_lowering() is None
    assert lowerings_inside(2) == ["foreach"] * 3
    optgen.use_lowering("forloop")
    assert lowerings_inside(1) == ["foreach"] * 2
    assert current_forced_lowering() == "forloop"


def test_each_thread_has_its_own_forced_lowering() -> None:
    results = []
    optgen.use_lowering("foreach")
    thread = threading.Thread(target=lambda: results.append(current_forced_lowering()))
    thread.start()
    thread.join()
    assert results == [None]


def test_an_unknown_name_changes_nothing() -> None:
    optgen.use_lowering("foreach")
    with pytest.raises(ValueError, match="unknown lowering 'fast'; there are forloop, foreach, "):
        optgen.use_lowering("fast")
    assert current_forced_lowering() == "foreach"
