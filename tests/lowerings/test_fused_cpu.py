"""Test the C++ that the fused CPU lowering prints: text, warnings and vectorization."""

import re
import subprocess
from itertools import chain
from pathlib import Path

import pytest
from compiler_flags import command_with_flags, is_clang
from conftest import Golden
from spec_files import TORCH_SPECS, spec_file

from optgen import emit
from optgen.ir.nodes import Assign, Call, Const, If, Linear, Ref, Stmt, Term, assigns
from optgen.ir.ops import ELEMENTWISE_OPS, OPS
from optgen.lowerings.fused_cpu import FUSED_CPU
from optgen.lowerings.fused_cpu.cpp_text import (
    RESERVED,
    ExpressionPrinter,
    declarations,
    variable,
    wrapped_list,
    wrapped_statement,
)
from optgen.passes.convert_branches import BranchFlattener
from optgen.runtime.toolchain import compiler
from optgen.runtime.toolchain.library_cache import inline_includes
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec, read_specs

ALGORITHMS = [a for a in read_specs(TORCH_SPECS) if a.base is None]
ALGORITHMS += read_specs(map(spec_file, ("adopt", "kahan_adamw", "stochastic_adamw")))

VECTORIZED_REMARK = r"loop vectorized using (\d+) byte"
REGISTER_BY_BYTES = {16: "xmm", 32: "ymm", 64: "zmm"}
# Instructions on one float. `sub` is left out: `x - 0` broadcasts a number to a vector.
SCALAR_ARITHMETIC = re.compile(r"\bv?(add|mul|div|sqrt|max|min)ss\b")

RULE_MEMBER = re.compile(r"\bR::(\w+)")

EVERYTHING = '''
from optgen.spec import *

@optimizer(paper="https://example.org")
def Everything(
    p, g, t, /,
    m=state("average"),
    v=state("double", when="extra"),
    b=state("buffer", when="momentum"),
    c=state("count", shape="scalar", init=1),
    *,
    lr=hyper(1e-3),
    momentum=hyper(0.0),
    switch=hyper(None, optional=True),
    extra=flag(False),
    warm=flag(False),
    cold=flag(False),
):
    """Uses what the published rules leave out."""
    before = c
    c = c + 0.5 * t
    register = lr / (1 + c)
    if warm:
        if cold and t > 3:
            g = 2 * g
        else:
            g = g - 0.5 * p
    if switch is not None:
        g = clamp(g, -1, switch)
    m = where(g > 0, m + g, m)
    if extra:
        v = maximum(v, abs(g))
    if momentum:
        if fresh(b):
            b = g
        else:
            b = momentum * b + g
        g = b
    p = p - register * before * g / (abs(m) + 1)
'''


def cpp_of(source: str, name: str) -> str:
    """Return the C++ of a spec."""
    (algorithm,) = read_spec(Spec(name, source, f"{name}.py", 1))
    return emit.render(algorithm, FUSED_CPU, None)


def compiler_output(source: str, folder: Path, *flags: str) -> str:
    """Compile a generated source with the runtime's flags; return the compiler's output."""
    path = folder / "kernel.cpp"
    path.write_text(inline_includes(source))
    command = command_with_flags()
    # Of clang, nobody asks that it vectorizes every loop.
    extra = ["-Wno-pass-failed"] if is_clang(command) else []
    done = subprocess.run(
        [*command, *extra, *flags, str(path), "-o", str(folder / "kernel.so")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def vector_bytes(folder: Path) -> int:
    """Return the bytes of this machine's vectors, as the compiler uses them in a simple loop."""
    loop = "void scale(float* x, long n) { for (long i = 0; i < n; ++i) x[i] *= 2; }"
    return max(
        map(
            int,
            re.findall(
                VECTORIZED_REMARK, compiler_output(loop, folder, "-fopt-info-vec-optimized")
            ),
        )
    )


def test_constructs_of_no_published_rule_compile_without_a_warning(
    golden: Golden, tmp_path: Path
) -> None:
    text = cpp_of(EVERYTHING, "Everything")

    golden.check(text)
    assert compiler_output(text, tmp_path, "-Wall", "-Wextra") == ""


@pytest.mark.one_case_in(10)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.module)
def test_published_rules_compile_without_a_warning_and_vectorize(
    algorithm: object, tmp_path: Path
) -> None:
    text = emit.render(algorithm, FUSED_CPU, None)  # type: ignore[arg-type]

    assert max(map(len, text.splitlines())) <= 100
    command = compiler.find()
    assert command is not None
    if is_clang(command):
        assert compiler_output(text, tmp_path, "-Wall", "-Wextra") == ""
        pytest.skip("only g++ reports on vectors in this form")
    flags = ("-Wall", "-Wextra", "-fopt-info-vec-optimized", "-save-temps=obj")
    width, report = vector_bytes(tmp_path), compiler_output(text, tmp_path, *flags)
    assert "warning" not in report, report
    lines = inline_includes(text.partition("#ifndef OPTGEN_SPARSE")[0]).splitlines()
    loop_head = re.compile(r"for \(i64 i = \w+; i < (n|end); (\+\+i|i \+= LANES<C>)\) \{")
    loop_line = max(i for i, line in enumerate(lines, 1) if loop_head.search(line))
    num_loops = len(re.findall("sweep<[SC], ", text)) or 1
    num_loops -= "decltype" in text  # a match in a decltype is no loop
    widths = re.findall(rf":{loop_line}:\d+: optimized: {VECTORIZED_REMARK}", report)
    num_vectorized = widths.count(str(width))
    assert num_vectorized >= 2 * num_loops, report  # each in float and in double
    if "elementwise_kernel.h" in text:
        assembly = next(tmp_path.glob("*kernel.s")).read_text()
        sweeps = [sweep_assembly(assembly, half) for half in ("bfloat16", "float16")]
        assert [len(each) for each in sweeps] == [num_vectorized // 2] * 2
        for sweep in chain(*sweeps):
            assert width not in REGISTER_BY_BYTES or f"%{REGISTER_BY_BYTES[width]}" in sweep
            assert not SCALAR_ARITHMETIC.search(sweep), sweep


@pytest.mark.parametrize("name", ["adam", "came"])
def test_no_compiler_fuses_a_product_and_a_sum(name: str, tmp_path: Path) -> None:
    """The only fused multiply-adds are those of simd.h, in loops over 16-bit numbers."""
    algorithm = next(each for each in read_specs([spec_file(name)]) if each.base is None)
    source = emit.render(algorithm, FUSED_CPU, None)

    compiler_output(source, tmp_path, "-save-temps=obj")

    assembly = next(tmp_path.glob("*kernel.s")).read_text()
    written_by_hand = re.compile(r"^\s*(?:#|//)\s?APP$.*?^\s*(?:#|//)\s?NO_APP$", re.M | re.S)
    fused = re.compile(r"^\s*(?:vfn?m(?:add|sub)\w*|fn?m(?:la|ls|ad|sb|add|sub))\s", re.M)
    assert fused.findall(written_by_hand.sub("", assembly)) == []


def sweep_assembly(assembly: str, stored: str, computed: str = "") -> list[str]:
    """Return the assembly of each sweep over tensors stored in a dtype, computed in a C++ type."""
    type_name = f"NS_{len(computed)}{computed}E" if computed else ""
    name = rf"_ZN\w+\dsweep\d*INS_{len(stored)}{stored}E{type_name}\w+"
    return re.findall(rf"^{name}:\n(.*?)\.size", assembly, flags=re.M | re.S)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "sparse_adam"])
def test_code_for_sparse_gradients_compiles_without_a_warning(name: str, tmp_path: Path) -> None:
    (algorithm,) = (a for a in ALGORITHMS if a.module == name)
    text = f"#define OPTGEN_SPARSE\n{emit.render(algorithm, FUSED_CPU, None)}"

    assert compiler_output(text, tmp_path, "-Wall", "-Wextra") == ""


def test_names_reserved_in_cpp_get_an_underscore() -> None:
    assert variable("double") == "double_"
    assert variable("n") == "n_"
    assert variable("n_") == "n__"
    assert variable("exp_avg") == "exp_avg"


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("ending", ["\\\\", "\\\\ "])
def test_a_comment_ends_with_its_line(ending: str, tmp_path: Path) -> None:
    """A backslash at the comment's end would make the next line a comment."""
    text = cpp_of(EVERYTHING.replace("leave out.", f"leave out {ending}"), "Everything")

    assert "leave out\n" in text
    assert compiler_output(text, tmp_path, "-Wall", "-Wextra") == ""


def test_members_that_headers_read_from_a_rule_are_reserved_names() -> None:
    """Headers read members such as `R::CODES`; a stream of that name would replace it."""
    folder = Path(compiler.__file__).parents[1] / "fused_cpu" / "include"
    members = {
        name for path in folder.glob("*.h") for name in RULE_MEMBER.findall(path.read_text())
    }
    assert {"CODES", "READ_ONLY", "STEPS"} <= members
    assert members - {"template"} <= RESERVED


def test_every_elementwise_op_is_printed() -> None:
    a, b, c = Ref("a"), Ref("b"), Ref("c")
    for name in ELEMENTWISE_OPS:
        if name == "fresh":
            continue  # a condition of the sweep, not an expression
        for for_elements in (False, True):
            text = ExpressionPrinter(for_elements)(Call(name, (a, b, c)[: OPS[name].arity]))
            assert re.search(r"\ba\b", text)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (Call("-", (Ref("a"), Call("-", (Ref("b"), Ref("c"))))), "a - (b - c)"),
        (Call("/", (Const(1), Const(2))), "1 / 2.0"),
        (Call("**", (Ref("a"), Const(2))), "a * a"),
        (Call("**", (Const(2), Ref("a"))), "pow(C(2), a)"),
        (Call("*", (Const(0.5), Ref("a"))), "C(0.5) * a"),
        (Call("maximum", (Ref("a"), Const(0))), "maximum(a, C(0))"),
        (
            Call("*", (Ref("a"), Call("where", (Ref("b"), Ref("c"), Ref("a"))))),
            "a * where<C>(b, c, a)",
        ),
        (Linear((Term(Call("neg", (Ref("a"),)), (Ref("b"),), (Ref("c"),)),)), "-a * b / c"),
        (Linear((Term(Const(-1), (Ref("a"),)), Term(Const(1), (Ref("b"),)))), "-a + b"),
    ],
)
def test_an_expression_reads_as_a_person_would_write_it(expression: Linear, text: str) -> None:
    assert ExpressionPrinter(for_elements=True)(expression) == text


def test_nested_branches_become_consecutive_branches() -> None:
    def assign(name: str) -> Assign:
        return Assign(Ref(name), Const(0))

    settled = If(Ref("settled"), (If(Ref("a"), (assign("x"),), (assign("y"),)),))
    outer = If(Ref("b"), (assign("u"), settled, assign("v")), (assign("w"),))
    flat = BranchFlattener(lambda condition: condition == Ref("settled"))((settled, outer))

    def names(program: tuple[Stmt, ...]) -> list[str]:
        return [a.target.name for a in assigns(program)]

    assert flat[0] == settled
    assert names(flat[1:]) == ["u", "x", "y", "v", "w"]
    conditions = [stmt.condition for stmt in flat if isinstance(stmt, If)]
    assert conditions == [
        Ref("settled"),
        Ref("b"),
        Ref("settled"),
        Ref("b"),
        Call("not", (Ref("b"),)),
    ]
    inner = flat[2]
    assert isinstance(inner, If)
    assert [stmt.condition for stmt in inner.then if isinstance(stmt, If)] == [
        Call("and", (Ref("b"), Ref("a"))),
        Call("and", (Ref("b"), Call("not", (Ref("a"),)))),
    ]


def test_long_lines_are_folded_at_the_operators_that_bind_least() -> None:
    line = "x = " + " + ".join(f"(aaaaaaaa * {name})" for name in "abcdefgh") + ";"
    lines = wrapped_statement(line, 8)
    assert len(lines) == 2
    assert all(len(line) <= 92 for line in lines)
    assert lines[1].startswith("    + (aaaaaaaa * ")
    assert wrapped_statement("x = " + "a" * 200 + ";", 0) == ["x = " + "a" * 200 + ";"]

    items = [f"item{number}" for number in range(30)]
    call = wrapped_list("call(", items, ");", 4)
    assert call[0] == "call("
    assert all(len(line) <= 96 for line in call)
    assert "".join(call).replace(" ", "") == f"call({','.join(items)});"
    assert declarations("double", items[:3], 4) == ["double item0, item1, item2;"]
    assert all(line.startswith("double item") for line in declarations("double", items, 4))
