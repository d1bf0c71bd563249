"""Test that an author's names which are words here too are renamed, or refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from optgen.importer import NotImportedError, import_optimizer
from tests.importer.test_import_places import Base


class Taken(Base):
    """Arguments and variables have the names that an import makes itself."""

    def __init__(
        self, params: Any, lr: float = 0.1, total_norm: float = 0.5, is_taken: float = 0.3
    ) -> None:
        torch.optim.Optimizer.__init__(
            self, params, {"lr": lr, "total_norm": total_norm, "is_taken": is_taken}
        )

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            scale = 1.0
            if group["total_norm"] > 0:
                norms = [p.grad.abs().sum() for p in group["params"]]
                scale = group["total_norm"] / (sum(norms) + 1)
            for p in group["params"]:
                grad_then = p.grad * scale
                if grad_then.mean() > 0:
                    grad_then = grad_then * group["is_taken"]
                    is_taken = grad_then.abs() + 1
                    grad_then = grad_then / is_taken
                p.data.sub_(group["lr"] * grad_then)


class KeptTotal(Base):
    """States and variables have such names."""

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["total"] = torch.zeros_like(p)
            state["sqrt"] = torch.zeros_like(p)
        total = state["total"].mul_(0.9).add_(grad)
        sqrt = state["sqrt"].mul_(0.9).addcmul_(grad, grad)
        w_before = sqrt.sqrt().add_(group["lr"])
        p.sub_(group["lr"] * total / w_before)


class Moments(Base):
    """Two states, whose keys a test sets."""

    keys = ("first_moment", "first_square")

    def __init__(self, params: Any, lr: float = 0.1, moment: float = 0.9) -> None:
        torch.optim.Optimizer.__init__(self, params, {"lr": lr, "moment": moment})

    def update(self, p: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state.update({key: torch.zeros_like(p) for key in self.keys})
        m, v = (state[key] for key in self.keys)
        m.mul_(group["moment"]).add_(grad)
        v.mul_(0.9).addcmul_(grad, grad)
        p.sub_(group["lr"] * m / (v.sqrt() + 1))


def with_argument(name: str, *, calls: str = "") -> type:
    """Return a class with an argument of a name, whose step calls a method of tensors."""

    def update(self: Any, p: Any, grad: Any, state: Any, group: Any) -> None:
        size = getattr(grad, calls)() if calls else 1.0
        p.sub_(group["lr"] * group[name] * grad / (size + 1))

    scope: dict[str, Any] = {"torch": torch}
    exec(
        f"def __init__(self, params, lr=0.1, {name}=0.5):\n"
        f"    torch.optim.Optimizer.__init__(self, params, dict(lr=lr, {name}={name}))",
        scope,
    )
    return type("Named", (Base,), {"__init__": scope["__init__"], "update": update})


def test_an_argument_called_like_a_made_name_keeps_its_own() -> None:
    text = import_optimizer(Taken).text

    assert "    total_norm=hyper(0.5)," in text
    assert "    is_taken=hyper(0.3)," in text
    assert 'over="all")' in text or 'over="group")' in text


def test_a_state_called_like_a_made_name_has_another_name_or_key() -> None:
    text = import_optimizer(KeptTotal).text

    assert '    total_state=state("total"),' in text
    assert 's=state("sqrt_state"' in text


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (("first_average", "first_square"), ("first_average", "first_square")),
        (("first_moment", "v"), ("f", "v")),  # an import may make `first_moment` of `moment`
        (("kept_moment", "k"), ("kept_moment_state", "k")),
        (("x_state", "x_before"), ("x_state_state", "x_before_state")),
        (("s_state", "v"), ("s", "v")),
        (("_x_state", "v"), ("_x_state_state", "v")),
        (("moment", "total"), ("moment_state", "total_state")),
    ],
)
def test_states_have_names_of_their_own(keys: tuple[str, str], names: tuple[str, str]) -> None:
    text = import_optimizer(type("Named", (Moments,), {"keys": keys})).text

    assert [each for each in names if f'    {each}=state("' in text] == [*names]


@pytest.mark.parametrize(("name", "calls"), [("norm", ""), ("kept_lr", ""), ("x_2", "")])
def test_an_argument_called_like_a_word_that_the_rule_does_not_call_is_one(
    name: str, calls: str
) -> None:
    assert f"    {name}=hyper(0.5)," in import_optimizer(with_argument(name, calls=calls)).text


@pytest.mark.parametrize(
    ("name", "calls", "reason"),
    [
        ("norm", "norm", "the argument `norm` is a word that the rule calls"),
        ("sqrt", "", "the argument `sqrt` shadows a name of the language"),
        ("total", "", "the argument `total` means something else in the generated code"),
        ("step", "", "the argument `step` means something else in the generated code"),
        ("view", "", "the argument `view` is an option of every param group"),
    ],
)
def test_an_argument_that_no_spec_may_have_is_refused(name: str, calls: str, reason: str) -> None:
    with pytest.raises(NotImportedError) as caught:
        import_optimizer(with_argument(name, calls=calls))

    assert caught.value.reason == reason
    assert f"--set {name}=…" in caught.value.hint
