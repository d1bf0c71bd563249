"""Test states of 8 bits on two ranks: equal bits where shards are whole blocks, and checkpoints."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import pair
from distributed.cases import shard
from torch import Tensor, distributed, nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from optgen import compose, explain, modifiers, use_lowering
from optgen.optim import AdamW, Muon
from optgen.runtime.tensors.quantized import QuantizedTensor
from optgen.runtime.torch_private import local_tensor
from optgen.verification.references.eight_bits import round_to_8_bits

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

BLOCK = 64
PLACEMENTS = (((8, 32), Shard(0)), ((5, 30), Shard(0)), ((3, 40), Shard(1)), ((9, 9), Replicate()))
"""Shapes, and their placements on two ranks. The shards of the first are whole blocks."""


def new_optimizer(base: Any, params: Any) -> Any:
    quantized = modifiers.quantized(block=BLOCK, min_elements=100)
    return compose(base, quantized)(params, lr=1e-2)


def local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def train(optimizers: Any, start: int, lowering: str) -> None:
    """Take two steps of all optimizers with the same gradients, sharded as the parameters are."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    for seed in range(start, start + 2):
        generator = torch.Generator().manual_seed(seed)
        grads = [torch.randn(shape, generator=generator) for shape, _ in PLACEMENTS]
        for optimizer in optimizers:
            params = optimizer.param_groups[0]["params"]
            for param, grad, (_, placement) in zip(params, grads, PLACEMENTS, strict=False):
                sharded = hasattr(param, "to_local")
                param.grad = shard(grad, placement, mesh) if sharded else grad.clone()
            with use_lowering(lowering):
                optimizer.step()


def _compare_shards_with_whole(rank: int, lowering: str) -> dict[str, Any]:
    """Compare sharded with whole parameters after four steps, two of them after a checkpoint."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    torch.manual_seed(1)
    drawn = [torch.randn(shape) for shape, _ in PLACEMENTS]
    ours = [
        nn.Parameter(shard(x, placement, mesh))
        for x, (_, placement) in zip(drawn, PLACEMENTS, strict=True)
    ]
    alone = [nn.Parameter(x.clone()) for x in drawn]
    sharded, whole = new_optimizer(AdamW, ours), new_optimizer(AdamW, alone)
    train([sharded, whole], 0, lowering)
    saved_tensor = sharded.state_dict()["state"][0]["exp_avg"]
    resumed = new_optimizer(AdamW, [nn.Parameter(p.detach().clone()) for p in ours])
    resumed.load_state_dict(copy.deepcopy(sharded.state_dict()))
    train([sharded, whole, resumed], 2, lowering)
    end = sharded.state_dict()["state"][0]["exp_avg"]
    resumed_params = resumed.param_groups[0]["params"]
    return {
        "whole_blocks_are_equal": torch.equal(ours[0].full_tensor(), alone[0]),
        "replicated_is_equal": torch.equal(ours[3].full_tensor(), alone[3]),
        "largest_difference": max(
            (a.full_tensor() - b).abs().max().item() for a, b in zip(ours, alone, strict=True)
        ),
        "state_classes": [type(local_tensor(sharded.state[ours[n]]["exp_avg"])) for n in (0, 3)],
        "state_dict_equals_state": torch.equal(
            sharded.state[ours[0]]["exp_avg"].to_local(), end.to_local()
        ),
        "saved_tensor": (
            type(saved_tensor).__name__,
            str(saved_tensor.dtype),
            tuple(saved_tensor.shape),
        ),
        "resumed_is_equal": all(
            torch.equal(local(a), local(b)) for a, b in zip(ours, resumed_params, strict=True)
        ),
        "explain": explain(sharded),
    }


@pytest.mark.parametrize("lowering", ["foreach", "fused_cpu"])
def test_shards_of_whole_blocks_have_the_bits_of_the_whole_parameter(lowering: str) -> None:
    for found in pair.run(_compare_shards_with_whole, lowering):
        assert found["explain"].startswith("group 0: fused C++")
        assert found["whole_blocks_are_equal"]
        assert found["replicated_is_equal"]
        assert 0 < found["largest_difference"] < 2e-2
        assert found["state_classes"] == [QuantizedTensor, Tensor]
        assert found["state_dict_equals_state"]
        assert found["saved_tensor"] == ("DTensor", "torch.float32", (8, 32))
        assert found["resumed_is_equal"]


def _difference_and_explain(rank: int, base: Any, lowering: str) -> tuple[float, str]:
    """Return the difference of a sharded and a whole parameter after two steps, and `explain`."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    torch.manual_seed(1)
    drawn = torch.randn(8, 32)
    ours = nn.Parameter(shard(drawn, Shard(0), mesh))
    alone = nn.Parameter(drawn.clone())
    sharded, whole = new_optimizer(base, [ours]), new_optimizer(base, [alone])
    train([sharded, whole], 0, lowering)
    return (ours.full_tensor() - alone).abs().max().item(), explain(sharded)


def test_shards_of_a_rule_on_matrices_follow_the_whole_parameter() -> None:
    for difference, explained in pair.run(_difference_and_explain, Muon, "foreach"):
        assert difference < 1e-3
        assert "quantized states in a rule on rows, columns or matrices" in explained


def _difference_and_explain_of_clipping(rank: int, lowering: str) -> tuple[float, str]:
    return _difference_and_explain(rank, compose(AdamW, modifiers.clip_norm(0.5)), lowering)


@pytest.mark.parametrize("lowering", ["foreach", "fused_cpu"])
def test_shards_clipped_by_one_norm_follow_the_whole_parameter(lowering: str) -> None:
    for difference, explained in pair.run(_difference_and_explain_of_clipping, lowering):
        assert difference < 1e-4
        assert explained.startswith("group 0: fused C++")


def _states_after_resharding(rank: int, folder: str) -> list[Any]:
    """Save on two ranks and load on one, where values are rounded again in blocks of the whole."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.fsdp import fully_shard

    def network() -> nn.Module:
        torch.manual_seed(1)
        return nn.Linear(30, 10, bias=False)

    first, second = network(), network()
    fully_shard(first, mesh=distributed.init_device_mesh("cpu", (2,)))
    optimizer, alone = (
        new_optimizer(AdamW, first.parameters()),
        new_optimizer(AdamW, second.parameters()),
    )
    for seed in range(3):
        torch.manual_seed(seed)
        first(torch.randn(16, 30)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    saved: Any = state_dict.get_optimizer_state_dict(first, optimizer)
    checkpoint.save(saved, checkpoint_id=folder)
    whole = saved["state"]["weight"]["exp_avg"].full_tensor()
    if rank:
        return []
    loaded: Any = state_dict.get_optimizer_state_dict(second, alone)
    checkpoint.load(loaded, checkpoint_id=folder, no_dist=True)
    state_dict.set_optimizer_state_dict(second, alone, loaded)
    state = alone.state[second.weight]["exp_avg"]
    return [type(state) is QuantizedTensor, state.dequantize(), round_to_8_bits(whole, BLOCK)]


def test_loading_a_checkpoint_on_fewer_ranks_rounds_states_again(tmp_path: Path) -> None:
    found, nothing = pair.run(_states_after_resharding, str(tmp_path))
    assert nothing == []
    assert found[0]
    torch.testing.assert_close(found[1], found[2], rtol=1e-6, atol=0)
    assert found[1].abs().max() > 0


READS: dict[str, Any] = {
    "float": lambda x: x.float(),
    "+ 0": lambda x: x + 0,
    "largest": lambda x: x.abs().max(),
    "mean": lambda x: x.mean(),
    "norm": lambda x: x.norm(),
    "vector_norm": torch.linalg.vector_norm,
    "sum of squares": lambda x: x.square().sum(),
    "stack": lambda x: torch.stack([x]),
    "clone": lambda x: x.clone() + 0,
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "deepcopy": lambda x: copy.deepcopy(x) + 0,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)) + 0,
    "dequantize": lambda x: x.dequantize(),
    "foreach": lambda x: torch._foreach_mul([x], 2.0)[0],
    "t": lambda x: x.t(),
    "zero_": lambda x: x.zero_(),
    "mul_": lambda x: x.mul_(0.5) + 0,
    "copy_": lambda x: x.copy_(x * 2) + 0,
    "foreach_": lambda x: (torch._foreach_mul_([x], 2.0), x + 0)[1],
}


def _read_states(rank: int) -> dict[str, float]:
    """Return for each function how far its result on shards is from that on the whole state."""
    mesh = distributed.init_device_mesh("cpu", (2,))
    torch.manual_seed(1)
    values = torch.randn(8, 32)
    differences = {}
    for name, read in READS.items():
        results = []
        for param in (nn.Parameter(shard(values, Shard(0), mesh)), nn.Parameter(values.clone())):
            optimizer = new_optimizer(AdamW, [param])
            param.grad = param.detach() * 3
            optimizer.step()
            result = read(optimizer.state[param]["exp_avg"])
            results.append(result.full_tensor() if hasattr(result, "full_tensor") else result + 0)
        assert results[0].dtype == results[1].dtype == torch.float32, name
        difference = (results[0] - results[1]).abs().max() / results[1].abs().max().clamp(min=1)
        differences[name] = difference.item()
    return differences


def test_every_function_reads_numbers_of_sharded_states() -> None:
    for differences in pair.run(_read_states):
        assert {n: d for n, d in differences.items() if d > 1e-6} == {}


def _use_one_state(rank: int) -> dict[str, Any]:
    mesh = distributed.init_device_mesh("cpu", (2,))
    torch.manual_seed(1)
    param = nn.Parameter(shard(torch.randn(8, 32), Shard(0), mesh))
    optimizer = new_optimizer(AdamW, [param])
    param.grad = param.detach() * 3
    optimizer.step()
    state = optimizer.state[param]["exp_avg"]
    whole = optimizer.state_dict()["state"][0]["exp_avg"].full_tensor()
    errors = {}
    for name, use in {
        "out": lambda: torch.mul(param, 2, out=state),
        "placements": lambda: state.quantize_(distribute_tensor(whole, mesh, [Replicate()])),
        "plain": lambda: setattr(state, "data", whole),
        "save": lambda: state.__create_write_items__("state", state),
    }.items():
        try:
            use()
        except Exception as error:
            errors[name] = str(error)
    unchanged = torch.equal(state.full_tensor(), whole)
    with torch.no_grad():
        local_class = type(state.to_local())
    state.data = state.dequantize() * 2
    return {
        "errors": errors,
        "unchanged": unchanged,
        "local_class": local_class,
        "replicated": torch.equal(
            state.redistribute(placements=[Replicate()]).to_local(), 2 * whole
        ),
        "copy_has_codes": isinstance(local_tensor(copy.deepcopy(state)), QuantizedTensor),
        "clone_has_codes": isinstance(local_tensor(state.clone()), QuantizedTensor),
        "text": repr(state)[:16],
    }


def test_sharded_states_refuse_what_they_cannot_do() -> None:
    for found in pair.run(_use_one_state):
        errors = found.pop("errors")
        assert "copy the result into it" in errors["out"]
        assert "give the values the placements of the state" in errors["placements"]
        assert "a plain tensor" in errors["plain"]
        assert "state_dict()" in errors["save"]
        assert found.pop("text") == "QuantizedDTensor"
        assert found.pop("local_class") is Tensor
        assert all(found.values()), found
