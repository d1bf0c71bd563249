"""Test `train()` and `eval()` of optimizers with programs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from spec_files import spec_file
from torch import Tensor

import optgen
from optgen.keyed import KeyedOptimizerWrapper, UpdateInBackward
from optgen.spec import Spec

ADAMW = optgen.load(spec_file("schedule_free_adamw"))
SGD = optgen.load(spec_file("schedule_free_sgd"))
LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
SHAPES = ((3, 4), (), (2, 3, 2), (1,))


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


def parameters(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in SHAPES]


def gradient(point: Tensor, step: int) -> Tensor:
    return torch.cos(point.detach() * (step + 1))


def train(optimizer: Any, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = gradient(param, step)
        optimizer.step()


def param_values(optimizer: Any) -> list[Tensor]:
    """Return copies of an optimizer's parameters."""
    return [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]


def published_sequences(
    start: Tensor,
    direction: Callable[[Tensor, int], Tensor],
    beta: float,
    lr: float,
    warmup: int,
    r: float,
    decay: float,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the paper's y and x after each step (equations 3 to 5).

    Steps use the gradient and the weight decay at y. The average x has the weights of section 4,
    with the warmup of the authors' code.
    """
    z, x, y = start.clone(), start.clone(), start.clone()
    largest = total = 0.0
    step = 0
    while True:
        rate = lr * min(1.0, (step + 1) / max(warmup, 1))
        largest = max(largest, rate)
        weight = (step + 1) ** r * largest**2
        total += weight
        z = z - rate * (direction(y, step) + decay * y)
        x = (1 - weight / total) * x + weight / total * z
        y = (1 - beta) * z + beta * x
        step += 1
        yield y, x


def adam_direction(beta2: float, eps: float) -> Callable[[Tensor, int], Tensor]:
    """Return Adam's direction without momentum, as a function of a point and the step."""
    squares: list[Tensor] = []

    def direction(y: Tensor, step: int) -> Tensor:
        g = gradient(y, step)
        squares.append(g * g)
        ages = range(len(squares) - 1, -1, -1)
        mean = sum(((1 - beta2) * beta2**age * s for age, s in zip(ages, squares, strict=True)))
        return g / ((mean / (1 - beta2 ** (step + 1))).sqrt() + eps)

    return direction


GROUPS = ({"lr": 0.05, "weight_decay": 0.1}, {"lr": 0.02})


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("rule", ["AdamW", "SGD"])
def test_thirty_steps_equal_those_of_the_paper(rule: str, lowering: str) -> None:
    """Two groups, warmup, weight decay, checkpoints in both modes, and many changes of mode."""
    params, warmup, r, beta = parameters(), 10, 0.5, 0.85
    cls: Any = ADAMW if rule == "AdamW" else SGD
    betas = {"betas": (beta, 0.95)} if rule == "AdamW" else {"momentum": beta}
    groups = [{"params": params[:2], **GROUPS[0]}, {"params": params[2:], **GROUPS[1]}]
    optimizer = cls(groups, warmup_steps=warmup, r=r, **betas)
    expected = [
        published_sequences(
            param.detach().clone(),
            adam_direction(0.95, 1e-8) if rule == "AdamW" else gradient,
            beta,
            group["lr"],
            warmup,
            r,
            group.get("weight_decay", 0.0),
        )
        for group in groups
        for param in group["params"]
    ]
    with optgen.use_lowering(lowering):
        for step in range(30):
            train(optimizer, 1, step)
            points = list(map(next, expected))
            check_close(params, [y for y, _ in points])
            if step % 4 == 1:
                optimizer.eval()
                check_close(params, [x for _, x in points])
                if step == 9:
                    saved = optimizer.state_dict()
                    optimizer = cls([{"params": g["params"]} for g in groups])
                    optimizer.load_state_dict(saved)
                optimizer.train()
                check_close(params, [y for y, _ in points])


def check_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for tensor, expected_tensor in zip(found, expected, strict=True):
        torch.testing.assert_close(tensor.detach(), expected_tensor, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_call_of_the_current_mode_changes_nothing(lowering: str) -> None:
    optimizer = ADAMW(parameters())
    with optgen.use_lowering(lowering):
        train(optimizer, 3)
        in_train_mode = param_values(optimizer)
        optimizer.train()
        assert all(map(torch.equal, param_values(optimizer), in_train_mode))
        optimizer.eval()
        in_eval_mode = param_values(optimizer)
        assert not any(map(torch.equal, in_eval_mode, in_train_mode))
        optimizer.eval()
        assert all(map(torch.equal, param_values(optimizer), in_eval_mode))


@outside_interpreter
def test_a_step_in_eval_mode_is_an_error_before_anything_changes() -> None:
    optimizer = ADAMW(parameters())
    train(optimizer, 2)
    optimizer.eval()
    before, saved = param_values(optimizer), copy.deepcopy(optimizer.state_dict())
    called = []
    with pytest.raises(RuntimeError, match=r"ScheduleFreeAdamW\.step in eval mode: call"):
        optimizer.step(lambda: called.append(0) or 0.0)

    assert not called
    assert all(map(torch.equal, param_values(optimizer), before))
    assert repr(optimizer.state_dict()) == repr(saved)
    optimizer.train()
    train(optimizer, 1)


@outside_interpreter
def test_a_program_does_not_change_a_parameter_without_state() -> None:
    params = parameters()
    optimizer = ADAMW(params)
    optimizer.eval()
    optimizer.train()
    assert not optimizer.state
    for param in params[1:]:
        param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.eval()

    assert all(map(torch.equal, params[:1], parameters()[:1]))
    assert params[0] not in optimizer.state
    assert not any(map(torch.equal, params[1:], parameters()[1:]))


@outside_interpreter
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_program_moves_a_parameter_that_is_listed_twice_once() -> None:
    param = parameters()[0]
    optimizer = SGD([param, param], momentum=0.5)
    train(optimizer, 2)
    before, z = param_values(optimizer)[0], optimizer.state[param]["z"]
    optimizer.eval()

    check_close([param], [2 * before - z])


@outside_interpreter
@pytest.mark.parametrize("method", ["state dict", "pickle", "copy"])
def test_a_checkpoint_or_copy_keeps_the_mode(method: str) -> None:
    optimizer: Any = ADAMW(parameters())
    train(optimizer, 3)
    optimizer.eval()
    assert [g["train_mode"] for g in optimizer.state_dict()["param_groups"]] == [False]
    if method == "state dict":
        other: Any = ADAMW([p.detach().clone().requires_grad_() for p in param_values(optimizer)])
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    elif method == "pickle":
        other = pickle.loads(pickle.dumps(optimizer))
    else:
        other = copy.deepcopy(optimizer)
    with pytest.raises(RuntimeError, match="eval mode"):
        other.step()
    for each in (optimizer, other):
        each.train()
        train(each, 3, 3)

    assert all(map(torch.equal, param_values(optimizer), param_values(other)))


@outside_interpreter
def test_a_checkpoint_without_a_mode_is_loaded_in_train_mode() -> None:
    optimizer: Any = ADAMW(parameters())
    train(optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["param_groups"][0]["train_mode"]
    optimizer.eval()
    optimizer.load_state_dict(saved)

    assert optimizer.param_groups[0]["train_mode"] is True


@outside_interpreter
def test_a_group_may_join_in_eval_mode() -> None:
    optimizer: Any = ADAMW(parameters())
    train(optimizer, 2)
    before = param_values(optimizer)
    optimizer.eval()
    new = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer.add_param_group({"params": [new]})
    with pytest.raises(RuntimeError, match="eval mode"):
        optimizer.step()
    optimizer.train()

    check_close(param_values(optimizer), [*before, torch.ones(3, dtype=torch.float64)])
    train(optimizer, 1, 2)


@outside_interpreter
def test_an_error_of_a_program_changes_no_group() -> None:
    """The program cannot convert the second group, so it does not convert the first one."""
    params = parameters()
    optimizer: Any = ADAMW([{"params": params[:2]}, {"params": params[2:]}])
    train(optimizer, 2)
    before = param_values(optimizer)
    optimizer.state[params[3]]["z"] = torch.zeros(7, dtype=torch.float64)
    with pytest.raises(ValueError, match="differ in length or in the shapes"):
        optimizer.eval()

    assert all(map(torch.equal, param_values(optimizer), before))
    assert all(group["train_mode"] for group in optimizer.param_groups)


@outside_interpreter
@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": False}])
def test_a_program_follows_the_options_of_its_group(options: dict[str, Any]) -> None:
    """If a group's options exclude the fused kernel, its programs run without the kernel."""
    optimizer: Any = ADAMW(parameters(), **options)
    program = optimizer.eval_program.function(optimizer.lowerings)
    program._cached.clear()
    train(optimizer, 2)
    optimizer.eval()

    assert not program._cached


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_a_program_takes_any_dtype(dtype: torch.dtype, lowering: str) -> None:
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(5, 3).to(dtype))
    optimizer: Any = SGD([param], lr=0.1, momentum=0.75)
    with optgen.use_lowering("forloop"):
        for _ in range(3):
            param.grad = torch.randn(5, 3).to(dtype)
            optimizer.step()
    double = torch.complex128 if dtype.is_complex else torch.float64
    p, z = param.detach().to(double), optimizer.state[param]["z"].to(double)
    version = param._version
    with optgen.use_lowering(lowering):
        optimizer.eval()

    assert param._version > version
    tolerance = 2**-7 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(
        param.detach().to(double), p + (1 - 1 / 0.75) * (z - p), rtol=tolerance, atol=tolerance
    )


OPTIONAL_AVERAGE = '''from optgen.spec import flag, hyper, optimizer, state


@optimizer(paper="https://example.org")
def OptionalAverage(
    p, g, /, a=state("average", init="p", when="keep"), *,
    lr=hyper(0.5, ge=0, tensor="always"), keep=flag(True), back=hyper(2.0), to=hyper(0.5),
):
    """Keeps an average if the flag says so."""
    p = p - lr * g
    if keep:
        a = (a + p) / 2


@OptionalAverage.train
def move_back(p, a, /, *, back):
    p = a + back * (p - a)


@OptionalAverage.eval
def move(p, a, /, *, to, lr):
    p = a + to * (p - a) + 0 * lr
'''


@outside_interpreter
def test_a_program_does_not_change_a_group_whose_options_exclude_the_state() -> None:
    """The learning rate, which one of the programs takes, may be a tensor."""
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    groups = [{"params": params[:1]}, {"params": params[1:], "keep": False}]
    optimizer: Any = optgen.load(
        Spec("OptionalAverage", OPTIONAL_AVERAGE, "optional_average.py", 1)
    )(groups, lr=torch.tensor(0.5))
    for param in params:
        param.grad = torch.ones(3)
    optimizer.step()  # p is 0.5, and the average is 0.75
    optimizer.eval()

    assert params[0].tolist() == [0.625] * 3
    assert params[1].tolist() == [0.5] * 3
    optimizer.train()
    assert params[0].tolist() == [0.5] * 3


@outside_interpreter
def test_a_class_without_programs_has_no_mode() -> None:
    optimizer = optgen.optim.AdamW([torch.nn.Parameter(torch.ones(2))])

    assert not hasattr(optimizer, "train")
    assert not hasattr(optimizer, "eval")
    assert "train_mode" not in optimizer.state_dict()["param_groups"][0]


@outside_interpreter
def test_wrappers_that_save_no_groups_refuse_programs() -> None:
    params = dict(enumerate(parameters()))
    with pytest.raises(TypeError, match="keeps its mode, train or eval, in its param groups"):
        KeyedOptimizerWrapper({str(k): p for k, p in params.items()}, ADAMW)
    with pytest.raises(TypeError, match="keeps its mode"):
        UpdateInBackward(torch.nn.Linear(2, 2), ADAMW)


@outside_interpreter
def test_torchs_get_optimizer_state_dict_creates_states_in_eval_mode() -> None:
    state_dicts = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    model = torch.nn.Linear(3, 2)
    optimizer: Any = ADAMW(model.parameters())
    optimizer.eval()
    checkpoint = state_dicts.get_optimizer_state_dict(model, optimizer)

    assert "z" in checkpoint["state"]["weight"]
    assert optimizer.param_groups[0]["train_mode"] is False
