"""Test functions over lists in every lowering against the float64 evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, inside_interpreter, outside_interpreter, run_inside
from lowerings.list_rules import ALGORITHMS, CASES, generate_functions, hyper_values
from torch import Tensor

from optgen import use_lowering
from optgen.generated.averaging.ema import ema
from optgen.generated.averaging.swa import swa
from optgen.ir.algorithm import Algorithm
from optgen.ir.evaluate import evaluate
from optgen.runtime.backends import backend
from optgen.spec.read_spec import read_spec

SPEC = Path(__file__).parents[2] / "specs" / "averaging.py"
AVERAGING = {a.name: a for a in read_spec(SPEC)}
LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
SIZES = ((3, 4), (), (0,), (1031,))
BOUNDS = {torch.float64: 1e-12, torch.float32: 3e-7, torch.bfloat16: 2**-8, torch.float16: 2**-11}

Function = Callable[..., None]


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


@pytest.fixture(scope="module")
def generated_functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Function]:
    return generate_functions(tmp_path_factory.mktemp("lists"))


def evaluate_function(
    algorithm: Algorithm, hypers: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Apply a function to one tensor of each of its lists; return the written tensors by name."""
    other_lists = {s.key: tensors[s.symbol].double() for s in algorithm.states}
    inputs = (tensors[algorithm.param], tensors[algorithm.grad])
    param, state = evaluate(algorithm, hypers, *inputs, other_lists)
    written = {s.symbol: state[s.key] for s in algorithm.states if s.written}
    return {algorithm.param: param, **written}


def random_lists(
    names: tuple[str, ...], dtype: torch.dtype, sizes: Any = SIZES
) -> dict[str, list[Tensor]]:
    """Return a list of tensors for each name, with one tensor of each size."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: [torch.randn(size, generator=generator).to(dtype) for size in sizes] for name in names
    }


def check_calls(
    function: Function,
    algorithm: Any,
    options: dict[str, Any],
    dtype: torch.dtype,
    num_calls: int = 3,
) -> None:
    """Compare several calls with the evaluator; each starts from the last call's values."""
    lists = random_lists(algorithm.lists, dtype)
    for _ in range(num_calls):
        tensors_by_position = zip(*lists.values(), strict=True)
        expected = [
            evaluate_function(algorithm, options, dict(zip(lists, tensors, strict=True)))
            for tensors in tensors_by_position
        ]
        before = {name: [t.clone() for t in column] for name, column in lists.items()}
        function(*lists.values(), **options)
        for name, column in lists.items():
            for i, tensor in enumerate(column):
                expected_value = expected[i].get(name, before[name][i].double())
                inputs = [old[i].double() for old in before.values()]
                # The bound is relative to the inputs, because terms may cancel each other.
                magnitudes = torch.cat([t.flatten() for t in (expected_value, *inputs)]).abs()
                scale = (magnitudes.sum() / max(1, expected_value.numel())).item()
                assert tensor.dtype is dtype
                torch.testing.assert_close(
                    tensor.double(), expected_value, rtol=BOUNDS[dtype], atol=BOUNDS[dtype] * scale
                )


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(
    ("function", "options"),
    [(ema, {"decay": 0.9}), (ema, {"decay": 0.1}), (swa, {"count": 3})],
    ids=["ema", "ema with a small decay", "swa"],
)
def test_averages_agree_with_the_rule(
    function: Function, options: Any, lowering: str, dtype: torch.dtype
) -> None:
    with use_lowering(lowering):
        check_calls(function, AVERAGING[function.__name__], options, dtype)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_functions_of_any_number_of_lists_agree_with_the_rule(
    name: str, options: dict[str, Any], lowering: str, generated_functions: dict[str, Function]
) -> None:
    algorithm = ALGORITHMS[name]
    for dtype in (torch.float64, torch.float32):
        with use_lowering(lowering):
            check_calls(
                generated_functions[name], algorithm, hyper_values(algorithm, options), dtype
            )


@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_large_tensor_is_averaged(lowering: str) -> None:
    lists = random_lists(("a", "b"), torch.float32, [(2**18 + 3,), (7, 2**17)])
    expected = [a.lerp(b, 0.25) for a, b in zip(*lists.values(), strict=True)]
    with use_lowering(lowering):
        ema(*lists.values(), decay=0.75)
    for mean, value in zip(lists["a"], expected, strict=True):
        torch.testing.assert_close(mean, value)


@pytest.mark.parametrize("lowering", [name for name in LOWERINGS if name != "foreach"])
def test_a_list_that_is_only_read_is_not_written(
    lowering: str, generated_functions: dict[str, Function]
) -> None:
    """Not even equal values are written: the elements of `low` and `high` share a memory cell."""
    area = [torch.zeros(6, 5, dtype=torch.float16)]
    low, high = [torch.tensor(1.0).expand(6, 5)], [torch.tensor(3.0).half().expand(6, 5)]
    versions = (low[0]._version, high[0]._version, area[0]._version)
    with use_lowering(lowering):
        generated_functions["trapezoid"](low, high, area, width=0.5)

    assert torch.equal(area[0], torch.ones(6, 5).half())
    nan_bits = torch.tensor([0x7D01, 0x3C00, 0x7E05], dtype=torch.int16)  # unusual NaNs, and 1
    unusual_nans = [nan_bits.clone().view(torch.float16)]
    with use_lowering(lowering):
        generated_functions["trapezoid"]([torch.ones(3)], unusual_nans, [torch.ones(3)])
    assert torch.equal(unusual_nans[0].view(torch.int16), nan_bits)
    assert (low[0]._version, high[0]._version) == versions[:2]
    assert area[0]._version > versions[2]


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_call_increments_the_versions_of_written_tensors(
    lowering: str, generated_functions: dict[str, Function]
) -> None:
    slow, fast, momentum = ([torch.ones(3)] for _ in range(3))
    for _ in range(2):  # the second call may use the tables of the first
        before = [column[0]._version for column in (slow, fast, momentum)]
        with use_lowering(lowering):
            generated_functions["look_ahead"](slow, fast, momentum)
        after = [column[0]._version for column in (slow, fast, momentum)]
        assert [b > a for a, b in zip(before, after, strict=True)] == [True, False, True]


@inside_interpreter
def test_up_to_four_tables_are_cached_without_their_tensors() -> None:
    from optgen.generated.averaging import ema as module

    buckets = backend("fused_triton")._function_buckets
    buckets.clear()
    module._update._cached.clear()
    for _ in range(3):
        lists = random_lists(("a", "b"), torch.float32).values()
        with use_lowering("fused_triton"):
            ema(*lists)
    assert len(buckets[module._update]._kept) == 1
    with use_lowering("fused_triton"):
        for size in range(1, 9):
            ema([torch.ones(size)], [torch.ones(size)])
    kept = buckets[module._update]._kept
    assert len(kept) == 4
    assert not any(batch.params for each in kept for batch in each.batches)


@outside_interpreter
def test_a_function_checks_numbers_as_an_optimizer_does(
    generated_functions: dict[str, Function],
) -> None:
    with pytest.raises(ValueError, match=r"Invalid decay value: 1\.5"):
        ema([torch.ones(2)], [torch.ones(2)], decay=1.5)
    with pytest.raises(ValueError, match="Tensor count must be 1-element"):
        swa([torch.ones(2)], [torch.ones(2)], count=torch.ones(2))
    with pytest.raises(ValueError, match="Invalid width value: 0"):
        generated_functions["trapezoid"]([torch.ones(2)], [torch.ones(2)], [torch.ones(2)], width=0)
