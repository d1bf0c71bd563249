"""Read states of 8 and 4 bits that optimizers of bitsandbytes and torchao have saved.

bitsandbytes (optim/optimizer.py) keeps flat codes `state1` and `state2`, tables of their 256 values
`qmap1` and `qmap2`, and the scales of their blocks `absmax1` and `absmax2`. Its `state_dict` puts
these tensors into a dict of their own. A small parameter has float32 tensors under the same names.

torchao (optim/subclass_8bit.py, subclass_4bit.py, subclass_fp8.py) has tensor subclasses with
attributes `codes`, `scale` and `block_size`. Those of 8 and 4 bits have a table `qmap` too. Codes
of fp8 are those of the map "e4m3", so they are copied. All other codes are decoded to float32. Two
codes of 4 bits share a byte; the first has its high bits.

Each fact about an entry has a function that checks it, before the optimizer changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import Tensor

from optgen.runtime.rule import Group, OptimizerLike, Rule
from optgen.runtime.tensors.dtensor import is_dtensor
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.torch_private import local_tensor

_WRAPPED = "__bnb_optimizer_quant_state__"
_BITSANDBYTES_KEYS = re.compile("state[12]|(qmap|absmax).*", re.DOTALL)
_BLOCKS = (256, 2048, 64, 128, 512, 1024, 4096)
"""Sizes of blocks that bitsandbytes has; the current one first."""
_TORCHAO_CLASSES = frozenset({"OptimState8bit", "OptimState4bit", "OptimStateFp8"})
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def decode_foreign_states(optimizer: OptimizerLike, packed: dict[str, Any]) -> dict[str, Any]:
    """Return a state dict with the keys of the optimizer's rule and with tensors that it can load.

    A state dict of optgen, of torch or of another class is returned as it is. The optimizer does
    not change.

    Raises:
        ValueError: The states do not fit the rule or the parameters, or have a format that is not
            known here. The error names the entry of the checkpoint.
    """
    states = packed.get("state")
    if not isinstance(states, dict):
        return packed
    formats = {index: _format(optimizer.rule, each) for index, each in states.items()}
    if not any(formats.values()):
        return packed
    owners = dict(_owners(optimizer, packed["param_groups"]))
    loadable = dict(states)
    for index, library in formats.items():
        if not library:
            continue
        where = f"the checkpoint of {library}: state[{index!r}]"
        if index not in owners:
            _refuse(where, "belongs to no parameter", "give the optimizer the same parameters")
        group, param = owners[index]
        if library == "bitsandbytes":
            unwrapped = _unwrapped(where, states[index])
            loadable[index] = _from_bitsandbytes(where, optimizer.rule, group, param, unwrapped)
        else:
            loadable[index] = _from_torchao(where, param, states[index])
    return {**packed, "state": loadable}


def _format(rule: Rule, states: Any) -> str:
    """Return the library that has saved the states of a parameter; "" if it is neither."""
    if not isinstance(states, Mapping):
        return ""
    ours = {state.key for state in rule.states}
    if _WRAPPED in states or any(_is_of_bitsandbytes(key) for key in states if key not in ours):
        return "bitsandbytes"
    return "torchao" if any(map(_is_of_torchao, states.values())) else ""


def _is_of_bitsandbytes(key: Any) -> bool:
    return isinstance(key, str) and _BITSANDBYTES_KEYS.fullmatch(key) is not None


def _is_of_torchao(value: Any) -> bool:
    local = local_tensor(value) if is_dtensor(type(value)) else value
    return type(local).__name__ in _TORCHAO_CLASSES


def _owners(
    optimizer: OptimizerLike, saved_groups: list[Group]
) -> Iterator[tuple[Any, tuple[Group, Tensor]]]:
    """Yield the indices of a checkpoint, each with its parameter and the values of its group.

    A value that the checkpoint lacks is the optimizer's, as after the load.
    """
    indices = chain.from_iterable(group["params"] for group in saved_groups)
    pairs = zip(optimizer.param_groups, saved_groups, strict=False)
    groups = ({**group, **saved, "params": group["params"]} for group, saved in pairs)
    owners = ((group, param) for group in groups for param in group["params"])
    yield from zip(indices, owners, strict=False)


def _unwrapped(where: str, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return states without the dict that hides tensors of bitsandbytes from FSDP."""
    inner = states.get(_WRAPPED, {})
    if not isinstance(inner, Mapping):
        _refuse(f"{where}[{_WRAPPED!r}]", f"is {_described(inner)}, not a dict")
    return {**{key: value for key, value in states.items() if key != _WRAPPED}, **inner}


def _from_bitsandbytes(
    where: str, rule: Rule, group: Group, param: Tensor, states: Mapping[str, Any]
) -> dict[str, Any]:
    """Return states under the rule's keys; conditional ones only if the rule has no others."""
    names = ["state1"]
    for key in filter(_is_of_bitsandbytes, states):
        number = key[-1:]
        if key not in {f"{kind}{number}" for kind in ("state", "qmap", "absmax") if number in "12"}:
            _refuse(f"{where}[{key!r}]", "is no key of bitsandbytes")
        if number == "2" and len(names) == 1:
            names.append("state2")
    _check_not_stacked(f"{where}['state1']", param, states.get("state1"))
    kept = [each for each in rule.states if each.shape == "like" and not each.step_argument]
    present = [each for each in kept if each.is_present(group) and each.suits(param, group)]
    ours = [each.key for each in present if each.when is None] or [each.key for each in present]
    if len(ours) != len(names):
        _refuse(
            where,
            f"has {' and '.join(names)}, but this rule keeps {', '.join(ours) or 'no state'} of "
            "the parameter's shape",
            "load it with the class and the arguments of the rule that saved it",
        )
    result = {}
    if rule.step:
        result["step"] = _step_count(f"{where}['step']", _entry(where, states, "step"))
    for key, name in zip(ours, names, strict=True):
        result[key] = _bitsandbytes_numbers(where, param, states, name)
    return result


def _bitsandbytes_numbers(
    where: str, param: Tensor, states: Mapping[str, Any], name: str
) -> Tensor:
    """Return the numbers of `state1` or `state2`."""
    at_codes = f"{where}[{name!r}]"
    codes = _whole_tensor(at_codes, _entry(where, states, name))
    _check_shape(at_codes, codes.shape, tuple(param.shape))
    number = name.removeprefix("state")
    of_table, of_scales = f"qmap{number}", f"absmax{number}"
    if codes.dtype != torch.uint8 and of_table not in states and of_scales not in states:
        _check_dtype(at_codes, codes, _FLOATS)
        return codes
    _check_dtype(at_codes, codes, (torch.uint8,))
    table = _table(f"{where}[{of_table!r}]", _entry(where, states, of_table), 256)
    at_scales = f"{where}[{of_scales!r}]"
    scales = _whole_tensor(at_scales, _entry(where, states, of_scales))
    counts = {-(-codes.numel() // block): block for block in reversed(_BLOCKS)}
    if scales.dim() != 1 or len(scales) not in counts:
        _refuse(
            at_scales,
            f"has shape {tuple(scales.shape)}, but {at_codes} has blocks of 256 elements, "
            f"so {-(-codes.numel() // 256)} scales",
            "save it with block_wise=True, or in 32 bits",
        )
    _check_scales(at_scales, scales, len(scales))
    return _by_table(codes, table, scales, counts[len(scales)])


def _from_torchao(where: str, param: Tensor, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return states with the codes of fp8, and with the numbers of other codes."""
    return {
        key: _torchao_state(f"{where}[{key!r}]", param, value) if _is_of_torchao(value) else value
        for key, value in states.items()
    }


def _torchao_state(where: str, param: Tensor, value: Any) -> Tensor:
    """Return a quantized tensor with the codes of fp8; the numbers of other codes."""
    if is_dtensor(type(value)):
        _refuse_sharded(where)
    kind = type(value).__name__
    at_codes, at_scales = f"{where}.codes", f"{where}.scale"
    codes = _whole_tensor(at_codes, getattr(value, "codes", None))
    is_fp8, is_packed = kind == "OptimStateFp8", kind == "OptimState4bit"
    _check_dtype(at_codes, codes, (torch.float8_e4m3fn if is_fp8 else torch.uint8,))
    _check_shape(where, getattr(value, "shape", ()), tuple(param.shape))
    count = param.numel()
    if is_packed and count % 2:
        _refuse(where, f"has {count} elements, which 4-bit codes in pairs cannot have")
    _check_shape(at_codes, codes.shape, (count // 2,) if is_packed else tuple(param.shape))
    block = _block_size(f"{where}.block_size", getattr(value, "block_size", None), count)
    scales = _whole_tensor(at_scales, getattr(value, "scale", None))
    _check_scales(at_scales, scales, count // block)
    if is_fp8:
        return _with_codes(codes.contiguous(), scales, block)
    at_table = f"{where}.qmap"
    table = _table(at_table, getattr(value, "qmap", None), 16 if is_packed else 256)
    if is_packed:
        codes = torch.stack([codes >> 4, codes & 15], dim=-1).view(param.shape)
    return _by_table(codes, table, scales, block)


def _by_table(codes: Tensor, table: Tensor, scales: Tensor, block: int) -> Tensor:
    """Return the float32 numbers of codes: an entry of the table, times the scale of the block."""
    numbers = table.float()[codes.flatten().long()]
    of_each = scales.float().repeat_interleave(block)[: codes.numel()]
    result: Tensor = (numbers * of_each).view(codes.shape)
    return result


def _with_codes(codes: Tensor, scales: Tensor, block: int) -> QuantizedTensor:
    """Return a tensor with these codes of fp8 and scales; a block with a NaN becomes NaN."""
    result = QuantizedTensor.zeros_like(codes, block, "e4m3")
    has_nan = codes.float().isnan().view(-1, block).any(dim=1)
    known = codes.view(torch.int8).view(-1, block).masked_fill(has_nan[:, None], 0)
    result.codes.copy_(known.view(codes.shape))
    result.scales.copy_(scales.masked_fill(has_nan, torch.nan))
    return result


def _refuse(where: str, what: str, way_out: str = "save the checkpoint again") -> NoReturn:
    raise ValueError(f"{where} {what}: {way_out}")


def _refuse_sharded(where: str) -> NoReturn:
    _refuse(
        where,
        "is a sharded tensor",
        "load a checkpoint of whole tensors, from torch.distributed.checkpoint.state_dict with "
        "full_state_dict=True",
    )


def _described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _entry(where: str, states: Mapping[str, Any], key: str) -> Any:
    """Return an entry of a parameter's states, which must have the key."""
    if key not in states:
        _refuse(where, f"lacks {key!r}, which belongs to its other keys")
    return states[key]


def _whole_tensor(where: str, value: Any) -> Tensor:
    """Return the value, which must be a dense tensor that is not sharded."""
    if is_dtensor(type(value)):
        _refuse_sharded(where)
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta:
        _refuse(where, f"is {_described(value)}, not a dense tensor with memory")
    return value.detach()


def _check_dtype(where: str, tensor: Tensor, allowed: tuple[torch.dtype, ...]) -> None:
    if tensor.dtype not in allowed:
        _refuse(where, f"has dtype {tensor.dtype}, not {' or '.join(map(str, allowed))}")


def _check_shape(where: str, found: Sequence[int], shape: tuple[int, ...]) -> None:
    if tuple(found) != shape:
        _refuse(
            where,
            f"has shape {tuple(found)}, not {shape}",
            "load it into the parameters that it was saved from",
        )


def _check_not_stacked(where: str, param: Tensor, value: Any) -> None:
    if isinstance(value, Tensor) and value.shape == (2, *param.shape):
        _refuse(
            where,
            "holds two stacked averages, as in AdEMAMix, which cannot be read here",
            "train on with AdEMAMix of bitsandbytes, or begin with new states",
        )


def _check_scales(where: str, scales: Tensor, count: int) -> None:
    """Check that there are so many scales, finite and not negative."""
    _check_dtype(where, scales, _FLOATS)
    if tuple(scales.shape) != (count,):
        _refuse(where, f"has shape {tuple(scales.shape)}, not {(count,)}, a scale for each block")
    if not bool((scales.isfinite() & (scales >= 0)).all()):
        _refuse(
            where,
            "has a scale that is negative or not finite",
            "load a checkpoint from before the training diverged",
        )


def _table(where: str, value: Any, count: int) -> Tensor:
    """Return the table of so many numbers that codes stand for."""
    table = _whole_tensor(where, value)
    _check_dtype(where, table, _FLOATS)
    if tuple(table.shape) != (count,):
        _refuse(where, f"has shape {tuple(table.shape)}, not {(count,)}, a number for each code")
    if not bool(table.isfinite().all()):
        _refuse(where, "has an entry that is not finite")
    return table


def _block_size(where: str, value: Any, count: int) -> int:
    """Return the number of elements that share a scale; it divides their count."""
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(where, f"is {_described(value)}, not an int")
    if value <= 0 or count % value:
        _refuse(where, f"is {value}, which does not divide the {count} elements into blocks")
    return value


def _step_count(where: str, value: Any) -> Any:
    """Return the count of steps, a number or a tensor of one number."""
    if isinstance(value, Tensor) and (value.dim() > 0 or value.is_complex()):
        _refuse(where, f"has shape {tuple(value.shape)} and dtype {value.dtype}, not one number")
    if not isinstance(value, int | float | Tensor) or isinstance(value, bool):
        _refuse(where, f"is {_described(value)}, not a number")
    if not 0 <= value < 2**53 or not float(value).is_integer():
        _refuse(where, f"is {value}, not a count of steps")
    return value
