"""Choose the cases of `make test`, which leaves out what `make test-thorough` runs.

A test with many similar cases is marked `one_case_in(n)`: `make test` runs one case in n. A test
that costs much and shows little more than others is marked `thorough`: `make test` leaves it out.
A test whose cases together take longer than continuous integration has is marked
`one_case_in(n, thorough=m)`: `make test-thorough` runs one case in m.
"""

from __future__ import annotations

import math
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable

import pytest

MARKERS = (
    "one_case_in(n, thorough=1): make test runs one case in n, and pytest --thorough one in "
    "`thorough`",
    "thorough: only pytest --thorough runs it",
)
THOROUGH = "OPTGEN_TEST_THOROUGH"  # the processes that tests start inherit it
_EVERY_CASE = "OPTGEN_TEST_EVERY_CASE"  # and this


def configure(config: pytest.Config) -> None:
    """Register the markers; tell all processes which cases to run."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    for option, variable in (("--thorough", THOROUGH), ("--every-case", _EVERY_CASE)):
        if config.getoption(option):
            os.environ[variable] = "1"


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove the items that this run leaves out."""
    if os.environ.get(_EVERY_CASE) == "1":
        return
    thorough = os.environ.get(THOROUGH) == "1"
    left_out = {item for item in items if item.get_closest_marker("thorough") and not thorough}
    for n, cases in _sampled_tests((item for item in items if item not in left_out), thorough):
        first_left_out = math.ceil(len(cases) / n)
        left_out.update(sorted(cases, key=_name_hash)[first_left_out:])
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def _sampled_tests(
    items: Iterable[pytest.Item], thorough: bool
) -> list[tuple[int, list[pytest.Item]]]:
    """Return the cases of each test that is marked, and the n of which this run takes one."""
    cases: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("one_case_in"):
            (n,) = (marker.kwargs.get("thorough", 1),) if thorough else marker.args
            cases[item.nodeid.partition("[")[0], n].append(item)
    return [(n, cases_of_test) for (_, n), cases_of_test in cases.items()]


def _name_hash(item: pytest.Item) -> int:
    """Return a number that depends on the name only, and is spread evenly over a test's axes."""
    return zlib.crc32(item.nodeid.encode())
