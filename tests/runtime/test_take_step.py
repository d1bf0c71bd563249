"""Test which lowering takes a step, and why."""

from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import optgen
import optgen.optim
from optgen.optim import Adam
from optgen.runtime.backends import FUSED
from optgen.runtime.batch.step_context import FORCED_LOWERING
from optgen.runtime.fused_cpu.backend import FusedCpuBackend
from optgen.runtime.fused_triton import backend as fused_triton


@pytest.fixture
def pretended_kernel(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Pretend that there is a C++ kernel; a test may set an "obstacle" in the returned dict."""
    kernel = {"obstacle": ""}
    monkeypatch.setattr(
        FusedCpuBackend, "build_or_reason", lambda self, owner, batch: kernel["obstacle"]
    )
    return kernel


def adam_with_gradient(dtype: torch.dtype = torch.float32, **options: Any) -> Adam:
    param = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    param.grad = torch.ones(3, dtype=dtype)
    return Adam([param], **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "fused C++: CPU tensors, float32"),
        ({"fused": True}, "fused C++: fused=True, CPU tensors, float32"),
        ({"fused": False}, "for-loop: fused=False"),
        ({"foreach": True}, "foreach: foreach=True"),
        ({"foreach": False}, "for-loop: foreach=False"),
        ({"fused": False, "foreach": True}, "foreach: foreach=True"),
        ({"differentiable": True}, "for-loop: differentiable"),
        ({"capturable": True}, "foreach: capturable"),
        ({"capturable": True, "foreach": False}, "for-loop: foreach=False"),
        ({"lr": torch.tensor(0.1)}, "fused C++: CPU tensors, float32"),
        (
            {"lr": torch.tensor(0.1), "dtype": torch.float64},
            "for-loop: lr is a tensor of lower precision than the parameters",
        ),
        (
            {"lr": torch.tensor(0.1, dtype=torch.float64), "dtype": torch.float64},
            "fused C++: CPU tensors, float64",
        ),
        ({"dtype": torch.complex64}, "fused C++: CPU tensors, float32"),
    ],
)
@pytest.mark.usefixtures("pretended_kernel")
def test_options_choose_the_lowering(options: dict[str, Any], expected: str) -> None:
    assert optgen.explain(adam_with_gradient(**options)) == f"group 0: {expected}"


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("Adam", {}, "fused Triton: capturable, CPU tensors, float32"),
        ("Adafactor", {}, "fused Triton: capturable, CPU tensors, float32"),
        ("Muon", {"lr": torch.tensor(0.1)}, "fused Triton: capturable, CPU tensors, float32"),
        ("NAdam", {"fused": True}, "fused Triton: fused=True, CPU tensors, float32"),
        ("Adam", {"fused": False}, "foreach: capturable"),
        ("Adam", {"foreach": True}, "foreach: foreach=True"),
        ("Adam", {"foreach": False}, "for-loop: foreach=False"),
        ("Prodigy", {}, "foreach: capturable"),  # the host stores the state of the group
        ("SOAP", {}, "foreach: capturable"),
    ],
)
def test_a_capturable_step_takes_kernels_that_a_graph_can_capture(
    name: str, options: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU tensors stand in for CUDA's."""
    monkeypatch.setitem(FUSED, "cpu", "fused_triton")
    monkeypatch.setattr(fused_triton, "device_obstacle", lambda device: "")
    param = torch.nn.Parameter(torch.ones(3, 3))
    param.grad = torch.ones(3, 3)
    optimizer = getattr(optgen.optim, name)([param], capturable=True, **options)
    assert optgen.explain(optimizer) == f"group 0: {expected}"
    monkeypatch.setattr(fused_triton, "device_obstacle", lambda device: "no Triton")
    if not options and name != "SOAP":
        other = getattr(optgen.optim, name)([param], capturable=True)
        assert optgen.explain(other) == "group 0: foreach: capturable"


def test_without_a_compiler_the_best_unfused_lowering_steps(
    pretended_kernel: dict[str, str],
) -> None:
    pretended_kernel["obstacle"] = "no C++ compiler was found"
    adam_of_one = adam_with_gradient()
    adam_of_five = Adam([torch.nn.Parameter(torch.ones(2)) for _ in range(5)])

    assert optgen.explain(adam_of_one) == "group 0: for-loop: no C++ compiler was found"
    assert optgen.explain(adam_of_five) == "group 0: foreach: no C++ compiler was found"
    with pytest.raises(RuntimeError, match=r"Adam\(fused=True\) cannot take a step: no C\+\+ comp"):
        adam_with_gradient(fused=True).step()


@pytest.mark.usefixtures("pretended_kernel")
def test_every_group_has_a_line() -> None:
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = Adam([{"params": params[:1]}, {"params": params[1:], "foreach": False}])

    assert optgen.explain(optimizer).splitlines() == [
        "group 0: fused C++: CPU tensors, float32",
        "group 1: for-loop: foreach=False",
    ]


@pytest.mark.usefixtures("pretended_kernel")
def test_a_group_on_two_devices_takes_two_lowerings() -> None:
    params = [torch.nn.Parameter(torch.ones(2, device=d)) for d in ("cpu", "meta", "cpu")]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = Adam(params)

    assert optgen.explain(optimizer).splitlines() == [
        "group 0: fused C++: CPU tensors, float32",
        "group 0: for-loop: no fused lowering for meta tensors",
    ]
    optimizer.param_groups[0]["foreach"] = False
    for lr in (0.5, 0.25):
        optimizer.param_groups[0]["lr"] = lr  # the batch's parts must see the new lr
        optimizer.step()

    torch.testing.assert_close(params[2].detach(), torch.full((2,), 0.25))
    assert [float(optimizer.state[param]["step"]) for param in params] == [2, 2, 2]


def test_a_group_without_parameters_is_accepted() -> None:
    optimizer = adam_with_gradient(foreach=False)
    optimizer.add_param_group({"params": []})

    optimizer.step()

    assert optgen.explain(optimizer).splitlines()[1] == "group 1: no parameters"


@pytest.mark.parametrize(
    ("argument", "description"),
    [
        (
            torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]),
            r"this is torch\.optim\.adam\.Adam",
        ),
        (Adam, r"this is the class optgen\.optim\.adam\.Adam"),
    ],
)
def test_explain_refuses_objects_that_optgen_did_not_generate(
    argument: Any, description: str
) -> None:
    with pytest.raises(TypeError, match=f"an optimizer that optgen generated.*{description}"):
        optgen.explain(argument)


def test_a_state_of_a_tensor_subclass_takes_the_for_loop() -> None:
    optimizer = adam_with_gradient(betas=(0.5, 0.9))
    optimizer.step()
    for values in optimizer.state.values():
        values["exp_avg"] = TwoTensor(values["exp_avg"], values["exp_avg"].clone())
    assert optgen.explain(optimizer) == "group 0: for-loop: a state of class TwoTensor"
    for lowering in ("fused_cpu", "fused_triton"):
        with optgen.use_lowering(lowering), pytest.raises(RuntimeError, match="a state of class T"):
            optimizer.step()
    optimizer.step()

    (values,) = optimizer.state.values()
    assert type(values["exp_avg"]) is TwoTensor
    assert values["exp_avg"].b.tolist() == [0.75] * 3


@pytest.mark.usefixtures("pretended_kernel")
def test_explain_changes_nothing() -> None:
    optimizer = adam_with_gradient()

    optgen.explain(optimizer)

    assert not optimizer.state


def test_a_lowering_is_forced_only_inside_its_context() -> None:
    optimizer = adam_with_gradient()
    with optgen.use_lowering("foreach"):
        assert optgen.explain(optimizer) == "group 0: foreach: asked for by use_lowering"
        with optgen.use_lowering("forloop"):
            assert optgen.explain(optimizer).startswith("group 0: for-loop")
        assert optgen.explain(optimizer).startswith("group 0: foreach")
    assert FORCED_LOWERING.get() is None


def test_an_unknown_lowering_is_an_error() -> None:
    with (
        pytest.raises(ValueError, match="unknown lowering 'fast'; there are forloop, foreach, "),
        optgen.use_lowering("fast"),
    ):
        pass


@pytest.mark.parametrize(
    ("lowering", "options", "reason"),
    [
        ("foreach", {"differentiable": True}, "only the for-loop can: differentiable"),
        ("fused_cpu", {"differentiable": True}, "only the for-loop can: differentiable"),
        ("fused_cpu", {}, "no kernel today"),
    ],
)
def test_a_forced_lowering_that_cannot_run_is_an_error(
    pretended_kernel: dict[str, str], lowering: str, options: dict[str, Any], reason: str
) -> None:
    pretended_kernel["obstacle"] = "no kernel today"
    optimizer = adam_with_gradient(**options)

    with optgen.use_lowering(lowering), pytest.raises(RuntimeError) as caught:
        optimizer.step()

    assert str(caught.value) == f"Adam cannot take a step through {lowering!r}: {reason}"
    param = optimizer.param_groups[0]["params"][0]
    assert (param == 1).all()


def test_fused_on_complex_tensors_raises_torchs_error() -> None:
    messages = []
    for cls in (Adam, torch.optim.Adam):
        param = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
        param.grad = torch.ones(3, dtype=torch.complex64)
        with pytest.raises(RuntimeError) as caught:
            cls([param], fused=True).step()
        messages.append(str(caught.value))

    assert messages[0] == messages[1]
