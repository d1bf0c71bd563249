"""A training with FSDP2 on two ranks: offloaded on the simulated device, or plain on the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import device
import torch
from device import collectives
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import optgen
from optgen.offloading.clipping import clip_factor
from optgen.offloading.host_rule import FACTOR, offload_rule

OPTIONS: dict[str, Any] = {"keep_on_device": 0, "bucket_bytes": 512, "slots": 2, "time_limit": 30.0}
WIDTH = 24


@cache
def mesh(kind: str) -> DeviceMesh:
    """Return the mesh of both ranks."""
    if kind == "cpu":
        return init_device_mesh("cpu", (2,))
    return DeviceMesh.from_group(collectives.new_group(), kind, mesh=[0, 1])


def network(kind: str, is_sharded: bool = True) -> nn.Sequential:
    """Return layers of 24 rows (equal shards on two ranks), 5 (unequal) and 1 (an empty shard)."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 1)]
    model = nn.Sequential(*layers).bfloat16().to(kind)
    if is_sharded:
        for layer in (layers[0], layers[2]):
            fully_shard(layer, mesh=mesh(kind))
        fully_shard(model, mesh=mesh(kind))
    return model


def train(model: nn.Module, optimizer: Any, rank: int, steps: range, passes: int = 1) -> None:
    """Take steps, each with some backward passes; each rank has batches of its own."""
    kind = next(model.parameters()).device.type
    for number in steps:
        for part in range(passes):
            generator = torch.Generator().manual_seed(100 * number + 10 * part + rank)
            batch = torch.randn(8, WIDTH, generator=generator).bfloat16().to(kind)
            model(batch).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()


def local_weights(model: nn.Module) -> list[Tensor]:
    return [_local(param).detach().cpu().clone() for param in model.parameters()]


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def offloaded(model: nn.Module, rule: str, **options: Any) -> Any:
    """Return an offloaded optimizer of a model on the device."""
    module = {"module": model} if options.get("hide") == "forward" else {}
    return optgen.offload(
        rule, model.named_parameters(), **{**OPTIONS, "lr": 1e-2, **options, **module}
    )


def bits(rank: int, rule: str, settings: dict[str, Any], options: dict[str, Any]) -> Any:
    """Train in both ways; return the names of parameters that differ, norms, and kinds of states.

    The norms of the offloaded steps clip the plain ones: in which order a device sums is its own
    business.
    """
    device.load()
    device.configure(**settings)
    passes = 2 if options.get("accumulation", 1) is None else 1
    ours, norms = network("sim"), list[float]()
    optimizer = offloaded(ours, rule, **options)
    optimizer.register_step_post_hook(lambda *_: norms.append(optimizer.grad_norm or 0.0))
    train(ours, optimizer, rank, range(4), passes)
    first = next(iter(ours.parameters()))
    master = optimizer.state[first]["master"]
    kinds = [type(master).__name__, master.device.type, _local(master).device.type]
    got = local_weights(ours)
    optimizer.close()
    device.reset()

    theirs = network("cpu")
    clips = options.get("clip_norm") is not None
    reference = offload_rule(rule, clips).device(theirs.parameters(), lr=1e-2)
    own_norms = list[float]()

    def clip(own: Any, *_: Any) -> None:
        grads = [param.grad.float() for param in theirs.parameters() if param.grad is not None]
        own_norms.append(float(nn.utils.get_total_norm(grads).full_tensor()))
        for group in own.param_groups:
            group[FACTOR] = clip_factor(norms[len(own_norms) - 1], options["clip_norm"])

    if clips:
        reference.register_step_pre_hook(clip)
    train(theirs, reference, rank, range(4), passes)
    names = [name for name, _ in theirs.named_parameters()]
    pairs = zip(names, got, local_weights(theirs), strict=True)
    differ = [name for name, a, b in pairs if not torch.equal(a, b)]
    return differ, norms, own_norms, kinds


def group_refuses_the_cpu(rank: int) -> str:
    """Return the error of a CPU collective in the device's group."""
    try:
        distributed.all_reduce(torch.ones(1), group=mesh("sim").get_group())
    except RuntimeError as error:
        return str(error)
    return ""
