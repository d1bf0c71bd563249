"""Test that faults in kernels are found: each test changes instructions of compiled kernels.

A mutant is noticed if the interpreter reports a fault, or if a result has other bits. The tests say
which mutants are not noticed, and why these do no harm.
"""

from __future__ import annotations

import pytest
import torch
from interpreter import outside_interpreter

pytest.importorskip("triton")

from benchmarks.triton_catalogue import GENERATED, classes
from ptx import mutants
from ptx.emulate import Device, emulated
from ptx.mutants import MutantsOfKernels, Mutation, Outcome
from ptx.situations import Situation, trained

pytestmark = outside_interpreter

ALONE = "tl.debug_barrier()"
"""Before an atomic addition. Where one program finishes a matrix alone, it has stored nothing."""
OWN = "tl.debug_barrier()  # "
"""Between loops, or between loads and stores. In most tiles, threads read what they store."""
FIRST_OF_SUM = "standard.py"
"""Triton begins a sum with a barrier, which another barrier may precede."""


def outcomes(name: str, mutation: Mutation, *kernels: str) -> list[Outcome]:
    """Return the outcomes of all executed mutants of kernels, of a step in float32."""
    mutated = MutantsOfKernels(mutation, kernels)
    with emulated(Device(3, mutated.run)):
        trained(classes()[name], Situation(torch.float32), "fused_triton")
    found = [outcome for kernel in kernels for outcome in mutated.outcomes[kernel]]
    return [outcome for outcome in found if outcome.is_executed]


def line_of(outcome: Outcome) -> str:
    """Return the line of our code from which an instruction comes, or the name of Triton's file."""
    file, line = outcome.instruction.source.split(":")[:2]
    folders = (GENERATED / "adafactor", GENERATED.parent / "optgen" / "runtime" / "fused_triton")
    for path in (folder / file for folder in folders):
        if path.exists():
            return path.read_text(encoding="utf-8").splitlines()[int(line) - 1].strip()
    return file


def test_missing_barriers_are_found_where_threads_need_them() -> None:
    found = outcomes("Adafactor", mutants.without_barrier, "adafactor_factored_finish1")
    unnoticed = [line_of(outcome) for outcome in found if not outcome.is_noticed]
    assert len(found) - len(unnoticed) >= 20
    assert all(line == ALONE or line.startswith((OWN, FIRST_OF_SUM)) for line in unnoticed)
    assert unnoticed.count(FIRST_OF_SUM) <= 2
    races = [outcome.fault for outcome in found if "race" in outcome.fault]
    assert any("of shared memory" in race for race in races)
    assert any("of tensor" in race for race in races)  # loads of a state before its store


@pytest.mark.parametrize("mutation", [mutants.weakened, mutants.narrowed])
def test_atomics_that_order_nothing_are_found_where_programs_share_a_matrix(
    mutation: Mutation,
) -> None:
    """Two of the three tile shapes have matrices that one program finishes alone."""
    found = outcomes("Adafactor", mutation, "adafactor_factored_finish1")
    noticed = [outcome for outcome in found if outcome.is_noticed]
    assert (len(found), len(noticed)) == (3, 1)
    assert "no release and acquire" in noticed[0].fault


def test_missing_masks_are_found() -> None:
    """Only in the scalar program may all threads store: they store the same number."""
    found = outcomes("Adam", mutants.without_guard, "adam_step", "adam_scalars")
    unnoticed = [outcome for outcome in found if not outcome.is_noticed]
    assert len(found) - len(unnoticed) >= 14
    assert all(outcome.instruction.name.startswith("st.global") for outcome in unnoticed)


def test_wrong_addresses_are_found() -> None:
    found = outcomes("Adam", mutants.shifted, "adam_step", "adam_scalars")
    assert [outcome for outcome in found if not outcome.is_noticed] == []
    assert any("outside of all tensors" in outcome.fault for outcome in found)
