"""Test rules on whole matrices whose sweeps are Triton kernels, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from lowerings.rules_with_outlined_sweeps import RULES_WITH_SWEEPS, spec_of
from lowerings.test_whole_matrices import exact_orthogonalize as exact_orthogonalize
from lowerings.test_whole_matrices import largest_difference, step_with
from runtime.fused_triton.triton_cases import error, largest_error
from spec_files import spec_file
from torch import Tensor

import optgen
import optgen.optim
from optgen import use_lowering
from optgen.ir.evaluate import evaluate
from optgen.runtime.fused_triton import table
from optgen.spec.read_spec import read_spec

pytest.importorskip("triton")

CLASSES = [
    *("APOLLO", "ARO", "Conda", "Dion", "Fira", "GaLore", "KLSOAP", "Kron", "OneSidedShampoo"),
    *("PRISM", "Pion", "PolarMuon", "SOAP", "SPlus", "Scion", "Shampoo"),
]

MAGNIFIES_NULL_SPACES = ("ARO", "KLSOAP", "OneSidedShampoo")
"""The classes whose steps depend on eigenvalues of a Gram matrix, of which those of 0 are rounding.

ARO takes a QR decomposition of a product with it.
"""


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@outside_interpreter
def test_all_rules_with_sweeps_are_tested() -> None:
    with_sweeps = {
        name
        for name in dir(optgen.optim)
        if getattr(getattr(getattr(optgen.optim, name), "rule", None), "sweeps", ())
    }
    assert with_sweeps == set(CLASSES)


def parameters(name: str, dtype: torch.dtype) -> list[Tensor]:
    """Return matrices of two shapes, and the tensors of other dimensions that the class takes.

    A Gram matrix is singular in the first step unless the matrix is square.
    """
    generator = torch.Generator().manual_seed(3)
    if name in MAGNIFIES_NULL_SPACES:
        shapes: tuple[tuple[int, ...], ...] = ((4, 4), (3, 3), (4, 4))
    else:
        shapes = ((4, 3), (3, 5), (4, 3), (2, 3, 4), (5,))
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [each.to(dtype).requires_grad_() for each in drawn if takes(name, each)]


def takes(name: str, param: Tensor) -> bool:
    """Tell whether a class takes a parameter."""
    try:
        getattr(optgen.optim, name)([param])
    except ValueError:
        return False
    return True


def set_gradients(params: list[Tensor], step: int, scale: float = 1.0) -> None:
    """Set gradients whose singular values are far apart, so that rounding changes no basis much."""
    generator = torch.Generator().manual_seed(step)
    for param in params:
        noise = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        exact = 0.2 * noise
        if param.ndim > 1:
            size = min(param.shape[-2:])
            diagonal = torch.arange(1.0, size + 1, dtype=torch.float64) ** 2
            exact[..., range(size), range(size)] += diagonal
        param.grad = (exact * scale).to(param.dtype)


@inside_interpreter
@pytest.mark.parametrize("name", CLASSES)
def test_float64_agrees_with_the_oracle(name: str) -> None:
    cls = getattr(optgen.optim, name)
    (algorithm,) = read_spec(spec_file(cls.rule.name))
    params = parameters(name, torch.float64)
    optimizer = cls(params)
    expected: list[tuple[Tensor, dict[str, Any]]] = [(p.detach().clone(), {}) for p in params]
    for step in range(4):
        set_gradients(params, step)
        for index, param in enumerate(params):
            value, state = expected[index]
            hypers = {h.name: optimizer.defaults[h.name] for h in algorithm.hypers}
            expected[index] = evaluate(algorithm, hypers, value, param.grad, state, index=index)
        step_with("fused_triton")(optimizer)
    for param, (value, _) in zip(params, expected, strict=True):
        assert error(param, value) < 1e-13


@inside_interpreter
@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("name", CLASSES)
def test_float32_agrees_with_fused_cpp(name: str) -> None:
    found, expected = (train(name, lowering) for lowering in ("fused_triton", "fused_cpu"))
    assert largest_error(*found, *expected) < 2e-5


@inside_interpreter
@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("case", RULES_WITH_SWEEPS)
def test_all_kinds_of_sweeps_agree_with_the_oracle(case: str) -> None:
    flags = {"nesterov": True} if "under a flag" in case else {}
    difference = largest_difference(
        spec_of(case), step_with("fused_triton"), torch.float64, **flags
    )
    assert difference < 1e-11


def train(
    name: str, lowering: str, dtype: torch.dtype = torch.float32, scale: float = 0.0, **options: Any
) -> tuple[list[Tensor], Any]:
    """Take four steps, for a scaler if there is a scale; the second step is then skipped."""
    params = parameters(name, dtype)
    optimizer = getattr(optgen.optim, name)(params, **options)
    for step in range(4):
        is_skipped = scale and step == 1
        set_gradients(params, step, scale or 1.0)
        if scale:
            optimizer.grad_scale = torch.tensor(scale)
            optimizer.found_inf = torch.tensor(float(is_skipped))
        before = [param.detach().clone() for param in params]
        step_with(lowering)(optimizer)
        assert not is_skipped or all(map(torch.equal, before, params))
    return params, optimizer


@inside_interpreter
@pytest.mark.parametrize("name", ["SOAP", "GaLore"])
def test_a_scaler_unscales_and_skips(name: str) -> None:
    found, expected = (
        train(name, lowering, torch.float64, scale=4.0) for lowering in ("fused_triton", "forloop")
    )
    assert largest_error(*found, *expected) < 1e-13


@inside_interpreter
def test_values_round_to_sixteen_bits_only_when_stored() -> None:
    (found, _), (expected, _) = (
        train("Shampoo", lowering, torch.bfloat16) for lowering in ("fused_triton", "foreach")
    )
    assert all(map(torch.equal, found, expected))


@inside_interpreter
def test_any_memory_layout_and_view_agrees_with_the_forloop() -> None:
    """The rule sees a transposed parameter, one with gaps, and a convolution as a matrix."""
    found, expected = (train_unusual_layouts(lowering) for lowering in ("fused_triton", "forloop"))
    for ours, theirs in zip(found, expected, strict=True):
        assert error(ours, theirs) < 1e-13


def train_unusual_layouts(lowering: str) -> list[Tensor]:
    """Take three steps of parameters in several layouts and groups; return the parameters."""
    generator = torch.Generator().manual_seed(5)
    drawn = [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 4), (6, 4), (4, 3, 2, 2))
    ]
    params = [drawn[0].mT, drawn[1][::2], drawn[2]]
    params = [param.detach().requires_grad_() for param in params]
    groups = [{"params": params[:2]}, {"params": params[2:], "view": (4, -1), "lr": 0.02}]
    optimizer = optgen.optim.SOAP(groups)
    for _ in range(3):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        params[1].grad = torch.ones(1, 1, dtype=torch.float64).expand(3, 4) * (1 + params[1].grad)
        step_with(lowering)(optimizer)
    return params


@inside_interpreter
def test_a_repeated_step_makes_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six shapes of matrices take turns at each sweep, and need six tables."""
    params = [torch.randn(rows, 3, requires_grad=True) for rows in range(2, 8)]
    optimizer = optgen.optim.SOAP(params)
    tables_made = []
    make_table = table.Table.__init__

    def count(self: Any, *args: Any, **kwargs: Any) -> None:
        tables_made.append(self)
        make_table(self, *args, **kwargs)

    monkeypatch.setattr(table.Table, "__init__", count)
    for step in range(5):
        set_gradients(params, step)
        step_with("fused_triton")(optimizer)
        if step == 1:  # the first step only initializes
            assert tables_made
            tables_made.clear()
    assert not tables_made


@inside_interpreter
def test_explain_names_both_parts() -> None:
    params = parameters("SOAP", torch.float32)
    optimizer = optgen.optim.SOAP(params)
    set_gradients(params, 0)
    with use_lowering("fused_triton"):
        assert str(optgen.explain(optimizer)) == (
            "group 0: fused Triton: asked for by use_lowering; torch computes the matrices, and "
            "100% of the other memory traffic is that of fused sweeps"
        )


@inside_interpreter
def test_a_capturable_step_is_refused_with_a_reason() -> None:
    params = parameters("SOAP", torch.float32)
    optimizer = optgen.optim.SOAP(params, capturable=True)
    set_gradients(params, 0)
    with pytest.raises(RuntimeError, match="capturable=True, and the step reads its numbers"):
        step_with("fused_triton")(optimizer)
    assert not optimizer.state
