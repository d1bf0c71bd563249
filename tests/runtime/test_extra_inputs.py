"""Test steps with extra inputs: tensors beside the gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, outside_interpreter, run_inside
from lowerings.capture import captured
from spec_files import spec_file
from torch import Tensor

import optgen
from optgen.ir.evaluate import evaluate
from optgen.passes.maximize import add_maximize
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

SOPHIA = optgen.load(spec_file("sophia"))
ADA_HESSIAN = optgen.load(spec_file("adahessian"))
LOWERINGS = ("fused_triton",) if INTERPRETED else ("forloop", "foreach", "fused_cpu")
SHAPES = ((3, 4), (), (2, 3, 2), (1,))

TWO_INPUTS = '''from optgen.spec import *


@optimizer(paper="https://example.org")
def TwoInputs(
    p, g, t, a=given("first"), b=given("second"), /,
    m=state("m"), s=state("s", shape="scalar"), *, lr=hyper(0.1, ge=0), fa=flag(True),
):
    """Two inputs that may be absent, in branches, and sums."""
    x = g
    if given(a) and fa:
        x = x + a * rms(a)
        s = s + 1
    elif given(b):
        x = x - b
    if not given(b):
        m = 0.5 * m + x
    else:
        m = lerp(m, b * mean(b), 0.25) + x
    p = p - lr * m / (1 + s)
'''
ELEMENTWISE = (
    TWO_INPUTS.replace(" * rms(a)", "")
    .replace(" * mean(b)", "")
    .replace("TwoInputs", "Elementwise")
)


@outside_interpreter
def test_fused_triton_in_its_interpreter() -> None:
    pytest.importorskip("triton")
    run_inside(__file__)


def parameters(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def gradient(point: Tensor, step: int) -> Tensor:
    return torch.cos(point.detach() * (step + 1))


def estimate(point: Tensor, step: int) -> Tensor:
    """Return a positive tensor that stands for an estimate of the Hessian's diagonal."""
    return torch.sin(point.detach() * (step + 1)).abs() + 0.1


def class_of(text: str) -> Any:
    """Return the class of the spec that has this text."""
    name = text.partition("def ")[2].partition("(")[0]
    return optgen.load(Spec(name, text, f"{name}.py", 1))


def check_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for tensor, expected_tensor in zip(found, expected, strict=True):
        torch.testing.assert_close(tensor.detach(), expected_tensor, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_sophia_steps_as_its_paper_says(lowering: str) -> None:
    """Algorithm 3 of the paper with SophiaG's scale; two groups, and an estimate every 7 steps."""
    params, beta1, beta2, rho, size, decay = parameters(), 0.9, 0.95, 0.05, 10, 0.1
    rates = [0.02, 0.02, 0.01, 0.01]
    groups = [{"params": params[:2], "lr": 0.02}, {"params": params[2:], "lr": 0.01}]
    options = {"betas": (beta1, beta2), "rho": rho, "batch_size": size, "weight_decay": decay}
    optimizer: Any = SOPHIA(groups, **options)
    points = [param.detach().clone() for param in params]
    means = [torch.zeros_like(point) for point in points]
    diagonals = [torch.zeros_like(point) for point in points]
    for step in range(30):
        hessian = [estimate(point, step) for point in points] if step % 7 == 2 else None
        for param in params:
            param.grad = gradient(param, step)
        for i, point in enumerate(points):
            means[i] = beta1 * means[i] + (1 - beta1) * gradient(point, step)
            if hessian:
                diagonals[i] = beta2 * diagonals[i] + (1 - beta2) * hessian[i]
            scaled = means[i] / (rho * size * diagonals[i] + 1e-15)
            points[i] = point - rates[i] * decay * point - rates[i] * scaled.clamp(-1, 1)
        with optgen.use_lowering(lowering):
            optimizer.step(hessian=hessian)
        check_close(params, points)
    check_close([optimizer.state[param]["hessian"] for param in params], diagonals)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_ada_hessian_steps_as_its_paper_says(lowering: str) -> None:
    """Equations 9 to 12 of the paper, with eps and weight decay as in the authors' code."""
    params, beta1, beta2, lr, power, decay = parameters(), 0.9, 0.98, 0.1, 0.7, 0.1
    options = {"lr": lr, "betas": (beta1, beta2), "weight_decay": decay, "hessian_power": power}
    optimizer: Any = ADA_HESSIAN(params, **options)
    points = [param.detach().clone() for param in params]
    gradients: list[list[Tensor]] = [[] for _ in points]
    squares: list[list[Tensor]] = [[] for _ in points]
    for step in range(30):
        hessian = [estimate(point, step) for point in points]
        for i, (param, point) in enumerate(zip(params, points, strict=True)):
            param.grad = gradient(param, step)
            gradients[i].append(gradient(point, step))
            squares[i].append(hessian[i] ** 2)
            m, v = mean(gradients[i], beta1), mean(squares[i], beta2)
            points[i] = point - lr * (m / (v.sqrt() ** power + 1e-4) + decay * point)
        with optgen.use_lowering(lowering):
            optimizer.step(hessian=hessian)
        check_close(params, points)


def mean(values: list[Tensor], beta: float) -> Tensor:
    """Return the exponential mean without its bias towards zero."""
    weights = [(1 - beta) * beta**age for age in reversed(range(len(values)))]
    total = sum(w * v for w, v in zip(weights, values, strict=True))
    return torch.as_tensor(total) / (1 - beta ** len(values))


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("text", [TWO_INPUTS, ELEMENTWISE], ids=["sums", "elements"])
@pytest.mark.parametrize("options", [{}, {"fa": False, "maximize": True}], ids=str)
def test_every_combination_of_inputs_follows_the_rule(
    text: str, lowering: str, options: dict[str, Any]
) -> None:
    """Each step has inputs for some parameters only; each parameter follows the oracle."""
    cls = class_of(text)
    (rule,) = read_spec(cls.spec)
    params, algorithm = parameters(), add_maximize(rule)
    optimizer = cls(params, **options)
    hypers = {**{h.name: h.default for h in algorithm.hypers}, **options}
    expected: list[tuple[Tensor, dict[str, Any]]] = [(p.detach().clone(), {}) for p in params]
    for step in range(8):
        extra_inputs: dict[str, list[Tensor | None]] = {
            name: [
                estimate(param, step + 3 * number) if (step + i + number) % 3 == 0 else None
                for i, param in enumerate(params)
            ]
            for number, name in enumerate(("first", "second"))
        }
        if step == 4:
            extra_inputs = {}
        for i, param in enumerate(params):
            param.grad = gradient(param, step)
            inputs_of_param = {
                name: tensors[i] for name, tensors in extra_inputs.items() if tensors[i] is not None
            }
            given = {f"given_{name}": name in inputs_of_param for name in ("first", "second")}
            inputs = {f"{name}_input": tensor for name, tensor in inputs_of_param.items()}
            point, state = expected[i]
            grad = gradient(point, step)
            point, state = evaluate(
                algorithm, hypers | given, point, grad, state | inputs, torch.float64
            )
            states_only = {key: value for key, value in state.items() if not key.endswith("_input")}
            expected[i] = point, states_only
        with optgen.use_lowering(lowering):
            optimizer.step(**extra_inputs)
        check_close(params, [point for point, _ in expected])
        for param, (_, state) in zip(params, expected, strict=True):
            assert list(optimizer.state[param]) == ["step", "m", "s"]
            check_close([optimizer.state[param]["m"]], [state["m"]])


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_an_input_may_have_any_dtype(dtype: torch.dtype, lowering: str) -> None:
    """A step does not write to an input, and reads it as precisely as a gradient."""
    torch.manual_seed(0)
    text = ELEMENTWISE.replace("Elementwise", "Plain").replace("1 + s", "2 + s")
    param = torch.nn.Parameter(torch.randn(5, 3).to(dtype))
    start, grad = param.detach().clone(), torch.randn(5, 3).to(dtype)
    inputs = [torch.randn(5, 3).to(dtype)]
    param.grad = grad.clone()
    optimizer = class_of(text)([param], lr=0.5)
    before = inputs[0].clone()
    with optgen.use_lowering(lowering):
        optimizer.step(first=inputs)

    double = torch.complex128 if dtype.is_complex else torch.float64
    expected = start.to(double) - 0.5 * (grad.to(double) + before.to(double)) / 3
    tolerance = 2**-6 if dtype == torch.bfloat16 else 1e-6
    found = param.detach().to(double)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(inputs[0], before)


@outside_interpreter
def test_autograd_follows_an_input() -> None:
    param = torch.zeros(3, dtype=torch.float64)
    optimizer = class_of(ELEMENTWISE)([param], lr=0.5, differentiable=True)
    param.grad = torch.ones(3, dtype=torch.float64)
    extra_input = torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True)
    optimizer.step(first=[extra_input])

    assert param.tolist() == [-0.75] * 3
    param.sum().backward()
    assert extra_input.grad is not None
    assert extra_input.grad.tolist() == [-0.25] * 3


@outside_interpreter
@pytest.mark.parametrize("text", [TWO_INPUTS, ELEMENTWISE], ids=["sums", "elements"])
def test_a_capturable_step_equals_an_ordinary_one(text: str) -> None:
    """The host reads no number of an input, because a captured graph cannot."""
    results = []
    for options in ({}, {"capturable": True}):
        params = parameters()
        optimizer = class_of(text)(params, **options)
        for step in range(3):
            for param in params:
                param.grad = gradient(param, step)
            inputs = [estimate(param, step) if step != 1 else None for param in params]
            with captured(forbid_reads="capturable" in options), optgen.use_lowering("foreach"):
                optimizer.step(first=inputs)
        results.append(params)
    check_close(results[1], [param.detach() for param in results[0]])


@outside_interpreter
def test_a_step_without_inputs_is_cached_and_one_with_inputs_is_not() -> None:
    params = parameters()
    optimizer: Any = SOPHIA(params)
    for step in range(6):
        for param in params:
            param.grad = gradient(param, step)
        hessian = [estimate(param, step) for param in params] if step == 3 else None
        optimizer.step(hessian=hessian)
        assert (optimizer._context.cached_step is None) is (step == 3)
        assert not optimizer._context.extra_inputs


@outside_interpreter
def test_a_missing_input_is_an_error_before_anything_changes() -> None:
    params = parameters()
    optimizer: Any = ADA_HESSIAN([{"params": params[:2]}, {"params": params[2:]}])
    for param in params:
        param.grad = gradient(param, 0)
    start = [param.detach().clone() for param in params]
    incomplete: list[Tensor | None] = [estimate(param, 0) for param in params]
    incomplete[3] = None
    for hessian in (incomplete, None):
        with pytest.raises(ValueError, match=r"needs hessian for each parameter .* of shape \("):
            optimizer.step(hessian=hessian)
        assert all(map(torch.equal, params, start))
        assert not optimizer.state
    params[3].grad = None  # a parameter without a gradient needs no input
    optimizer.step(hessian=incomplete)
    assert params[3] not in optimizer.state
    assert optgen.explain(optimizer).startswith("group 0: fused C++")


class OverridingTensor(Tensor):
    """A tensor class that overrides operations."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs)


UNFIT_INPUTS: dict[str, tuple[Any, type[Exception], str]] = {
    "too short": ([None], ValueError, "hessian has 1 entries for 2 parameters"),
    "no list": (3, TypeError, "hessian is a list with a tensor or None per parameter, not 3"),
    "a tensor": (torch.ones(2, 3), TypeError, "hessian is a list with a tensor or None per"),
    "a number": ([1.0, None], TypeError, r"hessian\[0\] is a float, not a tensor or None"),
    "another shape": ([None, torch.ones(3, 2)], ValueError, r"hessian\[1\] has the shape \(3, 2\)"),
    "another dtype": ([torch.ones(2, 3).double(), None], TypeError, "has the dtype torch.float64"),
    "whole numbers": ([torch.ones(2, 3).int(), None], TypeError, "has the dtype torch.int32"),
    "another device": (
        [torch.ones(2, 3, device="meta"), None],
        RuntimeError,
        "has the device meta",
    ),
    "sparse": (
        [torch.ones(2, 3).to_sparse(), None],
        TypeError,
        "is sparse: extra inputs are dense",
    ),
}


@outside_interpreter
@pytest.mark.parametrize("name", UNFIT_INPUTS)
def test_an_input_that_does_not_fit_its_parameter_is_refused(name: str) -> None:
    hessian, error, message = UNFIT_INPUTS[name]
    params = [torch.nn.Parameter(torch.ones(2, 3)) for _ in range(2)]
    optimizer: Any = SOPHIA(params)
    for param in params:
        param.grad = torch.ones(2, 3)
    with pytest.raises(error, match=message):
        optimizer.step(hessian=hessian)

    assert not optimizer.state
    assert all(torch.equal(param, torch.ones(2, 3)) for param in params)
    optimizer.step()


@outside_interpreter
def test_unknown_arguments_are_refused() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(TypeError, match=r"Sophia\.step\(\) got an unexpected keyword.*'hess'"):
        SOPHIA([param]).step(hess=[None])
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        optgen.optim.AdamW([param]).step(hessian=[None])  # type: ignore[call-overload]


@outside_interpreter
def test_an_input_in_the_memory_of_its_parameter_is_refused() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    param.grad = torch.ones(2)
    for view in (param, param.data, param.detach()):
        with pytest.raises(ValueError, match=r"hessian\[0\] is in the parameter's memory"):
            SOPHIA([param]).step(hessian=[view])
    buffer = torch.ones(4)  # holds a parameter, and behind it an input
    param = torch.nn.Parameter(buffer[:2])
    param.grad = torch.ones(2)
    SOPHIA([param]).step(hessian=[buffer[2:]])
    assert param.tolist() != [1, 1]


@outside_interpreter
def test_a_sparse_gradient_is_refused() -> None:
    param = torch.nn.Parameter(torch.ones(4, 2))
    param.grad = torch.ones(4, 2).to_sparse(1)
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        SOPHIA([param]).step(hessian=[torch.ones(4, 2)])


@outside_interpreter
def test_checkpoints_and_groups_store_no_inputs() -> None:
    params = parameters()
    optimizer: Any = SOPHIA(params)
    for param in params:
        param.grad = gradient(param, 0)
    optimizer.step(hessian=[estimate(param, 0) for param in params])
    saved = copy.deepcopy(optimizer.state_dict())

    assert set(saved["state"][0]) == {"exp_avg", "hessian"}
    assert not [key for key in saved["param_groups"][0] if key.startswith("given")]
    copied = copy.deepcopy(optimizer)
    copied.load_state_dict(saved)
    copied.step(hessian=None)


@outside_interpreter
def test_hooks_and_the_closure_run_once() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    optimizer: Any = SOPHIA([param])
    events: list[Any] = []
    optimizer.register_step_pre_hook(lambda _, args, kwargs: events.append(sorted(kwargs)))
    optimizer.register_step_post_hook(lambda *_: events.append("after"))

    def closure() -> float:
        param.grad = torch.ones(2)
        events.append("closure")
        return 2.5

    assert optimizer.step(closure, hessian=[torch.ones(2)]) == 2.5
    assert events == [["hessian"], "closure", "after"]
    assert optimizer.state[param]["hessian"].abs().sum() > 0


@outside_interpreter
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_an_input_may_have_any_layout(lowering: str) -> None:
    """An input may have another memory order than its parameter, or elements that share memory."""
    results = []
    for extra_input in (torch.rand(4, 6).t(), torch.tensor(0.5).expand(6, 4)):
        for each in (extra_input, extra_input.contiguous()):
            param = torch.nn.Parameter(torch.ones(6, 4))
            param.grad = torch.ones(6, 4)
            optimizer = class_of(ELEMENTWISE)([param])
            with optgen.use_lowering(lowering):
                optimizer.step(first=[each])
            results.append(param.detach())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[2], results[3])


@outside_interpreter
def test_an_input_may_be_a_conjugate_view() -> None:
    results = []
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    for each in (conjugate, conjugate.resolve_conj()):
        param = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
        param.grad = torch.ones(3, dtype=torch.complex64)
        class_of(ELEMENTWISE)([param]).step(first=[each])
        results.append(param.detach())

    assert torch.equal(*results)


@outside_interpreter
def test_an_input_of_a_class_with_operations_of_its_own_takes_the_for_loop() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = class_of(ELEMENTWISE)([param], lr=0.5)
    optimizer.step(first=[torch.ones(3).as_subclass(OverridingTensor)])

    assert param.tolist() == [0.5] * 3


WITH_PROGRAMS = (
    ELEMENTWISE.replace("Elementwise", "WithPrograms")
    + """

@WithPrograms.train
def subtract_m(p, m, /):
    p = p - m


@WithPrograms.eval
def add_m(p, m, /):
    p = p + m
"""
)


@outside_interpreter
def test_a_class_may_have_extra_inputs_and_programs() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = class_of(WITH_PROGRAMS)([param], lr=0.5)
    optimizer.step(first=[torch.ones(3)])
    assert param.tolist() == [0.5] * 3
    optimizer.eval()
    assert param.tolist() == [2.5] * 3
    with pytest.raises(RuntimeError, match="eval mode"):
        optimizer.step(first=[torch.ones(3)])
    optimizer.train()
    optimizer.step(second=[torch.ones(3)])
