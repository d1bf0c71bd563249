"""Test the arena: a few steps of its transformer, and the records and plots of its losses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from examples.track3.baselines import BASELINES
from examples.track3.drawing import draw, table
from examples.track3.model import Transformer
from examples.track3.results import RESULTS
from examples.track3.saved_runs import SavedRuns
from examples.track3.text import Text
from examples.track3.training import Run, Setup, train

SHORT = Setup(steps=4, batch=4, length=16, every=2)


@pytest.mark.one_case_in(16)
@pytest.mark.parametrize("name", RESULTS)
def test_every_parameter_has_a_group(name: str) -> None:
    model = Transformer(width=8, blocks=1, heads=2)
    optimizers = RESULTS[name].optimizers(model.named_parameters())
    stepped = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    assert len(stepped) == len(set(stepped)) == len(list(model.parameters()))


def test_scaled_initial_weights_have_no_zeros_in_blocks() -> None:
    model = Transformer(width=8, blocks=1, heads=2)
    for scaled in (False, True):
        model.set_initial_weights(scaled)
        zeros = {name for name, p in model.named_parameters() if p.ndim > 1 and not p.any()}
        blocks = {"blocks.0.attn.proj.weight", "blocks.0.mlp.proj.weight"}
        assert zeros == {"proj.weight"} | (set() if scaled else blocks)


def test_the_text_is_split_into_shifted_batches() -> None:
    text = Text.load()
    pieces, following = text.batch(3, 16, torch.Generator().manual_seed(0))

    assert len(text.train) > 5 * len(text.validation) > 50_000
    assert torch.equal(pieces[:, 1:], following[:, :-1])


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("name", ["muon_h", "ema_nesterov"])
def test_a_seed_determines_a_run(name: str) -> None:
    first, again, other = (train(name, RESULTS[name], seed, SHORT) for seed in (0, 0, 1))

    assert first.losses == again.losses != other.losses
    assert first.steps == [0, 2, 4]
    assert first.losses[0] == pytest.approx(math.log(256), abs=1e-3)
    assert first.losses[-1] < first.losses[0]


def test_a_run_that_diverges_has_an_infinite_loss() -> None:
    run = train("tuned_sgd", BASELINES["tuned_sgd"].as_result(1e38, False), 0, SHORT, 1e38)

    assert run.last_loss(SHORT) == math.inf


def test_measurements_are_saved_and_plotted(tmp_path: Path) -> None:
    measured = SavedRuns.load(tmp_path / "measured.json", SHORT)
    tuning_runs = [
        Run("tuned_sgd", -1, lr, False, [0, 4], [5.5, loss], 1.0) for lr, loss in ((1, 3), (2, 4))
    ]
    measured.tuning += [*tuning_runs, Run("tuned_sgd", -1, 3.0, True, [0], [5.5], 1.0)]
    measured.runs += [
        Run("tuned_sgd", 0, 1.0, False, [0, 4], [5.5, 3.0], 1.0),
        Run("muon_h", 0, None, True, [0, 4], [5.5, 2.0], 1.0),
        Run("muon_h", 1, None, True, [0, 4], [5.5, 2.5], 1.0),
    ]
    measured.save()
    read = SavedRuns.load(measured.path, SHORT)
    draw(read, tmp_path / "curves.png")

    assert read == measured
    assert read.best_tuning_run("tuned_sgd").lr == 1
    assert table(read).splitlines()[2:] == [
        "| MuonH (#5) | 2.250 ± 0.354 | 2 | as logged |",
        "| SGD, tuned | 3.000 ± 0.000 | 1 | 1 |",
    ]
    assert (tmp_path / "curves.png").stat().st_size > 10_000

    read.runs.append(Run("muon_h", 2, None, True, [0], [5.5], 1.0))  # this run diverged
    assert table(read).splitlines()[3] == "| MuonH (#5) | inf ± inf | 3 | as logged |"


def test_runs_of_another_setup_are_refused(tmp_path: Path) -> None:
    SavedRuns(tmp_path / "measured.json", SHORT).save()

    with pytest.raises(SystemExit, match="name another file by --out"):
        SavedRuns.load(tmp_path / "measured.json", Setup(steps=5))
