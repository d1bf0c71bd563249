"""Test the streams that a step reads and writes according to its plan."""

from __future__ import annotations

import pytest
import torch
from spec_files import spec_file

from optgen.bench.memory_traffic import Access, Traffic
from optgen.cli.plan_traffic import traffic, traffic_of
from optgen.spec.read_spec import read_spec


def keys(traffic: Traffic, group: dict[str, object]) -> list[tuple[list[str], list[str]]]:
    """Return (keys that are stored, keys that are only read) for each trip."""
    trips = list(traffic.accesses_by_sweep(group))
    return [
        ([t.key for t in trip if t.stored], [t.key for t in trip if not t.stored]) for trip in trips
    ]


def test_an_elementwise_rule_has_one_trip() -> None:
    (found,) = traffic("AdamW") or ()
    states = ["exp_avg", "exp_avg_sq"]

    assert keys(found, {"amsgrad": False}) == [(["param", *states], ["grad"])]
    assert keys(found, {"amsgrad": True}) == [(["param", *states, "max_exp_avg_sq"], ["grad"])]


@pytest.mark.parametrize(("momentum", "states"), [(0, []), (0.9, ["momentum_buffer"])])
def test_a_flag_adds_a_stream(momentum: float, states: list[str]) -> None:
    (found,) = traffic("SGD") or ()

    assert keys(found, {"momentum": momentum}) == [(["param", *states], ["grad"])]


def test_a_rule_with_rows_and_columns_has_a_trip_for_each_phase() -> None:
    """The first trip sums, the second updates the factors, and two read factors and gradient."""
    factored, plain = traffic("Adafactor") or ()

    factors = ["row_factor", "col_var"]
    assert keys(factored, {}) == [
        ([], ["param", "grad"]),
        (["row_var", "col_var"], []),
        ([], ["grad", *factors]),
        (["param"], ["grad", *factors]),
    ]
    assert keys(plain, {}) == [
        ([], ["param", "grad", "variance"]),
        (["param", "variance"], ["grad"]),
    ]
    assert factored.applies_to(torch.empty(2, 2))
    assert not factored.applies_to(torch.empty(2))


def test_lamb_stores_its_moments_in_the_second_trip() -> None:
    """Both trips compute the moments, and only the second stores them."""
    (algorithm,) = read_spec(spec_file("lamb"))
    (found,) = traffic_of(algorithm) or ()

    assert keys(found, {}) == [
        ([], ["param", "grad", "exp_avg", "exp_avg_sq"]),
        (["param", "exp_avg", "exp_avg_sq"], ["grad"]),
    ]


def test_a_rule_that_multiplies_matrices_has_no_traffic() -> None:
    assert traffic("Muon") is None


def test_rows_and_columns_of_a_convolution() -> None:
    """Rows and columns of 1×1 convolutions have one number for each weight."""
    row, column = (Access("", shape=shape) for shape in ("row", "col"))

    weights = torch.empty(8, 4, 1, 1)
    assert row.shape_for(weights) == column.shape_for(weights) == [8, 4, 1, 1]
    assert row.shape_for(torch.empty(3, 5)) == [3, 1]
    assert column.shape_for(torch.empty(3, 5)) == [1, 5]
