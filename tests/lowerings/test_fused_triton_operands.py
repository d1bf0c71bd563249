"""Test every op as Triton prints it, on tensors, numbers and constants of every dtype.

Results in the interpreter are compared with the op's definition. Some ops also compile for GPUs.
"""

import importlib.util
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from interpreter import inside_interpreter, outside_interpreter, run_inside
from lowerings.test_fused_triton_words import PRINTED_OPS, call_of, meaning
from torch import Tensor

from optgen.ir.nodes import Call, Const, Expr, Ref, rebuild
from optgen.lowerings.fused_triton.expression_printer import ExpressionPrinter
from optgen.runtime.fused_triton.interpreter import patched_interpreter
from optgen.runtime.fused_triton.launch_options import compiler_options

pytest.importorskip("triton")

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TOLERANCES = dict(zip(DTYPES, (4e-6, 1e-13, 2**-8, 2**-10), strict=True))
CONSTANTS = {"x": 2, "y": 1.5, "z": 3}
EXPONENTS = (-9, -3, -1.5, -1, -0.5, 0, 1 / 3, 0.5, 1, 1.5, 2, 3, 9)
X = Ref("x")
VALUES = [0.0, 0.25, 1.0, 1.5, 2.0, 3.75, -0.0, -0.5, -1.0, -2.25, torch.inf, -torch.inf, torch.nan]
NUM_PROGRAMS = 3
"""Triton programs of a launch. A number operand is the value at the program's index."""

HEADER = """import triton
import triton.language as tl
from optgen.runtime.fused_triton.device_functions import *
"""
KERNEL = """
@triton.jit
def {name}(xs, ys, zs, outs, SIZE: tl.constexpr, dtype: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    program = tl.program_id(0)
    x = tl.load(xs + {x}).to(dtype)
    y = tl.load(ys + {y}).to(dtype)
    z = tl.load(zs + {z}).to(dtype)
    result = tl.zeros((SIZE,), dtype) + ({text})
    tl.store(outs + program * SIZE + lanes, result.to(outs.dtype.element_ty))
"""


def read_nothing(expr: Expr) -> None:
    """Return None: the printed code has no variable yet that holds this expression."""


def rewrite(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with every part changed, the innermost first."""
    return change(rebuild(expr, lambda part: rewrite(part, change)))


def with_constants(expr: Expr, kinds: dict[str, str]) -> Expr:
    """Return the expression with constants for the names whose kind is "constant"."""

    def constant(part: Expr) -> Expr:
        is_constant = isinstance(part, Ref) and kinds[part.name] == "constant"
        return Const(CONSTANTS[part.name]) if is_constant else part  # type: ignore[union-attr]

    return rewrite(expr, constant)


def cases(word: str) -> list[tuple[Expr, dict[str, str]]]:
    """Return an op's expressions, with the kind of each of their names."""
    found = []
    names = "xyz"[: max(2, len(call_of(word).args))] if word != "neg" else "x"  # type: ignore
    for operand_kinds in product(("tensor", "number", "constant"), repeat=len(names)):
        kinds = dict.fromkeys("xyz", "tensor") | dict(zip(names, operand_kinds, strict=True))
        found.append((with_constants(call_of(word), kinds), kinds))
    if word == "**":
        for exponent, base_kind in product(EXPONENTS, ("tensor", "number", "constant")):
            kinds = {"x": base_kind, "y": "tensor", "z": "tensor"}
            found.append(
                (with_constants(Call("**", (Call("abs", (X,)), Const(exponent))), kinds), kinds)
            )
            found.append((with_constants(Call("**", (X, Const(exponent))), kinds), kinds))
    return found


CASES = {word.name: cases(word.name) for word in PRINTED_OPS}


def kernel(name: str, expr: Expr, kinds: dict[str, str]) -> str:
    """Return the text of a kernel that computes an expression."""
    offsets = {x: "program" if kind == "number" else "lanes" for x, kind in kinds.items()}
    text = ExpressionPrinter(read_nothing, for_elements=True)(expr)
    return KERNEL.format(name=name, text=text, **offsets)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Return a module with a kernel for each case of each op."""
    kernel_texts = [HEADER]
    for position, word in enumerate(PRINTED_OPS):
        for i, case in enumerate(CASES[word.name]):
            kernel_texts.append(kernel(f"word{position}_{i}", *case))
    path = Path(tmp_path_factory.mktemp("kernels")) / "printed_operands.py"
    path.write_text("\n".join(kernel_texts))
    spec = importlib.util.spec_from_file_location("printed_operands", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__)


def operand_values(word: str, dtype: torch.dtype) -> list[Tensor]:
    """Return values, some of them special; for `%` and `clamp` only valid ones."""
    generator = torch.Generator().manual_seed(0)
    x, y, z = torch.tensor(VALUES, dtype=dtype)[
        torch.randint(len(VALUES), (3, 64), generator=generator)
    ]
    if word == "%":
        x, y = x.nan_to_num(5.5, 7.0, -7.0), y.nan_to_num(2.0, 3.0, -3.0)
        y = torch.where(y == 0, 0.75, y)
    if word == "clamp":
        y, z = torch.full_like(y, -1.0), z.abs().nan_to_num(1.0)
    return [x.contiguous(), y.contiguous(), z.contiguous()]


@inside_interpreter
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "position", range(len(PRINTED_OPS)), ids=[word.name for word in PRINTED_OPS]
)
def test_an_op_on_any_operands_computes_its_definition(
    position: int, dtype: torch.dtype, kernels: ModuleType
) -> None:
    import triton.language as tl

    word = PRINTED_OPS[position].name
    compute_dtype = torch.promote_types(dtype, torch.float32)
    operands = operand_values(word, dtype)
    for i, (expr, kinds) in enumerate(CASES[word]):
        found = torch.empty(NUM_PROGRAMS, 64, dtype=dtype)
        launch = getattr(kernels, f"word{position}_{i}")[(NUM_PROGRAMS,)]
        with patched_interpreter():
            launch(*operands, found, SIZE=64, dtype=getattr(tl, str(compute_dtype).split(".")[1]))
        expected = torch.stack(
            [expected_values(expr, kinds, operands, program) for program in range(NUM_PROGRAMS)]
        )
        torch.testing.assert_close(
            found,
            expected.to(compute_dtype).to(dtype),
            rtol=TOLERANCES[dtype],
            atol=0.0,
            equal_nan=True,
            msg=lambda text, expr=expr, kinds=kinds: f"{expr} of {kinds}: {text}",  # type: ignore
        )


def expected_values(
    expr: Expr, kinds: dict[str, str], operands: list[Tensor], program: int
) -> Tensor:
    """Return an expression's values in float64; comparisons give 1 or 0."""
    values = {name: column.double() for name, column in zip("xyz", operands, strict=True)}
    for name, kind in kinds.items():
        if kind == "number":
            values[name] = values[name][program].expand(64)
    constants = {}

    def constant_to_name(part: Expr) -> Expr:
        if not isinstance(part, Const):
            return part
        name = f"constant {len(constants)}"
        constants[name] = torch.tensor(float(part.value), dtype=torch.float64)  # type: ignore
        return Ref(name)

    found = meaning(rewrite(expr, constant_to_name), values | constants)
    assert isinstance(found, Tensor)
    return found.double().expand(64)


@outside_interpreter
@pytest.mark.parametrize(
    ("capability", "pointee"), [(80, "fp32"), (80, "fp16"), (90, "fp64"), (90, "bf16")]
)
@pytest.mark.parametrize("word", ["**", "lerp", "clamp", "%"])
def test_every_case_compiles_for_a_gpu(
    word: str, capability: int, pointee: str, tmp_path: Path
) -> None:
    import triton
    from triton import language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    lines = [kernel("everything", *CASES[word][0]).rpartition("    result")[0]]
    for expr, _ in CASES[word]:
        text = ExpressionPrinter(read_nothing, for_elements=True)(expr)
        lines.append(f"    result = tl.zeros((SIZE,), dtype) + ({text})")
        lines.append("    tl.store(outs + lanes, result.to(outs.dtype.element_ty))")
    path = tmp_path / "compiled_operands.py"
    path.write_text(HEADER + "\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location("compiled_operands", path)
    assert spec
    assert spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = dict.fromkeys(("xs", "ys", "zs", "outs"), f"*{pointee}")
    signature |= {"SIZE": "constexpr", "dtype": "constexpr"}
    compute_dtype = tl.float64 if pointee == "fp64" else tl.float32
    source = ASTSource(
        fn=module.everything, signature=signature, constexprs={"SIZE": 256, "dtype": compute_dtype}
    )
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        target = GPUTarget("cuda", capability, 32)
        compiled = triton.compile(source, target=target, options=compiler_options(is_amd=False))
    assert "div.full" not in compiled.asm["ptx"]
