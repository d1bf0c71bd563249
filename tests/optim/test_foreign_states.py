"""Test loads of state dicts in bitsandbytes's format; tests/frameworks loads what it has saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from optgen import compose, modifiers
from optgen.runtime.state.create import quantize
from optgen.runtime.tensors.quantized import QuantizedTensor

COUNT, BLOCK = 5000, 256


def quantized_state(number: int, seed: int, block: int = BLOCK) -> dict[str, Tensor]:
    """Return codes, a table and scales; the last block is not full."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"state{number}": torch.randint(256, (50, 100), generator=generator, dtype=torch.uint8),
        f"qmap{number}": torch.rand(256, generator=generator).sort().values,
        f"absmax{number}": torch.rand(-(-COUNT // block), generator=generator),
    }


def numbers_of(state: dict[str, Tensor], number: int, block: int = BLOCK) -> Tensor:
    codes, table, scales = (state[f"{name}{number}"] for name in ("state", "qmap", "absmax"))
    values = [
        float(table[code]) * float(scales[index // block])
        for index, code in enumerate(codes.flatten().tolist())
    ]
    return torch.tensor(values).view(50, 100)


def packed(states: dict[str, Any]) -> dict[str, Any]:
    group = {"lr": 0.5, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0, "alpha": 0.0}
    return {"state": {0: states}, "param_groups": [{**group, "params": [0]}]}


@pytest.mark.parametrize("block", [256, 2048])
@pytest.mark.parametrize("is_wrapped", [True, False], ids=["wrapped", "flat"])
def test_codes_are_decoded_by_their_table_and_scales(is_wrapped: bool, block: int) -> None:
    state = quantized_state(1, 0, block) | quantized_state(2, 1, block)
    saved = {"step": 3, **({"__bnb_optimizer_quant_state__": state} if is_wrapped else state)}
    plain_param, coded_param = torch.zeros(50, 100), torch.zeros(50, 100)
    plain = compose("adamw")([plain_param])
    coded = compose("adamw", modifiers.quantized("fp8"))([coded_param])
    for optimizer in (plain, coded):
        optimizer.load_state_dict(packed(saved))
        assert optimizer.param_groups[0]["lr"] == 0.5
    for number, key in ((1, "exp_avg"), (2, "exp_avg_sq")):
        numbers = numbers_of(state, number, block)
        torch.testing.assert_close(plain.state[plain_param][key], numbers, rtol=1e-6, atol=0)
        value = coded.state[coded_param][key]
        assert isinstance(value, QuantizedTensor)
        encoded = quantize(numbers, 256, "e4m3")
        assert torch.equal(value.codes, encoded.codes)  # type: ignore[attr-defined]
    assert float(plain.state[plain_param]["step"]) == 3
    assert "state1" not in plain.state[plain_param]


def test_states_without_scales_of_blocks_are_refused() -> None:
    state = {"step": 3, **quantized_state(1, 0), **quantized_state(2, 0)}
    optimizer = compose("adamw")([torch.zeros(50, 100)])
    with pytest.raises(ValueError, match="no scales of blocks"):
        optimizer.load_state_dict(packed({k: v for k, v in state.items() if k != "absmax2"}))
    assert not optimizer.state
    with pytest.raises(ValueError, match="has state1 and state2, but this rule keeps exp_avg of"):
        compose("lion")([torch.zeros(50, 100)]).load_state_dict(packed(state))
