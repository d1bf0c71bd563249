"""Test that a chain of modifiers equals changes by hand, in the order of the stages.

`make compositions` compares all pairs and many chains. These tests compare a few chains.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from composition.stages_by_hand import STAGES, order_by_stage
from fuzz import compare_stages_by_hand
from interpreter import outside_interpreter

from optgen.compositions import list_modifiers

PAGE = Path(__file__).parents[2] / "docs" / "compose.md"
CHAINS = (
    "AdamW accumulate clip_value cautious decoupled_decay lookahead schedule_free",
    "SGD coupled_decay grams update_floor proximal_decay ema_nesterov",
    "NAdam ema trust_ratio cautious_decay clip_norm adaptive_clip clip_tensor_norm",
)


def test_stages_by_hand_have_the_order_of_the_page() -> None:
    table = PAGE.read_text().split("| stage |")[1].split("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    listed = [set(row.split("|")[3].replace("`", "").replace(" ", "").split(",")) for row in rows]
    assert [{*stage.split("|")} for stage in STAGES] == [stage for stage in listed if stage != {""}]
    assert sorted(order_by_stage(list_modifiers())) == list_modifiers()


@outside_interpreter
@pytest.mark.parametrize("case", CHAINS)
def test_a_chain_of_modifiers_equals_the_steps_by_hand(case: str) -> None:
    assert compare_stages_by_hand.difference(case) < compare_stages_by_hand.MAX_DIFFERENCE
