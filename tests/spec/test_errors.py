"""Test the text of every error of the spec language: place, line, caret, and hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Golden
from spec_texts import LR, UPDATE, read, spec

import optgen
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec, read_specs

M = 'm=state("exp_avg")'
BIG = "big=flag(False)"
HELPER = "def half(x):\n    return 0.5 * x"

RULES = {
    "unknown name": spec("p = p - lr * grad"),
    "unknown name, close": spec("beta1 = 0.5", "p = p - lr * beta * g"),
    "unknown function": spec("p = p - lr * sqroot(g)"),
    "unknown function, far": spec("p = p - lr * newton_schulz(g)"),
    "function as a value": spec("p = p - lr * sqrt"),
    "for": spec("for i in range(3):", f"    {UPDATE}"),
    "while": spec("while t > 3:", f"    {UPDATE}"),
    "with": spec("with g:", f"    {UPDATE}"),
    "nested function": spec("def f(x):", "    return x", UPDATE),
    "import in a rule": spec("import math", UPDATE),
    "return": spec(f"return {UPDATE.split('= ')[1]}"),
    "augmented assignment": spec("p -= lr * g"),
    "annotated assignment": spec("u: float = 1", UPDATE),
    "chained assignment": spec("u = w = g", UPDATE),
    "assignment to an item": spec("p[0] = g", UPDATE),
    "attribute on the left": spec("p.x, u = g, g", UPDATE),
    "name twice on the left": spec("u, u = g, p", UPDATE),
    "statement without effect": spec("sqrt(g)", UPDATE),
    "assignment without effect": spec("g = g", UPDATE),
    "if on a tensor": spec("if g > 0:", f"    {UPDATE}"),
    "elif on a tensor": spec("if lr:", f"    {UPDATE}", "elif p == g:", f"    {UPDATE}"),
    "if on a computed tensor": spec("u = g * g", "if u:", f"    {UPDATE}"),
    "condition with one answer": spec("if True:", f"    {UPDATE}"),
    "state outside its condition": spec(
        "m = m + g",
        "p = p - lr * m",
        states='m=state("exp_avg", when="big")',
        hypers=f"{LR}, {BIG}",
    ),
    "state read outside its condition": spec(
        "if big:",
        "    m = m + g",
        "p = p - lr * m",
        states='m=state("exp_avg", when="big")',
        hypers=f"{LR}, {BIG}",
    ),
    "state under the opposite of its condition": spec(
        "if not big:",
        "    m = m + g",
        UPDATE,
        states='m=state("exp_avg", when="big")',
        hypers=f"{LR}, {BIG}",
    ),
    "undefined on this path": spec("if t > 5:", "    u = g", "p = p - lr * u"),
    "undefined in one arm": spec("if t > 5:", "    u = g", "else:", "    w = g", "p = p - lr * w"),
    "wrong arity": spec("p = p - lr * sqrt(g, p)"),
    "wrong arity of two": spec("p = p - lr * maximum(g)"),
    "keyword argument": spec("p = p - lr * sqrt(x=g)"),
    "keyword argument of clamp": spec("p = p - lr * clamp(g, max=1)"),
    "wrong arity of where": spec("p = p - lr * where(g > 0, g)"),
    "wrong arity of lerp": spec("p = p - lr * lerp(g, p)"),
    "starred argument": spec("p = p - lr * maximum(*g)"),
    "attribute call": spec("p = p - lr * g.sqrt()"),
    "module call": spec("p = p - lr * torch.sqrt(g)"),
    "attribute": spec("p = p - lr * g.data"),
    "attribute T": spec("p = p - lr * g.T"),
    "slice": spec("p = p - lr * g[0:2]"),
    "two values": spec("p = p - lr * two(g)", before="def two(x):\n    return x, x"),
    "conditional expression": spec("p = p - (lr if t > 3 else 1) * g"),
    "lambda": spec("u = lambda x: x", UPDATE),
    "walrus": spec("p = p - (u := lr) * g"),
    "list": spec("p = p - lr * [g]"),
    "floor division": spec("p = p - lr // 2 * g"),
    "membership": spec("if t in lr:", f"    {UPDATE}"),
    "is with a number": spec("if t is 3:", f"    {UPDATE}"),
    "equal to None": spec("if lr == None:", f"    {UPDATE}"),
    "None of a local": spec("u = t", "if u is None:", f"    {UPDATE}"),
    "flag as a number": spec("p = p - lr * big * g", hypers=f"{LR}, big=flag(False)"),
    "comparison as a number": spec("p = p - lr * (t > 3) * g"),
    "string as a number": spec('p = p - lr * "a" * g'),
    "None as a number": spec("p = p - None * g"),
    "tuple as a number": spec("p = p - lrs * g", hypers="lrs=hyper((1, 2))"),
    "tuple assigned": spec("u = lrs", "p = p - u[0] * g", hypers="lrs=hyper((1, 2))"),
    "item of a number": spec("p = p - lr[0] * g"),
    "item out of range": spec("p = p - lrs[2] * g", hypers="lrs=hyper((1, 2))"),
    "wrong unpacking": spec("a, b, c = lrs", UPDATE, hypers=f"{LR}, lrs=hyper((1, 2))"),
    "wrong number of values": spec("a, b = g, g, g", UPDATE),
    "unpacking a tensor": spec("a, b = g", UPDATE),
    "where on a number": spec("p = where(g, p, lr * g)"),
    "fresh of no state": spec("if fresh(g):", f"    {UPDATE}"),
    "choice that does not exist": spec(
        'if mode == "meen":', f"    {UPDATE}", hypers=f'{LR}, mode=choice("mean", "sum")'
    ),
    "choice as a condition": spec(
        "if mode:", f"    {UPDATE}", hypers=f'{LR}, mode=choice("mean", "sum")'
    ),
    "order of a choice": spec(
        'if mode < "sum":', f"    {UPDATE}", hypers=f'{LR}, mode=choice("mean", "sum")'
    ),
    "word assigned": spec("sqrt = g", UPDATE),
    "hyperparameter assigned": spec("lr = lr / t", UPDATE),
    "step assigned": spec("t = t + 1", UPDATE),
    "constant assigned": spec("SCALE = 3 * g", UPDATE, before="SCALE = 2"),
    "reserved name assigned": spec("maximize = 3", UPDATE),
    "not ASCII": spec("β = 3", UPDATE),
    "parameter becomes a number": spec("p = lr"),
    "scalar state becomes a tensor": spec(
        "s = s * g", "p = p - s", states='s=state("mu", shape="scalar")'
    ),
    "state becomes a number": spec("m = 2 * lr", "p = p - m", states=M),
    "number becomes a tensor": spec("u = lr", "u = u * g", "p = p - u"),
    "number in one arm, tensor in the other": spec(
        "if t > 3:", "    u = lr", "else:", "    u = g", "p = p - u"
    ),
    "answer becomes a number": spec("u = t > 3", "u = 3", UPDATE),
    "unused state": spec(UPDATE, states=M),
    "state never written": spec("p = p - lr * m", states=M),
    "whole quotient": spec("p = p - lr * ((t + 1) // 2) * g"),
    "pi": spec("p = p - lr * pi * g"),
    "an identity that is no matrix": spec(
        "m = m + g", "p = p - lr * m", states='m=state("m", init="identity")'
    ),
    "an identity of a square matrix": spec(
        *('require(ndim(p) == 2, "no")', "m = m + g @ transpose(g)", "p = p - lr * m @ g"),
        states='m=state("m", shape=("rows", "rows"), init="identity")',
    ),
    "state never read": spec("m = g", UPDATE, states=M),
    "parameter never written": spec("u = lr * g"),
    "unused hyperparameter": spec(UPDATE, hypers=f"{LR}, eps=hyper(1e-8)"),
    "require without message": spec("require(lr > 0)", UPDATE),
    "require of a step": spec('require(t > 0, "no")', UPDATE),
    "require of a local": spec("u = 3", 'require(u > 0, "no")', UPDATE),
    "unknown name in a message": spec('require(lr > 0, "lr is {LR}")', UPDATE),
    "no such item in a message": spec('require(lr > 0, "lr is {lr[0]}")', UPDATE),
    "code in a message": spec('require(lr > 0, "lr is {lr!r:>3}")', UPDATE),
    "unbalanced message": spec('require(lr > 0, "lr is {lr")', UPDATE),
    "require in a branch": spec("if lr:", '    require(lr > 0, "no")', UPDATE),
    "require of a tensor": spec('require(g > 0, "no")', UPDATE),
    "require of a state": spec('require(m > 0, "no")', "m = m + g", "p = p - lr * m", states=M),
    "word in a require": spec('require(clamp(lr, 0, 1) > 0, "no")', UPDATE),
    "where in a require": spec('require(where(lr > 0, lr, 1) > 0, "no")', UPDATE),
    "require violated by the defaults": spec('require(lr > 1, "lr is {lr}")', UPDATE),
    "require without an answer": spec(
        'require(log(cap) > 0, "no")', UPDATE, hypers=f"{LR}, cap=hyper(-1.0)"
    ),
    "number that may be None": spec(
        "p = p - lr * cap * g", hypers=f"{LR}, cap=hyper(None, optional=True)"
    ),
    "number that may be None in one operand": spec(
        "if cap is not None or lr > cap:",
        "    g = 2 * g",
        UPDATE,
        hypers=f"{LR}, cap=hyper(None, optional=True)",
    ),
    "number of a tuple that may be None": spec(
        "low, high = limits",
        "p = p - lr * (low + high) * g",
        hypers=f"{LR}, limits=hyper((None, 0.5), optional=True)",
    ),
    "gradient never read": spec("p = p - lr * p"),
    "local never read": spec("c = 2 * g", UPDATE),
    "local read in a helper only": spec("c = g", UPDATE, before=HELPER.replace("x", "c")),
    "step count that is not an input": spec("p = p - lr * g / t", inputs="p, g"),
    "missing docstring": spec(doc=""),
    "comment as docstring": spec(doc="# Made up."),
}
SIGNATURES = {
    "shadows a word": spec(hypers=f"{LR}, sqrt=hyper(1)"),
    "shadows a function that it calls": spec("floor = 2 * lr", "p = p - floor(g) * floor"),
    "state shadows a word": spec(states='maximum=state("exp_avg")'),
    "reserved argument": spec(hypers=f"{LR}, maximize=flag(False)"),
    "a group option as a hyperparameter": spec(hypers=f"{LR}, view=hyper((6, 4))"),
    "name of the generated code": spec(hypers=f"{LR}, torch=hyper(1)"),
    "list of the generated code": spec(hypers=f"{LR}, grads=hyper(1)"),
    "names that differ in case": spec(hypers=f"{LR}, LR=hyper(1)"),
    "name of the generated flag of a fresh state": spec(
        states=M, hypers=f"{LR}, fresh_exp_avg=hyper(1)"
    ),
    "name that t gets in the generated code": spec(hypers=f"{LR}, step=hyper(1)"),
    "same as a constant": spec(before="EPS = 1", hypers=f"{LR}, EPS=hyper(1)"),
    "no slash": spec().replace("p, g, t, /,", "p, g, t,"),
    "one input": spec(inputs="p"),
    "five inputs": spec(inputs="p, g, t, h, u"),
    "input with a default": spec(inputs="p, g, t=3"),
    "args": spec().replace("*, lr", "*args, lr"),
    "kwargs": spec().replace("):", ", **more):"),
    "undeclared state": spec(states="m=0"),
    "undeclared hyperparameter": spec(hypers="lr=0.1"),
    "hyperparameter without default": spec(hypers="lr"),
    "hyperparameter among states": spec(states="m=hyper(1)"),
    "state among hyperparameters": spec(hypers=f"{M}, {LR}"),
    "duplicate argument": spec(hypers=f"{LR}, {LR}"),
    "duplicate checkpoint key": spec(states=f'{M}, v=state("exp_avg")'),
    "key of the step": spec(states='m=state("step")'),
    "key of the step without a step count": spec(states='m=state("step")', inputs="p, g"),
    "key of a hyperparameter": spec(states='m=state("lr")'),
    "key of the parameter": spec(states='m=state("param")'),
    "key that is a keyword": spec(states='m=state("lambda")'),
    "key that is no name": spec(states='m=state("exp avg")'),
    "no key": spec(states="m=state()"),
    "unknown state option": spec(states='m=state("exp_avg", shap="scalar")'),
    "bad shape": spec(states='m=state("exp_avg", shape="row")'),
    "bad dtype": spec(states='m=state("exp_avg", dtype="int8")'),
    "bad block": spec(states='m=state("exp_avg", dtype="8bit", block=100)'),
    "block that is no whole number": spec(states='m=state("exp_avg", dtype="8bit", block=64.0)'),
    "bad map": spec(states='m=state("exp_avg", dtype="8bit", map="log")'),
    "map of other codes": spec(states='m=state("exp_avg", dtype="fp8", map="linear")'),
    "bad least size": spec(states='m=state("exp_avg", dtype="8bit", min_elements=-1)'),
    "block without codes": spec(states='m=state("exp_avg", block=64)'),
    "codes of a row": spec(states='m=state("exp_avg", dtype="8bit", shape="row")'),
    "codes of one number": spec(states='m=state("exp_avg", dtype="8bit", shape="scalar")'),
    "codes of a matrix": spec(states='m=state("left", dtype="8bit", shape=("rows", "rows"))'),
    "codes in a rule for sparse gradients": spec(
        "m = m + g",
        "p = p - lr * m",
        states='m=state("exp_avg", dtype="8bit")',
        decorator='@optimizer(paper="https://example.org", gradient="rows")',
    ),
    "bad init": spec(states='m=state("exp_avg", init=None)'),
    "bad eager": spec(states='m=state("exp_avg", eager=1)'),
    "bad when": spec(states='m=state("exp_avg", when=True)'),
    "unknown when": spec(states='m=state("exp_avg", when="momentun")', hypers="momentum=hyper(0)"),
    "unknown init": spec(states='m=state("exp_avg", init="rl")'),
    "tuple as init": spec(states='m=state("exp_avg", init="lrs")', hypers="lrs=hyper((1, 2))"),
    "scalar from p": spec(states='m=state("exp_avg", init="p", shape="scalar")'),
    "unknown hyper option": spec(hypers="lr=hyper(0.1, min=0)"),
    "misspelled hyper option": spec(hypers="lr=hyper(0.1, gte=0)"),
    "bad bound": spec(hypers='lr=hyper(0.1, ge="0")'),
    "bad tensor option": spec(hypers='lr=hyper(0.1, tensor="sometimes")'),
    "spread options": spec(hypers="lr=hyper(0.1, **more)"),
    "no default": spec(hypers="lr=hyper()"),
    "default outside its range": spec(hypers="lr=hyper(-0.1, ge=0)"),
    "tuple outside its range": spec(hypers="lrs=hyper((0.9, 1), ge=0, lt=1)"),
    "default that is not whole": spec(hypers="lr=hyper(2.5, ge=1, whole=True)"),
    "tuple that is not whole": spec(hypers="lrs=hyper((1, 0.5), whole=True)"),
    "bad whole": spec(hypers="lr=hyper(2, whole=1)"),
    "default is a flag": spec(hypers="lr=hyper(True)"),
    "default is None": spec(hypers="lr=hyper(None)"),
    "empty tuple": spec(hypers="lr=hyper(())"),
    "flag of a number": spec(hypers=f"{LR}, big=flag(0)"),
    "fixed number": spec(hypers=f"{LR}, big=fixed(0)"),
    "choice of numbers": spec(hypers=f"{LR}, mode=choice(1, 2)"),
    "non-literal declaration": spec(hypers="lr=hyper(float('nan'))"),
    "arithmetic on strings": spec(states='m=state("a" + "b")'),
    "division by zero": spec(hypers="lr=hyper(1 / 0)"),
    "power without end": spec(hypers="lr=hyper(10**10**10)"),
    "no real number": spec(hypers="lr=hyper((-1)**0.5)"),
    "complex literal": spec(hypers="lr=hyper(1j)"),
    "field of an error": spec(hypers='lr=hyper(0.1, ge=0, error="bad {lr}")'),
}
FILES = {
    "empty file": "",
    "only comments": "# nothing yet\n",
    "syntax error": spec("p = p - lr * (g"),
    "null byte": spec("p = p - lr * g\0"),
    "import of something else": spec(before="import torch"),
    "import from something else": spec(before="from math import sqrt"),
    "word that is not imported": spec("p = p - lr * sqrt(g)").replace(
        "import *", "import hyper, optimizer"
    ),
    "decorator that is not imported": spec().replace("import *", "import hyper"),
    "import of an unknown word": spec().replace("import *", "import sqr"),
    "import under another name": spec().replace("import *", "import sqrt as root"),
    "class": spec(before="class Helper:\n    pass"),
    "annotation that is code": spec().replace("def Made(p,", "def Made(p: open('x'),"),
    "annotation of a result that is code": spec().replace("):\n", ") -> open('x'):\n"),
    "top-level call": spec(before='print("hello")'),
    "top-level loop": spec(before="for i in range(3):\n    pass"),
    "async": spec(before="async def half(x):\n    return x"),
    "constant that is no literal": spec(before="X = [i for i in range(3)]"),
    "constant defined twice": spec(before="X = 1\nX = 2"),
    "constant called like a word": spec(before="sqrt = 1"),
    "helper called like a word": spec(before="def sqrt(x):\n    return x"),
    "tuple constant as a number": spec("p = p - X * g", before="X = (1, 2)"),
    "two specs with one name": spec() + "\n\n" + spec().partition("\n\n")[2],
    "spec called like the generated code": spec().replace("def Made", "def Tensor"),
    "spec called like a helper": spec(before="def Made(x):\n    return x"),
    "bare decorator": spec(decorator="@optimizer"),
    "another decorator": spec(decorator="@cache"),
    "two decorators": spec(decorator='@optimizer(paper="")\n@cache'),
    "bad option": spec(decorator='@optimizer(papier="")'),
    "bad option value": spec(decorator="@optimizer(paper=3)"),
    "paper that is no URL": spec(decorator="@optimizer(paper='Adam, \"2015\"')"),
    "repeated option": spec(decorator='@optimizer(paper="", paper="")'),
    "sparse gradients of a rule with a reduction": spec(
        "p = p - lr * g / norm(g)", decorator='@optimizer(gradient="rows")'
    ),
    "rows=False in a rule without sparse gradients": spec(
        "m = m + g; p = p - lr * m", states='m=state("exp_avg", rows=False)'
    ),
    "int step without a step count": spec(inputs="p, g", decorator='@optimizer(step="int")'),
    "unknown gradient": spec(decorator='@optimizer(gradient="sparse")'),
    "one string for keywords": spec(decorator='@optimizer(keywords=("lr"))'),
    "unknown keyword": spec(decorator='@optimizer(keywords=("rl", "*"))'),
    "keyword left out": spec(decorator='@optimizer(keywords=("*", "fused"))'),
    "group key twice": spec(decorator='@optimizer(group=("lr", "fused", "fused"))'),
    "derived with a body": spec(decorator='@optimizer(base="Adam")'),
    "derived with a state": spec("pass", states=M, decorator='@optimizer(base="Adam")'),
    "helper with too many arguments": spec("p = p - half(g, lr)", before=HELPER),
    "helper without return": spec("p = p - half(g)", before="def half(x):\n    y = x"),
    "helper that branches": spec(
        "p = p - half(g)", before="def half(x):\n    if x:\n        x = 1\n    return x"
    ),
    "helper that calls itself": spec("p = p - half(g)", before="def half(x):\n    return half(x)"),
    "helpers that call each other": spec(
        "p = p - a(g)", before="def a(x):\n    return b(x)\n\n\ndef b(x):\n    return a(x)"
    ),
    "helper with a default": spec("p = p - half(g)", before="def half(x, y=1):\n    return x"),
    "helper that reads the rule's names": spec(
        "p = p - half(g)", before="def half(x):\n    return lr * x"
    ),
    "helper with a statement": spec(
        "p = p - half(g)", before="def half(x):\n    sqrt(x)\n    return x"
    ),
    "helper's name in the rule": spec("p = p - half * g", before=HELPER),
    "deep nesting": spec("p = p - " + " + ".join(["g"] * 200)),
}


def message(text: str) -> str:
    """Return the message of the error that reading a text raises, and check that it has a hint."""
    with pytest.raises(SpecError) as raised:
        read(text)
    assert raised.value.hint
    return str(raised.value)


@pytest.mark.parametrize("case", RULES)
def test_rule(case: str, golden: Golden) -> None:
    golden.check(message(RULES[case]))


@pytest.mark.parametrize("case", SIGNATURES)
def test_signature(case: str, golden: Golden) -> None:
    golden.check(message(SIGNATURES[case]))


@pytest.mark.parametrize("case", FILES)
def test_file(case: str, golden: Golden) -> None:
    golden.check(message(FILES[case]))


PAPERS = (
    *("https://arxiv.org/abs/1412.6980", "http://jmlr.org/papers/v12/duchi11a.html", ""),
    *("https://doi.org/10.1016/0041-5553(64)90137-5", "doi:10.1137/0330046", "arXiv:1412.6980"),
)
NO_PAPERS = (
    *("javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,x", "file:///etc/passwd"),
    *("https:x", "vbscript:x", "//example.org", "example.org", "doi:x", "mailto:a@example.org"),
    *("https://a.org)[b](javascript:alert(1)", "https://a.org<script>", "https://a b.org"),
)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_is_an_address(paper: str) -> None:
    assert read(spec(decorator=f"@optimizer(paper={paper!r})")).paper == paper


@pytest.mark.parametrize("paper", NO_PAPERS)
def test_any_other_paper_is_refused(paper: str) -> None:
    """The website makes a link of it."""
    with pytest.raises(SpecError, match="`paper` cannot be") as caught:
        read(spec(decorator=f"@optimizer(paper={paper!r})"))
    assert caught.value.hint == "it is an http or https URL, doi:10.…, or arXiv:…"


def test_an_expression_that_is_too_deep_for_some_pythons_is_refused() -> None:
    """Python 3.11 cannot parse the expression; later versions can."""
    text = message(spec("p = p - " + " + ".join(["g"] * 3000)))
    assert "nested too deeply" in text


@pytest.mark.parametrize(
    "name", ["My-Lion", "2lion", "lion-v2", "my lion", "class", "MyLion", "lion_"]
)
def test_an_invalid_file_name_is_refused(name: str, tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(spec())
    for read_file in (read_spec, optgen.load):
        with pytest.raises(SpecError) as raised:
            read_file(path)
        golden.check(str(raised.value).replace(str(tmp_path), "."))


def test_a_file_without_imports_is_refused(
    tmp_path: Path, golden: Golden, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("made.py").write_text(spec().replace("from optgen.spec import *", ""))
    with pytest.raises(SpecError) as raised:
        read_spec("made.py")
    golden.check(str(raised.value))


def test_a_rule_may_use_names_of_the_generated_code() -> None:
    read(spec("params = p", "cut = params", "p = cut - lr * g"))
    read(spec("m = m + g", "p = p - lr * m", states='m=state("index")'))


def test_a_rule_may_leave_an_item_of_a_tuple_unused() -> None:
    read(spec("b, _ = lrs", "p = p - b * g", hypers="lrs=hyper((1, 2))"))


def test_a_text_without_any_import_is_read() -> None:
    """In a notebook, another cell may have the imports."""
    read(spec().partition("\n\n")[2])


def test_a_binary_file_is_refused(tmp_path: Path, golden: Golden) -> None:
    path = tmp_path / "made.py"
    path.write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(SpecError) as raised:
        read_spec(path)
    golden.check(str(raised.value).replace(str(tmp_path), "."))


def test_two_files_with_one_class_name_are_refused(tmp_path: Path, golden: Golden) -> None:
    paths = [tmp_path / "made.py", tmp_path / "other.py"]
    for path in paths:
        path.write_text(spec())
    with pytest.raises(SpecError) as raised:
        read_specs(paths)
    golden.check(str(raised.value).replace(str(tmp_path), "."))


def test_an_absent_file_raises_the_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_spec(tmp_path / "nowhere.py")
