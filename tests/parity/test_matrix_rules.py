"""Test rules on whole matrices against reference steps, written from the authors' papers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lowerings.papers import KL_SHAMPOO
from spec_files import optimizer_class
from track3.follow import steady_decompositions

from optgen.verification.case import MATRICES, Case
from optgen.verification.compare_with_reference import run_case
from optgen.verification.references import newton_schulz, whole_matrices

CASES = (*whole_matrices.CASES, *newton_schulz.CASES, KL_SHAMPOO)
EAGER = [(case, "foreach") for case in CASES]
"""`make verify` compares the same rules in the for-loop, too."""
FUSED = [
    (case, "fused_cpu")
    for case in CASES
    if case.name in ("normuon", "muon_h", "soap", "adamuon", "muon_clip")
]


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize(("case", "lowering"), [*EAGER, *FUSED], ids=str)
def test_steps_equal_the_reference(case: Case, lowering: str) -> None:
    assert run_case(case, optimizer_class(case.name), lowering).max_error <= case.bound


@pytest.mark.parametrize("lowering", ["forloop", "foreach"])
def test_kl_soap_equals_the_reference_for_tall_and_wide_matrices(lowering: str) -> None:
    (kl_soap,) = (case for case in CASES if case.name == "kl_soap")
    case = replace(kl_soap, shapes=MATRICES)

    with steady_decompositions():
        assert run_case(case, optimizer_class(case.name), lowering).max_error <= case.bound
