"""Find the functions of generated for-loop and foreach modules."""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from optgen.runtime.batch.batch import Batch
from optgen.runtime.rule import Rule

Function: TypeAlias = Callable[..., Any]


@cache
def load(package: str, module: str, function: str) -> Function:
    """Import one function of a generated lowering."""
    loaded: Function = getattr(importlib.import_module(f"{package}.{module}"), function)
    return loaded


@cache
def find(package: str, module: str, function: str) -> Function | None:
    """Import one function of a generated lowering; return None if there is no such function."""
    has_function = hasattr(importlib.import_module(f"{package}.{module}"), function)
    return load(package, module, function) if has_function else None


def variant_name(function: str, rule: Rule, batch: Batch) -> str:
    """Return the name of a function's variant for the shapes of a batch.

    If a rule depends on facts, its generated modules have a variant for each set of answers.
    """
    facts_and_answers = zip(rule.facts, batch.dispatch_key.facts, strict=True)
    return "_".join(
        [function, *(fact if holds else f"not_{fact}" for fact, holds in facts_and_answers)]
    )
