"""Test exp, log, tanh and powers of float32 in C++, and exponents that are products in torch."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from compiler_flags import is_clang
from lowerings.test_fused_cpu import SCALAR_ARITHMETIC, compiler_output, cpp_of, sweep_assembly
from torch import Tensor

import optgen
from optgen import use_lowering
from optgen.runtime.toolchain import compiler
from optgen.spec import Spec

MAX_ULPS = 0.6
"""The largest error of a result. Measured over every 29th number of float32: 0.58 for exp."""
SPEC = """from optgen.spec import *

@optimizer(paper="https://example.org")
def Functions(
    p, g, /,
    e=state("e", init="p"),
    l=state("l", init="p"),
    h=state("h", init="p"),
    y=state("y", init="p"),
    kept=state("kept", when="keeps"),
    *,
    c=hyper(0.5),
    keeps=flag(False),
):
    \"\"\"Computes functions of the parameter.\"\"\"
    e = exp(e)
    l = log(l)
    h = tanh(h)
    y = y**c
    p = p**g
    if keeps:
        kept = kept + p
"""
SPECIAL = (0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 1e-45, 1e-38, 3e38, 2.0**24, 16777215.0, math.inf)


def functions(numbers: Tensor, exponents: Tensor, exponent: float) -> dict[str, Tensor]:
    """Return what the C++ computes of numbers: each state by its key, and the parameter."""
    cls = optgen.load(Spec("Functions", SPEC, "functions.py", 1))
    param = torch.nn.Parameter(numbers.clone())
    param.grad = exponents.clone()
    optimizer = cls([param], c=exponent)
    with use_lowering("fused_cpu"):
        optimizer.step()
    return {**optimizer.state[param], "p": param.detach()}


def check(actual: Tensor, expected: Tensor) -> None:
    """Compare numbers with float64: NaN, infinities and signs of zeros, and the error of others."""
    rounded = expected.float()
    special = ~rounded.isfinite() | (rounded == 0)
    torch.testing.assert_close(actual[special], rounded[special], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(actual.signbit()[rounded == 0], rounded.signbit()[rounded == 0])
    spacing = rounded.abs().clamp(min=2.0**-126).frexp().exponent - 24
    errors = (actual.double() - expected).abs() * torch.exp2(-spacing.double())
    assert errors[~special].max() <= MAX_ULPS


def test_functions_of_float32_err_by_less_than_a_unit_in_the_last_place() -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.arange(-(2**31), 2**31, 20011, dtype=torch.int64).to(torch.int32)
    near_one = 1 + 0.01 * torch.randn(100_000, generator=generator)
    x = torch.cat([bits.view(torch.float32), near_one])
    # Exponents for which the powers are mostly finite.
    y = 100 * torch.randn(len(x), generator=generator) / (0.01 + x.abs().log2().abs())

    actual, exact = functions(x, y, 0.25), x.double()

    check(actual["e"], exact.exp())
    check(actual["l"], exact.log())
    check(actual["h"], exact.tanh())
    check(actual["y"], exact**0.25)
    check(actual["p"], exact ** y.double())


def roots(x: Tensor) -> Tensor:
    """Return IEEE's roots. Those of torch are MKL's, and a neighbour of them now and then."""
    return torch.tensor([math.sqrt(n) if n >= 0 else math.nan for n in x.tolist()], dtype=x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_powers_with_simple_exponents_are_torchs(dtype: torch.dtype) -> None:
    values = torch.tensor([*SPECIAL, math.nan])
    x = torch.cat([values, -values, torch.linspace(0.01, 5, 500)]).to(dtype)
    for exponent in (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0):
        actual = functions(x, torch.ones_like(x), exponent)["y"]

        computed = x.float() if dtype is torch.bfloat16 else x
        expected = roots(computed) if exponent == 0.5 else computed**exponent
        message = f"a power of {exponent}"
        torch.testing.assert_close(
            actual, expected.to(dtype), rtol=0, atol=0, equal_nan=True, msg=message
        )


def test_powers_with_other_exponents_have_the_special_cases_of_c() -> None:
    numbers = torch.tensor([*SPECIAL, *(-x for x in SPECIAL), math.nan])
    x, y = torch.cartesian_prod(numbers, numbers).unbind(1)

    check(functions(x, y, 1.0)["p"], x.double() ** y.double())
    for exponent in (-3.0, 1.5, math.inf, -math.inf, math.nan):
        check(functions(numbers, numbers, exponent)["y"], numbers.double() ** exponent)


TWO_POWERS = """from optgen.spec import *

@optimizer(paper="https://example.org")
def Powers(
    p, g, /, a=state("a", init="p"), b=state("b", init="p"), *, c=hyper(0.5), d=hyper(2.0)
):
    \"\"\"Has two powers in one loop.\"\"\"
    a = a**c
    b = abs(b) ** d
    p = a + b + g
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("exponent", [-0.5, 0.5, 2.0, 1.5])
def test_a_power_does_not_depend_on_the_other_exponents(
    dtype: torch.dtype, exponent: float
) -> None:
    cls = optgen.load(Spec("Powers", TWO_POWERS, "powers.py", 1))
    values = torch.tensor([*SPECIAL, math.nan])
    x = torch.cat([values, -values, torch.linspace(0.01, 5, 500)]).to(dtype)
    results = []
    for other in (2.0, 1.5):
        param = torch.nn.Parameter(x.clone())
        param.grad = torch.zeros_like(x)
        optimizer = cls([param], c=exponent, d=other)
        with use_lowering("fused_cpu"):
            optimizer.step()
        results.append(optimizer.state[param]["a"])
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)
    zero = results[0] == 0
    assert torch.equal(results[0].signbit()[zero], results[1].signbit()[zero])


def test_logarithms_know_subnormal_numbers_that_the_processor_does_not() -> None:
    x = torch.tensor([1e-45, 1e-39, -1e-40, -1e-45, 0.0, -0.0])
    exact = x.double().log()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor knows all numbers")
    try:
        logs = functions(x, torch.ones_like(x), 2.0)["l"]
    finally:
        torch.set_flush_denormal(False)
    torch.testing.assert_close(logs, exact.float(), equal_nan=True)


REDUCED = """from optgen.spec import *

@optimizer(paper="https://example.org")
def Reduced(p, g, /, *, c=hyper(0.5)):
    \"\"\"Has functions in a loop that reads a sum.\"\"\"
    n = mean(g)
    p = p - n * abs(g) ** c * log(abs(p)) * exp(n * g)
"""


def test_loops_over_16_bits_beside_sums_are_vectorized(tmp_path: Path) -> None:
    command = compiler.find()
    if command is None or is_clang(command):
        pytest.skip("g++ alone writes this assembly")

    compiler_output(cpp_of(REDUCED, "Reduced"), tmp_path, "-save-temps=obj")

    assembly = next(tmp_path.glob("*kernel.s")).read_text()
    loops = sweep_assembly(assembly, "bfloat16", "VectorPair")
    assert len(loops) == 3  # the sum, and powers of any exponent and of simple ones
    for loop in loops:
        assert not re.search(r"^\s*(?:call|bl)\s+(?!\S*sweep)", loop, re.M), loop


def test_loops_with_functions_are_vectorized(tmp_path: Path) -> None:
    command = compiler.find()
    if command is None or is_clang(command):
        pytest.skip("g++ alone writes this assembly")
    text = cpp_of(SPEC, "Functions")

    compiler_output(text, tmp_path, "-save-temps=obj")

    assembly = next(tmp_path.glob("*kernel.s")).read_text()
    (of_float,) = re.findall(
        r"^_ZN\w+5sweepIfLb0ELb0E\w+:\n(.*?)\.size", assembly, flags=re.M | re.S
    )
    for loop in (of_float, *sweep_assembly(assembly, "bfloat16")):
        assert not re.search(r"^\s*(?:call|bl)\s+(?!\S*sweep)", loop, re.M), loop
        assert not SCALAR_ARITHMETIC.search(loop.partition("# loop")[2]), loop
