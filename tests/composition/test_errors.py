"""Test every error of compositions: parts that do not go together, and wrong modifiers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from composition.modifier_texts import DOUBLE, modifier_from, modifier_of_text, text
from conftest import Golden
from spec_files import spec_file
from spec_texts import spec

import optgen.modifiers
from optgen import optim
from optgen.cli.check import check
from optgen.compositions import (
    compose,
    composed_spec,
    modifier,
    quantized,
    spec_of,
    state_dtype,
)
from optgen.optim._published import PUBLISHED
from optgen.spec import Spec
from optgen.spec.composition.check_parts import CompositionError
from optgen.spec.errors import SpecError
from optgen.spec.read_spec import read_spec

WITH_FRESH = Spec(
    "Made", spec("if fresh(m):", "    m = g", "p = p - lr * m", states='m=state("m")'), "made.py", 1
)
WITHOUT_LR = Spec("Made", spec("p = p - rate * g", hypers="rate=hyper(0.1)"), "made.py", 1)
WITH_STATE_EMA = Spec(
    "Made", spec("m = m + g", "p = p - lr * m", states='m=state("ema")'), "made.py", 1
)
WITH_HYPER_DECAY = Spec(
    "Made", spec("p = p - lr * decay * g", hypers="lr=hyper(0.1), decay=hyper(1)"), "made.py", 1
)

WRONG_PARTS: dict[str, tuple[Any, ...]] = {
    "one modifier twice": ("adamw", modifier("cautious"), modifier("cautious")),
    "one modifier twice, with arguments": ("adamw", modifier("ema")(0.9), modifier("ema")(0.99)),
    "one modifier twice, first in a composition": (
        compose(optim.AdamW, modifier("ema")),
        modifier("ema"),
    ),
    "one hyperparameter of two modifiers": (
        "adamw",
        modifier("decoupled_decay"),
        modifier("cautious_decay"),
    ),
    "a hyperparameter of the optimizer": (WITH_HYPER_DECAY, modifier("decoupled_decay")),
    "a state of the optimizer": (WITH_STATE_EMA, modifier("ema")),
    "a state of two modifiers": (
        "adamw",
        modifier("ema"),
        modifier_from("s = s + g", "g = s", signature='g, /, s=state("ema")'),
    ),
    "two modifiers that store": ("adamw", modifier("kahan"), modifier("master")),
    "two modifiers that move parameters for evaluation": (
        "adamw",
        modifier("ema"),
        modifier("schedule_free"),
    ),
    "an optimizer that moves parameters for evaluation": (
        spec_file("schedule_free_adamw"),
        modifier("ema"),
    ),
    "sparse gradients": ("sparse_adam", modifier("clip_norm")),
    "no learning rate": (WITHOUT_LR, modifier("decoupled_decay")),
    "skips with fresh in the optimizer": (WITH_FRESH, modifier("skip_nonfinite")),
    "skips with fresh in a modifier": ("adamw", modifier("ema"), modifier("skip_nonfinite")),
    "skips with a branch on the step count": ("radam", modifier("skip_nonfinite")),
    "skips with a branch on a state of steps": ("asgd", modifier("skip_nonfinite")),
    "skips with a modifier that branches on steps": (
        "adamw",
        modifier("lookahead"),
        modifier("skip_nonfinite"),
    ),
    "skips with a number of steps on the host": ("nadam", modifier("skip_nonfinite")),
    "an update that the rule has rounded": (spec_file("kahan_adamw"), modifier("cautious")),
    "accumulation with a group state": ("prodigy", modifier("accumulate")(3)),
    "unknown dtype of states": ("adamw", state_dtype("int8")),
    "unknown dtype of one state": ("adamw", state_dtype(exp_avg="float64")),
    "unknown state": ("adamw", state_dtype(exp_avg_sqr="bfloat16")),
    "unknown state, unlike any other": ("adamw", state_dtype(memory="bfloat16")),
    "unknown dtype in quantized": ("adamw", quantized("8bits")),
    "unknown map in quantized": ("adamw", quantized(map="log")),
    "a map of other codes": ("adamw", quantized("fp8", map="linear")),
    "8 bits for an unknown state": ("adamw", quantized(exp_avgs="8bit")),
    "8 bits for rows": ("adafactor", quantized(None, row_var="8bit")),
    "8 bits for one number": ("adamw", modifier("schedule_free"), quantized(lr_max="8bit")),
    "8 bits without blocks": ("adamw", state_dtype("8bit")),
    "dtype of one number": ("adamw", modifier("schedule_free"), state_dtype(lr_max="bfloat16")),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_every_optimizer_goes_with_skip_nonfinite_or_says_why_not(name: str) -> None:
    try:
        composed = composed_spec(spec_of(name), (modifier("skip_nonfinite"),))
    except CompositionError as error:
        assert str(error).endswith((": leave one out", "modifiers dense ones"))  # noqa: PT017
    else:
        assert read_spec(composed)


@pytest.mark.parametrize("case", WRONG_PARTS)
def test_parts_that_do_not_go_together_are_refused(case: str, golden: Golden) -> None:
    with pytest.raises(CompositionError) as raised:
        compose(*WRONG_PARTS[case])
    golden.check(str(raised.value))


WRONG_TYPES: dict[str, Callable[[], Any]] = {
    "a name of a modifier": lambda: compose("adamw", "cautious"),
    "None for a modifier": lambda: compose("adamw", None),
    "an optimizer after an optimizer": lambda: compose("adamw", optim.SGD),
    "a number for an optimizer": lambda: compose(3, modifier("ema")),
    "an optimizer of torch": lambda: compose(torch.optim.AdamW),
    "an optimizer without a spec": lambda: compose(optim.LBFGS),
    "modifiers in a list": lambda: compose("adamw", [modifier("ema")]),
    "a modifier that is not called": lambda: compose("adamw", quantized),
    "dtypes that are not called": lambda: compose("adamw", state_dtype),
    "an optimizer that is built": lambda: compose(optim.SGD([torch.ones(1)])),
    "an optimizer of torch that is built": lambda: compose(torch.optim.SGD([torch.ones(1)])),
    "a built optimizer after an optimizer": lambda: compose("adamw", optim.SGD([torch.ones(1)])),
    "a composition after an optimizer": lambda: compose("sgd", compose("sgd", modifier("ema"))),
    "a modifier first": lambda: compose(modifier("ema"), "adamw"),
    "too many arguments": lambda: modifier("clip_norm")(1.0, 2.0),
    "an argument for a modifier that takes none": lambda: modifier("cautious")(1.0),
    "unknown argument": lambda: modifier("clip_norm")(norm=1.0),
    "a named argument for a modifier that takes none": lambda: modifier("cautious")(norm=1.0),
    "argument given twice": lambda: modifier("clip_norm")(1.0, max_norm=1.0),
    "a list as a default": lambda: compose("adamw", modifier("clip_norm")([1.0])),
    "a tensor as a default": lambda: compose("adamw", modifier("ema")(torch.tensor(0.5))),
    "tensors in a default": lambda: compose("adamw", modifier("ema")((torch.tensor(0.5),))),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_arguments_of_wrong_types_are_refused(case: str, golden: Golden) -> None:
    with pytest.raises(TypeError) as raised:
        WRONG_TYPES[case]()
    golden.check(str(raised.value))


WRONG_MODIFIERS = {
    "no decorator": text().replace("@modifier(stage='clip_all')\n", ""),
    "an optimizer": spec(),
    "two modifiers": text(after=text(name="other").partition("\n\n")[2]),
    "no Python": text("g = = g"),
    "an import": text().replace("import *\n", "import *\nimport os\n"),
    "a call": text(before="print(1)"),
    "a class": text(before="class A:\n    x = print(1)"),
    "a loop at the top": text(after="while True: pass"),
    "a constant that is called": text(before="x = print(1)"),
    "a decorated helper": text(before="@print\ndef half(x):\n    return x / 2"),
    "an annotation that is code": text(signature="g: print(1), /"),
    "an optimizer beside it": text(after=spec().partition("\n\n")[2]),
    "no stage": text(decorator="@modifier()"),
    "no brackets": text(decorator="@modifier"),
    "unknown stage": text(stage="clip"),
    "stage that is no string": text(decorator="@modifier(stage=3)"),
    "unknown option": text(options=", when='later'"),
    "repeated option": text(decorator="@modifier(stage='mask', stage='mask')"),
    "unknown input": text("g = h * g", signature="g, h, /"),
    "update before the rule": text("g = g + u", signature="g, u, /"),
    "gradient after the step": text("s = g", signature='p, g, /, s=state("s")', stage="observe"),
    "extra input": text("g = g * h", signature='g, h=given("hessian"), /'),
    "result not assigned": text("s = g", signature='g, /, s=state("s")'),
    "update not assigned": text("s = u", signature='u, /, s=state("s")', stage="mask"),
    "parameter not stored": text("s = u", signature='u, /, s=state("s")', stage="store"),
    "parameter changed before the rule": text(DOUBLE, "p = 0 * p", signature="p, g, /"),
    "parameter changed by the update": text(
        "u = 2 * u", "p = p + u", signature="p, u, /", stage="mask"
    ),
    "gradient changed after the rule": text("u = 2 * u", DOUBLE, signature="g, u, /", stage="mask"),
    "learning rate changed": text("lr = 2 * lr", "g = lr * g", signature="g, lr, /"),
    "step count changed": text("t = t + 1", "g = t * g", signature="g, t, /"),
    "observer that changes": text("p = 2 * p", signature="p, /", stage="observe"),
    "unknown weights": text(
        "p = p + u", signature="p, u, /", stage="store", options=", weights='x'"
    ),
    "unknown step": text(options=", step='count'"),
    "unknown guard": text(options=", guard='finite'"),
    "accumulation without an if": text(stage="accumulate"),
    "accumulation that goes on after its if": text(
        "if t % 2 == 0:", f"    {DOUBLE}", "g = g + 1", signature="g, t, /", stage="accumulate"
    ),
    "no docstring": text(doc=""),
    "name in camel case": text(name="MadeUp"),
    "unknown name in the body": text("g = factor * g"),
    "unknown function in the body": text("g = halve(g)"),
    "loop in the body": text("for i in range(3):", f"    {DOUBLE}"),
    "state without a key": text("s = s + g", "g = s", signature="g, /, s=state()"),
    "reserved key": text("s = s + g", "g = s", signature='g, /, s=state("step")'),
    "program with an unknown state": text(
        "s = (s + p) / 2",
        signature='p, /, s=state("s")',
        stage="observe",
        after='@made.eval\ndef swap(p, q, /):\n    """Swap."""\n    p = q',
    ),
    "unknown program": text(
        "s = p",
        signature='p, /, s=state("s")',
        stage="observe",
        after='@made.test\ndef swap(p, s, /):\n    """Swap."""\n    p = s',
    ),
}


@pytest.mark.parametrize("case", WRONG_MODIFIERS)
def test_wrong_modifiers_are_refused(case: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        compose("adamw", modifier_of_text(WRONG_MODIFIERS[case]))
    assert raised.value.hint
    golden.check(str(raised.value))


WITH_A_HELPER = "\n\n".join(
    [
        "from optgen.spec import *",
        "SCALE = 2.0",
        'def half(x):\n    """Half."""\n    y = sqrt(x, SCALE)\n    return y',
        '@modifier(stage=\'mask\')\ndef made(u, /):\n    """Made up."""\n    u = half(u)',
    ]
)
MISTAKES = {
    "in a sum": text("s = s + g", "g = g + 2 * sqrt(s, 3)", signature='g, /, s=state("s")'),
    "in a branch": text(
        "if by > 1:", "    g = g * (1 + row(g))", signature="g, /, *, by=hyper(2.0)"
    ),
    "in a condition": text("if norm(g, 2) > 1:", "    g = 2 * g"),
    "in a product with the new parameter": text(
        "u = -u",
        "u = u - 0.1 * (p + u) * orthogonalize(p)",
        signature="p, u, /",
        stage="mask",
    ),
    "in the second of two equal lines": text(
        *("if by > 1:", "    a = g", "    b = 2 * a", "else:", "    b = g", "b = 2 * a", "g = b"),
        signature="g, /, *, by=hyper(2.0)",
    ),
    "in a helper": WITH_A_HELPER,
    "in an accumulation": text(
        "if t % 2 == 0:", "    g = g * sqrt(t, 2)", signature="g, t, /", stage="accumulate"
    ),
    "a hyperparameter that is not used": text(signature="g, /, *, by=hyper(2.0)"),
    "an option of a hyperparameter": text("g = by * g", signature="g, /, *, by=hyper(2.0, min=1)"),
    "a constant": text("g = BY * g", before="BY = 1 / 0"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_errors_name_the_line_of_a_mistake_in_a_modifier(case: str, golden: Golden) -> None:
    """The mistake is found in the composed text. The error names the line in the author's file."""
    with pytest.raises(SpecError) as raised:
        compose("adamw", modifier("clip_norm"), modifier_of_text(MISTAKES[case]))
    golden.check(_with_short_paths(raised.value))


def _with_short_paths(error: SpecError) -> str:
    return str(error).replace(f"{Path(__file__).parents[2]}/", "")


def test_errors_name_the_column_of_a_mistake_in_a_modifier() -> None:
    """The composed text indents the line by more: an `if` of the accumulation holds it."""
    with pytest.raises(SpecError, match=r"made.py:6:13: .* of AdamW, accumulate and made"):
        compose("adamw", modifier("accumulate")(2), modifier_of_text(text("g = g + sqrt(g, 2)")))


def test_the_check_command_shows_the_line_of_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text(MISTAKES["in a sum"])
    (error,) = check([str(path)])
    assert str(error).startswith(
        f"{path}:7:17: `sqrt` takes 1 argument, not 2\n        g = g + 2 *"
    )


WRONG_FORMS = {
    "a name of the optimizer": text("g = g * beta1"),
    "a helper that reads an unknown constant": text("g = half(g)").replace(
        "@modifier", "def half(x):\n    return x / SCALE\n\n\n@modifier"
    ),
    "weights of a modifier that stores nothing": text(
        "w = 2 * g", "g = w", options=", weights='w'"
    ),
    "any number of inputs": text(signature="g, /, *args"),
    "any hyperparameters": text(signature="g, /, **options"),
    "two decorators": text(decorator="@modifier(stage='clip_all')\n@cache"),
    "an else in an accumulation": text(
        "if t % 2 == 0:",
        f"    {DOUBLE}",
        "else:",
        "    g = 3 * g",
        signature="g, t, /",
        stage="accumulate",
    ),
    "state that is no declaration": text("s = s + g", "g = s", signature="g, /, s=0"),
    "hyperparameter without a default": text("g = a * g", signature="g, /, *, a"),
    "hyperparameter that is no declaration": text("g = a * g", signature="g, /, *, a=1"),
    "inputs without a slash": text(signature="g"),
    "empty accumulation": text(
        "", signature='g, /, s=state("s")', stage="accumulate", options=", guard='s'"
    ),
}


@pytest.mark.parametrize("case", WRONG_FORMS)
def test_modifiers_of_a_wrong_form_are_refused(case: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        compose("adamw", modifier_of_text(WRONG_FORMS[case]))
    golden.check(str(raised.value))


WRONG_DEFAULTS = {
    "text": "1.0",
    "none": None,
    "flag": True,
    "out of bounds": -1.0,
    "nan": float("nan"),
    "infinity": float("inf"),
}
FRACTIONS = {
    "accumulate": ("accumulated_steps", 2.5),
    "gradient_noise": ("noise_seed", 0.5),
    "lookahead": ("sync_period", 2.5),
    "stochastic_rounding": ("seed", 0.5),
}


@pytest.mark.parametrize("case", WRONG_DEFAULTS)
def test_wrong_defaults_are_refused(case: str, golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        compose("adamw", modifier("clip_norm")(WRONG_DEFAULTS[case]))
    golden.check(str(raised.value))


@pytest.mark.parametrize("name", FRACTIONS)
def test_counts_and_seeds_that_are_not_whole_are_refused(name: str) -> None:
    argument, value = FRACTIONS[name]
    with pytest.raises(SpecError, match=f"`{argument}`, {value}, is outside its range"):
        compose("adamw", modifier(name)(**{argument: value}))
    cls: Any = compose("adamw", modifier(name))
    for wrong in (value, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"Invalid {argument} value, which must be whole"):
            cls([torch.ones(1)], **{argument: wrong})
    cls([torch.ones(1)], **{argument: 2.0})


def test_arguments_are_checked_by_the_class() -> None:
    cls: Any = compose("adamw", modifier("clip_norm"))
    with pytest.raises(ValueError, match="max_norm"):
        cls([torch.ones(1)], max_norm=0)
    with pytest.raises(TypeError, match="norm"):
        cls([torch.ones(1)], norm=1.0)


@pytest.mark.parametrize("name", ["My AdamW", "class"])
def test_an_invalid_class_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        compose("adamw", modifier("clip_norm"), name=name)


def test_a_class_name_with_another_meaning_is_refused(golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        compose("adamw", modifier("clip_norm"), name="Tensor")
    golden.check(str(raised.value))


def test_unknown_modifiers_raise() -> None:
    with pytest.raises(AttributeError, match="no attribute 'clip'"):
        optgen.modifiers.clip  # noqa: B018
    with pytest.raises(FileNotFoundError, match="clip"):
        modifier("clip")


def test_either_of_two_guards_skips_a_step() -> None:
    skip_large = modifier_from(
        "small = norm(g) < 1",
        signature="g, /",
        stage="skip",
        options=", guard='small'",
        name="skip_large",
    )
    cls: Any = compose("adamw", skip_large, modifier("skip_nonfinite"))
    param = torch.ones(3, requires_grad=True)
    param.grad = torch.full_like(param, 10.0)
    cls([param]).step()
    assert torch.equal(param, torch.ones(3))


def test_8_bits_for_a_state_that_a_program_takes_are_refused(golden: Golden) -> None:
    with pytest.raises(SpecError) as raised:
        compose("adamw", modifier("schedule_free"), quantized(z="8bit"))
    golden.check(_with_short_paths(raised.value))
