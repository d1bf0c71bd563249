"""Load checkpoints that optimizers of bitsandbytes and torchao have saved in 8 and 4 bits."""

import io
from collections.abc import Sequence
from typing import Any

import bitsandbytes
import pytest
import torch
import torchao.optim
from torch import Tensor

from optgen import compose, modifiers
from optgen.runtime.state.create import quantize


def trained(cls: Any, **options: Any) -> tuple[list[Tensor], Any]:
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator) for shape in ((64, 80), (7,))]
    optimizer = cls([param.requires_grad_() for param in params], **options)
    step(optimizer, params, 1)
    step(optimizer, params, 2)
    return params, optimizer


def step(optimizer: Any, params: Sequence[Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        shares = torch.rand(param.shape, generator=generator)
        param.grad = torch.randn(param.shape, generator=generator) * shares**3
    optimizer.step()


def loaded(cls: Any, params: Sequence[Tensor], theirs: Any, **options: Any) -> Any:
    """Return our optimizer for copies of the parameters, with the other one's checkpoint."""
    file = io.BytesIO()
    torch.save(theirs.state_dict(), file)
    file.seek(0)
    optimizer = cls([param.detach().clone() for param in params], **options)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    return optimizer


@pytest.mark.parametrize(
    ("theirs", "base", "options", "keys"),
    [
        ("AdamW8bit", "adamw", {}, ["exp_avg", "exp_avg_sq"]),
        ("Lion8bit", "lion", {}, ["exp_avg"]),
        ("SGD8bit", "sgd", {"lr": 0.01, "momentum": 0.9}, ["momentum_buffer"]),
    ],
)
def test_numbers_of_bitsandbytes_are_those_of_its_codes(
    theirs: str, base: str, options: dict[str, float], keys: list[str]
) -> None:
    params, optimizer = trained(getattr(bitsandbytes.optim, theirs), **options)
    plain = loaded(compose(base), params, optimizer, **options)
    coded = loaded(compose(base, modifiers.quantized()), params, optimizer, **options)
    their_states = optimizer.state[params[0]]
    param, coded_param = plain.param_groups[0]["params"][0], coded.param_groups[0]["params"][0]
    for number, key in enumerate(keys, 1):
        numbers = bitsandbytes.functional.dequantize_blockwise(
            their_states[f"state{number}"],
            absmax=their_states[f"absmax{number}"],
            code=their_states[f"qmap{number}"],
            blocksize=256,
        )
        assert torch.equal(plain.state[param][key], numbers.view(64, 80))
        state = coded.state[coded_param][key]
        encoded = quantize(numbers.view(64, 80), 256, "dynamic")
        assert torch.equal(state.codes, encoded.codes)  # type: ignore[attr-defined]
    coded.step()


@pytest.mark.parametrize("theirs", ["AdamWFp8", "AdamW8bit", "AdamW4bit"])
def test_numbers_of_torchao_are_those_of_its_codes(
    theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    params, optimizer = trained(getattr(torchao.optim, theirs))
    plain = loaded(compose("adamw"), params, optimizer)
    coded = loaded(compose("adamw", modifiers.quantized("fp8")), params, optimizer)
    param, coded_param = plain.param_groups[0]["params"][0], coded.param_groups[0]["params"][0]
    for key in ("exp_avg", "exp_avg_sq"):
        their_state = optimizer.state[params[0]][key]
        assert torch.equal(plain.state[param][key], their_state.dequantize())
        state = coded.state[coded_param][key]
        if theirs == "AdamWFp8":
            assert torch.equal(state.codes, their_state.codes.view(torch.int8))
            assert torch.equal(state.scales, their_state.scale)
        else:
            encoded = quantize(their_state.dequantize(), 256, "e4m3")
            assert torch.equal(state.codes, encoded.codes)  # type: ignore[attr-defined]
    assert float(coded.state[coded_param]["step"]) == 2


def test_codes_of_fp8_are_those_of_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks without negative numbers, torchao rounds small ones to 0, and optgen does not."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    params, theirs = trained(torchao.optim.AdamWFp8)
    ours = loaded(compose("adamw", modifiers.quantized("fp8")), params, theirs)
    our_params = ours.param_groups[0]["params"]
    step(theirs, params, 3)
    step(ours, our_params, 3)
    mean, square = (ours.state[our_params[0]][key] for key in ("exp_avg", "exp_avg_sq"))
    their_mean, their_square = (theirs.state[params[0]][k] for k in ("exp_avg", "exp_avg_sq"))
    assert torch.equal(mean.codes, their_mean.codes.view(torch.int8))
    differs = square.codes != their_square.codes.view(torch.int8)
    assert (square.codes[differs] == 1).all()
    assert not their_square.codes.float()[differs].any()
