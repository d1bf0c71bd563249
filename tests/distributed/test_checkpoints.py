"""Test torch.distributed.checkpoint: a run saved on one or two ranks continues on one or two."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import models, pair
from distributed.cases import TOLERANCE
from parity.cases import CASE_OF_CLASS, CASE_OF_DENSE_CLASS
from torch import distributed, nn
from torch.optim import Optimizer

import optgen
import optgen.optim

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

WAYS = (("theirs", "ours"), ("ours", "theirs"))
ONE_RANK_ONLY = ("Adafactor", "Rprop")
"""Classes for which torch's own class works on one rank only."""
SPEC = '''
from optgen.spec import hyper, optimizer, state

@optimizer(paper="https://example.org")
def Precise(p, g, t, /, m=state("mean", dtype="float32"), *, lr=hyper(0.1), decay=hyper(0.5)):
    """A mean in single precision, and a decay that no learning rate scales."""
    m = m + (g - m) / t
    p = p - lr * m - decay * p
'''


class _Engine:
    """A network on one rank or on two, with an optimizer of ours or of torch's."""

    def __init__(self, rank: int, ranks: int, make: Any, reverse: bool = False) -> None:
        from torch.distributed.fsdp import fully_shard

        self.alone, self.rank = ranks == 1, rank
        self.network: nn.Module = models.model()
        if not self.alone:
            mesh = distributed.init_device_mesh("cpu", (2,))
            for layer in list(self.network)[::2]:  # type: ignore[call-overload]
                fully_shard(layer, mesh=mesh)
            fully_shard(self.network, mesh=mesh)
        params = list(self.network.parameters())
        self.optimizer: Optimizer = make(params[::-1] if reverse else params)
        self.takes_part = rank < ranks

    def train(self, start: int = 0) -> None:
        if self.takes_part:
            rank = None if self.alone else self.rank
            models.train(self.network, self.optimizer, rank, start)

    def save(self, folder: str) -> None:
        from torch.distributed import checkpoint

        if self.takes_part:
            checkpoint.save(self._state(), checkpoint_id=folder, no_dist=self.alone)
        distributed.barrier()

    def load(self, folder: str, planner: Any = None) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import set_state_dict

        if self.takes_part:
            state = self._state()
            checkpoint.load(state, checkpoint_id=folder, planner=planner, no_dist=self.alone)
            set_state_dict(
                self.network,
                self.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )

    def _state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        network, optimizer = get_state_dict(self.network, self.optimizer)
        return {"model": network, "optimizer": optimizer}


def _resumed(
    rank: int, name: str, folder: str, sides: tuple[str, str], reverse: bool = False
) -> dict[str, float]:
    """Return how a run with a checkpoint differs from one without.

    It trains and saves on 2, 1 and 2 ranks, and loads and continues on 1, 2 and 2. It skips a
    combination in which torch's class would have to run on two ranks and cannot.
    """
    results = {}
    factories = [getattr(CASE_OF_CLASS[name], side) for side in sides]
    alone = _Engine(rank, 1, factories[0])
    models.train(alone.network, alone.optimizer)
    reference = factories[1](alone.network.parameters())
    reference.load_state_dict(alone.optimizer.state_dict())
    models.train(alone.network, reference, start=models.STEPS)
    for before, after in [(2, 1), (1, 2), (2, 2)]:
        if name in ONE_RANK_ONLY and ("theirs", 2) in zip(sides, (before, after), strict=True):
            continue
        path = f"{folder}/{before}-{after}"
        first = _Engine(rank, before, factories[0], reverse)
        first.train()
        first.save(path)
        second = _Engine(rank, after, factories[1])
        second.load(path)
        second.train(models.STEPS)
        if second.takes_part:
            resumed = second.network, second.optimizer
            differing = models.differences(resumed, (alone.network, reference))
            results |= {f"{before} {after}: {what}": v for what, v in differing.items()}
    return results


def _missing_option(rank: int, folder: str) -> bool:
    """Load a checkpoint of torch's SGD, without `capturable`, into ours with capturable=True."""
    from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner

    factories = (
        lambda params: torch.optim.SGD(params, momentum=0.9),
        lambda params: optgen.optim.SGD(params, momentum=0.9, capturable=True),
    )
    theirs, ours = (_Engine(rank, 1, make) for make in factories)
    theirs.train()
    theirs.save(folder)
    if ours.takes_part:
        with pytest.raises(CheckpointException, match=r"Missing key .*capturable"):
            ours.load(folder)
        ours.load(folder, DefaultLoadPlanner(allow_partial_load=True))
        for one, other in zip(theirs.network.parameters(), ours.network.parameters(), strict=True):
            assert torch.equal(
                theirs.optimizer.state[one]["momentum_buffer"],
                ours.optimizer.state[other]["momentum_buffer"],
            )
    return bool(ours.optimizer.param_groups[0]["capturable"])


def _asked_before_a_step(rank: int, name: str, ranks: int) -> dict[str, float]:
    """Ask an optimizer for its state before its first step.

    Return how its training differs from a run that does not ask.
    """
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    asked, alone = (
        _Engine(rank, ranks, CASE_OF_DENSE_CLASS[name].ours),
        _Engine(rank, 1, CASE_OF_DENSE_CLASS[name].ours),
    )
    before = [param.detach().clone() for param in asked.network.parameters()]
    saved: Any = get_optimizer_state_dict(asked.network, asked.optimizer)
    for param, value in zip(asked.network.parameters(), before, strict=True):
        assert torch.equal(_local(param), _local(value))
        assert param.grad is None
        assert all(float(v) == 0 for k, v in asked.optimizer.state[param].items() if k == "step")
    lr = alone.optimizer.param_groups[0]["lr"]
    assert saved["param_groups"][0]["lr"] == asked.optimizer.param_groups[0]["lr"] == lr
    asked.train()
    models.train(alone.network, alone.optimizer)
    if not asked.takes_part:
        return {}
    return models.differences((asked.network, asked.optimizer), (alone.network, alone.optimizer))


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _exchanged(rank: int, name: str, form: str, folder: str) -> dict[str, float]:
    """Save and load states with flat keys through files, or whole states from rank 0."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict

    flat = form == "flat"
    saved, loaded = (
        state_dict.StateDictOptions(
            flatten_optimizer_state_dict=flat,
            full_state_dict=not flat,
            broadcast_from_rank0=loads and not flat,
        )
        for loads in (False, True)
    )
    first, second = (_Engine(rank, 2, CASE_OF_CLASS[name].ours) for _ in range(2))
    first.train()
    states: Any = state_dict.get_optimizer_state_dict(first.network, first.optimizer, options=saved)
    if flat:
        checkpoint.save(states, checkpoint_id=folder)
        states = state_dict.get_optimizer_state_dict(
            second.network, second.optimizer, options=saved
        )
        checkpoint.load(states, checkpoint_id=folder)
    weights = state_dict.get_model_state_dict(first.network)
    state_dict.set_model_state_dict(second.network, weights)
    to_load = states if flat or rank == 0 else {}
    state_dict.set_optimizer_state_dict(second.network, second.optimizer, to_load, options=loaded)
    alone = _Engine(rank, 1, CASE_OF_CLASS[name].ours)
    models.train(alone.network, alone.optimizer)
    alone.optimizer.load_state_dict(alone.optimizer.state_dict())
    models.train(alone.network, alone.optimizer, start=models.STEPS)
    second.train(models.STEPS)
    return models.differences((second.network, second.optimizer), (alone.network, alone.optimizer))


def _declared(rank: int, text: str, folder: str) -> list[Any]:
    """Save a float32 state of bfloat16 parameters; load it into an engine that has taken no step.

    Return that engine's weights before and after it is asked for its state; then the states of
    the saved and of the loaded optimizer.
    """
    cls: Any = optgen.load(text)
    engines = []
    for _ in range(2):
        engine = _Engine(rank, 2, cls)
        engine.network.to(torch.bfloat16)
        engine.optimizer = cls(engine.network.parameters())
        engines.append(engine)
    first, second = engines
    for param in first.network.parameters():
        param.grad = torch.full_like(param, 1 / 3)
    first.optimizer.step()
    first.optimizer.step()
    first.save(folder)
    weights = [_local(param).clone() for param in second.network.parameters()]
    second._state()
    unchanged = [_local(param).clone() for param in second.network.parameters()]
    second.load(folder)
    means = [
        [_local(engine.optimizer.state[param]["mean"]) for param in engine.network.parameters()]
        for engine in engines
    ]
    return [weights, unchanged, *means]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*TOLERANCE, "Adafactor"])
def test_training_continues_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    for found in pair.run(_resumed, name, str(tmp_path), ("ours", "ours")):
        assert found == {}


def test_states_belong_to_names_in_any_order(tmp_path: Path) -> None:
    for found in pair.run(_resumed, "AdamW", str(tmp_path), ("ours", "ours"), True):
        assert found == {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "sides"),
    list(zip([*TOLERANCE, "Adafactor"], cycle(WAYS), strict=False)),
)
def test_torchs_class_and_ours_exchange_checkpoints(
    name: str, sides: tuple[str, str], tmp_path: Path
) -> None:
    """Each class is tested in one direction; parity/test_checkpoints.py tests both on one rank."""
    for found in pair.run(_resumed, name, str(tmp_path), sides):
        assert found == {}


def test_an_option_that_torchs_class_lacks_needs_a_planner(tmp_path: Path) -> None:
    assert pair.run(_missing_option, str(tmp_path)) == [True, True]


@pytest.mark.parametrize("form", ["flat", "whole"])
@pytest.mark.parametrize("name", ["Adagrad", "AdamW", "NAdam", "Rprop", "SGD"])
def test_flat_and_whole_states_are_loaded(name: str, form: str, tmp_path: Path) -> None:
    for found in pair.run(_exchanged, name, form, str(tmp_path)):
        assert found == {}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", [*TOLERANCE, "Adafactor"])
def test_asking_for_the_state_changes_nothing(name: str, ranks: int) -> None:
    for found in pair.run(_asked_before_a_step, name, ranks):
        assert found == {}


def test_a_declared_dtype_survives(tmp_path: Path) -> None:
    spec = tmp_path / "precise.py"
    spec.write_text(SPEC)
    for weights, unchanged, saved, loaded in pair.run(_declared, str(spec), str(tmp_path / "dcp")):
        assert all(map(torch.equal, weights, unchanged))
        assert {mean.dtype for mean in loaded} == {torch.float32}
        assert all(map(torch.equal, saved, loaded))
