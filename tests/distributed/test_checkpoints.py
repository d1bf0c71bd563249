"""Test torch.distributed.checkpoint: a run saved on one or two ranks continues on one or two."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import models, pair
from distributed.cases import ELEMENTWISE
from parity.cases import CASE_OF_CLASS, CASE_OF_DENSE_CLASS
from torch import distributed, nn
from torch.optim import Optimizer

import optgen
import optgen.optim

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="no torch.distributed")

DIRECTIONS = (("theirs", "ours"), ("ours", "theirs"))
"""The class that saves, and the class that loads."""
ONE_RANK_ONLY = ("Adafactor", "Rprop")
"""Names of torch's classes that work only on one rank."""
SPEC = '''
from optgen.spec import hyper, optimizer, state

@optimizer(paper="https://example.org")
def Precise(p, g, t, /, m=state("mean", dtype="float32"), *, lr=hyper(0.1), decay=hyper(0.5)):
    """A mean in single precision, and a decay that no learning rate scales."""
    m = m + (g - m) / t
    p = p - lr * m - decay * p
'''


class Engine:
    """A network on one rank or on two, with an optimizer of ours or of torch's."""

    def __init__(self, rank: int, ranks: int, make_optimizer: Any, reverse: bool = False) -> None:
        from torch.distributed.fsdp import fully_shard

        self.is_alone, self.rank = ranks == 1, rank
        self.network: nn.Module = models.model()
        if not self.is_alone:
            mesh = distributed.init_device_mesh("cpu", (2,))
            for layer in list(self.network)[::2]:  # type: ignore[call-overload]
                fully_shard(layer, mesh=mesh)
            fully_shard(self.network, mesh=mesh)
        params = list(self.network.parameters())
        self.optimizer: Optimizer = make_optimizer(params[::-1] if reverse else params)
        self.takes_part = rank < ranks

    def train(self, start: int = 0) -> None:
        if self.takes_part:
            rank = None if self.is_alone else self.rank
            models.train(self.network, self.optimizer, rank, start)

    def save(self, folder: str) -> None:
        from torch.distributed import checkpoint

        if self.takes_part:
            checkpoint.save(self._state(), checkpoint_id=folder, no_dist=self.is_alone)
        distributed.barrier()

    def load(self, folder: str, planner: Any = None) -> None:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import set_state_dict

        if self.takes_part:
            state = self._state()
            checkpoint.load(state, checkpoint_id=folder, planner=planner, no_dist=self.is_alone)
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


def _differences_after_resuming(
    rank: int, name: str, folder: str, sides: tuple[str, str], reverse: bool = False
) -> dict[str, float]:
    """Return how runs with a checkpoint differ from one without.

    One run saves on 2 ranks and continues on 1, one on 1 and on 2, and one on 2 and on 2. Runs
    for which torch's class does not work on two ranks are left out.
    """
    results = {}
    factories = [getattr(CASE_OF_CLASS[name], side) for side in sides]
    alone = Engine(rank, 1, factories[0])
    models.train(alone.network, alone.optimizer)
    reference = factories[1](alone.network.parameters())
    reference.load_state_dict(alone.optimizer.state_dict())
    models.train(alone.network, reference, start=models.STEPS)
    for saving_ranks, loading_ranks in [(2, 1), (1, 2), (2, 2)]:
        ranks = (saving_ranks, loading_ranks)
        if name in ONE_RANK_ONLY and ("theirs", 2) in zip(sides, ranks, strict=True):
            continue
        path = f"{folder}/{saving_ranks}-{loading_ranks}"
        first = Engine(rank, saving_ranks, factories[0], reverse)
        first.train()
        first.save(path)
        second = Engine(rank, loading_ranks, factories[1])
        second.load(path)
        second.train(models.STEPS)
        if second.takes_part:
            resumed = second.network, second.optimizer
            differing = models.differences(resumed, (alone.network, reference))
            results |= {f"{ranks}: {key}": value for key, value in differing.items()}
    return results


def _load_without_an_option(rank: int, folder: str) -> bool:
    """Load a checkpoint of torch's SGD, which has no `capturable`, into ours with capturable=True.

    Return the option after loading.
    """
    from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner

    factories = (
        lambda params: torch.optim.SGD(params, momentum=0.9),
        lambda params: optgen.optim.SGD(params, momentum=0.9, capturable=True),
    )
    theirs, ours = (Engine(rank, 1, make_optimizer) for make_optimizer in factories)
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


def _differences_after_an_early_read(rank: int, name: str, ranks: int) -> dict[str, float]:
    """Read an optimizer's state before its first step.

    Return how its training differs from a run in which the state is not read.
    """
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    engine, alone = (
        Engine(rank, ranks, CASE_OF_DENSE_CLASS[name].ours),
        Engine(rank, 1, CASE_OF_DENSE_CLASS[name].ours),
    )
    before = [param.detach().clone() for param in engine.network.parameters()]
    saved: Any = get_optimizer_state_dict(engine.network, engine.optimizer)
    for param, value in zip(engine.network.parameters(), before, strict=True):
        assert torch.equal(_local(param), _local(value))
        assert param.grad is None
        assert all(float(v) == 0 for k, v in engine.optimizer.state[param].items() if k == "step")
    lr = alone.optimizer.param_groups[0]["lr"]
    assert saved["param_groups"][0]["lr"] == engine.optimizer.param_groups[0]["lr"] == lr
    engine.train()
    models.train(alone.network, alone.optimizer)
    if not engine.takes_part:
        return {}
    return models.differences((engine.network, engine.optimizer), (alone.network, alone.optimizer))


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _differences_after_loading(rank: int, name: str, form: str, folder: str) -> dict[str, float]:
    """Load states with flat keys from files, or full states from rank 0, and continue.

    Return the differences to a run without loading.
    """
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict

    is_flat = form == "flat"
    save_options, load_options = (
        state_dict.StateDictOptions(
            flatten_optimizer_state_dict=is_flat,
            full_state_dict=not is_flat,
            broadcast_from_rank0=loads and not is_flat,
        )
        for loads in (False, True)
    )
    first, second = (Engine(rank, 2, CASE_OF_CLASS[name].ours) for _ in range(2))
    first.train()
    states: Any = state_dict.get_optimizer_state_dict(
        first.network, first.optimizer, options=save_options
    )
    if is_flat:
        checkpoint.save(states, checkpoint_id=folder)
        states = state_dict.get_optimizer_state_dict(
            second.network, second.optimizer, options=save_options
        )
        checkpoint.load(states, checkpoint_id=folder)
    weights = state_dict.get_model_state_dict(first.network)
    state_dict.set_model_state_dict(second.network, weights)
    to_load = states if is_flat or rank == 0 else {}
    state_dict.set_optimizer_state_dict(
        second.network, second.optimizer, to_load, options=load_options
    )
    alone = Engine(rank, 1, CASE_OF_CLASS[name].ours)
    models.train(alone.network, alone.optimizer)
    alone.optimizer.load_state_dict(alone.optimizer.state_dict())
    models.train(alone.network, alone.optimizer, start=models.STEPS)
    second.train(models.STEPS)
    return models.differences((second.network, second.optimizer), (alone.network, alone.optimizer))


def _states_of_declared_dtype(rank: int, text: str, folder: str) -> list[Any]:
    """Save a float32 state of bfloat16 parameters; load it into an engine that has taken no step.

    Return that engine's weights before and after its state is read; then the states of the saved
    and of the loaded optimizer.
    """
    cls: Any = optgen.load(text)
    engines = []
    for _ in range(2):
        engine = Engine(rank, 2, cls)
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


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("name", [*ELEMENTWISE, "Adafactor"])
def test_training_continues_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    for found in pair.run(_differences_after_resuming, name, str(tmp_path), ("ours", "ours")):
        assert found == {}


def test_states_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    for found in pair.run(
        _differences_after_resuming, "AdamW", str(tmp_path), ("ours", "ours"), True
    ):
        assert found == {}


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize(
    ("name", "sides"),
    list(zip([*ELEMENTWISE, "Adafactor"], cycle(DIRECTIONS), strict=False)),
)
def test_torchs_class_and_ours_exchange_checkpoints(
    name: str, sides: tuple[str, str], tmp_path: Path
) -> None:
    """Each class is tested in one direction; parity/test_checkpoints.py tests both on one rank."""
    for found in pair.run(_differences_after_resuming, name, str(tmp_path), sides):
        assert found == {}


def test_an_option_that_torchs_class_lacks_needs_a_planner(tmp_path: Path) -> None:
    assert pair.run(_load_without_an_option, str(tmp_path)) == [True, True]


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("form", ["flat", "full"])
@pytest.mark.parametrize("name", ["Adagrad", "AdamW", "NAdam", "Rprop", "SGD"])
def test_flat_and_full_states_are_loaded(name: str, form: str, tmp_path: Path) -> None:
    for found in pair.run(_differences_after_loading, name, form, str(tmp_path)):
        assert found == {}


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", [*ELEMENTWISE, "Adafactor"])
def test_reading_the_state_before_a_step_changes_nothing(name: str, ranks: int) -> None:
    for found in pair.run(_differences_after_an_early_read, name, ranks):
        assert found == {}


def test_a_checkpoint_keeps_a_states_declared_dtype(tmp_path: Path) -> None:
    spec = tmp_path / "precise.py"
    spec.write_text(SPEC)
    for weights, unchanged, saved, loaded in pair.run(
        _states_of_declared_dtype, str(spec), str(tmp_path / "dcp")
    ):
        assert all(map(torch.equal, weights, unchanged))
        assert {mean.dtype for mean in loaded} == {torch.float32}
        assert all(map(torch.equal, saved, loaded))
