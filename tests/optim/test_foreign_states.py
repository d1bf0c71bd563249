"""Test loads of states in the formats of bitsandbytes and torchao.

tests/frameworks loads what these libraries have saved.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from optgen import compose, modifiers
from optgen.runtime.state.create import quantize
from optgen.runtime.tensors.quantized import QuantizedTensor

COUNT, BLOCK = 5000, 256


@cache
def class_of(base: str, *quantized: str) -> Any:
    return compose(base, *map(modifiers.quantized, quantized))


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
    plain = class_of("adamw")([plain_param])
    coded = class_of("adamw", "fp8")([coded_param])
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


def refused(optimizer: Any, states: dict[str, Any], *facts: str) -> None:
    """Check that a load names these facts in its error, and changes nothing."""
    with pytest.raises(ValueError) as caught:
        optimizer.load_state_dict(packed(states))
    assert type(caught.value) is ValueError
    assert str(caught.value).startswith("the checkpoint of ")
    for fact in facts:
        assert fact in str(caught.value)
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] != 0.5


def adam_states() -> dict[str, Any]:
    return {"step": 3, **quantized_state(1, 0), **quantized_state(2, 1)}


@pytest.mark.parametrize("missing", [*adam_states()])
@pytest.mark.parametrize("is_wrapped", [True, False], ids=["wrapped", "flat"])
def test_a_dict_of_bitsandbytes_without_a_key_is_refused(missing: str, is_wrapped: bool) -> None:
    states = {key: value for key, value in adam_states().items() if key != missing}
    if is_wrapped:
        step = {"step": states.pop("step")} if "step" in states else {}
        states = {**step, "__bnb_optimizer_quant_state__": states}
    refused(class_of("adamw")([torch.zeros(50, 100)]), states, f"state[0] lacks '{missing}'")


@pytest.mark.parametrize(
    ("base", "names", "fact"),
    [
        ("lion", "12", "has state1 and state2, but this rule keeps exp_avg of"),
        ("adamw", "1", "has state1, but this rule keeps exp_avg, exp_avg_sq of"),
        ("sgd", "1", "has state1, but this rule keeps no state of"),
        ("rmsprop", "12", "has state1 and state2, but this rule keeps square_avg of"),
    ],
)
def test_states_of_another_rule_are_refused(base: str, names: str, fact: str) -> None:
    states = {key: value for key, value in adam_states().items() if key[-1] in "p" + names}
    refused(class_of(base)([torch.zeros(50, 100)]), states, fact, "class and the arguments")


STACKED = torch.zeros(2, 50, 100)
WRONG_OF_BITSANDBYTES = [
    ("state1", STACKED, "stacked averages, as in AdEMAMix"),
    ("state1", STACKED.to(torch.uint8), "stacked averages, as in AdEMAMix"),
    ("state1", torch.zeros(5000, dtype=torch.uint8), "has shape (5000,), not (50, 100)"),
    ("state1", torch.zeros(50, 100), "has dtype torch.float32, not torch.uint8"),
    ("state2", torch.zeros(50, 100, dtype=torch.int8), "has dtype torch.int8, not torch.uint8"),
    ("state2", torch.zeros(50, 100, dtype=torch.uint8).to_sparse(), "not a dense tensor"),
    ("absmax1", torch.ones(19), "has shape (19,)"),
    ("absmax1", torch.ones(20, 1), "has shape (20, 1)"),
    ("absmax1", torch.tensor(1.0), "has shape ()"),
    ("absmax1", torch.ones(20, dtype=torch.int32), "has dtype torch.int32"),
    ("absmax2", torch.full((20,), torch.inf), "negative or not finite"),
    ("absmax2", torch.full((20,), -1.0), "negative or not finite"),
    ("qmap1", torch.ones(255), "has shape (255,), not (256,)"),
    ("qmap1", torch.ones(256, dtype=torch.uint8), "has dtype torch.uint8"),
    ("qmap1", torch.full((256,), torch.nan), "not finite"),
    ("qmap3", torch.ones(256), "is no key of bitsandbytes"),
    ("step", -1, "is -1, not a count"),
    ("step", torch.ones(2), "has shape (2,)"),
    ("step", float("nan"), "is nan, not a count"),
]


@pytest.mark.parametrize(("key", "value", "fact"), WRONG_OF_BITSANDBYTES)
def test_wrong_entries_of_bitsandbytes_are_refused(key: str, value: Any, fact: str) -> None:
    optimizer = class_of("adamw")([torch.zeros(50, 100)])
    refused(optimizer, adam_states() | {key: value}, f"of bitsandbytes: state[0]['{key}'] ", fact)


@pytest.mark.parametrize("base", ["ademamix", "adamw", "lion"])
def test_stacked_averages_of_ademamix_are_refused_by_name(base: str) -> None:
    states = {"step": 3, "state1": STACKED, "state2": STACKED[0]}
    fact = "holds two stacked averages, as in AdEMAMix, which cannot be read here: train on with"
    refused(class_of(base)([torch.zeros(50, 100)]), states, "state[0]['state1'] ", fact)


@pytest.mark.parametrize("key", [*adam_states()])
@pytest.mark.parametrize("value", [None, [1.0], "1", {}], ids=repr)
def test_entries_of_bitsandbytes_that_are_no_tensors_are_refused(key: str, value: Any) -> None:
    optimizer = class_of("adamw")([torch.zeros(50, 100)])
    refused(optimizer, adam_states() | {key: value}, f"state[0]['{key}'] is ")


def test_a_wrapper_that_is_no_dict_and_a_parameter_too_many_are_refused() -> None:
    optimizer = class_of("adamw")([torch.zeros(50, 100)])
    key = "__bnb_optimizer_quant_state__"
    refused(optimizer, {"step": 1, key: None}, f"state[0]['{key}'] is None, not a dict")
    two = packed({})["param_groups"]
    with pytest.raises(ValueError, match=r"state\[1\] belongs to no parameter: give the"):
        optimizer.load_state_dict({"state": {1: adam_states()}, "param_groups": two})


def test_states_of_32_bits_have_floats_of_the_parameters_shape() -> None:
    param = torch.zeros(3)
    optimizer = class_of("adamw")([param])
    states = {"step": 3, "state1": torch.ones(3), "state2": torch.full((3,), 2.0)}
    for wrong, fact in ((torch.ones(1), "shape (1,)"), (torch.ones(3).int(), "torch.int32")):
        refused(optimizer, states | {"state2": wrong}, "state[0]['state2'] has", fact)
    optimizer.load_state_dict(packed(states))
    assert optimizer.state[param]["exp_avg"].tolist() == [1, 1, 1]
    assert optimizer.state[param]["exp_avg_sq"].tolist() == [2, 2, 2]


class Codes:
    """A state with the attributes of torchao's classes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class OptimState8bit(Codes): ...


class OptimState4bit(Codes): ...


class OptimStateFp8(Codes): ...


def torchao_state(kind: type[Codes], **changes: Any) -> Any:
    """Return a state of shape (8, 64) in blocks of 128, with some attributes changed."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(256, (8, 64), generator=generator, dtype=torch.uint8)
    entries = 16 if kind is OptimState4bit else 256
    attributes = {"shape": torch.Size((8, 64)), "block_size": 128, "codes": codes}
    attributes["scale"] = torch.rand(4, generator=generator)
    attributes["qmap"] = torch.rand(entries, generator=generator)
    if kind is OptimState4bit:
        attributes["codes"] = codes.flatten()[:256]
    if kind is OptimStateFp8:
        attributes["codes"] = (codes & 0xBF).view(torch.float8_e4m3fn)  # no NaN
    return kind(**{k: v for k, v in (attributes | changes).items() if v is not Codes})


@pytest.mark.parametrize("kind", [OptimState8bit, OptimState4bit, OptimStateFp8])
def test_codes_of_torchao_are_decoded_by_their_table_and_scales(kind: type[Codes]) -> None:
    state = torchao_state(kind)
    codes = state.codes.flatten()
    if kind is OptimState4bit:
        nibbles = [nibble for byte in codes.tolist() for nibble in divmod(byte, 16)]
        shares = [float(state.qmap[nibble]) for nibble in nibbles]
    elif kind is OptimState8bit:
        shares = [float(state.qmap[code]) for code in codes.tolist()]
    else:
        shares = codes.float().tolist()
    scales = state.scale.tolist()
    numbers = torch.tensor([share * scales[i // 128] for i, share in enumerate(shares)])
    param = torch.zeros(8, 64)
    optimizer = class_of("lion")([param])
    optimizer.load_state_dict(packed({"exp_avg": state}))
    found = optimizer.state[param]["exp_avg"]
    torch.testing.assert_close(found, numbers.view(8, 64), rtol=1e-6, atol=0)
    coded_param = torch.zeros(8, 64)
    coded: Any = compose("lion", modifiers.quantized("4bit", min_elements=0))([coded_param])
    coded.load_state_dict(packed({"exp_avg": torchao_state(kind)}))
    coded_state, encoded = coded.state[coded_param]["exp_avg"], quantize(found, 128, "dynamic4")
    assert torch.equal(coded_state.codes, encoded.codes)  # type: ignore[attr-defined]


E5M2, FNUZ = torch.float8_e5m2, torch.float8_e4m3fnuz
WRONG_OF_TORCHAO = [
    (kind, key, value, fact)
    for kind in (OptimState8bit, OptimState4bit, OptimStateFp8)
    for key, value, fact in (
        ("scale", torch.ones(1), "has shape (1,), not (4,)"),
        ("scale", torch.ones(3), "has shape (3,), not (4,)"),
        ("scale", torch.ones(()), "has shape (), not (4,)"),
        ("scale", torch.ones(4, 1), "has shape (4, 1), not (4,)"),
        ("scale", torch.ones(4).int(), "has dtype torch.int32"),
        ("scale", torch.tensor([1, 1, 1, torch.nan]), "negative or not finite"),
        ("scale", torch.tensor([1.0, 1, 1, -1]), "negative or not finite"),
        ("scale", None, "is None, not a dense tensor"),
        ("scale", [1.0] * 4, "is a list, not a dense tensor"),
        ("block_size", "128", "is a str, not an int"),
        ("block_size", True, "is a bool, not an int"),
        ("block_size", Codes, "is None, not an int"),
        ("block_size", 0, "is 0, which does not divide the 512 elements"),
        ("block_size", 100, "is 100, which does not divide the 512 elements"),
        ("codes", torch.zeros(8, 64).to(E5M2), "has dtype torch.float8_e5m2, not"),
        ("codes", torch.zeros(8, 64).to(FNUZ), "has dtype torch.float8_e4m3fnuz, not"),
        ("codes", torch.zeros(8, 64, dtype=torch.int8), "has dtype torch.int8, not"),
        ("codes", Codes, "is None, not a dense tensor"),
    )
] + [
    (OptimState8bit, "codes", torch.zeros(8, 63, dtype=torch.uint8), "not (8, 64)"),
    (OptimStateFp8, "codes", torch.zeros(512).to(torch.float8_e4m3fn), "not (8, 64)"),
    (OptimState4bit, "codes", torch.zeros(255, dtype=torch.uint8), "not (256,)"),
    (OptimState8bit, "qmap", torch.ones(16), "not (256,)"),
    (OptimState4bit, "qmap", torch.ones(256), "not (16,)"),
    (OptimState4bit, "qmap", Codes, "is None, not a dense tensor"),
]


@pytest.mark.parametrize(("kind", "key", "value", "fact"), WRONG_OF_TORCHAO)
def test_wrong_attributes_of_torchao_are_refused(
    kind: type[Codes], key: str, value: Any, fact: str
) -> None:
    states = {"step": torch.tensor(3.0), "exp_avg": torchao_state(kind, **{key: value})}
    for base in (class_of("lion"), class_of("lion", "fp8")):
        where = f"the checkpoint of torchao: state[0]['exp_avg'].{key} "
        refused(base([torch.zeros(8, 64)]), states, where, fact)


@pytest.mark.parametrize("kind", [OptimState8bit, OptimState4bit, OptimStateFp8])
def test_states_of_torchao_have_the_parameters_shape(kind: type[Codes]) -> None:
    state = torchao_state(kind)
    optimizer = class_of("lion")([torch.zeros(64, 8)])
    refused(optimizer, {"exp_avg": state}, "state[0]['exp_avg'] has shape (8, 64), not (64, 8)")
