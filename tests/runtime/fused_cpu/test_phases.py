"""Test fused C++ steps of rules with phases: all shapes, for any number of threads."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from parity.trajectories import random_values, relative_error
from spec_files import optimizer_class, spec_file
from torch import Tensor
from torch.nn import Parameter

import optgen.optim
from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.optim import Adafactor
from optgen.passes.prepare_rule import add_maximize
from optgen.runtime.reader.tensor_reader import reader
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

Shape = tuple[int, ...]
MANY_REDUCTIONS = '''
from optgen.spec import *

@optimizer(paper="https://example.org")
def ManyReductions(
    p, g, t, /,
    m=state("exp_avg", when="momentum"),
    r=state("row_largest", shape="row"),
    c=state("col_total", shape="col", init=1),
    *,
    lr=hyper(1e-2),
    momentum=hyper(0.0),
    scaled=flag(False),
):
    """Many reductions, values of every shape, branches around them, a state that may be absent."""
    require(ndim(p) > 1, "no matrix: {shape}")
    largest = max_abs(g)
    r = 0.5 * r + row_mean(abs(g) / (1 + largest))
    if scaled:
        c = c + rms(g) * col_mean(g**2)
        width = sqrt(rows(p) / cols(p))
    else:
        width = 1 + 1 / numel(p)
    per_matrix = row_mean(c) + max_abs(r) + machine_eps(p)
    u = g * r / sqrt(c + per_matrix)
    if momentum:
        m = momentum * m + u
        u = m
    p = p - lr * width * u / (1 + norm(u) / t)
'''
SMALL_SHAPES = [
    (5, 7),
    (3, 3),
    (16, 8, 3, 3),
    (40, 30, 1, 1),
    (9, 2, 7, 7),
    (6, 5, 5),
    (3, 4, 1),
    (3, 1, 4),
    (35, 3, 2),
    (21, 2, 4),
    (300, 6, 5),
]
LONG_SHAPES = [(64, 64), (65, 64), (2, 20_000), (20_000, 2), (40_000, 1), (3, 70, 80)]
LARGE_SHAPES = [(700, 900), (2, 300_000), (300_000, 2), (40, 90, 70), (128, 64, 3, 3)]
LARGE_SHAPES += [(70, 4097), (2, 65, 128), (129, 127)]
VECTOR_SHAPES = [(), (1,), (1000,), (1025,), (70_001,), (400_000,)]


@functools.cache
def load_rule(name: str) -> tuple[Any, Algorithm]:
    """Return the class and the algorithm of a spec, from the catalogue or from the tests."""
    (algorithm,) = read_spec(spec_file(name))
    is_public = algorithm.name in optgen.optim.__all__
    cls = getattr(optgen.optim, algorithm.name) if is_public else optimizer_class(name)
    return cls, add_maximize(algorithm)


@pytest.fixture(scope="module")
def many_reductions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Algorithm]:
    """Return the class and the algorithm of `ManyReductions`."""
    path = tmp_path_factory.mktemp("specs") / "many_reductions.py"
    path.write_text(MANY_REDUCTIONS)
    (algorithm,) = read_spec(path)
    return optgen.load(path), add_maximize(algorithm)


def grads_of(params: Sequence[Tensor], step: int) -> list[Tensor]:
    return random_values([tuple(p.shape) for p in params], params[0].dtype, 100 + step)


def take_steps(optimizer: Any, steps: int = 4) -> list[Tensor]:
    """Take some steps, all in fused C++; return the parameters."""
    params: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(steps):
        for param, grad in zip(params, grads_of(params, step), strict=True):
            param.grad = grad
        optimizer.step()
        assert "fused C++" in optgen.explain(optimizer).split(": ")
    return params


def check_against_rule(
    class_and_algorithm: tuple[Any, Algorithm],
    shapes: Sequence[Shape],
    bound: float,
    **options: Any,
) -> None:
    """Check that four fused steps equal the oracle's, with relative errors below `bound`."""
    cls, algorithm = class_and_algorithm
    start = random_values(shapes, torch.float64, 0)
    optimizer = cls([Parameter(value.clone()) for value in start], **options)
    params = take_steps(optimizer)
    hypers = {h.name: optimizer.param_groups[0].get(h.name, h.default) for h in algorithm.hypers}
    grads_of_params = zip(*(grads_of(params, step) for step in range(4)), strict=True)
    for param, value, grads_of_param in zip(params, start, grads_of_params, strict=True):
        state: dict[str, Any] = {}
        for grad in grads_of_param:
            value, state = evaluate(algorithm, hypers, value, grad, state)
        assert relative_error(param, value) < bound, (param.shape, relative_error(param, value))
        for key, found in optimizer.state[param].items():
            assert relative_error(found, torch.as_tensor(state[key])) < bound, (param.shape, key)


@pytest.mark.parametrize(
    "shapes",
    [[*SMALL_SHAPES, *VECTOR_SHAPES[:4]], LONG_SHAPES, [*LARGE_SHAPES, *VECTOR_SHAPES[4:]]],
)
@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1, "maximize": True, "eps": (1e-3, 1e-2)}]
)
def test_adafactor_follows_its_rule_on_all_shapes(
    shapes: list[Shape], options: dict[str, Any]
) -> None:
    check_against_rule(load_rule("adafactor"), shapes, 1e-13, **options)


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("shape", [(880, 2411), (2, 440, 2411)], ids=str)
def test_tensors_larger_than_the_caches_follow_their_rules(
    shape: Shape, many_reductions: tuple[Any, Algorithm]
) -> None:
    # The bytes of parameter and gradient exceed the limit of tensor_plan.h.
    assert math.prod(shape) * 2 * 8 > 32 << 20
    check_against_rule(load_rule("adafactor"), [shape], 1e-13, weight_decay=0.1)
    check_against_rule(many_reductions, [shape], 1e-12, momentum=0.9, scaled=True)


@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_rules_with_sums_over_whole_parameters_equal_the_oracle(name: str) -> None:
    check_against_rule(load_rule(name), [*SMALL_SHAPES, *VECTOR_SHAPES, (700, 900)], 1e-13)


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("name", ["novograd", "stable_spam", "reduced_scalars"])
def test_rules_with_scalars_computed_from_reductions_equal_the_oracle(name: str) -> None:
    check_against_rule(load_rule(name), [*SMALL_SHAPES, *VECTOR_SHAPES, (700, 900)], 1e-12)


@pytest.mark.thorough
def test_came_follows_its_rule() -> None:
    shapes = [shape for shape in (*SMALL_SHAPES, *LONG_SHAPES, *LARGE_SHAPES) if len(shape) == 2]
    check_against_rule(load_rule("came"), shapes, 1e-12, lr=0.01)


@pytest.mark.parametrize("by_row", [True, False])
def test_old_values_of_rows_and_columns_are_read(by_row: bool) -> None:
    """The kernel copies the old values before the first sweep."""
    shapes = [shape for shape in (*SMALL_SHAPES, *LONG_SHAPES, *LARGE_SHAPES) if len(shape) > 1]
    check_against_rule(load_rule("old_factors"), shapes, 1e-12, by_row=by_row)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "scaled": True}])
def test_a_rule_with_many_reductions_equals_the_oracle_on_all_shapes(
    options: dict[str, Any], many_reductions: tuple[Any, Algorithm]
) -> None:
    shapes = [shape for shape in (*SMALL_SHAPES, *LONG_SHAPES, *LARGE_SHAPES) if len(shape) > 1]
    check_against_rule(many_reductions, shapes, 1e-12, **options)


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("sharp", [True, False])
def test_maxima_follow_the_rule_on_all_shapes(sharp: bool) -> None:
    shapes = [*SMALL_SHAPES, *LONG_SHAPES, *LARGE_SHAPES, *VECTOR_SHAPES, (880, 2411)]
    check_against_rule(load_rule("peaks"), shapes, 1e-12, sharp=sharp)


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_sm3_follows_its_rule(momentum: float) -> None:
    check_against_rule(
        load_rule("sm3"),
        [*SMALL_SHAPES, *LONG_SHAPES, *LARGE_SHAPES, *VECTOR_SHAPES],
        1e-12,
        momentum=momentum,
    )


@pytest.fixture
def restore_thread_count() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.one_case_in(2)
@pytest.mark.usefixtures("restore_thread_count")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_have_the_same_bits_for_any_number_of_threads(dtype: torch.dtype) -> None:
    """The kernel uses several threads from 16 MB on, and divides large tensors between them."""
    shapes = [
        *SMALL_SHAPES,
        *LONG_SHAPES,
        *LARGE_SHAPES,
        (3000, 1000),
        (2, 1003, 2111),
        *VECTOR_SHAPES,
        (2_000_000,),
    ]
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        optimizer = Adafactor([Parameter(value) for value in random_values(shapes, dtype, 0)])
        params = take_steps(optimizer, 2)
        states = [s for p in params for s in optimizer.state[p].values()]
        results.append([*params, *states])
    for result in results[1:]:
        assert all(map(torch.equal, results[0], result))


@pytest.mark.parametrize("steps", [1, 3])
def test_a_channels_last_parameter_takes_the_same_step(steps: int) -> None:
    """Rows and columns follow the indices, not the order in memory."""
    (start,) = random_values([(8, 6, 3, 5)], torch.float64, 0)
    plain = Parameter(start.clone())
    channels_last_param = Parameter(start.to(memory_format=torch.channels_last))
    assert not channels_last_param.is_contiguous()
    optimizers = Adafactor([plain]), Adafactor([channels_last_param])
    for optimizer in optimizers:
        take_steps(optimizer, steps)

    assert relative_error(channels_last_param, plain) < 1e-14
    assert channels_last_param.is_contiguous(memory_format=torch.channels_last)
    assert (
        relative_error(
            optimizers[1].state[channels_last_param]["row_var"],
            optimizers[0].state[plain]["row_var"],
        )
        < 1e-14
    )


SUMS = """
from optgen.spec import *

@optimizer(paper="https://example.org")
def Sums(
    p, g, /,
    r=state("row", shape="row"),
    c=state("col", shape="col"),
    *, lr=hyper(1e-2),
):
    \"\"\"Sums of rows and columns, and their largest magnitudes.\"\"\"
    require(ndim(p) > 1, "no matrix: {shape}")
    r, c = row_sum(g) + row_max_abs(p), col_sum(g) + col_max_abs(p)
    p = p - lr * g * r * c
"""


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_sums_and_maxima_of_no_elements_are_zero(lowering: str) -> None:
    """A tensor with elements comes first, and leaves its sums in the kernel's temporary memory."""
    full, *empty = [
        Parameter(torch.ones(shape)) for shape in ((80, 80), (3, 0), (0, 3), (2, 0, 2), (2, 2, 0))
    ]
    optimizer = optgen.load(Spec("Sums", SUMS, "<sums>", 1))([full, *empty])
    for _ in range(2):
        for param in (full, *empty):
            param.grad = torch.ones_like(param)
        with optgen.use_lowering(lowering):
            optimizer.step()

    for param in empty:
        rows, columns = optimizer.state[param].values()
        assert rows.shape == (*param.shape[:-1], 1)
        assert columns.shape == (*param.shape[:-2], 1, param.shape[-1])
        assert not rows.any()
        assert not columns.any()


def test_tensors_without_elements_are_stepped() -> None:
    params = [Parameter(torch.ones(shape)) for shape in ((3, 0), (0, 3), (0, 2, 2), (0,), (2, 2))]
    optimizer = Adafactor(params)
    for _ in range(2):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()

    assert [float(optimizer.state[p]["step"]) for p in params] == [2] * 5
    assert optimizer.state[params[0]]["row_var"].isnan().all()  # means of no elements
    assert params[4].isfinite().all()


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
@pytest.mark.parametrize("shape", [(3, 3), (65, 64), (700, 900), (300_000, 2), (3, 70_000)])
def test_maxima_keep_nan_and_infinity(lowering: str, shape: Shape) -> None:
    """NaN stays in its row and its column, in whatever order the elements are read."""
    cls, _ = load_rule("sm3")
    param = Parameter(torch.ones(shape))
    optimizer = cls([param])
    param.grad = torch.ones(shape)
    param.grad[1, 1], param.grad[2, 0] = math.nan, -math.inf
    with optgen.use_lowering(lowering):
        optimizer.step()

    rows, columns = (optimizer.state[param][key].flatten() for key in ("row_max", "col_max"))
    assert rows.isnan().nonzero().tolist() == columns.isnan().nonzero().tolist() == [[1]]
    assert rows.isinf().nonzero().tolist() == [[2]]
    assert columns.isinf().nonzero().tolist() == [[0]]
    other_rows = torch.ones_like(rows, dtype=torch.bool)
    other_rows[1:3] = False
    assert rows[other_rows].eq(1).all()
    assert columns[2:].eq(1).all()


def test_nan_stays_within_its_parameter() -> None:
    params = [Parameter(torch.ones(300, 300)), Parameter(torch.ones(300, 300))]
    optimizer = Adafactor(params)
    for param in params:
        param.grad = torch.ones_like(param)
    assert params[0].grad is not None
    params[0].grad[17, 3] = torch.nan
    optimizer.step()

    assert params[0].isnan().any()
    rows = optimizer.state[params[0]]["row_var"].isnan().squeeze()
    assert rows.nonzero().tolist() == [[17]]
    assert params[1].isfinite().all()


def test_gradients_are_unscaled_once() -> None:
    check_unscaled_once((80, 70))


def check_unscaled_once(shape: Shape) -> None:
    """Check that the gradient scaler's factor is removed once, for any number of passes."""
    plain, scaled = Parameter(torch.ones(shape)), Parameter(torch.ones(shape))
    plain.grad = random_values([shape], torch.float32, 0)[0]
    scaled.grad = plain.grad * 8
    optimizers = Adafactor([plain]), Adafactor([scaled])
    optimizers[1].grad_scale = torch.tensor(8.0)
    for optimizer in optimizers:
        optimizer.step()

    assert torch.equal(scaled, plain)
    assert torch.equal(scaled.grad, plain.grad)


def has_cached_step(optimizer: Any) -> bool:
    """Tell whether the optimizer has a cached step, whose tensors the C++ reader finds."""
    return optimizer._context.cached_step is not None


@pytest.mark.skipif(reader() is None, reason="no reader on this torch")
def test_a_cached_step_checks_the_shapes_of_states() -> None:
    params = [
        Parameter(value) for value in random_values([(4, 6), (5,), (2, 3, 4)], torch.float64, 0)
    ]
    optimizer, reference = (
        Adafactor(params),
        torch.optim.Adafactor([p.detach().clone() for p in params]),
    )
    others = reference.param_groups[0]["params"]
    for step in range(4):
        for param, other, grad in zip(params, others, grads_of(params, step), strict=True):
            param.grad, other.grad = grad, grad.clone()
        if step == 2:
            assert has_cached_step(optimizer)
        optimizer.step()
        reference.step()
    assert all(relative_error(p, q) < 1e-14 for p, q in zip(params, others, strict=True))

    optimizer.state[params[0]]["row_var"] = torch.zeros(1, 6, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="row_var has the shape"):
        optimizer.step()
