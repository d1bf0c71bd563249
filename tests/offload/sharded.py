"""A training with FSDP2 on two ranks: offloaded on the simulated device, or plain on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import device
import pytest
import torch
from device import collectives
from offload.training import short_limit
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import optgen
from optgen.offloading import OffloadError
from optgen.offloading.bucket_kernel import BucketKernel
from optgen.offloading.bucket_pipeline import Pipeline
from optgen.offloading.clipping import clip_factor
from optgen.offloading.host_rule import FACTOR, offload_rule

OPTIONS: dict[str, Any] = {"keep_on_device": 0, "bucket_bytes": 512, "slots": 2, "time_limit": 30.0}
WIDTH = 24


@cache
def mesh(kind: str) -> DeviceMesh:
    """Return the mesh of both ranks; of four ranks, two replicas of two shards."""
    if distributed.get_world_size() == 4:
        return replicated_mesh(kind)
    if kind == "cpu":
        return init_device_mesh("cpu", (2,))
    return DeviceMesh.from_group(collectives.new_group(), kind, mesh=[0, 1])


def replicated_mesh(kind: str) -> DeviceMesh:
    names = ("replicas", "shards")
    if kind == "cpu":
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    groups = []
    for sets in (((0, 2), (1, 3)), ((0, 1), (2, 3))):
        made = {ranks: collectives.new_group(ranks) for ranks in sets}
        groups += [group for ranks, group in made.items() if distributed.get_rank() in ranks]
    layout = [[0, 1], [2, 3]]
    return DeviceMesh.from_group(groups, kind, mesh=layout, mesh_dim_names=names)


def network(
    kind: str, is_sharded: bool = True, gathered_alone: Sequence[int] = (0, 2)
) -> nn.Sequential:
    """Return layers of 24 rows (equal shards on two ranks), 5 (unequal) and 1 (an empty shard).

    Weights of layers that are not `gathered_alone` are gathered with those of the whole model.
    """
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 1)]
    model = nn.Sequential(*layers).bfloat16().to(kind)
    if is_sharded:
        for index in gathered_alone:
            fully_shard(layers[index], mesh=mesh(kind))
        fully_shard(model, mesh=mesh(kind))
    return model


def train(model: nn.Module, optimizer: Any, rank: int, steps: range) -> None:
    """Take steps; each rank has batches of its own."""
    kind = next(model.parameters()).device.type
    batches = []
    for number in steps:
        generator = torch.Generator().manual_seed(10 * number + rank)
        batches.append(torch.randn(8, WIDTH, generator=generator).bfloat16().to(kind))
    for batch in batches:
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


def bits(
    rank: int,
    rule: str,
    settings: dict[str, Any],
    options: dict[str, Any],
    gathered_alone: Sequence[int] = (0, 2),
) -> Any:
    """Train in both ways; return the names of parameters that differ, norms, and kinds of states.

    The norms of the offloaded steps clip the plain ones: in which order a device sums is its own
    business.
    """
    device.load()
    device.configure(**settings)
    ours, norms = network("sim", gathered_alone=gathered_alone), list[float]()
    if "hide" in options:
        ours[0].set_modules_to_forward_prefetch([ours[2]])
    optimizer = offloaded(ours, rule, **options)
    optimizer.register_step_post_hook(lambda *_: norms.append(optimizer.grad_norm or 0.0))
    train(ours, optimizer, rank, range(4))
    first = next(iter(ours.parameters()))
    master = optimizer.state[first]["master"]
    kinds = [type(master).__name__, master.device.type, _local(master).device.type]
    got = local_weights(ours)
    optimizer.close()
    device.reset()

    theirs = network("cpu", gathered_alone=gathered_alone)
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
    train(theirs, reference, rank, range(4))
    names = [name for name, _ in theirs.named_parameters()]
    pairs = zip(names, got, local_weights(theirs), strict=True)
    differ = [name for name, a, b in pairs if not torch.equal(a, b)]
    return differ, norms, own_norms, kinds


def bits_of_modes(rank: int) -> list[bool]:
    """Return whether the weights are those of the plain composition, in eval and train mode."""
    device.load()
    device.configure(latency=1e-3, jitter=5e-3)
    found: dict[str, list[Tensor]] = {"sim": [], "cpu": []}
    rule = "schedule_free_adamw"
    for kind, left in found.items():
        model = network(kind)
        cls: Any = offload_rule(rule, False).public
        optimizer = offloaded(model, rule) if kind == "sim" else cls(model.parameters(), lr=1e-2)
        for first in (0, 2):
            train(model, optimizer, rank, range(first, first + 2))
            for change in (optimizer.eval, optimizer.train):
                change()
                left += local_weights(model)
        if kind == "sim":
            optimizer.close()
    return [torch.equal(*pair) for pair in zip(found["sim"], found["cpu"], strict=True)]


def bits_without_waits(rank: int, schedules: int) -> int:
    """Return how many of some hidden trainings differ if forward passes wait on no host.

    The current stream waits instead, as for modules of a whole model.
    """
    settings = {"latency": 1e-3, "jitter": 5e-3}
    differing = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Pipeline, "wait_on_host", lambda own, index, waiter: own.wait_for_weights(index)
        )
        for seed in range(schedules):
            schedule = {**settings, "seed": seed}
            differ, *_ = bits(rank, "adamw", schedule, {"hide": "forward"}, (0, 2, 4))
            differing += bool(differ)
    return differing


def error_of_a_stalled_forward(rank: int) -> str:
    """Return the error of a forward pass whose weights do not arrive, as the device stalls.

    Both ranks have parts of the first weights that the pass gathers.
    """
    device.load()
    model = network("sim", gathered_alone=(0, 2, 4))
    optimizer = offloaded(model, "adamw", hide="forward", bucket_bytes=1 << 14)
    train(model, optimizer, rank, range(1))
    run = BucketKernel.run
    batch = torch.ones(8, WIDTH).bfloat16().to("sim")
    model(batch).float().square().mean().backward()
    torch.accelerator.synchronize()

    def stall(kernel: BucketKernel, *args: Any) -> None:
        run(kernel, *args)
        device.configure(stalled=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BucketKernel, "run", stall)
        optimizer.step()
        try:
            with short_limit(optimizer):
                model(batch)
        except OffloadError as error:
            return str(error)
        finally:
            device.configure(stalled=False)
            torch.accelerator.synchronize()
            optimizer.close()
    return ""


def refusal(rank: int, rule: str) -> str:
    """Return the error of a rule that cannot step shards."""
    device.load()
    try:
        offloaded(network("sim"), rule)
    except ValueError as error:
        return str(error)
    return ""


class Saved:
    """A model on one rank or two, with an offloaded optimizer or the plain composition."""

    def __init__(self, rank: int, kind: str, ranks: int, rule: str) -> None:
        self.takes_part, self.is_alone, self.rank = rank < ranks, ranks == 1, rank
        self.model = network(kind, is_sharded=not self.is_alone)
        if kind == "cpu":
            cls: Any = offload_rule(rule, False).public
            self.optimizer = cls(self.model.named_parameters(), lr=1e-2)
        else:
            self.optimizer = offloaded(self.model, rule)

    def state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self, folder: str) -> None:
        from torch.distributed import checkpoint

        if self.takes_part:
            checkpoint.save(self.state(), checkpoint_id=folder, no_dist=self.is_alone)
        distributed.barrier()

    def load(self, folder: str) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import set_state_dict

        if self.takes_part:
            state = self.state()
            checkpoint.load(state, checkpoint_id=folder, no_dist=self.is_alone)
            set_state_dict(
                self.model,
                self.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )

    def train(self, steps: range) -> None:
        if self.takes_part:
            train(self.model, self.optimizer, self.rank, steps)


def resumed(rank: int, rule: str, folder: str, saving: int, loading: int) -> list[str]:
    """Save on some ranks and go on with others, offloaded and plain; return what differs."""
    device.load()
    first = Saved(rank, "sim", saving, rule)
    first.train(range(3))
    first.save(folder)
    ours, theirs = Saved(rank, "sim", loading, rule), Saved(rank, "cpu", loading, rule)
    for each in (ours, theirs):
        each.load(folder)
        each.train(range(3, 6))
    weights = zip(local_weights(ours.model), local_weights(theirs.model), strict=True)
    differ = [f"weight {index}" for index, (a, b) in enumerate(weights) if not torch.equal(a, b)]
    params = zip(ours.model.parameters(), theirs.model.named_parameters(), strict=True)
    for own, (name, other) in params:
        for key, value in theirs.optimizer.state[other].items():
            got = _local(ours.optimizer.state[own][key]).cpu()
            if not torch.equal(got, _local(value)):
                differ.append(f"{key} of {name}")
    for each in (first, ours):
        each.optimizer.close()
    return differ if ours.takes_part else []


def group_refuses_the_cpu(rank: int) -> str:
    """Return the error of a CPU collective in the device's group."""
    try:
        distributed.all_reduce(torch.ones(1), group=mesh("sim").get_group())
    except RuntimeError as error:
        return str(error)
    return ""
