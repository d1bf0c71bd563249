"""Elementwise functions that are not in the catalogue, and helpers that generate their code."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

from optgen.emit import render_all
from optgen.ir.algorithm import Algorithm
from optgen.spec import Spec
from optgen.spec.read_spec import read_spec

SPEC_TEXT = '''
from optgen.spec import elementwise, flag, hyper, maximum, sqrt, where


@elementwise
def trapezoid(low, high, area, /, *, width=hyper(1, gt=0)):
    """Two lists are only read. They come before the list that is written."""
    area = area + width * (low + high) / 2


@elementwise
def look_ahead(slow, fast, momentum, /, *, reach=hyper(0.5, ge=0, le=1), clear=flag(False)):
    """Two of three lists are written, and a flag chooses a branch."""
    slow = slow + reach * (fast - slow)
    if clear:
        momentum = 0 * momentum
    else:
        momentum = maximum(momentum, slow)


@elementwise
def sphere(p, s, q, z, /, *, radius=hyper(None, optional=True), weights=hyper((0.5, 0.25))):
    """Four lists with names of one letter, a number that may be None, and a tuple."""
    a, b = weights
    root = sqrt(q * q + s * s + 1)
    if radius is not None:
        root = where(root > radius, root, radius)
    z = a * z + b * p / root
    p = p - z * s


@elementwise
def copy_down(low, high, /):
    """There are no hyperparameters."""
    high = low
'''
ALGORITHMS = {a.name: a for a in read_spec(Spec("made", SPEC_TEXT, "made.py", 1))}
CASES = [
    ("copy_down", {}),
    ("trapezoid", {"width": 0.25}),
    ("look_ahead", {"reach": 0.9}),
    ("look_ahead", {"clear": True}),
    ("sphere", {}),
    ("sphere", {"radius": 1.5, "weights": (0.9, -2.0)}),
]
PACKAGE_NUMBERS = itertools.count()


def generate_functions(folder: Path) -> dict[str, Callable[..., None]]:
    """Write the generated functions to a package in a folder, import them, and return them."""
    package = f"lists_{next(PACKAGE_NUMBERS)}"
    for algorithm in ALGORITHMS.values():
        for name, text in render_all(algorithm, None).items():
            path = folder / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        modules = {name: importlib.import_module(f"{package}.{name}") for name in ALGORITHMS}
    finally:
        sys.path.remove(str(folder))
    return {name: getattr(module, name) for name, module in modules.items()}


def hyper_values(algorithm: Algorithm, given_values: dict[str, object]) -> dict[str, object]:
    """Return every hyperparameter's value: the given one, or its default."""
    return {h.name: h.default for h in algorithm.hypers} | given_values
