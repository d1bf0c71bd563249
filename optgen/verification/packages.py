"""Optimizers of other libraries, which a comparison uses if they are installed.

A package that computes less exactly than in float64 has a wider bound, with the reason beside it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from optgen.verification.case import Case
from optgen.verification.reference import LibraryReference, MakeReference

Construct = Callable[[Any, list[Tensor], Mapping[str, Any]], Optimizer]


@dataclass(frozen=True, eq=False)
class Package:
    """An optimizer of a library, as the reference of a case."""

    distribution: str  # the name that pip knows
    source: str  # the address of its code or its page
    case: Case
    bound_reason: str = ""  # why the bound is wider than usual

    @property
    def version(self) -> str | None:
        """The installed version, or None."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return None


def construct(cls: Any, params: Any, options: Mapping[str, Any]) -> Optimizer:
    """Construct an optimizer from its class, parameters and options."""
    optimizer: Optimizer = cls(params, **options)
    return optimizer


def library_reference(
    class_path: str, options: Mapping[str, Any], make: Construct = construct
) -> MakeReference:
    """Return a function that makes a reference of a class, such as "lion_pytorch:Lion"."""

    def make_reference(initial_params: list[Tensor]) -> LibraryReference:
        module, _, name = class_path.partition(":")
        params = [tensor.clone().requires_grad_() for tensor in initial_params]
        with contextlib.redirect_stdout(io.StringIO()):  # some constructors print advice
            optimizer = make(getattr(import_module(module), name), params, options)
        if hasattr(optimizer, "train"):
            optimizer.train()
        return LibraryReference(optimizer, params)

    return make_reference
