"""Test that `patch_attribute` replaces an attribute only within its context."""

from __future__ import annotations

import math

import pytest

from optgen.verification.patch_attribute import patch_attribute


class Base:
    number = 1


class Derived(Base):
    pass


def test_an_attribute_is_back_after_an_error() -> None:
    before = math.sqrt
    with pytest.raises(ZeroDivisionError), patch_attribute(math, "sqrt", lambda x: x / 0):
        math.sqrt(4)

    assert math.sqrt is before


def test_an_inherited_attribute_is_inherited_again() -> None:
    with patch_attribute(Derived, "number", 2):
        assert (Base.number, Derived.number) == (1, 2)

    assert "number" not in vars(Derived)
    assert Derived.number == 1


def test_an_attribute_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match="numbr"), patch_attribute(Base, "numbr", 2):
        pass
