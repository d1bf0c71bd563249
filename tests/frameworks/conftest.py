"""Configure tests that need other frameworks; `make test-frameworks` installs and runs them."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings of optgen errors again; frameworks warn of many things."""
    config.addinivalue_line("filterwarnings", "ignore")
    config.addinivalue_line("filterwarnings", r"error:::optgen\..*")
