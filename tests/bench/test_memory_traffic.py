"""Test which streams a step reads and writes, according to its plan."""

from __future__ import annotations

import pytest
import torch
from spec_files import spec_file

from optgen.bench.roofline import Access, Traffic
from optgen.cli.bench import traffic, traffic_of
from optgen.spec.read_spec import read_spec


def keys_by_sweep(traffic: Traffic, group: dict[str, object]) -> list[tuple[list[str], list[str]]]:
    """Return (keys that are stored, keys that are only read) for each sweep."""
    sweeps = list(traffic.accesses_by_sweep(group))
    return [
        ([t.key for t in sweep if t.stored], [t.key for t in sweep if not t.stored])
        for sweep in sweeps
    ]


def test_an_elementwise_rule_has_one_sweep() -> None:
    (found,) = traffic("AdamW") or ()
    states = ["exp_avg", "exp_avg_sq"]

    assert keys_by_sweep(found, {"amsgrad": False}) == [(["param", *states], ["grad"])]
    assert keys_by_sweep(found, {"amsgrad": True}) == [
        (["param", *states, "max_exp_avg_sq"], ["grad"])
    ]


@pytest.mark.parametrize(("momentum", "states"), [(0, []), (0.9, ["momentum_buffer"])])
def test_a_flag_adds_a_stream(momentum: float, states: list[str]) -> None:
    (found,) = traffic("SGD") or ()

    assert keys_by_sweep(found, {"momentum": momentum}) == [(["param", *states], ["grad"])]


def test_a_rule_with_rows_and_columns_has_a_sweep_for_each_phase() -> None:
    """The first sweep sums, the second updates states, and two read factors and the gradient."""
    factored, plain = traffic("Adafactor") or ()

    factors = ["row_factor", "col_var"]
    assert keys_by_sweep(factored, {}) == [
        ([], ["param", "grad"]),
        (["row_var", "col_var"], []),
        ([], ["grad", *factors]),
        (["param"], ["grad", *factors]),
    ]
    assert keys_by_sweep(plain, {}) == [
        ([], ["param", "grad", "variance"]),
        (["param", "variance"], ["grad"]),
    ]
    assert factored.applies_to(torch.empty(2, 2), {})
    assert not factored.applies_to(torch.empty(2), {})


def test_lamb_stores_its_moments_in_the_second_sweep() -> None:
    """Both sweeps compute the moments, and only the second stores them."""
    (algorithm,) = read_spec(spec_file("lamb"))
    (found,) = traffic_of(algorithm) or ()

    assert keys_by_sweep(found, {}) == [
        ([], ["param", "grad", "exp_avg", "exp_avg_sq"]),
        (["param", "exp_avg", "exp_avg_sq"], ["grad"]),
    ]


def test_a_rule_that_multiplies_matrices_has_no_traffic() -> None:
    assert traffic("Muon") is None


def test_row_and_column_states_of_a_1x1_convolution_have_its_shape() -> None:
    """In a 1×1 convolution a row or column state has one number for each weight."""
    row, column = (Access("", shape=shape) for shape in ("row", "col"))

    weights = torch.empty(8, 4, 1, 1)
    assert row.shape_for(weights) == column.shape_for(weights) == [8, 4, 1, 1]
    assert row.shape_for(torch.empty(3, 5)) == [3, 1]
    assert column.shape_for(torch.empty(3, 5)) == [1, 5]
