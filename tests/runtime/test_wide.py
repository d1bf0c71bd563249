"""Test wide rules: against the oracle, in groups, in checkpoints, after failures."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, inside_interpreter, outside_interpreter, run_inside
from lowerings.capture import captured
from spec_files import spec_file
from spec_texts import spec as spec_text
from torch import Tensor

import optgen
from optgen import explain, use_lowering
from optgen.ir.evaluate import Member, evaluate_together
from optgen.ir.whole_matrices import why_not_in_triton
from optgen.keyed import KeyedOptimizerWrapper, UpdateInBackward
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
NAMES = ("odd_wide", "prodigy", "dadapt_adam", "clipped_lamb")
ODD: Any = optgen.load(spec_file("odd_wide"))
PRODIGY: Any = optgen.load(spec_file("prodigy"))
SHAPES = ((3, 4), (5,), (3, 4), (), (2, 2, 3), (0, 3))
LARGE = ((300, 700), (5,), (40_000,), (300, 700), (3, 5000))


def parameters(shapes: Sequence[Any] = SHAPES, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


def in_groups(params: list[Tensor]) -> list[dict[str, Any]]:
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.05}]


def give_gradients(optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)


def step(optimizer: torch.optim.Optimizer, seed: int) -> None:
    give_gradients(optimizer, seed)
    optimizer.step()


class Oracle:
    """The rule in float64, for the parameters of an optimizer."""

    def __init__(self, spec: str | Path | Spec, optimizer: Any) -> None:
        source = spec_file(spec) if isinstance(spec, str) else spec
        (self.algorithm,) = read_spec(source)
        self.optimizer = optimizer
        self.shared: dict[int, dict[str, Any]] = {}  # the states of each group
        self.shared_keys = [state.key for state in self.algorithm.group_states()]
        self.values: list[tuple[Tensor, dict[str, Any]]] = [
            (param.detach().double().clone(), {}) for param, _ in self.members()
        ]

    def members(self) -> Iterator[tuple[Tensor, int]]:
        for number, group in enumerate(self.optimizer.param_groups):
            for param in group["params"]:
                yield param, number

    def step(self) -> None:
        """Take a step of the parameters that have a gradient."""
        chosen = [i for i, (param, _) in enumerate(self.members()) if param.grad is not None]
        members = list(self.members())
        results = evaluate_together(self.algorithm, [self._member(i, *members[i]) for i in chosen])
        for index, (value, state) in zip(chosen, results, strict=True):
            self.values[index] = value, state
            self.shared[members[index][1]] = {key: state[key] for key in self.shared_keys}

    def _member(self, index: int, param: Tensor, group: int) -> Member:
        options = self.optimizer.param_groups[group]
        hypers = {h.name: options[h.name] for h in self.algorithm.hypers}
        value, state = self.values[index]
        known_states = {**state, **self.shared.get(group, {})}
        assert param.grad is not None
        return Member(hypers, value, param.grad, known_states, torch.float64, group=group)

    def difference(self) -> float:
        """Return the largest difference, relative to the largest element of its parameter."""
        pairs = zip(self.members(), self.values, strict=True)
        return max(
            ((param.detach().double() - value).abs().max() / value.abs().max()).item()
            for (param, _), (value, _) in pairs
            if value.numel()
        )


def check_against_rule(spec: Path | Spec, lowering: str, shapes: Any) -> None:
    """Check that parameters equal the oracle's after each of four steps."""
    optimizer: Any = optgen.load(spec)(in_groups(parameters(shapes)))
    oracle = Oracle(spec, optimizer)
    for seed in range(4):
        give_gradients(optimizer, seed)
        oracle.step()
        with use_lowering(lowering):
            optimizer.step()
        assert oracle.difference() < 1e-12


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("shapes", [SHAPES, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("name", NAMES)
def test_specs_in_files_follow_the_rule(name: str, shapes: Any, lowering: str) -> None:
    check_against_rule(spec_file(name), lowering, shapes)


TOGETHER = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Together(
    p, g, t, /,
    m=state("m"),
    k=state("k", shape="group", init=1.0),
    r=state("row_var", shape="row", when="factored"),
    q=state("q", shape="scalar"),
    *,
    lr=hyper(0.1, ge=0),
):
    \"\"\"Reductions before, between and after sweeps that only some parameters have.\"\"\"
    k = k + 1
    first = norm(g, over="group")
    size = sum(0 * p + 1, over="all")
    if factored(p):
        g = 1.5 * g * mean(g) + row_mean(g) / size
    second = rms(g, over="group")
    m = 0.9 * m + g / k - mean(p, over="group") / (1 + first)
    u = m
    if factored(p):
        r = 0.9 * r + row_mean(u**2)
        u = u / (sqrt(r) + 1 + mean(r))
    q = 0.5 * q + max_abs(u, over="group")
    big = max_abs(u, over="all")
    p = p - lr * u / (1 + big) / t - 0.01 * sum(u * p, over="all") * g * first / second / (1 + q)
"""


ROUNDED = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Rounded(p, g, t, /, c=state("lost"), k=state("k", shape="group"), *, lr=hyper(0.1, ge=0)):
    \"\"\"Kahan summation of steps that the group scales.\"\"\"
    k = k + 1
    y = c - lr * g / (1 + norm(g, over="all")) * k
    new = rounded(p + y)
    c = y - (new - p)
    p = new
"""
FRESH = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Fresh(
    p, g, t, /,
    m=state("m", when="heavy"),
    x0=state("x0", init="p"),
    v=state("v"),
    s=state("s", shape="scalar", init=1),
    *,
    lr=hyper(0.1, ge=0),
    heavy=flag(True),
):
    \"\"\"States of every kind beside reductions over several parameters.\"\"\"
    size = rms(g - x0, over="group")
    if fresh(v):
        v = g**2
    else:
        v = 0.5 * v + 0.5 * g**2 / size
    s = 0.9 * s + 0.1 * t
    if heavy:
        m = 0.5 * m + g
        g = where(m > 0, m, g)
    p = p - lr * s * g / (sqrt(v) + 1) / (1 + sum(abs(p - x0), over="all"))
"""
NAMED = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Named(
    p, g, t, /,
    c=state("c", shape="scalar"),
    k=state("k", shape="group"),
    *,
    lr=hyper(0.1, ge=0),
):
    \"\"\"Names like those of generated variables, beside a norm of one parameter.\"\"\"
    n_of_one = 1 + norm(g)
    n = sum(abs(g) + 1, over="group")
    n_asked = 2 + n / n_of_one
    k = k + 1
    c = c + n_of_one / (1 + n_of_one)
    p = p - lr * g * n_asked / n / n_of_one - lr * c / k * mean(g) * g
"""
NORMED = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Normed(p, g, /, k=state("k", shape="group"), *, lr=hyper(0.1, ge=0)):
    \"\"\"A group's state without a reduction over parameters.\"\"\"
    k = 0.5 * k + 1
    p = p - lr * g / (1 + norm(g)) / k
"""
COUNTED = '''from optgen.spec import *


@optimizer(paper="https://example.org")
def Counted(p, g, /, k=state("k", shape="group"), *, lr=hyper(0.1, ge=0)):
    """Count the steps of a group."""
    k = where(k > 1, 0.5, k + 1)
    p = p - lr * g / k
'''
HELD = '''from optgen.spec import *


@optimizer(paper="https://example.org")
def Held(
    p, g, /,
    k=state("k", shape="group"),
    *,
    lr=hyper(0.1, ge=0),
    betas=hyper((0.5, 0.25)),
    hold=flag(True),
):
    """A group's state is set to a bare number of a tuple."""
    k = betas[0] * k + sum(g**2, over="group")
    p = p - lr * g / (1 + k)
    if hold:
        k = betas[1]
'''
INLINE = {
    name: Spec(name.title(), text, f"{name}.py", 1)
    for name, text in (
        ("together", TOGETHER),
        ("rounded", ROUNDED),
        ("fresh", FRESH),
        ("named", NAMED),
        ("counted", COUNTED),
        ("normed", NORMED),
        ("held", HELD),
    )
}
# Triton has no reductions over parameters inside branches, which OddWide has.
SPEC = INLINE["together"] if INTERPRETED else spec_file("odd_wide")
RULE: Any = optgen.load(SPEC)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("shapes", [SHAPES, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("name", INLINE)
def test_inline_specs_follow_the_rule(name: str, shapes: Any, lowering: str) -> None:
    check_against_rule(INLINE[name], lowering, shapes)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    run_inside(__file__, "fused_triton and not (large or options0 or options2) or after_changes")


@inside_interpreter
def test_triton_follows_the_rule_after_changes() -> None:
    """A group joins and gradients come and go; a step must not reuse an unfit plan."""
    params = parameters()
    optimizer: Any = optgen.load(INLINE["together"])(params[:3])
    oracle = Oracle(INLINE["together"], optimizer)
    for seed in range(6):
        if seed == 2:
            optimizer.add_param_group({"params": params[3:], "lr": 0.05})
            oracle.values += [(param.detach().clone(), {}) for param in params[3:]]
        give_gradients(optimizer, seed)
        if seed == 4:
            params[1].grad = None
        oracle.step()
        with use_lowering("fused_triton"):
            optimizer.step()
        assert oracle.difference() < 1e-12


WHOLE = """from optgen.spec import *


@optimizer(paper="https://example.org")
def Whole(
    p, g, t, /,
    m=state("m"),
    s=state("mu", shape="scalar"),
    k=state("total", shape="group"),
    *,
    lr=hyper(0.1, ge=0),
):
    \"\"\"Products of matrices beside numbers of one and of several parameters.\"\"\"
    require(ndim(p) == 2, "{shape}")
    k = 0.5 * k + norm(g, over="all")
    s = 0.5 * s + rms(g @ transpose(g))
    m = 0.9 * m + s * g / (rms(g, over="all") + where(k > 1, mean(m), 2))
    u = m @ transpose(m) @ m
    p = p - lr * u * mean(abs(m), over="group") / max_abs(u, over="group")
"""


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_matrices_in_lists_follow_the_rule(lowering: str) -> None:
    """In foreach, matrices of one shape form one list; each contributes to the reductions."""
    spec = Spec("Whole", WHOLE, "whole.py", 1)
    params = parameters(((3, 4), (5, 4), (3, 4), (3, 4)))
    optimizer: Any = optgen.load(spec)([{"params": params[:3]}, {"params": params[3:]}])
    oracle = Oracle(spec, optimizer)
    for seed in range(3):
        give_gradients(optimizer, seed)
        oracle.step()
        with use_lowering(lowering):
            optimizer.step()
    assert oracle.difference() < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("options", [{"heavy": False}, {"clip": 0.3}, {"clip": 0.3, "lr": 1.0}])
def test_groups_may_differ_in_their_flags(options: dict[str, Any], lowering: str) -> None:
    groups = in_groups(parameters())
    groups[1] |= options
    optimizer = ODD(groups)
    oracle = Oracle("odd_wide", optimizer)
    for seed in range(3):
        give_gradients(optimizer, seed)
        oracle.step()
        with use_lowering(lowering):
            optimizer.step()
    assert oracle.difference() < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_parameters_without_a_gradient_do_not_count(lowering: str) -> None:
    optimizer = RULE(in_groups(parameters()))
    oracle = Oracle(SPEC, optimizer)
    all_params = [p for group in optimizer.param_groups for p in group["params"]]
    for seed in range(4):
        give_gradients(optimizer, seed)
        all_params[seed].grad = None
        all_params[-seed].grad = None
        if seed == 2:
            all_params[0].grad = all_params[1].grad = None  # the whole first group
        oracle.step()
        with use_lowering(lowering):
            optimizer.step()
    assert oracle.difference() < 1e-12


def test_groups_of_different_lowerings_wait_for_one_another() -> None:
    groups = in_groups(parameters())
    groups[0]["foreach"] = False
    optimizer = ODD(groups)
    assert all(title in str(explain(optimizer)) for title in ("for-loop", "fused C++"))
    oracle = Oracle("odd_wide", optimizer)
    for seed in range(3):
        give_gradients(optimizer, seed)
        oracle.step()
        optimizer.step()
    assert oracle.difference() < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_gradients_may_have_another_layout(lowering: str) -> None:
    params = [torch.ones(3, 4).double().t().requires_grad_(), *parameters(((4, 3), (5,)))]
    optimizer = RULE(params)
    oracle = Oracle(SPEC, optimizer)
    for seed in range(3):
        give_gradients(optimizer, seed)
        params[1].grad = torch.randn(3, 4).double().t()
        oracle.step()
        with use_lowering(lowering):
            optimizer.step()
    assert oracle.difference() < 1e-12


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_scaler_divides_gradients_once(lowering: str) -> None:
    scaled, plain = RULE(in_groups(parameters())), RULE(in_groups(parameters()))
    for seed in range(3):
        give_gradients(plain, seed)
        give_gradients(scaled, seed)
        scaled.grad_scale, scaled.found_inf = torch.tensor(8.0), torch.tensor(float(seed == 1))
        for group in scaled.param_groups:
            for param in group["params"]:
                param.grad *= 8
        with use_lowering(lowering):
            scaled.step()
            if seed != 1:
                plain.step()
    for ours, theirs in zip(scaled.param_groups, plain.param_groups, strict=True):
        for a, b in zip(ours["params"], theirs["params"], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_narrow_parameters_follow_the_rule(lowering: str, dtype: torch.dtype) -> None:
    params = parameters(dtype=dtype)
    params[1], params[2] = params[1].detach().float(), params[2].detach().double()
    optimizer = RULE(in_groups(params), lr=0.01)
    oracle = Oracle(SPEC, optimizer)
    give_gradients(optimizer, 1)
    oracle.step()
    with use_lowering(lowering):
        optimizer.step()
    assert oracle.difference() < 8 * torch.finfo(dtype).eps
    assert [group["k"].item() for group in optimizer.param_groups] == [2.0, 2.0]


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_same_bits_in_every_order(lowering: str) -> None:
    results = []
    for order in ((0, 1, 2, 3, 4, 5), (4, 2, 5, 0, 3, 1)):
        params = parameters(dtype=torch.float32)
        optimizer = RULE([params[i] for i in order])
        for seed in range(3):
            for index, param in enumerate(params):
                generator = torch.Generator().manual_seed(10 * seed + index)
                param.grad = torch.randn(param.shape, generator=generator)
            with use_lowering(lowering):
                optimizer.step()
        results.append([param.detach().clone() for param in params])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_same_bits_for_any_number_of_threads() -> None:
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            params = parameters((*LARGE, (3000, 1000)), torch.float32)
            optimizer = ODD(in_groups(params))
            with use_lowering("fused_cpu"):
                step(optimizer, 1)
                step(optimizer, 2)
            results.append([param.detach().clone() for param in params])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_group_keeps_its_states() -> None:
    optimizer = PRODIGY(in_groups(parameters()))
    assert optimizer.param_groups[0]["d"].item() == 1e-6
    step(optimizer, 1)
    for group in optimizer.param_groups:
        assert group["k"].dtype == torch.float64
        assert group["k"].item() == 1.0
        assert not {"d", "k"} & set(optimizer.state[group["params"][0]])
    assert optimizer.param_groups[0]["k"] is not optimizer.param_groups[1]["k"]


def copies(optimizer: Any) -> Iterator[Any]:
    """Yield copies of an optimizer: by `copy`, by pickle, and by a checkpoint."""
    yield copy.deepcopy(optimizer)
    yield pickle.loads(pickle.dumps(optimizer))
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    groups = [
        {"params": [p.detach().clone().requires_grad_() for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    loaded = type(optimizer)(groups)
    loaded.load_state_dict(torch.load(buffer))
    yield loaded


@pytest.mark.parametrize("cls", [ODD, PRODIGY])
def test_a_copy_goes_on(cls: Any) -> None:
    optimizer = cls(in_groups(parameters()))
    step(optimizer, 1)
    optimizers = [*copies(optimizer), optimizer]
    for seed in (2, 3):
        for each in optimizers:
            step(each, seed)
    for each in optimizers[:-1]:
        for ours, theirs in zip(optimizer.param_groups, each.param_groups, strict=True):
            for a, b in zip(ours["params"], theirs["params"], strict=True):
                assert torch.equal(a, b)
            for state in cls.rule.group_states:
                assert torch.equal(ours[state.key], theirs[state.key])


def test_a_checkpoint_before_the_first_step_begins_anew() -> None:
    fresh = PRODIGY(parameters()).state_dict()
    optimizer = PRODIGY(parameters())
    step(optimizer, 1)
    optimizer.load_state_dict(fresh)
    step(optimizer, 1)
    assert optimizer.param_groups[0]["k"].item() == 1.0


@pytest.mark.parametrize("value", [7, 7.0, torch.tensor([7], dtype=torch.int64)])
def test_a_state_of_the_group_may_be_set(value: Any) -> None:
    optimizer = PRODIGY(parameters())
    optimizer.param_groups[0]["k"] = value
    step(optimizer, 1)
    assert torch.equal(optimizer.param_groups[0]["k"], torch.tensor(8.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("7", "must be a number, not '7'"),
        ([7.0], "must be a number"),
        (torch.ones(2), "2 elements"),
    ],
)
@pytest.mark.parametrize("lowering", [None, "forloop"])
def test_a_state_of_the_group_that_is_no_number_is_refused(
    value: Any, message: str, lowering: Any
) -> None:
    optimizer = PRODIGY(parameters())
    step(optimizer, 1)
    step(optimizer, 2)
    optimizer.param_groups[0]["k"] = value
    before = [param.detach().clone() for param in optimizer.param_groups[0]["params"]]
    refused = pytest.raises((TypeError, ValueError), match=message)
    with use_lowering(lowering) if lowering else nullcontext(), refused:
        step(optimizer, 3)
    assert all(map(torch.equal, optimizer.param_groups[0]["params"], before))


def test_a_state_given_with_a_group_is_copied() -> None:
    params, value = parameters(), torch.tensor([4.0])
    groups = [{"params": params[:2], "k": value}, {"params": params[2:4], "k": value}]
    optimizer = ODD([*groups, {"params": params[4:], "k": 4}])
    for seed in (1, 2):
        step(optimizer, seed)
    for group in optimizer.param_groups:
        assert (group["k"].item(), group["k"].shape, group["k"].dtype) == (6, (), torch.float64)
    assert value.item() == 4.0


def test_a_checkpoint_may_have_a_number_for_a_state() -> None:
    """The authors' packages keep plain numbers in their groups."""
    optimizer = ODD(parameters())
    checkpoint = optimizer.state_dict()
    checkpoint["param_groups"][0]["k"] = 7
    optimizer.load_state_dict(checkpoint)
    step(optimizer, 1)
    assert optimizer.param_groups[0]["k"].item() == 8.0


def test_a_group_without_parameters_keeps_its_state() -> None:
    optimizer = ODD([{"params": []}, {"params": parameters()}])
    step(optimizer, 1)
    assert [group["k"].item() for group in optimizer.param_groups] == [1.0, 2.0]


def test_a_group_that_joins_has_its_own_states() -> None:
    params = parameters()
    optimizer = PRODIGY(params[:3])
    step(optimizer, 1)
    optimizer.add_param_group({"params": params[3:]})
    step(optimizer, 2)
    assert [group["k"].item() for group in optimizer.param_groups] == [2.0, 1.0]


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
def test_a_skipped_step_changes_nothing(found_inf: float) -> None:
    optimizer = PRODIGY(parameters())
    step(optimizer, 1)
    give_gradients(optimizer, 2)
    optimizer.grad_scale = torch.tensor(1.0)
    optimizer.found_inf = torch.tensor(found_inf)
    before = [param.detach().clone() for param in optimizer.param_groups[0]["params"]]
    optimizer.step()
    after = optimizer.param_groups[0]["params"]
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a.numel()]
    assert all(torch.equal(a, b) is bool(found_inf) for a, b in pairs)
    assert optimizer.param_groups[0]["k"].item() == 2.0 - found_inf


def test_a_failed_step_changes_nothing() -> None:
    params = parameters()
    optimizer = PRODIGY(params)
    step(optimizer, 1)
    before = [param.detach().clone() for param in params]
    give_gradients(optimizer, 2)
    optimizer.state[params[2]]["s"] = torch.zeros(7, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
    assert optimizer.param_groups[0]["k"].item() == 1.0


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
@pytest.mark.parametrize("name", NAMES)
def test_a_capture_reads_no_number(name: str, lowering: str) -> None:
    cls: Any = optgen.load(spec_file(name))
    optimizer, plain = (
        cls(in_groups(parameters()), capturable=capturable) for capturable in (True, False)
    )
    for seed in range(3):
        give_gradients(optimizer, seed)
        with captured(), use_lowering(lowering):
            optimizer.step()
        step(plain, seed)
    for ours, theirs in zip(optimizer.param_groups, plain.param_groups, strict=True):
        for a, b in zip(ours["params"], theirs["params"], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_autograd_follows_a_step() -> None:
    """The derivative of a later loss by the first parameter equals finite differences."""

    def later_loss(first: Tensor) -> Tensor:
        params = [first.clone(), *(p.detach() for p in parameters()[1:4])]
        optimizer = ODD(params, differentiable=True)
        for param in params:
            param.grad = torch.cos(param * 3)
        optimizer.step()
        return torch.stack([param.square().sum() for param in params]).sum()

    start = parameters()[0]
    assert torch.autograd.gradcheck(later_loss, [start], atol=1e-6)


def test_a_groups_state_may_begin_as_a_tensor_of_autograd(recwarn: Any) -> None:
    optimizer = PRODIGY(parameters(), d0=torch.tensor(0.5, requires_grad=True))
    assert optimizer.param_groups[0]["d"].item() == 0.5
    assert not optimizer.param_groups[0]["d"].requires_grad
    assert not [str(each.message) for each in recwarn]


def test_views_are_seen_by_the_rule() -> None:
    flat, whole = parameters([(12,), (5,)]), parameters([(12,), (5,)])
    viewed = ODD([{"params": flat[:1], "view": (3, 4)}, {"params": flat[1:]}])
    matrix = whole[0].detach().clone().view(3, 4)
    plain = ODD([{"params": [matrix]}, {"params": whole[1:]}])
    for seed in range(3):
        step(viewed, seed)
        step(plain, seed)
    assert torch.equal(flat[0].view(3, 4), matrix)
    assert torch.equal(flat[1], whole[1])


def test_a_parameter_that_is_listed_twice_is_refused() -> None:
    param = torch.ones(3, requires_grad=True)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = ODD([param, param])
    param.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="a parameter is listed twice: list it once"):
        optimizer.step()
    assert param.tolist() == [1.0] * 3


def test_explain_says_the_lowering() -> None:
    assert "fused C++" in str(explain(PRODIGY(parameters())))
    spec = Spec("Whole", WHOLE, "whole.py", 1)
    optimizer: Any = optgen.load(spec)(parameters(((3, 4), (5, 4))))
    reason = "the rule has whole matrices and reduces over several parameters"
    assert reason in str(explain(optimizer))


@pytest.mark.parametrize(
    ("condition", "refused"),
    [("twice > 1", True), ("betas[0]", True), ("lr > 0.01 and not lr == 2", False)],
)
def test_triton_refuses_reductions_in_branches_on_computed_values(
    condition: str, refused: bool
) -> None:
    """The host evaluates the condition, and knows only hyperparameters of the group."""
    body = ("twice = 2 * lr", f"if {condition}:", '    g = g / sum(g, over="group")')
    hypers = "lr=hyper(0.1, ge=0), betas=hyper((0.9, 0.5))"
    text = spec_text(*body, "p = p - lr * g * betas[1] - betas[0] * twice * g", hypers=hypers)
    (algorithm,) = read_spec(Spec("made", text, "made.py", 1))
    reason = "the rule reduces over several parameters in a branch on computed values"
    assert why_not_in_triton(algorithm) == (reason if refused else "")


def test_keyed_optimizers_refuse_what_they_cannot_keep() -> None:
    params_by_name = {"a": torch.nn.Parameter(torch.ones(3))}
    with pytest.raises(TypeError, match="Prodigy keeps the state k in its param groups"):
        KeyedOptimizerWrapper(params_by_name, PRODIGY)
    clipped: Any = optgen.load(spec_file("clipped_lamb"))
    with pytest.raises(TypeError, match="take its step after the backward pass"):
        UpdateInBackward(torch.nn.Linear(2, 2), clipped)
