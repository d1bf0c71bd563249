"""Test `gradient="rows"`: with sparse gradients, every lowering updates only the touched rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from runtime.training import error
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.runtime import GeneratedOptimizer
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

LAZY_SPEC = '''
from optgen.spec import *

@optimizer(gradient="rows")
def Lazy(
    p, g, t, /, m=state("exp_avg"), v=state("exp_avg_sq"), s=state("s", shape="scalar", init=1.0),
    b=state("buffer", when="heavy", rows=False), x=state("first", when="marked"),
    *, lr=hyper(0.1), beta=hyper(0.9), decay=hyper(0, rows=False), shrink=hyper(0.1),
    heavy=flag(False), marked=flag(False)
):
    """A rule with every feature that the option `gradient="rows"` allows."""
    if decay:
        g = g + decay * p
    p = p - lr * shrink * p
    s = s * beta
    m = beta * m + (1 - beta) * g
    v = maximum(v, g * g)
    if heavy:
        b = beta * b + g
        g = b
    if marked:
        if fresh(x):
            x = g
        else:
            x = x + 2 * g
        g = g + x
    p = p - lr * (1 + s) * (m + g) / (1 - beta**t) / (sqrt(v) + 0.1)
'''
LOWERINGS = ("forloop", "foreach", "fused_cpu")
SIZE = (6, 3)


@functools.cache
def lazy_rule() -> tuple[type[GeneratedOptimizer], Algorithm]:
    """Return the class and the algorithm of `Lazy`."""
    spec = Spec("Lazy", LAZY_SPEC, "<lazy>", 1)
    (algorithm,) = read_spec(spec)
    return optgen.load(spec), algorithm


def sparse_gradient(rows: list[int], seed: int, size: tuple[int, ...] = SIZE) -> Tensor:
    """Return a sparse gradient with random values in these rows."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(rows), *size[1:], generator=generator, dtype=torch.float64)
    indices = torch.tensor([rows], dtype=torch.int64)
    return torch.sparse_coo_tensor(indices, values, size, check_invariants=True, is_coalesced=False)


def expected_param(
    algorithm: Algorithm, options: dict[str, Any], rows_of_steps: list[list[int]]
) -> Tensor:
    """Return the parameter after the evaluator has stepped the touched rows of each step."""
    hypers = {h.name: h.default for h in algorithm.hypers} | options
    param, state = torch.ones(SIZE, dtype=torch.float64), dict[str, Any]()
    for step, rows in enumerate(rows_of_steps):
        grad, touched = sparse_gradient(rows, step).to_dense(), sorted(set(rows))
        if options.get("heavy"):  # the buffer b changes in all rows
            param, state = evaluate(algorithm, hypers, param, grad, state, torch.float32)
            continue
        tables = {key: v for key, v in state.items() if isinstance(v, Tensor) and v.shape == SIZE}
        touched_state = {**state, **{key: table[touched] for key, table in tables.items()}}
        new_rows, new_state = evaluate(
            algorithm, hypers, param[touched], grad[touched], touched_state, torch.float32
        )
        param[touched] = new_rows
        for key, value in new_state.items():
            if key in tables or (isinstance(value, Tensor) and value.shape == new_rows.shape):
                table = tables.get(key, torch.zeros(SIZE, dtype=torch.float64))
                index = torch.tensor(touched, dtype=torch.int64)
                new_state[key] = table.index_copy(0, index, value)
        state = new_state
    return param


@pytest.mark.parametrize("options", [{}, {"heavy": True}, {"marked": True}], ids=str)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_rule_changes_the_touched_rows_by_its_definition(
    lowering: str, options: dict[str, Any]
) -> None:
    rows_of_steps = [[0, 2, 2], [5], [], [1, 0, 4, 4, 1], [2, 5]]
    lazy_class, algorithm = lazy_rule()
    param = torch.nn.Parameter(torch.ones(SIZE, dtype=torch.float64))
    optimizer = lazy_class([param], **options)
    with use_lowering(lowering):
        for step, rows in enumerate(rows_of_steps):
            param.grad = sparse_gradient(rows, step)
            optimizer.step()

    assert error([param.detach()], [expected_param(algorithm, options, rows_of_steps)]) < 1e-12
    assert optimizer.state[param]["step"] == 5
    assert optimizer.state[param]["s"].item() == pytest.approx(0.9**5)


ROW_NORM_SPEC = '''
from optgen.spec import *

@optimizer(gradient="rows")
def Normed(p, g, /, m=state("m"), *, lr=hyper(0.1)):
    """Norms of the rows that a gradient touches."""
    require(ndim(p) == 2, "{shape}")
    m = m + g / row_norm(p + g)
    p = p - lr * m * row_rms(m)
'''


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_norms_are_those_of_the_touched_rows(lowering: str) -> None:
    spec = Spec("Normed", ROW_NORM_SPEC, "<normed>", 1)
    (algorithm,) = read_spec(spec)
    param = torch.nn.Parameter(torch.ones(SIZE, dtype=torch.float64))
    optimizer = optgen.load(spec)([param])
    rows_of_steps = [[0, 2, 2], [5, 0]]
    with use_lowering(lowering):
        for step, rows in enumerate(rows_of_steps):
            param.grad = sparse_gradient(rows, step)
            optimizer.step()

    assert error([param.detach()], [expected_param(algorithm, {}, rows_of_steps)]) < 1e-12


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "gaps between rows": lambda: torch.zeros(6, 5, dtype=torch.float64)[:, :3],
    "columns first": lambda: torch.zeros(3, 6, dtype=torch.float64).T,
    "contiguous": lambda: torch.zeros(6, 3, dtype=torch.float64),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_parameters_memory_may_have_any_order(lowering: str, layout: str) -> None:
    lazy_class, algorithm = lazy_rule()
    param = torch.nn.Parameter(LAYOUTS[layout]().fill_(1))
    assert param.stride() == LAYOUTS[layout]().stride()
    param.grad = sparse_gradient([4, 1, 4], 0)
    with use_lowering(lowering):
        lazy_class([param]).step()

    assert error([param.detach()], [expected_param(algorithm, {}, [[4, 1, 4]])]) < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_sparse_elements_count_as_rows(lowering: str) -> None:
    """A gradient's indices may name elements. The gradient of a 0-dim parameter has no index."""
    lazy_class, algorithm = lazy_rule()
    table, number = (torch.nn.Parameter(torch.ones(s, dtype=torch.float64)) for s in ((6, 3), ()))
    dense = sparse_gradient([4, 1], 0).to_dense()
    table.grad, number.grad = dense.to_sparse(), torch.tensor(2.0).double().to_sparse()
    with use_lowering(lowering):
        lazy_class([table, number]).step()

    assert error([table.detach()], [expected_param(algorithm, {}, [[4, 1]])]) < 1e-12
    assert number != 1


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_complex_numbers_are_pairs_of_reals(lowering: str) -> None:
    lazy_class, _ = lazy_rule()
    values = torch.randn(2, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    table = torch.nn.Parameter(torch.ones(6, 3, dtype=torch.complex128))
    pairs = torch.nn.Parameter(torch.view_as_real(table.detach().clone()))
    indices = torch.tensor([[3, 0]])
    table.grad = torch.sparse_coo_tensor(indices, values, (6, 3), check_invariants=True)
    pairs.grad = torch.sparse_coo_tensor(
        indices, torch.view_as_real(values), (6, 3, 2), check_invariants=True
    )
    with use_lowering(lowering):
        lazy_class([table]).step()
        lazy_class([pairs]).step()

    assert torch.equal(torch.view_as_real(table), pairs)


def test_a_parameter_that_is_listed_twice_moves_twice() -> None:
    lazy_class, _ = lazy_rule()
    results = []
    for times in (1, 2):
        param = torch.nn.Parameter(torch.ones(SIZE, dtype=torch.float64))
        param.grad = sparse_gradient([4, 1, 4], 0)
        with (
            pytest.warns(UserWarning, match="duplicate parameters") if times > 1 else nullcontext()
        ):
            optimizer = lazy_class([param] * times)
        for _ in range(2 // times):
            optimizer.step()
        results.append([param.detach()])

    assert error(*results) < 1e-12


def test_autograd_follows_a_step() -> None:
    lazy_class, _ = lazy_rule()

    def param_after_a_step(param: Tensor, values: Tensor) -> Tensor:
        param = param.clone()
        grad = torch.sparse_coo_tensor(torch.tensor([[2, 0, 2]]), values, (3, 2))
        optimizer = lazy_class([param.detach()], differentiable=True)
        optimizer.param_groups[0]["params"] = [param]
        param.grad = grad
        optimizer.step()
        return param

    inputs = tuple(torch.rand(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    with torch.sparse.check_sparse_tensor_invariants():
        assert torch.autograd.gradcheck(param_after_a_step, inputs)


def test_the_error_names_the_option_that_forbids_sparse_gradients() -> None:
    lazy_class, _ = lazy_rule()
    param = torch.nn.Parameter(torch.ones(SIZE, dtype=torch.float64))
    param.grad = sparse_gradient([1], 0)
    lazy_class([param], decay=0).step()
    with pytest.raises(RuntimeError, match="decay option is not compatible with sparse gradients"):
        lazy_class([param], decay=0.1).step()

    rows = "CPU tensors, float64; sparse gradients by the rows they touch"
    assert optgen.explain(lazy_class([param])) == f"group 0: fused C++: {rows}"
    dense = "CPU tensors, float64; sparse gradients made dense: buffer changes as a whole"
    assert optgen.explain(lazy_class([param], heavy=True)) == f"group 0: fused C++: {dense}"
