"""Check states of 8 bits: their options, and the rules that have them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from optgen.contract.states import QUANTIZED
from optgen.ir.algorithm import QUANTIZED_BLOCKS, QUANTIZED_MAPS, Algorithm
from optgen.spec.literals import Option, one_of
from optgen.spec.source import Source

QUANTIZED_OPTIONS = {
    "block": Option(
        lambda v: type(v) is int and v in QUANTIZED_BLOCKS,
        f"one of {', '.join(map(str, QUANTIZED_BLOCKS))}",
    ),
    "map": one_of(*QUANTIZED_MAPS),
    "min_elements": Option(lambda v: type(v) is int and v >= 0, "a whole number of at least 0"),
}


def check_quantized_options(source: Source, node: ast.Call, options: Mapping[str, Any]) -> None:
    """Check that only a state of 8 bits has such options, and that it has the parameter's shape."""
    if options.get("dtype") != QUANTIZED:
        for option in node.keywords:
            if option.arg in QUANTIZED_OPTIONS:
                hint = f'add dtype="{QUANTIZED}", or remove `{option.arg}`'
                source.error(option.value, f"`{option.arg}` is for a state of 8 bits", hint)
    elif options.get("shape", "like") != "like":
        message = f'dtype="{QUANTIZED}" is for a state of the parameter\'s shape'
        source.error(
            node,
            message,
            "remove dtype: a state of another shape is small compared with the parameter",
        )


def check_quantized_rule(source: Source, algorithm: Algorithm) -> None:
    """Check that a rule with states of 8 bits takes no sparse gradients: rows share its blocks."""
    for state in algorithm.states:
        if state.dtype == QUANTIZED and algorithm.gradient != "dense":
            message = f"`{state.symbol}` has 8 bits, in a rule for sparse gradients"
            hint = (
                f'leave gradient="{algorithm.gradient}" out: rows do not have blocks of their own'
            )
            source.error_at(state.place, message, hint)
