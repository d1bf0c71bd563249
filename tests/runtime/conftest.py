"""Fixtures that choose the lowering of a step, and how a fused step finds its tensors."""

import importlib
from collections.abc import Iterator

import pytest

from optgen import use_lowering

# `import` would return the package's function of the same name.
cached_step = importlib.import_module("optgen.runtime.fused_cpu.cached_step")


@pytest.fixture(params=["read in C++", "gathered in Python"])
def with_and_without_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test twice: the C++ reader finds a step's tensors, or Python does."""
    if request.param == "gathered in Python":
        monkeypatch.setattr(cached_step, "reader", lambda: None)
    return str(request.param)


@pytest.fixture(params=["forloop", "fused_cpu"])
def each_lowering(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the test in two lowerings. Its result must not depend on the lowering."""
    with use_lowering(request.param):
        yield
