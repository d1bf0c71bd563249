"""Test rules in Triton's interpreter: each agrees with the C++ kernel.

To save time, each rule runs in only one of the four dtypes.
"""

import threading
import warnings
from itertools import cycle
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from spec_files import TORCH_SPECS

import optgen
from optgen import use_lowering
from optgen.runtime.fused_triton.interpreter import patched_interpreter

pytest.importorskip("triton")

# `averaging` has no optimizer class, and `sparse_adam` takes no dense gradients.
UNFIT_SPECS = ("averaging", "sparse_adam")
RULES = [path.stem for path in TORCH_SPECS if path.stem not in UNFIT_SPECS]
MATRIX_RULES = ("muon", "row_wise_adagrad")
BOUNDS = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2**-8, torch.float16: 2**-10}
ITERATION_FACTOR = 8
"""The bound of a rule that iterates in 16 bits is larger by this factor."""


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


def tensors_after_two_steps(name: str, dtype: torch.dtype, lowering: str) -> list[torch.Tensor]:
    """Return parameters and states after two steps."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 5), (20, 3)] if name in MATRIX_RULES else [(7, 5), (300,), ()]
    params = [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]
    optimizer: Any = optgen.load(name)(params)
    with use_lowering(lowering):
        for _ in range(2):
            for param in params:
                param.grad = torch.randn(param.shape, generator=generator).to(dtype)
            optimizer.step()
    states = [value for param in params for value in optimizer.state[param].values()]
    return [param.detach() for param in params] + [s for s in states if torch.is_tensor(s)]


@pytest.mark.one_case_in(3)
@inside_interpreter
@pytest.mark.parametrize(("name", "dtype"), [*zip(RULES, cycle(BOUNDS), strict=False)], ids=str)
def test_results_of_a_rule_equal_those_of_its_cpp_kernel(name: str, dtype: torch.dtype) -> None:
    bound = BOUNDS[dtype] * (ITERATION_FACTOR if name == "muon" else 1)
    for found, expected in zip(
        tensors_after_two_steps(name, dtype, "fused_triton"),
        tensors_after_two_steps(name, dtype, "fused_cpu"),
        strict=True,
    ):
        assert found.dtype == expected.dtype
        deviation = (found.double() - expected.double()).abs().max()
        assert deviation <= bound * expected.double().abs().max()


@inside_interpreter
def test_factored_variances_in_16_bits_are_not_zero() -> None:
    """A wrong conversion from float64 to bfloat16 once stored zeros, without an error."""
    param = torch.ones(8, 4, dtype=torch.bfloat16, requires_grad=True)
    param.grad = torch.ones_like(param)
    optimizer: Any = optgen.load("adafactor")([param])
    with use_lowering("fused_triton"):
        optimizer.step()

    assert optimizer.state[param]["row_var"].min() > 0
    assert optimizer.state[param]["col_var"].min() > 0


@inside_interpreter
def test_infinities_cause_no_warning() -> None:
    param = torch.ones(4, requires_grad=True)
    param.grad = torch.tensor([torch.inf, -torch.inf, torch.nan, 3e38])
    with warnings.catch_warnings(), use_lowering("fused_triton"):
        warnings.simplefilter("error", RuntimeWarning)
        optgen.load("adam")([param]).step()

    assert param.isnan().tolist() == [True, True, True, False]


@inside_interpreter
def test_the_interpreter_is_patched_only_within_the_context() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    def methods() -> list[Any]:
        return [getattr(InterpreterBuilder, name) for name in ("cast_impl", "create_splat")]

    def fail_while_patched() -> None:
        with patched_interpreter():
            assert methods() != before
            raise KeyError

    before = methods()
    with pytest.raises(KeyError):
        fail_while_patched()
    assert methods() == before


@inside_interpreter
def test_threads_use_the_interpreter_in_turn() -> None:
    """The interpreter has one global state, which two threads at once would mix up."""
    results: list[list[torch.Tensor]] = []

    def run_adamw() -> None:
        results.append(tensors_after_two_steps("adamw", torch.float32, "fused_triton"))

    threads = [threading.Thread(target=run_adamw) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 3
    for result in results[1:]:
        assert all(map(torch.equal, results[0], result))
