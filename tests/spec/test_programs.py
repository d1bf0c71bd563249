"""Test the programs of an optimizer: how they are read, and their errors."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Golden
from spec_texts import LR, read, spec

from optgen.passes.plan_rule import plan
from optgen.spec import Spec, hyper, lerp, optimizer, state
from optgen.spec.declare import DeclarationToken
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

STATES = 'm=state("exp_avg"), v=state("second"), row=state("rows", shape="row", when="factored")'
STATES += ', s=state("number", shape="scalar")'
RULE = ("m = m + g", "v = v + g", "s = s + t", "if factored(p):", "    row = row + row_mean(g)")
OPTIMIZER = spec(*RULE, "p = p - lr * m * v * s", states=STATES, hypers=f"{LR}, b=hyper(0.5)")
TRAIN = "@Made.train\ndef to_train(p, m, /, *, b):\n    p = lerp(p, m, b)\n"
EVAL = "@Made.eval\ndef to_eval(p, m, /, *, b):\n    p = lerp(p, m, -b)\n"


def text(*programs: str, rule: str = OPTIMIZER) -> str:
    """Return a file with an optimizer and its programs."""
    return "\n\n".join([rule, *programs])


def with_eval(body: str, arguments: str = "p, m, /, *, b", decorator: str = "@Made.eval") -> str:
    """Return a file whose program for `eval` has this body."""
    return text(TRAIN, f"{decorator}\ndef to_eval({arguments}):\n    {body}\n")


BODY = "p = lerp(p, m, b)"
ERRORS = {
    "no such optimizer": with_eval(BODY, decorator="@Mode.eval"),
    "a program of a function": text(
        TRAIN.replace("Made", "low"),
        rule="from optgen.spec import *\n@elementwise\ndef low(a, b, /):\n    '''.'''\n    a = b\n",
    ),
    "no such mode": with_eval(BODY, decorator="@Made.step"),
    "brackets": with_eval(BODY, decorator="@Made.eval()"),
    "two decorators": with_eval(BODY, decorator="@Made.eval\n@elementwise"),
    "two for eval": text(TRAIN, EVAL, EVAL.replace("to_eval", "again")),
    "two programs of one name": text(TRAIN, EVAL.replace("to_eval", "to_train")),
    "eval without train": text(EVAL),
    "train without eval": text(TRAIN),
    "above its optimizer": OPTIMIZER.replace("\n\n@opt", f"\n\n{TRAIN}\n\n{EVAL}\n\n@opt"),
    "called like a class": text(TRAIN, EVAL.replace("to_eval", "Average")),
    "called like a file": text(TRAIN, EVAL.replace("to_eval", "foreach")),
    "called like a word": text(TRAIN, EVAL.replace("to_eval", "sqrt")),
    "unknown state": with_eval(BODY, "p, n, /, *, b"),
    "gradient": with_eval("p = p + g", "p, g, /"),
    "step count": with_eval("p = p + t * m", "p, m, t, /"),
    "row state": with_eval("p = p + row", "p, row, /"),
    "scalar state": with_eval("p = p + s", "p, s, /"),
    "unknown hyperparameter": with_eval(BODY, "p, m, /, *, beta"),
    "hyperparameter written": with_eval(f"b = 2 * b\n    {BODY}"),
    "hyperparameter with a default": with_eval(BODY, "p, m, /, *, b=0.5"),
    "hyperparameter without use": with_eval("p = p + m"),
    "state with a default": with_eval(BODY, 'p, m=state("m"), /, *, b'),
    "state without use": with_eval(BODY, "p, m, v, /, *, b"),
    "state behind the slash": with_eval(BODY, "p, /, m, *, b"),
    "only the parameter": with_eval("p = b * p", "p, /, *, b"),
    "star": with_eval(BODY, "p, m, /, *rest, b"),
    "writes nothing": with_eval("n = p + b * m"),
    "whole parameter": with_eval("p = p + b * mean(m)"),
    "transposed matrix": with_eval("p = p + b * transpose(m)"),
    "product of matrices": with_eval("p = p + b * (m @ m)"),
    "whole parameter in a helper": with_eval("p = p + b * half(m)").replace(
        "@opt", "def half(x):\n    return mean(x) / 2\n\n\n@opt", 1
    ),
    "a property": with_eval("p = p + b * m / numel(p)"),
    "a shape": with_eval("if factored(p):\n        p = p + b * m"),
    "fresh": with_eval("if fresh(m):\n        p = p + b * m"),
    "require": with_eval(f'require(b > 0, "no")\n    {BODY}'),
    "key of the mode": text(TRAIN, EVAL)
    .replace("b=hyper(0.5)", "train_mode=hyper(0.5)")
    .replace("b):", "train_mode):")
    .replace("b)\n", "train_mode)\n"),
    "a derived optimizer": text(
        TRAIN, EVAL, rule=spec("pass", decorator='@optimizer(base="Adam")', hypers="lr=hyper(1)")
    ),
    "another decorator": with_eval(BODY, decorator="@torch.no_grad()"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_program_error(name: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        read(ERRORS[name])
    golden.check(str(raised.value))


def test_programs_belong_to_their_optimizer() -> None:
    algorithm = read(text(EVAL, TRAIN))

    assert [(p.mode, p.function.name) for p in algorithm.programs] == [
        ("train", "to_train"),
        ("eval", "to_eval"),
    ]
    function = algorithm.programs[1].function
    assert function.lists == ("p", "m")
    assert function.folder == "made/to_eval"
    assert [h.name for h in function.hypers] == ["b"]
    assert len(read_spec(Spec("made", text(TRAIN, EVAL), "made.py", 1))) == 1


def test_two_optimizers_in_a_file_have_programs_of_their_own() -> None:
    other = OPTIMIZER.partition("\n\n")[2].replace("Made", "Other").replace(", b=hyper(0.5)", "")
    found = read_spec(Spec("made", text(TRAIN, EVAL, other), "made.py", 1))

    assert [(a.name, len(a.programs)) for a in found] == [("Made", 2), ("Other", 0)]


def test_a_list_has_the_key_of_its_state() -> None:
    """The program writes only a state, has an order of lists of its own, and uses a helper."""
    program = "@Made.eval\ndef to_eval(v, p, m, /):\n    v = half(p) + 2 * m\n"
    helper = "HALF = 0.5\n\n\ndef half(x):\n    return HALF * x\n\n\n"
    algorithm = read(text(TRAIN, program).replace("@opt", f"{helper}@opt", 1))
    function = algorithm.programs[1].function

    assert function.lists == ("v", "p", "m")
    assert function.tensors == ("v", "p", "m")
    assert [s.key for s in function.states] == ["exp_avg"]
    assert [s.stored for s in plan(function).sweeps[0].streams] == [True, False, False]


@optimizer(paper="https://example.org")
def InText(p: Any, g: Any, /, z=state("z", init="p"), *, lr=hyper(0.1), beta=hyper(0.5, gt=0)):
    """Not run."""
    z = z - lr * g
    p = lerp(p, z, HALF * beta)


UNUSED = 0
HALF = 0.5


@InText.train
def to_train(p, z, /, *, beta):
    p = lerp(p, z, weight(beta))


def weight(x):
    return x / 2


@InText.eval
def to_eval(p, z, /, *, beta):
    p = lerp(p, z, -weight(beta))


def test_the_decorators_take_programs_of_the_same_text() -> None:
    (algorithm,) = read_spec(InText)

    assert [p.function.name for p in algorithm.programs] == ["to_train", "to_eval"]
    assert "UNUSED" not in InText.source
    assert to_eval == DeclarationToken("eval", ("InText", "to_eval"), ())


def test_a_program_of_another_text_is_refused() -> None:
    with pytest.raises(SpecError, match="a program of `InText`, but not in its text") as raised:

        @InText.eval
        def elsewhere(p, z, /):
            p = z  # noqa: F841

    assert "same file or cell" in str(raised.value)
