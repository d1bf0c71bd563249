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
from optgen.spec.inert_spec import Modifier

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


def trained(cls: Any, steps: int = 4, **options: Any) -> tuple[Any, list[Tensor]]:
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
    _, params = trained(compose(base, modifiers.clip_value(0.3), modifiers.ema))
    _, expected = trained(compose(AdamW, modifiers.clip_value(0.3), modifiers.ema))
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))


def test_compose_takes_decorated_functions() -> None:
    _, params = trained(compose(Plain, halved(0.25)))
    _, expected = trained(optgen.load(Plain), lr=0.025)
    assert all(torch.allclose(a, b, rtol=1e-13) for a, b in zip(params, expected, strict=True))


def test_without_modifiers_the_class_steps_as_its_optimizer() -> None:
    _, params = trained(compose(Adam))
    _, expected = trained(Adam)
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))


def test_composing_twice_equals_composing_once() -> None:
    first = compose(AdamW, modifiers.ema(0.9))
    both = compose(first, modifiers.clip_norm(0.5), name="Both")
    assert both is compose(AdamW, modifiers.ema(0.9), modifiers.clip_norm(0.5), name="Both")
    assert both.__name__ == "Both"
    assert first.__name__ == "AdamWEma"


def test_the_order_of_stages_is_not_that_of_the_list() -> None:
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
def test_the_text(base: str, names: list[str], golden: Golden) -> None:
    chosen = [getattr(modifiers, name) for name in names]
    golden.check(compose(base, *chosen, name="Composed").spec.source)


def test_arguments_become_options_of_groups() -> None:
    cls: Any = compose(AdamW, modifiers.clip_norm(2.0), modifiers.ema)
    optimizer, _ = trained(cls, ema_decay=0.5)
    first = optimizer.param_groups[0]
    assert (first["max_norm"], first["ema_decay"]) == (2.0, 0.5)
    assert first["grad_norm"].item() > 0
    assert set(optimizer.state[first["params"][0]]) == {"step", "exp_avg", "exp_avg_sq", "ema"}
    with pytest.raises(ValueError, match="max_norm"):
        trained(cls, max_norm=-1)
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


def test_names_of_the_rule_and_of_modifiers_do_not_mix() -> None:
    spec = Spec("Hiding", HIDING, "hiding.py", 1)
    chosen = (modifiers.cautious, modifiers.clip_norm(0.5), modifiers.ema(0.5))
    optimizer, params = trained(compose(spec, *chosen))
    plain = HIDING.replace("total", "twice").replace("average", "b").replace("Hiding", "Plain")
    plain = plain.replace("max_norm", "x1").replace("kept", "x2").replace("update", "x3")
    other, expected = trained(
        compose(Spec("Plain", plain.replace("ema_decay", "x4"), "plain.py", 1), *chosen)
    )
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))
    for ours, theirs in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert torch.equal(ours["ema"], theirs["ema"])


def test_pickles_and_checkpoints_are_loaded() -> None:
    cls: Any = compose(SGD, modifiers.lookahead(2), modifiers.clip_norm(0.5))
    assert pickle.loads(pickle.dumps(cls)) is cls
    optimizer, params = trained(cls, lr=0.1, momentum=0.9)
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    copies = [param.detach().clone() for param in params]
    loaded = cls([{"params": copies[:2]}, {"params": copies[2:]}], lr=0.5, momentum=0.1)
    loaded.load_state_dict(torch.load(buffer))
    for one, their_params in ((optimizer, params), (loaded, copies)):
        for param in their_params:
            param.grad = torch.ones_like(param)
        one.step()
    assert all(torch.equal(a, b) for a, b in zip(params, copies, strict=True))


def test_a_modifier_joins_a_run() -> None:
    """A checkpoint without the modifier's state is loaded, and that state begins anew."""
    plain, params = trained(AdamW)
    joined: Any = compose(AdamW, modifiers.ema(0.5))(params)
    plain_dict = AdamW(params).state_dict()
    plain_dict["state"] = plain.state_dict()["state"]
    joined.load_state_dict(plain_dict)
    for param in params:
        param.grad = torch.ones_like(param)
    joined.step()
    state = joined.state[params[0]]
    assert state["step"].item() == 5
    assert torch.equal(state["ema"], params[0])
    assert joined.param_groups[0]["ema_decay"] == 0.5


def test_state_dtypes_can_be_chosen() -> None:
    cls = compose(AdamW, modifiers.state_dtype("bfloat16", exp_avg_sq=None), modifiers.ema)
    optimizer, params = trained(cls)
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
    _, params = trained(optgen.load(path), lr=0.1)
    _, expected = trained(compose("sgd", modifiers.clip_value(0.5), modifiers.ema), lr=0.1)
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))


def test_a_modifier_can_be_loaded_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "halved.py"
    text = halved.spec.source
    path.write_text(f"from optgen.spec import hyper, modifier\n\n\n{text}")
    _, params = trained(compose("adam", modifiers.load(path)(0.25)))
    _, expected = trained(compose("adam", halved(0.25)))
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))
    checked = run("check", str(path))
    assert checked.output == "halved: ok (a modifier; hyperparameters: share)\n"


SWAPS = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Swaps(p, g, /, m=state("m"), *, lr=hyper(0.1, ge=0)):
    \"\"\"A rule whose programs write all lists.\"\"\"
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
        takes='g, t, /, skipped=state("skipped", shape="scalar"), *, limit=hyper(3)',
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
def test_a_program_may_write_every_list(lowering: Any) -> None:
    """The first list is a state, whose old values the program still needs."""
    optimizer, params = trained(optgen.load(Spec("Swaps", SWAPS, "swaps.py", 1)), lr=0.1)
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
    _, params = trained(cls)
    _, expected = trained(optgen.load(Spec("Other", by_hand, "other.py", 1)))
    assert all(torch.equal(a, b) for a, b in zip(params, expected, strict=True))


def test_an_infinite_gradient_is_forgotten() -> None:
    param = torch.zeros(3, dtype=torch.float64)
    optimizer: Any = compose("sgd", modifiers.accumulate, modifiers.clip_value(1.0))(
        [param], lr=1.0
    )
    for value in (1.0, torch.inf, 1.0):
        param.grad = torch.full_like(param, value)
        optimizer.step()
    assert param.tolist() == [-3.0] * 3


def test_accumulation_and_an_average_join_a_run() -> None:
    plain, params = trained(AdamW)
    joined: Any = compose(AdamW, modifiers.accumulate(2), modifiers.ema(0.5))(params)
    saved = AdamW(params).state_dict()
    saved["state"] = plain.state_dict()["state"]
    joined.load_state_dict(saved)
    for _ in range(2):
        for param in params:
            param.grad = torch.ones_like(param)
        joined.step()
    assert all(torch.equal(joined.state[param]["ema"], param) for param in params)


def test_a_modifier_shows_its_arguments() -> None:
    assert str(inspect.signature(modifiers.lookahead)) == "(sync_period=5, slow_step=0.5)"
    assert repr(modifiers.lookahead(3)) == "lookahead(sync_period=3, slow_step=0.5)"
    assert repr(modifiers.cautious) == "cautious()"
