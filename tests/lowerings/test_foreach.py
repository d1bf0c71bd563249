"""Test the code that foreach prints. test_foreach_costs.py tests its calls, traffic and memory."""

from __future__ import annotations

from typing import Any

import pytest
from lowerings.rules import RULES, function_body

from optgen.lowerings.foreach import FOREACH


@pytest.mark.parametrize("name", RULES)
def test_update_is_printed_as_recorded(name: str, golden: Any) -> None:
    golden.check(function_body(RULES[name], FOREACH, "update"))
