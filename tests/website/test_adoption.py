"""Test the script on each optimizer's page: it runs unchanged."""

from __future__ import annotations

import re

import pytest
import torch

import optgen
from website.adoption import adopted, needs_of, old, script
from website.entries import Entry, entries


def find_entry(name: str) -> Entry:
    """Return the optimizer with the name of a spec."""
    return next(each for each in entries() if each.name == name)


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("entry", entries(), ids=lambda each: each.name)
def test_the_script_runs(entry: Entry, capsys: pytest.CaptureFixture[str]) -> None:
    """The for-loop takes the steps, so that no kernel is built for this test."""
    with optgen.use_lowering("forloop"):
        exec(script(entry), {})

    printed = capsys.readouterr().out.splitlines()
    steps, explained = printed[:20], printed[20:]
    assert all(re.fullmatch(r"step \d+: loss \d+\.\d+", line) for line in steps)
    assert explained
    known = r"group \d: for-loop|torch\.int8$|\w+ gets \d"
    assert all(re.match(known, line) for line in explained)


def test_the_script_of_soap_runs_in_fused_cpp(capsys: pytest.CaptureFixture[str]) -> None:
    exec(script(find_entry("soap")), {})

    assert "group 0: fused C++" in capsys.readouterr().out


def test_the_lines_to_write_can_be_pasted() -> None:
    assert adopted(find_entry("soap")) == (
        "import optgen\n\noptimizer = optgen.optim.SOAP(model.parameters(), lr=3e-3)"
    )
    assert old(find_entry("soap")) == "torch.optim.AdamW(model.parameters(), lr=1e-3)"
    assert old(find_entry("rmsprop")).startswith("torch.optim.RMSprop(")
    assert 'optimizer = create_optimizer(model, "normuon", lr=' in adopted(find_entry("normuon"))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    table = torch.nn.Embedding(4, 2, sparse=True)
    for entry in entries():
        needs = needs_of(entry)
        names = {"model": table if needs.embeddings_only or needs.sparse_only else model}
        exec(adopted(entry), names)
        assert isinstance(names["optimizer"], torch.optim.Optimizer), entry.name


def test_needs_are_those_of_the_rule() -> None:
    assert needs_of(find_entry("muon")).matrices_only
    assert needs_of(find_entry("sparse_adam")).sparse_only
    assert needs_of(find_entry("sophia")).inputs == ("hessian",)
    assert needs_of(find_entry("schedule_free_sgd")).has_modes
    assert not needs_of(find_entry("soap")).matrices_only


def test_a_state_of_8_bits_has_8_bits_in_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    with optgen.use_lowering("forloop"):
        exec(script(find_entry("adamw_8bit")), {})

    assert "torch.int8" in capsys.readouterr().out.splitlines()


def test_a_first_step_that_moves_nothing_is_explained() -> None:
    assert "# the first step only finds the bases, so steps 0 and 1" in script(find_entry("soap"))
    assert "optimizer.step()  # the first step only finds the bases\n" in script(
        find_entry("kl_soap")
    )
    assert "first step" not in script(find_entry("shampoo"))
