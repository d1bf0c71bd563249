"""Read states of 8 and 4 bits that optimizers of bitsandbytes and torchao have saved.

bitsandbytes (optim/optimizer.py) keeps flat codes `state1` and `state2`, tables of their 256 values
`qmap1` and `qmap2`, and the scales of their blocks `absmax1` and `absmax2`. Its `state_dict` puts
these tensors into a dict of their own. A small parameter has float32 tensors under the same names.

torchao (optim/subclass_8bit.py, subclass_4bit.py, subclass_fp8.py) has tensor subclasses with
attributes `codes`, `scale` and `block_size`, and with a method that returns the numbers. Codes of
fp8 are those of the map "e4m3", so they are copied. All other codes are decoded to float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optgen.runtime.rule import Rule
from optgen.runtime.tensors.dtensor import is_dtensor
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.torch_private import local_tensor

_WRAPPED = "__bnb_optimizer_quant_state__"
_BLOCKS = (256, 2048, 64, 128, 512, 1024, 4096)
"""Sizes of blocks that bitsandbytes has; the current one first."""
_TORCHAO_CLASSES = frozenset({"OptimState8bit", "OptimState4bit", "OptimStateFp8"})


def decode_foreign_states(rule: Rule, packed: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict with this rule's keys and with tensors that it can load.

    A state dict of optgen, of torch or of another class is returned as it is.

    Raises:
        ValueError: The states do not fit the rule, or have a format that is not known here.
    """
    states = packed.get("state")
    if not isinstance(states, dict):
        return packed
    loadable = {index: _decoded(rule, each) for index, each in states.items()}
    if all(loadable[index] is states[index] for index in states):
        return packed
    return {**packed, "state": loadable}


def _decoded(rule: Rule, states: Any) -> Any:
    """Return the states of a parameter; the dict itself if nothing in it is foreign."""
    if not isinstance(states, Mapping):
        return states
    if _WRAPPED in states:
        states = {**{k: v for k, v in states.items() if k != _WRAPPED}, **states[_WRAPPED]}
    if "state1" in states and not any(state.key == "state1" for state in rule.states):
        return _from_bitsandbytes(rule, states)
    if any(map(_is_of_torchao, states.values())):
        return {
            key: _from_torchao(key, value) if _is_of_torchao(value) else value
            for key, value in states.items()
        }
    return states


def _from_bitsandbytes(rule: Rule, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return states under the rule's keys, those without a condition first."""
    ours = [each for each in rule.states if each.shape == "like" and not each.step_argument]
    keys = [each.key for each in sorted(ours, key=lambda each: each.when is not None)]
    names = [name for name in ("state1", "state2") if states.get(name) is not None]
    if len(keys) < len(names):
        raise ValueError(
            f"the checkpoint of bitsandbytes has {' and '.join(names)}, but this rule keeps "
            f"{', '.join(keys) or 'no state'} of the parameter's shape: load it with the class "
            "of the rule that saved it"
        )
    result = {"step": states["step"]} if "step" in states and rule.step else {}
    for key, name in zip(keys, names, strict=False):
        result[key] = _bitsandbytes_numbers(states, name)
    return result


def _bitsandbytes_numbers(states: Mapping[str, Any], name: str) -> Tensor:
    """Return the numbers of `state1` or `state2`."""
    codes: Tensor = states[name]
    if codes.dtype != torch.uint8:
        return codes
    number = name.removeprefix("state")
    table, scales = states.get(f"qmap{number}"), states.get(f"absmax{number}")
    count = codes.numel()
    block = next((b for b in _BLOCKS if scales is not None and -(-count // b) == len(scales)), 0)
    if table is None or scales is None or not block:
        raise ValueError(
            f"{name} of a checkpoint of bitsandbytes has no scales of blocks (absmax{number}): "
            "save it with block_wise=True, or in 32 bits"
        )
    numbers = table.float()[codes.flatten().long()]
    of_each = scales.float().repeat_interleave(block)[:count]
    result: Tensor = (numbers * of_each).view(codes.shape)
    return result


def _is_of_torchao(value: Any) -> bool:
    local = local_tensor(value) if is_dtensor(type(value)) else value
    return type(local).__name__ in _TORCHAO_CLASSES


def _from_torchao(key: str, value: Any) -> Tensor:
    """Return a quantized tensor with the codes of fp8; the numbers of other codes."""
    if is_dtensor(type(value)):
        raise ValueError(
            f"{key} is a sharded tensor of torchao: load a checkpoint of whole tensors, from "
            "torch.distributed.checkpoint.state_dict with full_state_dict=True"
        )
    if type(value).__name__ == "OptimStateFp8":
        return _with_codes(value.codes, value.scale, value.block_size)
    numbers: Tensor = value.dequantize(torch.float32)
    return numbers


def _with_codes(codes: Tensor, scales: Tensor, block: int) -> QuantizedTensor:
    """Return a tensor with these codes of fp8 and scales; a block with a NaN becomes NaN."""
    result = QuantizedTensor.zeros_like(codes, block, "e4m3")
    has_nan = codes.float().isnan().view(-1, block).any(dim=1)
    known = codes.view(torch.int8).view(-1, block).masked_fill(has_nan[:, None], 0)
    result.codes.copy_(known.view(codes.shape))
    result.scales.copy_(scales.masked_fill(has_nan, torch.nan))
    return result
