"""Configure tests that need other frameworks; `make test-frameworks` installs and runs them."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Turn only optgen's warnings into errors: frameworks emit many warnings."""
    config.addinivalue_line("filterwarnings", "ignore")
    config.addinivalue_line("filterwarnings", r"error:::optgen\..*")
