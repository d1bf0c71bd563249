"""Test every op as Triton prints it, on tensors and on scalars, against the op's definition."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from torch import Tensor

from optgen.ir.meanings import MEANINGS
from optgen.ir.nodes import Call, Const, Expr, Ref
from optgen.ir.ops import ELEMENTWISE_OPS, OPS
from optgen.lowerings.fused_triton.expression_printer import (
    CALLS,
    RESERVED,
    ExpressionPrinter,
    variable,
)
from optgen.runtime.fused_triton.interpreter import patched_interpreter
from optgen.runtime.fused_triton.launch_options import compiler_options

pytest.importorskip("triton")

X, Y, Z = (Ref(name) for name in "xyz")
# Roundings have tests of their own: their second operand is the machine epsilon of a dtype.
PRINTED_OPS = [
    OPS[name] for name in ELEMENTWISE_OPS if OPS[name].category not in ("lookup", "storage")
]
SPECIAL_VALUES = [0.0, -0.0, 1.0, -1.5, 2.25, torch.inf, -torch.inf, torch.nan]

KERNEL = """
@triton.jit
def {name}(xs, ys, zs, outs, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    x = tl.load(xs + lanes)
    y = tl.load(ys + lanes)
    z = tl.load(zs + lanes)
    tl.store(outs + lanes, {text})
"""
SCALAR_KERNEL = """
@triton.jit
def {name}(xs, ys, zs, outs, SIZE: tl.constexpr):
    x = tl.load(xs + tl.program_id(0))
    y = tl.load(ys + tl.program_id(0))
    z = tl.load(zs + tl.program_id(0))
    tl.store(outs + tl.program_id(0), {text})
"""


KERNEL_OF_ALL_WORDS = """
@triton.jit
def everything(xs, ys, zs, outs, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    x = tl.load(xs + lanes)
    y = tl.load(ys + lanes)
    z = tl.load(zs + lanes)
    n = y.to(tl.int32)
"""


def read_nothing(expr: Expr) -> None:
    """Return None, because no code around the expression provides its value."""


TENSOR_PRINTER, SCALAR_PRINTER = (
    ExpressionPrinter(read_nothing, for_elements=True),
    ExpressionPrinter(read_nothing, for_elements=False),
)


def call_of(word: str) -> Expr:
    """Return a call of the op on names; the arguments of logic are comparisons."""
    if word == "where":
        return Call("where", (Call("<", (X, Y)), Y, Z))
    if OPS[word].category == "logic":
        comparisons = (Call("<", (X, Y)), Call(">=", (Y, Const(1))))
        return Call(word, comparisons[: OPS[word].arity])
    return Call(word, (X, Y, Z)[: OPS[word].arity])


def meaning(expr: Expr, values: dict[str, Tensor]) -> Any:
    """Return the value of an expression, by the definitions of its ops."""
    match expr:
        case Const(value):
            return value
        case Ref(name):
            return values[name]
        case Call(word, args):
            return MEANINGS[word](*(meaning(a, values) for a in args))
    raise TypeError(expr)


def argument_values(word: str, dtype: torch.dtype) -> list[Tensor]:
    """Return all triples of special values. Bases of powers are positive, bounds are in order."""
    grid = torch.cartesian_prod(*[torch.tensor(SPECIAL_VALUES, dtype=dtype)] * 3).T.contiguous()
    x, y, z = (row.clone() for row in grid)
    if word == "**":
        x = x.abs().nan_to_num(1.5, posinf=3.0) + 0.25
        y = y.nan_to_num(0.5, posinf=4.0, neginf=-2.0)
    if word == "%":
        x, y = x.nan_to_num(5.5, posinf=7.0, neginf=-7.0), y.abs().nan_to_num(2.0, posinf=3.0) + 0.5
    if word == "clamp":
        y, z = torch.minimum(y, z).nan_to_num(-1.0), torch.maximum(y, z).nan_to_num(1.0)
    return [x, y, z]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Return a module with two printed kernels for each op."""
    kernel_texts = [
        "import triton\nimport triton.language as tl\n"
        "from optgen.runtime.fused_triton.device_functions import *\n"
    ]
    for i, word in enumerate(PRINTED_OPS):
        kernel_texts.append(
            KERNEL.format(name=f"tensor{i}", text=TENSOR_PRINTER(call_of(word.name)))
        )
        kernel_texts.append(
            SCALAR_KERNEL.format(name=f"scalar{i}", text=SCALAR_PRINTER(call_of(word.name)))
        )
    stores = [
        f"    tl.store(outs + lanes, {TENSOR_PRINTER(call_of(word.name))})" for word in PRINTED_OPS
    ]
    kernel_texts.append(
        KERNEL_OF_ALL_WORDS + "\n".join([*stores, "    tl.store(outs + lanes, ipow(x, n))"])
    )
    path = Path(tmp_path_factory.mktemp("kernels")) / "printed_words.py"
    path.write_text("\n".join(kernel_texts))
    spec = importlib.util.spec_from_file_location("printed_words", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


@inside_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("position", range(len(PRINTED_OPS)), ids=[w.name for w in PRINTED_OPS])
def test_an_op_on_tensors_computes_its_definition(
    position: int, dtype: torch.dtype, kernels: ModuleType
) -> None:
    kernel = getattr(kernels, f"tensor{position}")
    check_op(
        PRINTED_OPS[position].name,
        dtype,
        lambda *a: kernel[(1,)](*a, SIZE=len(SPECIAL_VALUES) ** 3),
    )


@inside_interpreter
@pytest.mark.parametrize("position", range(len(PRINTED_OPS)), ids=[w.name for w in PRINTED_OPS])
def test_an_op_on_scalars_computes_its_definition(position: int, kernels: ModuleType) -> None:
    kernel = getattr(kernels, f"scalar{position}")
    check_op(
        PRINTED_OPS[position].name,
        torch.float64,
        lambda *a: kernel[(len(SPECIAL_VALUES) ** 3,)](*a, SIZE=1),
    )


PRECISE_FUNCTIONS: dict[str, Callable[..., Any]] = {"tanh": np.tanh, "atan2": np.arctan2}
"""Functions that Triton lacks, and NumPy's, which compute the expected values in `longdouble`."""


@inside_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("word", PRECISE_FUNCTIONS)
def test_results_are_within_3_units_in_the_last_place(
    word: str, dtype: torch.dtype, kernels: ModuleType
) -> None:
    """The operands are about 0.02 to 7 in magnitude.

    The interpreter's `exp` is NumPy's, so the error of a GPU's approximate `exp` is not tested.
    """
    position = [op.name for op in PRINTED_OPS].index(word)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(3, 2**15, generator=generator, dtype=torch.float64)
    scale = torch.exp(6 * torch.rand(3, 2**15, generator=generator, dtype=torch.float64) - 4)
    arguments = [*(normal * scale).to(dtype)]
    found = torch.empty_like(arguments[0])
    with patched_interpreter():
        getattr(kernels, f"tensor{position}")[(1,)](*arguments, found, SIZE=2**15)

    long_arguments = [x.numpy().astype(np.longdouble) for x in arguments[: OPS[word].arity]]
    expected = PRECISE_FUNCTIONS[word](*long_arguments)
    unit = np.spacing(np.abs(expected).astype(found.numpy().dtype))
    assert (np.abs(found.numpy() - expected) <= 3 * unit).all()


@outside_interpreter
@pytest.mark.parametrize("pointee", ["fp32", "fp64"])
@pytest.mark.parametrize("target", [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)])
def test_every_word_compiles_for_a_gpu(
    target: Any, pointee: str, kernels: ModuleType, tmp_path: Path
) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = dict.fromkeys(("xs", "ys", "zs", "outs"), f"*{pointee}") | {"SIZE": "constexpr"}
    source = ASTSource(fn=kernels.everything, signature=signature, constexprs={"SIZE": 256})
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        compiled = triton.compile(
            source, target=GPUTarget(*target), options=compiler_options(target[0] == "hip")
        )
    if target[0] == "cuda":
        assert "div.full" not in compiled.asm["ptx"]
        assert "sqrt.approx" not in compiled.asm["ptx"]


def check_op(word: str, dtype: torch.dtype, launch: Callable[..., Any]) -> None:
    """Compare a kernel of an op with the op's definition."""
    arguments = argument_values(word, dtype)
    expected = meaning(call_of(word), dict(zip("xyz", arguments, strict=True))).to(dtype)
    found = torch.empty_like(expected)
    with patched_interpreter():
        launch(*arguments, found)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=0.0, equal_nan=True)


def test_every_word_can_be_printed() -> None:
    for word in PRINTED_OPS:
        assert TENSOR_PRINTER(call_of(word.name))
        assert SCALAR_PRINTER(call_of(word.name))
    assert set(CALLS) <= set(OPS)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (Call("-", (X, Call("-", (Y, Z)))), "x - (y - z)"),
        (Call("*", (Call("+", (X, Y)), Z)), "(x + y) * z"),
        (Call("/", (X, Call("*", (Y, Z)))), "x / (y * z)"),
        (Call("neg", (Call("+", (X, Y)),)), "neg(x + y)"),
        (Call("**", (Call("-", (X, Y)), Const(2))), "(x - y) * (x - y)"),
        (Call("**", (X, Ref("step"))), "ipow(x, step)"),
        (Call("**", (Const(2), Ref("step"))), "ipow(tl.full((), 2, tl.float64), step)"),
        (Call("**", (X, Const(-2))), "div(1.0, x * x)"),
        (Call("**", (X, Call("+", (Ref("step"), Const(1))))), "ipow(x, step + 1)"),
        (Call("**", (X, Call("*", (Ref("step"), Y)))), "power(x, step * y)"),
        (Call("**", (Const(2), Const(-3))), "div(1.0, FULL * FULL * FULL)"),
        (Call("**", (X, Const(0.5))), "sqrt(x)"),
        (Call("**", (X, Const(-0.5))), "div(1.0, sqrt(x))"),
        (Call("**", (Const(-2), X)), "power(-2, x)"),
    ],
)
def test_scalar_expressions_keep_the_authors_order(expr: Expr, text: str) -> None:
    assert SCALAR_PRINTER(expr) == text.replace("FULL", "tl.full((), 2, tl.float64)")


def test_a_name_that_kernels_use_themselves_gets_an_underscore() -> None:
    assert "table" in RESERVED
    assert variable("table") == "table_"
    assert variable("table_") == "table__"
    assert variable("exp_avg") == "exp_avg"
