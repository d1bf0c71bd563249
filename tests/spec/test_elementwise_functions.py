"""Test specs of @elementwise functions: how they are read, and their errors."""

from __future__ import annotations

import pytest
from conftest import Golden
from spec_texts import read

from optgen.ir.print_ir import to_text
from optgen.passes.latex import to_latex
from optgen.passes.plan_rule import plan
from optgen.spec import Spec
from optgen.spec.declare import elementwise
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

BODY = "a = a + w * b"


def text(
    *body: str,
    lists: str = "a, b",
    hypers: str = "w=hyper(0.5, ge=0)",
    decorator: str = "@elementwise",
    name: str = "f",
    doc: str = '"""Made up."""',
) -> str:
    """Return a file with one @elementwise function; `body` holds the lines of its rule."""
    rule = "\n".join(f"    {line}" for line in (doc, *(body or (BODY,))) if line)
    head = f"{decorator}\ndef {name}({lists}, /{', *, ' if hypers else ''}{hypers}):"
    return f"from optgen.spec import *\n\n\n{head}\n{rule}\n"


ERRORS = {
    "brackets": text(decorator="@elementwise()"),
    "options": text(decorator='@elementwise(paper="https://example.org")'),
    "two decorators": text(decorator="@elementwise\n@optimizer()"),
    "two decorators the other way": text(decorator="@optimizer()\n@elementwise"),
    "not imported": text().replace("import *", "import hyper"),
    "called like a class": text(name="Average"),
    "called like a word": text(name="sqrt"),
    "one list": text("a = w * a", lists="a"),
    "no slash": text().replace(", /", ""),
    "state": text(lists="a, b, /, m=state('exp_avg')").replace(", /, *", ", *"),
    "list with a default": text(lists="a, b=0"),
    "list called like a word": text(lists="a, sqrt"),
    "list called like a module that the generated code imports": text(lists="a, torch"),
    "star": text().replace("*, w", "*rest, w"),
    "writes none": text("c = a + w * b"),
    "writes all": text("a, b = b, w * a"),
    "list without use": text(lists="a, b, c"),
    "number without use": text("a = b"),
    "local without use": text("c = a - b", "a = w * b"),
    "reduction": text("a = a + w * mean(b)"),
    "reduction to rows": text("a = a + w * row_sum(b)"),
    "matrix word": text("a = orthogonalize(b, (1, 2, 3), 5, w)"),
    "product": text("a = a @ b * w"),
    "transpose": text("a = a + w * transpose(b)"),
    "reduction in a helper": text("a = a + w * half(b)").replace(
        "@el", "def half(x):\n    return mean(x) / 2\n\n\n@el"
    ),
    "property": text("a = a + w * b / numel(b)"),
    "fact": text("if factored(a):", f"    {BODY}"),
    "property required": text('require(ndim(a) == 2, "no")', BODY),
    "fresh": text("if fresh(a):", f"    {BODY}"),
    "steps": text("a = a + w * b / t"),
    "number assigned": text("w = 2 * w", BODY),
    "list becomes a number": text("a = w"),
    "if on a tensor": text("if b > 0:", f"    {BODY}"),
    "fixed": text("if w:", "    a = b", hypers="w=fixed(True)"),
    "option about sparse gradients": text(hypers="w=hyper(0.5, rows=False)"),
    "default outside its range": text(hypers="w=hyper(-1, ge=0)"),
    "no docstring": text(doc=""),
    "nothing but the docstring": text("pass"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        read(ERRORS[name])
    golden.check(str(raised.value))


def test_the_assignments_decide_the_order_of_tensors() -> None:
    """First come the first written list and the first list that is only read, then the others."""
    algorithm = read(text("c = b + w * a + d", "e = c", lists="a, b, c, d, e"))

    assert algorithm.lists == ("a", "b", "c", "d", "e")
    assert algorithm.tensors == ("c", "a", "b", "d", "e")
    assert [s.written for s in algorithm.states] == [False, False, True]
    assert (algorithm.is_function, algorithm.folder, algorithm.stem, algorithm.step) == (
        True,
        "made/f",
        "f",
        None,
    )
    assert [s.stored for s in plan(algorithm).sweeps[0].streams] == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_a_function_is_printed_as_ir_and_as_latex(golden: Golden) -> None:
    algorithm = read(text("if big:", f"    {BODY}", hypers="w=hyper(0.5), big=flag(True)"))

    golden.check("\n".join([to_text(algorithm), to_text(plan(algorithm)), to_latex(algorithm)]))


def test_a_file_may_hold_several_functions() -> None:
    two_functions = text() + text(name="g").partition("\n\n\n")[2]

    assert [a.name for a in read_spec(Spec("made", two_functions, "made.py", 1))] == ["f", "g"]


def test_the_decorator_returns_a_spec() -> None:
    @elementwise
    def halve(a, b, /):
        """Not run."""
        a = b / 2  # noqa: F841

    assert isinstance(halve, Spec)
    assert read_spec(halve)[0].lists == ("a", "b")
    with pytest.raises(TypeError, match="never run"):
        halve([], [])
