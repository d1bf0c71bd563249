"""Test the fuzzer: it draws the whole language, finds planted faults, and shrinks findings."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fuzz import build, finding_files, shrink, trial
from fuzz.draw import draw
from fuzz.finding import Finding
from fuzz.trial import Setting
from optgen import emit
from optgen.ir.ops import CALLABLE_OPS
from optgen.runtime.elementwise import Elementwise
from optgen.spec import Spec
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

RULE = '''from optgen.spec import *

SCALE = 0.75


@optimizer(paper="https://example.org")
def Random(
    p, g, t, /,
    m=state("exp_avg"),
    s=state("product", init=1.5, shape="scalar"),
    *,
    lr=hyper(0.1, ge=0),
    fa=flag(False),
):
    """Drawn by lot."""
    x = sqrt(abs(g)) * SCALE
    if fa:
        m = 0.5 * m + 0.25 * (g * g)
    else:
        m = 0.5 * m + x
    s = s * 0.5
    p = p - lr * m * s / t
'''


@pytest.fixture(scope="module")
def drawn_rules() -> list[str]:
    """Return the texts of 600 rules."""
    return [draw(f"tool/{i}")[0] for i in range(600)]


def test_drawn_rules_call_every_op(drawn_rules: list[str]) -> None:
    text = "\n".join(drawn_rules)
    called = set(re.findall(r"\b([a-z_0-9]+)\(", text))
    assert not set(CALLABLE_OPS) - called


FORMS = {
    "elif": r"^ +elif ",
    "a branch in a branch": r"^        if .*\n            ",
    "a branch three deep": r"^            if ",
    "a swap of states": r"^ +(\w), (\w) = \2, \1$",
    "a double assignment": r"^ +\w+, \w+ = .*[(*+]",
    "scalar state": r'shape="scalar"',
    "row state": r'shape="row"',
    "column state": r'shape="col"',
    "a state that exists if a flag is on": r'when="fa"',
    "a state that exists if a flag is off": r'when="not fb"',
    "factored state": r'when="factored"',
    "a state up to a size": r'when="(rows|cols)\(p\) <= \d"',
    "a state above a size": r'when="(rows|cols)\(p\) > ',
    "a state up to the rank": r'when="(rows|cols)\(p\) .* rank"',
    "float32 state": r'dtype="float32"',
    "state of at least float32": r'dtype="at_least_float32"',
    "a state that starts as the parameter": r'init="p"',
    "a state that starts as a hyperparameter": r'init="(eps|lr|c)"',
    "a branch on a flag": r"if \(fa\)",
    "a branch on a choice": r'mode == "b"',
    "a comparison with None in a where": r"where\([^\n]*opt is (not )?None",
    "fresh in a branch": r"if [^\n]*fresh\(",
    "fresh in a where": r"where\([^\n]*fresh\(",
    "not in a where": r"where\(\(not",
    "a flag and a mask in a where": r"where\(\(\([^\n]* (and|or) ",
    "an item of a tuple": r"betas\[1\]",
    "an item of a tuple in place of a reduction": r"^        +_?[def] = betas\[1\]$",
    "a comparison of an item with None": r"pair\[0\] is None",
    "a remainder of the parameter": r"p = \(p - lr .*\) % 1.5",
    "double negation": r"- -|-\(-",
    "a large power": r"\*\*\(-?2\*\*63\)",
    "a tensor as exponent": r"\)\*\*clamp\(",
    "constants that fold": r"abs\(2\*3\)|2 \+ 0\*g|g\*\*0",
    "a function with a tuple assignment": r"[=(*+-].*turned\(",
    "a matrix word in a matrix word": r"orthogonalize\(orthogonalize",
    "a computed argument of a matrix word": r"orthogonalize\(.*1 \+ abs\(lr\)",
    "a value read before and after a matrix word": r"orthogonalize\(\(1 \+ abs\((\w+)\)\) .*\1",
    "a square state": r'shape=\("rows", "rows"\)',
    "a thin state": r'shape=\("rank", "cols"\)',
    "random numbers in a thin matrix": r"gaussian\([HD]",
    "tall parameters": r"tall\(p\)",
    "a product": r" @ ",
    "an inverse root": r"inverse_root\(",
    "a root of a singular matrix": r"inverse_root\(.*, [24], 0\)",
    "a matrix word in a branch": r"^        .*(qr|inverse_root|orthogonalize)\(",
    "a named condition": r"^ +_?(ok|late_on) = ",
    "a named mask": r"^ +(big|low) = ",
    "a rule without a step count": r"p, g, /",
    "a rule without state": r"p, g, (t, )?/,\n    \*",
    "an extra input": r'hz=given\("extra"\), /',
    "an extra input that may be absent": r"^    if (not )?given\(hz\)",
    "an extra input beside a flag": r"given\(hz\) (and|or) f[ab]:",
    "programs": r"^@Random\.eval\ndef to_eval\(",
    "a program that branches": r"^def to_train[^\n]*\n(    [^ \n][^\n]*\n)*    if ",
    "a program that writes several lists": r"^def to_eval[^\n]*\n(    [a-z] = [^\n]*\n){2}",
    "a rule that requires matrices": r"require\((factored|ndim)\(p\)",
}


@pytest.mark.parametrize("form", FORMS)
def test_drawn_rules_have_every_form(form: str, drawn_rules: list[str]) -> None:
    assert any(re.search(FORMS[form], text, re.M) for text in drawn_rules)


def test_optgen_accepts_most_drawn_rules(drawn_rules: list[str]) -> None:
    refused = []
    for text in drawn_rules[:200]:
        try:
            read_spec(Spec("random", text, "<drawn>", 1))
        except SpecError as error:
            refused.append(error.message)
    assert len(refused) <= 20, refused


def test_a_seed_always_draws_the_same_rule() -> None:
    assert draw("1/7") == draw("1/7")
    assert draw("1/7") != draw("1/8")


SETTINGS = [Setting({"fa": fa}, ((3,), (2, 2)), dtype, 3) for fa in (False, True) for dtype in
            ("float64", "float32", "bfloat16")]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_rule_that_is_computed_right_has_no_findings(setting: Setting) -> None:
    counts = trial.StepCounts()
    rule = build.load(RULE)
    build.compile_together([rule])
    with build.batch_kernels([rule]):
        findings = trial.run(rule, setting, ("forloop", "foreach", "fused_cpu"), counts)
    assert not findings
    assert counts.compared == 3 * 3 * 2  # lowerings, steps, parameters
    assert not counts.incomparable


FILE_NAMES = {
    "forloop": "forloop.py",
    "foreach": "foreach.py",
    "fused_cpu": "fused_cpu.cpp",
}


def load_with_fault(text: str, file: str, old: str, new: str) -> build.BuiltRule:
    """Return a rule; in the generated file, `new` replaces `old`."""
    render = emit._render

    def render_with_fault(algorithm: Any, lowering: Any, *rest: Any, **more: Any) -> str:
        printed = render(algorithm, lowering, *rest, **more)
        if lowering.filename != file:
            return printed
        assert old in printed
        return printed.replace(old, new)

    with mock.patch.object(emit, "_render", render_with_fault):
        return build.load(text)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate cache for generated files with faults."""
    monkeypatch.setenv("OPTGEN_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("lowering", FILE_NAMES)
def test_a_small_fault_in_a_lowering_is_found(lowering: str) -> None:
    text = RULE + f"# {lowering} with a fault\n"
    rule = load_with_fault(text, FILE_NAMES[lowering], "0.25", "0.25000001")
    build.compile_together([rule])
    with build.batch_kernels([rule]):
        findings = [f for s in SETTINGS[:4] for f in trial.run(rule, s, [lowering])]
    assert [f.kind for f in findings][:1] == ["wrong"]


PROGRAMS = """

@Random.train
def to_train(p, m, /, *, lr):
    p = p - lr * m


@Random.eval
def to_eval(p, m, /, *, lr):
    p = p + lr * m
"""


def test_programs_that_are_computed_right_have_no_findings() -> None:
    rule = build.load(RULE + PROGRAMS)
    build.compile_together([rule])
    with build.batch_kernels([rule]):
        assert not trial.run(rule, SETTINGS[0], ("forloop", "foreach", "fused_cpu"))


def test_a_fault_in_a_program_is_found() -> None:
    rule, prepare = build.load(RULE + PROGRAMS), Elementwise.prepare

    def prepare_with_a_fault(self: Any, lists: Any, hypers: dict[str, Any], *rest: Any) -> Any:
        return prepare(self, lists, {"lr": hypers["lr"] * (1 + 1e-9)}, *rest)

    with mock.patch.object(Elementwise, "prepare", prepare_with_a_fault):
        findings = trial.run(rule, SETTINGS[0], ["forloop"])
    assert ["eval" in f.message or "train" in f.message for f in findings][:1] == [True]


@pytest.mark.usefixtures("own_cache")
def test_rules_are_compiled_without_one_that_has_an_error() -> None:
    rules = [
        build.load(RULE + "# first\n"),
        load_with_fault(RULE + "# broken\n", "fused_cpu.cpp", "double step_size", "int* step_size"),
        build.load(RULE + "# last\n"),
    ]
    build.compile_together(rules)
    assert [bool(rule.refused_by_cpp) for rule in rules] == [False, True, False]
    with build.batch_kernels(rules):
        assert not trial.run(rules[2], SETTINGS[0], ["fused_cpu"])


def test_shrinking_leaves_only_the_failing_op() -> None:
    """Every rule with `sqrt` is said to fail. So `sqrt` stays; branch, state and settings go."""
    until_never = 10**9
    text, setting = shrink.Shrinker(
        RULE, SETTINGS[-1], lambda text, _: "sqrt(" in text and _is_accepted(text), until_never
    ).run()
    assert setting == Setting({}, ((3,),), "float64", 3)
    rule = shrink.rule_of(ast.parse(text))
    assert [ast.unparse(s) for s in rule.body[1:]] == ["_x = sqrt(g)", "p = g"]
    assert not rule.args.args
    assert not rule.args.kwonlyargs


def _is_accepted(text: str) -> bool:
    try:
        read_spec(Spec("random", text, "<drawn>", 1))
    except SpecError:
        return False
    return True


def test_a_finding_is_read_as_it_was_written(tmp_path: Path) -> None:
    finding = Finding("wrong", "foreach", "off", RULE, SETTINGS[1])
    assert finding_files.read_finding(finding_files.write_finding(finding, tmp_path)) == finding
