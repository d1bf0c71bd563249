"""Tests that need other people's frameworks: `make test-frameworks` installs and runs them."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Frameworks warn of many things; optgen is to warn of none."""
    config.addinivalue_line("filterwarnings", "ignore")
    config.addinivalue_line("filterwarnings", r"error:::optgen\..*")
