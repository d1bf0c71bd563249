"""In which ways a step is taken: several lowerings, and how a fused one finds its tensors."""

import importlib
from collections.abc import Iterator

import pytest

from optgen import use_lowering

repeat = importlib.import_module(
    "optgen.runtime.fused_cpu.cached_dense_step"
)  # beside a function so called


@pytest.fixture(params=["read in C++", "gathered in Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a step can find its tensors."""
    if request.param == "gathered in Python":
        monkeypatch.setattr(repeat, "reader", lambda: None)
    return str(request.param)


@pytest.fixture(params=["forloop", "fused_cpu"])
def each_lowering(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is tested here does not depend on the lowering."""
    with use_lowering(request.param):
        yield
