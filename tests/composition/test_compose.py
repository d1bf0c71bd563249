"""Test `optgen.compose`: what it takes, the spec it writes, and the class it makes."""

from __future__ import annotations

import inspect
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.commands import run
from composition.modifier_texts import modifier_from
from conftest import Golden
from torch import Tensor

import optgen
from optgen import compose, explain, modifiers, use_lowering
from optgen.optim import SGD, Adam, AdamW, RMSprop
from optgen.spec import Spec, hyper, modifier, optimizer, state
from optgen.spec.declare import Modifier

CATALOGUE = Path(__file__).parents[2] / "specs"


@modifier(stage="noise")
def halved(g, /, *, share=hyper(0.5, gt=0)):
    """Take a share of the gradient."""
    g = g * share


@optimizer(paper="https://example.org")
def Plain(p, g, /, m=state("m"), *, lr=hyper(0.1, ge=0)):
    """Gradient descent with a sum of gradients."""
    m = m + g
    p = p - lr * m


def train(cls: Any, steps: int = 4, **options: Any) -> tuple[Any, list[Tensor]]:
    """Take steps with random gradients; return the optimizer and its parameters."""
    generator = torch.Generator().manual_seed(3)
    params = [torch.randn(s, generator=generator).double() for s in ((3, 4), (5,), (2, 3))]
    optimizer = cls([{"params": params[:2]}, {"params": params[2:]}], **options)
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).double()
        optimizer.step()
    return optimizer, params


@pytest.mark.parametrize(
    "base",
    [AdamW, "adamw", "AdamW", optgen.load("adamw"), CATALOGUE / "adamw.py"],
    ids=["class", "name", "class name", "loaded", "path"],
)
def test_compose_takes_classes_names_and_paths(base: Any) -> None:
    _, params = train(compose(base, modifiers.clip_value(0.3), modifiers.ema))
    _, expected = train(compose(AdamW, modifiers.clip_value(0.3), modifiers.ema))
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))


def test_compose_takes_decorated_functions() -> None:
    _, params = train(compose(Plain, halved(0.25)))
    _, expected = train(optgen.load(Plain), lr=0.025)
    assert all(torch.allclose(a, b, rtol=1e-13) for a, b in zip(params, expected, strict=True))


def test_without_modifiers_the_class_steps_as_its_optimizer() -> None:
    _, params = train(compose(Adam))
    _, expected = train(Adam)
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))


def test_composing_twice_equals_composing_once() -> None:
    first = compose(AdamW, modifiers.ema(0.9))
    second = compose(first, modifiers.clip_norm(0.5), name="Both")
    assert second is compose(AdamW, modifiers.ema(0.9), modifiers.clip_norm(0.5), name="Both")
    assert second.__name__ == "Both"
    assert first.__name__ == "AdamWEma"


def test_the_order_of_modifiers_of_different_stages_changes_nothing() -> None:
    one = compose(SGD, modifiers.trust_ratio, modifiers.clip_value, modifiers.centralize, name="C")
    other = compose(
        SGD, modifiers.centralize, modifiers.clip_value, modifiers.trust_ratio, name="C"
    )
    assert one is other


@pytest.mark.parametrize(
    ("base", "names"),
    [
        ("adamw", ["ema", "cautious", "clip_norm"]),
        ("sgd", ["accumulate", "kahan"]),
        ("adam", ["skip_nonfinite", "cautious", "master"]),
        ("muon", ["schedule_free", "centralize", "cautious_decay"]),
    ],
    ids=str,
)
def test_compose_writes_the_spec(base: str, names: list[str], golden: Golden) -> None:
    all_modifiers = [getattr(modifiers, name) for name in names]
    golden.check(compose(base, *all_modifiers, name="Composed").spec.source)


def test_arguments_become_options_of_groups() -> None:
    cls: Any = compose(AdamW, modifiers.clip_norm(2.0), modifiers.ema)
    optimizer, _ = train(cls, ema_decay=0.5)
    first = optimizer.param_groups[0]
    assert (first["max_norm"], first["ema_decay"]) == (2.0, 0.5)
    assert first["grad_norm"].item() > 0
    assert set(optimizer.state[first["params"][0]]) == {"step", "exp_avg", "exp_avg_sq", "ema"}
    with pytest.raises(ValueError, match="max_norm"):
        train(cls, max_norm=-1)
    assert "clip_norm: Scale all gradients" in (cls.__doc__ or "")
    assert "fused C++" in str(explain(optimizer))


HIDING = """from optgen.spec import *

def total(x):
    return 2 * x


@optimizer(paper="https://example.org")
def Hiding(param, grad, /, average=state("own"), *, lr=hyper(0.1, ge=0)):
    \"\"\"A rule whose names are those of modifiers.\"\"\"
    max_norm, kept, update = grad, total(grad), param
    ema_decay = max_norm + kept
    average = average + ema_decay
    param = param - lr * average + 0 * update
"""


def test_equal_names_in_the_rule_and_in_modifiers_stay_apart() -> None:
    spec = Spec("Hiding", HIDING, "hiding.py", 1)
    all_modifiers = (modifiers.cautious, modifiers.clip_norm(0.5), modifiers.ema(0.5))
    optimizer, params = train(compose(spec, *all_modifiers))
    plain = HIDING.replace("total", "twice").replace("average", "b").replace("Hiding", "Plain")
    plain = plain.replace("max_norm", "x1").replace("kept", "x2").replace("update", "x3")
    other, expected = train(
        compose(Spec("Plain", plain.replace("ema_decay", "x4"), "plain.py", 1), *all_modifiers)
    )
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))
    for ours, theirs in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert torch.equal(ours["ema"], theirs["ema"])


def test_a_composed_class_can_be_pickled_and_loads_checkpoints() -> None:
    cls: Any = compose(SGD, modifiers.lookahead(2), modifiers.clip_norm(0.5))
    assert pickle.loads(pickle.dumps(cls)) is cls
    optimizer, params = train(cls, lr=0.1, momentum=0.9)
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    copies = [param.detach().clone() for param in params]
    loaded = cls([{"params": copies[:2]}, {"params": copies[2:]}], lr=0.5, momentum=0.1)
    loaded.load_state_dict(torch.load(buffer))
    for each, params_of_each in ((optimizer, params), (loaded, copies)):
        for param in params_of_each:
            param.grad = torch.ones_like(param)
        each.step()
    assert all(torch.equal(a, b) for a, b in zip(params, copies, strict=True))


def test_a_modifier_can_be_added_during_training() -> None:
    """The checkpoint has no state of the modifier, so this state begins with the next step."""
    plain, params = train(AdamW)
    modified: Any = compose(AdamW, modifiers.ema(0.5))(params)
    checkpoint = AdamW(params).state_dict()
    checkpoint["state"] = plain.state_dict()["state"]
    modified.load_state_dict(checkpoint)
    for param in params:
        param.grad = torch.ones_like(param)
    modified.step()
    state = modified.state[params[0]]
    assert state["step"].item() == 5
    assert torch.equal(state["ema"], params[0])
    assert modified.param_groups[0]["ema_decay"] == 0.5


def test_state_dtypes_can_be_chosen() -> None:
    cls = compose(AdamW, modifiers.state_dtype("bfloat16", exp_avg_sq=None), modifiers.ema)
    optimizer, params = train(cls)
    dtypes = {key: value.dtype for key, value in optimizer.state[params[0]].items()}
    assert dtypes.pop("step") == torch.float32
    assert dtypes == {
        "exp_avg": torch.bfloat16,
        "exp_avg_sq": torch.float64,
        "ema": torch.float64,
    }


def test_the_command_writes_a_spec_that_builds(tmp_path: Path) -> None:
    printed = run("compose", "sgd", "clip_value(0.5)", "ema", "--name", "ClippedSGD")
    assert printed.exit_code == 0, printed.output
    path = tmp_path / "clipped_sgd.py"
    path.write_text(printed.output)
    built = run("build", str(path), "--out", str(tmp_path / "package"))
    assert built.exit_code == 0, built.output
    assert (tmp_path / "package" / "clipped_sgd" / "fused_cpu.cpp").is_file()
    _, params = train(optgen.load(path), lr=0.1)
    _, expected = train(compose("sgd", modifiers.clip_value(0.5), modifiers.ema), lr=0.1)
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))


def test_a_modifier_can_be_loaded_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "halved.py"
    text = halved.spec.source
    path.write_text(f"from optgen.spec import hyper, modifier\n\n\n{text}")
    _, params = train(compose("adam", modifiers.load(path)(0.25)))
    _, expected = train(compose("adam", halved(0.25)))
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))
    checked = run("check", str(path))
    assert checked.output == "halved: ok (a modifier; hyperparameters: share)\n"


SWAPS = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Swaps(p, g, /, m=state("m"), *, lr=hyper(0.1, ge=0)):
    \"\"\"A rule whose programs write the parameter and all states.\"\"\"
    m = m + 1
    p = p - lr * g


@Swaps.eval
def to_m(m, p, /):
    \"\"\"Swap.\"\"\"
    p, m = m, p


@Swaps.train
def to_p(m, p, /):
    \"\"\"Swap back.\"\"\"
    p, m = m, p
"""


@pytest.mark.parametrize("otherwise", ["count = t - skipped", "skipped = skipped + 1"])
def test_a_count_in_a_branch_may_be_unused(otherwise: str) -> None:
    counting = modifier_from(
        *("if limit > 2:", "    count = skipped", "else:", f"    {otherwise}"),
        *("skipped = skipped + limit", "finite = t > 0"),
        signature='g, t, /, skipped=state("skipped", shape="scalar"), *, limit=hyper(3)',
        stage="skip",
        options=', step="count", guard="finite"',
    )
    cls: Any = compose(RMSprop, counting)
    param = torch.ones(3, requires_grad=True)
    param.grad = torch.ones(3)
    cls([param], lr=0.5).step()
    plain = torch.ones(3, requires_grad=True)
    plain.grad = torch.ones(3)
    RMSprop([plain], lr=0.5).step()
    assert torch.equal(param, plain)


@pytest.mark.parametrize("lowering", ["forloop", "foreach", "fused_cpu"])
def test_a_program_may_write_the_parameter_and_all_states(lowering: Any) -> None:
    """The program writes the state first, and still needs its old values for the parameter."""
    optimizer, params = train(optgen.load(Spec("Swaps", SWAPS, "swaps.py", 1)), lr=0.1)
    before = [param.detach().clone() for param in params]
    with use_lowering(lowering):
        optimizer.eval()
        assert all(torch.equal(p, torch.full_like(p, 4.0)) for p in params)
        assert all(
            torch.equal(optimizer.state[p]["m"], b) for p, b in zip(params, before, strict=True)
        )
        optimizer.train()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))


def test_a_helper_keeps_the_names_of_its_arguments() -> None:
    text = """from optgen.spec import *


def both(g, x):
    return g + 2 * x


@modifier(stage="noise")
def doubled(p, g, /):
    \"\"\"Add twice the weights.\"\"\"
    g = both(g, p)
"""
    base = HIDING.replace("param", "g0").replace("grad", "x").replace("Hiding", "Other")
    spec = Spec("doubled", text, "doubled.py", 1)
    cls = compose(Spec("Other", base, "other.py", 1), Modifier(spec), name="Doubled")
    by_hand = base.replace("    max_norm, kept", "    x = x + 2 * g0\n    max_norm, kept")
    _, params = train(cls)
    _, expected = train(optgen.load(Spec("Other", by_hand, "other.py", 1)))
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))


def test_an_infinite_gradient_does_not_stay_in_the_accumulator() -> None:
    param = torch.zeros(3, dtype=torch.float64)
    optimizer: Any = compose("sgd", modifiers.accumulate, modifiers.clip_value(1.0))(
        [param], lr=1.0
    )
    for value in (1.0, torch.inf, 1.0):
        param.grad = torch.full_like(param, value)
        optimizer.step()
    assert param.tolist() == [-3.0] * 3


def test_accumulation_and_an_average_can_be_added_during_training() -> None:
    plain, params = train(AdamW)
    modified: Any = compose(AdamW, modifiers.accumulate(2), modifiers.ema(0.5))(params)
    saved = AdamW(params).state_dict()
    saved["state"] = plain.state_dict()["state"]
    modified.load_state_dict(saved)
    for _ in range(2):
        for param in params:
            param.grad = torch.ones_like(param)
        modified.step()
    assert all(torch.equal(modified.state[param]["ema"], param) for param in params)


def test_a_modifier_shows_its_arguments() -> None:
    assert str(inspect.signature(modifiers.lookahead)) == "(sync_period=5, slow_step=0.5)"
    assert repr(modifiers.lookahead(3)) == "lookahead(sync_period=3, slow_step=0.5)"
    assert repr(modifiers.cautious) == "cautious()"
